//! Fuzzing on a stable toolchain: seeds are changed at random, in ways that know texts and packets, and given to a
//! target; what panics, takes too long or takes too much memory fails the test and leaves its input behind.
//!
//! The crate stands alone so that the lowest layers can use it; `ichor_testkit::fuzz` is the same.
//!
//! There is no instrumentation. In its place a target returns what became of the input, anything that can be hashed:
//! an input with an outcome never seen before joins the corpus and is changed further. A good outcome is the shape of
//! an error ([`shape`]) or a few counts of what was read.
//!
//! ```
//! use ichor_fuzz::{Target, shape};
//!
//! // In `tests/fuzz.rs` of a crate; the name is also that of the directory for what went wrong.
//! Target::text("numbers").seeds(["1", "-20", "+3e4"]).words(["0x", "_"]).rounds(2_000).run(|input| {
//!     let text = String::from_utf8_lossy(input);
//!     match text.parse::<f64>() {
//!         Ok(number) => number.is_sign_negative().to_string(),
//!         Err(error) => shape(&error.to_string()),
//!     }
//! });
//! ```
//!
//! A run of `cargo test` draws the same inputs every time and is short. `make fuzz` sets the environment:
//!
//! | Variable | Meaning |
//! |---|---|
//! | `ICHOR_FUZZ_SEED` | another sequence of inputs |
//! | `ICHOR_FUZZ_SECONDS` | how long each target runs, instead of a number of rounds |
//! | `ICHOR_FUZZ_REPLAY` | the path of one input; only that is tried |
//! | `ICHOR_FUZZ_DIR` | where inputs that failed are kept; a directory of the system's for temporary files otherwise |
//!
//! Inputs that failed once belong into a directory of the crate, which [`Target::corpus`] reads: they are tried first
//! in every run.

mod guard;
mod mutate;
mod random;

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use random::Random;

use guard::Guard;
use mutate::{Flavour, Mutator};

/// Inputs that are remembered at most; later ones push out older ones at random.
const CORPUS_MAX: usize = 2048;
/// Attempts to make a failing input smaller.
const SHRINK_ATTEMPTS: usize = 2000;
/// Time to make a failing input smaller.
const SHRINK_TIME: Duration = Duration::from_secs(10);
/// Inputs between two looks at memory.
const BATCH: usize = 64;

/// Makes an input of its own, for targets whose inputs have a structure that changes at random seldom keep.
type Generator<'a> = Box<dyn FnMut(&mut Random) -> Vec<u8> + 'a>;

/// What is fuzzed, with what, and for how long.
pub struct Target<'a> {
    name: &'a str,
    flavour: Flavour,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
    generator: Option<Generator<'a>>,
    rounds: u64,
    len_max: usize,
    time_max: Duration,
    memory_max: u64,
}

impl<'a> Target<'a> {
    /// A target that reads text: inputs are changed by lines, words and numbers, and sometimes by bytes.
    pub fn text(name: &'a str) -> Self {
        Self::new(name, Flavour::Text)
    }

    /// A target that reads packets: inputs are changed by bytes, lengths and chunks.
    pub fn binary(name: &'a str) -> Self {
        Self::new(name, Flavour::Binary)
    }

    fn new(name: &'a str, flavour: Flavour) -> Self {
        Self {
            name,
            flavour,
            seeds: Vec::new(),
            words: Vec::new(),
            generator: None,
            rounds: 20_000,
            len_max: 16 << 10,
            time_max: Duration::from_secs(5),
            memory_max: 256 << 20,
        }
    }

    /// Inputs to begin with; at least one that is good in every respect makes the rest much better.
    pub fn seeds<T: AsRef<[u8]>>(mut self, seeds: impl IntoIterator<Item = T>) -> Self {
        self.seeds.extend(seeds.into_iter().map(|seed| seed.as_ref().to_vec()));
        self
    }

    /// Every file below a directory as a seed, in the order of their paths; a directory that is not there is empty.
    pub fn corpus(mut self, directory: impl AsRef<Path>) -> Self {
        let mut files = Vec::new();
        collect(directory.as_ref(), &mut files);
        files.sort();
        self.seeds.extend(files.iter().filter_map(|file| fs::read(file).ok()));
        self
    }

    /// Words that mean something to the target; they are put in at random.
    pub fn words<T: AsRef<[u8]>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_vec()));
        self
    }

    /// Makes every second input from nothing, and changes half of those further.
    pub fn generator(mut self, generator: impl FnMut(&mut Random) -> Vec<u8> + 'a) -> Self {
        self.generator = Some(Box::new(generator));
        self
    }

    /// Inputs of a short run; 20 000 unless told. Choose it so that a run takes a second or two unoptimised.
    pub fn rounds(mut self, rounds: u64) -> Self {
        self.rounds = rounds;
        self
    }

    /// Bytes an input grows to at most; 16 KiB unless told.
    pub fn len_max(mut self, len_max: usize) -> Self {
        self.len_max = len_max;
        self
    }

    /// Time one input may take, on a busy machine without optimisation; 5 s unless told.
    pub fn time_max(mut self, time_max: Duration) -> Self {
        self.time_max = time_max;
        self
    }

    /// Memory one input may take, in bytes; 256 MiB unless told, for other tests run in the same process.
    pub fn memory_max(mut self, memory_max: u64) -> Self {
        self.memory_max = memory_max;
        self
    }

    /// Runs the target. Returns false when it was for a single input (`ICHOR_FUZZ_REPLAY`), where expectations of how
    /// many were good make no sense.
    ///
    /// # Panics
    ///
    /// When an input made the target panic, or took too long or too much memory. The message names the file that
    /// holds the input and how to try it again. An input that hangs or exhausts memory ends the process.
    pub fn run<O: Hash>(mut self, mut target: impl FnMut(&[u8]) -> O) -> bool {
        let directory = directory(self.name);
        let guard = Guard::start(&directory, self.time_max, self.memory_max);
        let mut try_one = |input: &[u8]| guard.run(input, || hashed(&target(input)));
        if let Some(path) = std::env::var_os("ICHOR_FUZZ_REPLAY") {
            let input = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if let Err(what) = try_one(&input) {
                panic!("{} on {}", what, path.display());
            }
            return false;
        }
        let seed = setting("ICHOR_FUZZ_SEED").unwrap_or(1);
        let end = setting("ICHOR_FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut random = Random::new(seed ^ hashed(self.name));
        let mut corpus = Corpus::default();
        let seeds = std::mem::take(&mut self.seeds);
        let mut mutator = Mutator::new(self.flavour, std::mem::take(&mut self.words), self.len_max);
        let mut batch: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
        guard.memory_begin();
        let mut round = 0;
        loop {
            let planned = seeds.len() as u64 + self.rounds;
            if end.map_or(round >= planned, |end| round >= seeds.len() as u64 && Instant::now() >= end) {
                break;
            }
            let input = match seeds.get(round as usize) {
                Some(seed) => seed.clone(),
                None => next(&mut self.generator, &corpus, &seeds, &mut mutator, &mut random),
            };
            round += 1;
            match try_one(&input) {
                Ok(outcome) => corpus.add(&input, outcome, &mut random),
                Err(what) => {
                    let small = shrink(&input, &mut try_one);
                    fail(self.name, &directory, &small, &format!("{what}, seed {seed}, round {round}"));
                }
            }
            batch.push(input);
            if batch.len() == BATCH {
                if guard.memory_exceeded() {
                    // One of the batch, or another test of the process: only an input that does it alone counts.
                    for input in &batch {
                        guard.memory_begin();
                        let _ = try_one(input);
                        if guard.memory_exceeded() {
                            let what = format!("more than {} bytes of memory", self.memory_max);
                            fail(self.name, &directory, input, &format!("{what}, seed {seed}"));
                        }
                    }
                }
                batch.clear();
                guard.memory_begin();
            }
        }
        guard.finish();
        println!("fuzz {}: {round} inputs, {} outcomes, seed {seed}", self.name, corpus.outcomes.len());
        true
    }
}

/// The next input: made from nothing, or one of the corpus changed.
fn next(
    generator: &mut Option<Generator<'_>>,
    corpus: &Corpus,
    seeds: &[Vec<u8>],
    mutator: &mut Mutator,
    random: &mut Random,
) -> Vec<u8> {
    if let Some(generator) = generator
        && random.chance(2)
    {
        let mut input = generator(random);
        if random.chance(2) {
            mutator.mutate(&mut input, &[], random);
        }
        return input;
    }
    let mut input = corpus.pick(seeds, random).to_vec();
    let other = corpus.pick(seeds, random);
    mutator.mutate(&mut input, other, random);
    input
}

/// Inputs worth changing further, and the outcomes that are known.
#[derive(Default)]
struct Corpus {
    inputs: Vec<Vec<u8>>,
    outcomes: HashSet<u64>,
}

impl Corpus {
    fn add(&mut self, input: &[u8], outcome: u64, random: &mut Random) {
        if !self.outcomes.insert(outcome) {
            return;
        }
        if self.inputs.len() < CORPUS_MAX {
            self.inputs.push(input.to_vec());
        } else {
            let at = random.below(CORPUS_MAX);
            self.inputs[at] = input.to_vec();
        }
    }

    /// Any of them: half of the time a seed, for most of what is found is something refused, and the newest more
    /// often than others.
    fn pick<'c>(&'c self, seeds: &'c [Vec<u8>], random: &mut Random) -> &'c [u8] {
        if self.inputs.is_empty() || (random.chance(2) && !seeds.is_empty()) {
            return if seeds.is_empty() { &[] } else { &seeds[random.below(seeds.len())] };
        }
        let first = if random.chance(4) { self.inputs.len() * 3 / 4 } else { 0 };
        &self.inputs[first + random.below(self.inputs.len() - first)]
    }
}

/// Takes parts out of a failing input for as long as it keeps failing.
fn shrink(input: &[u8], try_one: &mut impl FnMut(&[u8]) -> Result<u64, String>) -> Vec<u8> {
    let mut best = input.to_vec();
    let started = Instant::now();
    let mut attempts = 0;
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.len() {
            if attempts == SHRINK_ATTEMPTS || started.elapsed() > SHRINK_TIME {
                return best;
            }
            attempts += 1;
            let mut smaller = best.clone();
            smaller.drain(at..best.len().min(at + size));
            if guard::quietly(|| try_one(&smaller)).is_err() {
                best = smaller;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    best
}

fn fail(name: &str, directory: &Path, input: &[u8], what: &str) -> ! {
    let path = directory.join(format!("failed-{:016x}", hashed(input)));
    let kept = fs::create_dir_all(directory).and_then(|()| fs::write(&path, input));
    let shown = String::from_utf8_lossy(&input[..input.len().min(400)]).into_owned();
    panic!(
        "fuzz {name}: {what}\ninput ({} bytes): {shown:?}\nkept as {} ({kept:?}); try it alone with \
         ICHOR_FUZZ_REPLAY={}",
        input.len(),
        path.display(),
        path.display()
    );
}

/// Where inputs of a target that failed are kept.
fn directory(name: &str) -> PathBuf {
    let base = std::env::var_os("ICHOR_FUZZ_DIR").map(PathBuf::from);
    base.unwrap_or_else(|| std::env::temp_dir().join("ichor-fuzz")).join(name)
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn hashed<T: Hash + ?Sized>(value: &T) -> u64 {
    // The same in every process, so that a seed means the same inputs.
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A message without what differs from input to input: numbers and what is quoted.
pub fn shape(message: &str) -> String {
    let mut out = String::new();
    let mut quote = None;
    for c in message.chars().take(200) {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'' | '`') => quote = Some(c),
            None if c.is_ascii_digit() => {}
            None => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet_failure(run: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let payload = guard::quietly(|| std::panic::catch_unwind(run)).expect_err("the target fails");
        payload.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn a_panic_behind_several_steps_is_found_and_made_small() {
        let message = quiet_failure(|| {
            Target::text("testkit-steps").seeds(["the quick brown fox"]).words(["get ", "it"]).run(|input| {
                let text = String::from_utf8_lossy(input);
                // Each step is an outcome of its own, and the next one starts from there.
                let steps = ["get ", "get it", "get it!"].map(|step| text.contains(step));
                assert!(!steps[2], "found");
                steps
            });
        });
        assert!(message.contains("input (7 bytes): \"get it!\""), "{message}");
        assert!(message.contains("ICHOR_FUZZ_REPLAY="), "{message}");
    }

    #[test]
    fn a_slow_input_fails() {
        let message = quiet_failure(|| {
            let target = Target::binary("testkit-slow").seeds([[1, 2]]).time_max(Duration::from_millis(20));
            target.run(|_| std::thread::sleep(Duration::from_millis(30)));
        });
        assert!(message.contains("took"), "{message}");
    }

    #[test]
    fn a_greedy_input_fails() {
        let message = quiet_failure(|| {
            let target = Target::binary("testkit-greedy").seeds([[7]]).rounds(200).memory_max(24 << 20);
            target.run(|input| {
                let size = if input.first() == Some(&7) { 48 << 20 } else { 16 };
                std::hint::black_box(vec![1_u8; size]).len()
            });
        });
        assert!(message.contains("bytes of memory"), "{message}");
    }

    #[test]
    fn the_same_seed_draws_the_same_inputs() {
        let draw = || {
            let mut seen = Vec::new();
            Target::binary("testkit-same").seeds([[0_u8; 16]]).rounds(300).run(|input| {
                seen.push(input.to_vec());
                input.len()
            });
            seen
        };
        assert_eq!(draw(), draw());
    }

    #[test]
    fn shapes_leave_out_what_varies() {
        assert_eq!(shape("line 12: bad \"x y\" at 0x1"), "line : bad  at x");
    }
}
