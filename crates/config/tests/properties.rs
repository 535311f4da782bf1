//! Properties that hold for any configuration: reading what was written, and patches from differences.

#[path = "../examples/support/large.rs"]
mod large;
#[path = "../examples/support/random.rs"]
mod random;

use ichor_config::{
    CommentMode, Documents,
    patch::{self, StrategicPatch, derive},
};
use random::Random;

/// Signs that mean something in YAML.
const SIGNS: &[u8] = b" \t\n:-[]{}&*!|>'\"%@`,#";
/// Streams per property; each is small.
const ROUNDS: usize = 300;

/// A number that `make fuzz` sets: a seed of its own, and how many times longer to run.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Documents from a seed; the one of a longer run is added to it.
fn streams(seed: u64) -> impl Iterator<Item = Documents> {
    let mut random = Random::new(seed.wrapping_add(setting("ICHOR_FUZZ_SEED", 0)));
    let rounds = ROUNDS * setting("ICHOR_FUZZ_FACTOR", 1) as usize;
    std::iter::repeat_with(move || random::documents(&mut random)).take(rounds)
}

#[test]
fn what_is_written_reads_back_the_same() {
    for (round, documents) in streams(11).enumerate() {
        let text = documents.encode(CommentMode::None);
        let back =
            Documents::load(text.as_bytes()).unwrap_or_else(|error| panic!("round {round}: {error}\n{text}"));
        assert_eq!(back.encode(CommentMode::None), text, "round {round}");
        let commented = documents.encode(CommentMode::All);
        let back = Documents::load(commented.as_bytes())
            .unwrap_or_else(|error| panic!("round {round}: {}\n{commented}", error.render("x", &commented)));
        let difference = ichor_config::diff::diff_text(&back.encode(CommentMode::None), &text);
        assert!(difference.is_empty(), "round {round}, commented\n{difference}");
    }
}

#[test]
fn a_derived_patch_leads_from_one_to_the_other() {
    let all: Vec<Documents> = streams(12).collect();
    for (round, pair) in all.windows(2).enumerate() {
        let [old, new] = pair else { continue };
        // Deleting the root document is not possible; such pairs have no patch.
        if old.root().is_some() && new.root().is_none() {
            continue;
        }
        let patches = derive(old, new);
        assert!(patches.len() <= 2, "round {round}");
        let mut result = old.clone();
        for text in &patches {
            let patch = StrategicPatch::load(text.as_bytes())
                .unwrap_or_else(|error| panic!("round {round}: {error}\n{text}"));
            result = patch.apply(result).unwrap_or_else(|error| panic!("round {round}: {error}\n{text}"));
        }
        let sorted = |documents: &Documents| {
            let mut texts: Vec<String> =
                documents.iter().map(|document| ichor_yaml::emit(&document.encode())).collect();
            texts.sort();
            texts.join("---\n")
        };
        let difference = ichor_config::diff::diff_text(&sorted(&result), &sorted(new));
        assert!(difference.is_empty(), "round {round}\n{difference}\n{}", patches.join("=====\n"));
        if patches.is_empty() {
            continue;
        }
        // The same as one stream.
        let stream = patches.join("---\n");
        let patch = StrategicPatch::load(stream.as_bytes())
            .unwrap_or_else(|error| panic!("round {round}: {error}\n{stream}"));
        let result =
            patch.apply(old.clone()).unwrap_or_else(|error| panic!("round {round}: {error}\n{stream}"));
        let difference = ichor_config::diff::diff_text(&sorted(&result), &sorted(new));
        assert!(difference.is_empty(), "round {round}, one stream\n{difference}\n{stream}");
    }
}

#[test]
fn no_difference_makes_no_patch() {
    for documents in streams(13) {
        assert!(derive(&documents, &documents).is_empty());
    }
}

#[test]
fn merging_nothing_changes_nothing() {
    for documents in streams(14) {
        let Some(root) = documents.root() else { continue };
        let patch = patch::Patch::load(b"machine: {}\n").unwrap();
        let text = documents.encode(CommentMode::None);
        let merged = patch::apply_to_bytes(text.as_bytes(), &[patch]).unwrap();
        if root.machine.is_some() {
            assert_eq!(String::from_utf8(merged).unwrap(), text);
        }
    }
}

/// Merging documents into others, or why that is not possible.
fn merged(left: &Documents, right: &Documents) -> Option<Documents> {
    StrategicPatch::from_documents(right.iter().cloned()).apply(left.clone()).ok()
}

#[test]
fn merging_is_associative() {
    let all: Vec<Documents> = streams(17).collect();
    let mut compared = 0;
    for (round, triple) in all.windows(3).enumerate() {
        let [a, b, c] = triple else { continue };
        // What cannot be merged one way need not be possible the other way: an error in between ends it.
        let (Some(ab), Some(bc)) = (merged(a, b), merged(b, c)) else { continue };
        let (Some(left), Some(right)) = (merged(&ab, c), merged(a, &bc)) else { continue };
        compared += 1;
        let (left, right) = (left.encode(CommentMode::None), right.encode(CommentMode::None));
        let difference = ichor_config::diff::diff_text(&left, &right);
        assert!(difference.is_empty(), "round {round}\n{difference}");
    }
    assert!(compared > ROUNDS / 2, "{compared} compared");
}

#[test]
fn damaged_texts_are_refused_or_read_but_never_panic() {
    let mut random = Random::new(setting("ICHOR_FUZZ_SEED", 15));
    for documents in streams(16) {
        let mut bytes = documents.encode(CommentMode::None).into_bytes();
        for _ in 0..8 {
            let at = random.below(bytes.len().max(1) as u64) as usize;
            match random.below(4) {
                _ if bytes.is_empty() => bytes.push(b'a'),
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.insert(at, SIGNS[random.below(SIGNS.len() as u64) as usize]),
                2 => {
                    bytes.remove(at);
                }
                // Rarely, since little is left to damage afterwards.
                _ if random.below(8) == 0 => bytes.truncate(at.max(1)),
                _ => bytes.push(b'\n'),
            }
        }
        if let Ok(loaded) = Documents::load(&bytes) {
            let _ = loaded.validate(ichor_config::Mode::METAL);
            let _ = loaded.encode(CommentMode::All);
        }
        let _ =
            patch::Patch::load(&bytes).map(|patch| patch::apply_to_bytes(b"machine: {}\n", &[patch]).is_ok());
    }
}

/// `make bench` holds an optimised build to a millisecond; without optimisation it is some thirty times that.
#[test]
fn a_large_configuration_is_read_checked_and_written_in_no_time() {
    for text in [large::typical(), large::dense()] {
        assert!((28_000..36_000).contains(&text.len()), "{} bytes", text.len());
        let round = || {
            let start = std::time::Instant::now();
            let documents = Documents::load(text.as_bytes()).unwrap();
            documents.validate(ichor_config::Mode::METAL).unwrap();
            assert!(documents.encode(CommentMode::None).len() > 10_000);
            start.elapsed()
        };
        let best = (0..20).map(|_| round()).min().unwrap();
        println!("{best:?}");
        assert!(best < std::time::Duration::from_millis(300), "{best:?}");
    }
}

/// Texts of about a mebibyte that try to cost more than they are worth.
fn hostile() -> Vec<(&'static str, String)> {
    let documents = "---\ndebug: true\n".repeat(60_000);
    let named: String = (0..12_000)
        .map(|i| format!("---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth{i}\nup: true\n"))
        .collect();
    let keys: String = (0..60_000).map(|i| format!("  k{i}: 1\n")).collect();
    let entries: Vec<String> = (0..70_000).map(|i| format!("k{i}: v")).collect();
    vec![
        ("a wide list", format!("machine:\n  pods: [{}]\n", "a,".repeat(500_000))),
        ("brackets", "[".repeat(1 << 20)),
        ("dashes", "- ".repeat(500_000)),
        ("questions", "? ".repeat(500_000)),
        ("one long text", format!("machine:\n  token: \"{}\"\n", "x".repeat(1 << 20))),
        ("unknown keys", format!("machine:\n{keys}")),
        ("a wide mapping", format!("machine: {{sysctls: {{{}}}}}\n", entries.join(","))),
        ("many documents", documents),
        ("many named documents", named),
        ("a comment", "#".repeat(1 << 20)),
        ("a block", format!("machine: |\n{}", " a\n".repeat(330_000))),
    ]
}

#[test]
fn hostile_texts_cost_little() {
    for (name, text) in hostile() {
        let start = std::time::Instant::now();
        match Documents::load(text.as_bytes()) {
            Ok(documents) => {
                let _ =
                    documents.validate(ichor_config::Mode::METAL).map_err(|error| error.render("x", &text));
                let _ = documents.encode(CommentMode::None);
            }
            Err(error) => {
                assert!(error.items.len() <= 102, "{name}: {} problems", error.items.len());
                let _ = (error.render("x", &text), error.to_string());
            }
        }
        // Generous, for builds without optimisation on busy machines; anything quadratic takes minutes.
        assert!(start.elapsed().as_secs() < 20, "{name}: {:?}", start.elapsed());
        if std::env::var_os("SHOW_TIMES").is_some() {
            println!("{name}: {:?}", start.elapsed());
        }
    }
}
