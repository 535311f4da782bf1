//! Watches over a target: panics are caught, and hangs and exhausted memory end the process with the input kept.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// A hang is called one after so many times the time an input may take.
const HANG_FACTOR: u32 = 4;
/// Memory of the whole process above which it is ended before the machine suffers, as a factor of the limit.
const MEMORY_FACTOR: u64 = 4;
/// Time between two looks of the watcher.
const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs something whose panics are not printed.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let was = QUIET.replace(true);
    let result = run();
    QUIET.set(was);
    result
}

/// What the watcher sees of the run.
struct Shared {
    started: Instant,
    /// When the input at hand began, in milliseconds since the start and plus one; 0 between inputs.
    since_ms: AtomicU64,
    finished: AtomicBool,
}

/// Watches over one run of a target.
pub(super) struct Guard {
    shared: Arc<Shared>,
    /// The input at hand, for what cannot be caught: a stack that overflows, an abort, a kill.
    file: Option<File>,
    path: PathBuf,
    time_max: Duration,
    memory_max: u64,
    base: Cell<u64>,
}

impl Guard {
    pub(super) fn start(directory: &Path, time_max: Duration, memory_max: u64) -> Self {
        let path = directory.join(format!("current-{}", std::process::id()));
        let open = || OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        let file = fs::create_dir_all(directory).and_then(|()| open()).ok();
        let shared = Arc::new(Shared {
            started: Instant::now(),
            since_ms: AtomicU64::new(0),
            finished: AtomicBool::new(false),
        });
        let (seen, kept) = (shared.clone(), path.clone());
        let memory_end = resident() + memory_max * MEMORY_FACTOR;
        std::thread::spawn(move || watch(&seen, &kept, time_max * HANG_FACTOR, memory_end));
        Self { shared, file, path, time_max, memory_max, base: Cell::new(0) }
    }

    /// Runs the target on one input; says what went wrong.
    pub(super) fn run(&self, input: &[u8], target: impl FnOnce() -> u64) -> Result<u64, String> {
        if let Some(file) = &self.file {
            let _ = file.set_len(input.len() as u64).and_then(|()| file.write_all_at(input, 0));
        }
        let started = Instant::now();
        let since = started.duration_since(self.shared.started).as_millis() as u64;
        self.shared.since_ms.store(since + 1, Ordering::Relaxed);
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(target));
        self.shared.since_ms.store(0, Ordering::Relaxed);
        let took = started.elapsed();
        match outcome {
            Err(payload) => Err(format!("panicked: {}", message(&*payload))),
            Ok(_) if took > self.time_max => Err(format!("took {took:?}, at most {:?}", self.time_max)),
            Ok(outcome) => Ok(outcome),
        }
    }

    /// Begins to look at the highest memory.
    pub(super) fn memory_begin(&self) {
        // The fifth way to clear is to forget the highest resident size.
        let _ =
            OpenOptions::new().write(true).open("/proc/self/clear_refs").and_then(|mut f| f.write_all(b"5"));
        self.base.set(resident());
    }

    /// True if memory rose by more than the limit since the look began.
    pub(super) fn memory_exceeded(&self) -> bool {
        status("VmHWM:").saturating_sub(self.base.get()) > self.memory_max
    }

    pub(super) fn finish(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.finished.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Ends the process when an input hangs or takes all memory: neither can be stopped from outside otherwise.
fn watch(shared: &Shared, input: &Path, hang: Duration, memory_end: u64) {
    while !shared.finished.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        let since = shared.since_ms.load(Ordering::Relaxed);
        let Some(since) = since.checked_sub(1) else { continue };
        let running = shared.started.elapsed().saturating_sub(Duration::from_millis(since));
        let memory = resident();
        let what = if running > hang {
            format!("hangs, {running:?} by now")
        } else if memory > memory_end {
            format!("takes {memory} bytes of memory")
        } else {
            continue;
        };
        eprintln!("fuzz: the target {what}; its input is {}", input.display());
        std::process::exit(101);
    }
}

fn resident() -> u64 {
    status("VmRSS:")
}

/// A size from the kernel's account of this process, in bytes.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
