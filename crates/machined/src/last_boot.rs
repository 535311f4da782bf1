//! Why the machine went down the last time: found out once at every boot, told to whoever asks.
//!
//! The record of a boot lies in META where that is a partition, else in a file of the state directory. It says that the
//! machine runs, and when it stops because somebody asked for it, who that was. The answer is kept in memory for the rest
//! of the boot, so that a machined that was restarted still knows it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{info, warn};

use ichor_boot::last_boot::{AskedEnd, BootRecord, Cause, Facts, classify};
use ichor_boot::record::{BOOT_KEY, Record, SLOTS_KEY};
use ichor_boot::slots::BootId;
use ichor_ctl_runtime::Meta;
use ichor_observe::LogManager;
use ichor_sys::pstore;

use crate::node::Paths;
use crate::sequencer::{Sequence, Task};

/// The record, where META is no partition.
const RECORD_FILE: &str = "boot-record";

/// The answer, below the directory for sockets, which is gone after a reboot.
const ANSWER_FILE: &str = "last-boot";

/// The log that holds the kernel's messages of a crash.
const CRASH_LOG: &str = "last-crash";

/// Machines with this have variables of the firmware, which this module keeps records of crashes in.
const FIRMWARE: &str = "/sys/firmware/efi";
const FIRMWARE_STORE: &str = "efi_pstore";

const WATCHDOGS: &str = "/sys/class/watchdog";

/// Why the machine went down, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastBootAnswer {
    /// `asked`, `power-cut`, `panic`, `out-of-memory`, `watchdog`, `failed-slot` or `unknown`.
    pub kind: String,
    /// One line.
    pub text: String,
}

impl LastBootAnswer {
    fn of(cause: &Cause) -> Self {
        let kind = match cause {
            Cause::Unknown => "unknown",
            Cause::Asked(_) => "asked",
            Cause::PowerCut => "power-cut",
            Cause::Panic(_) => "panic",
            Cause::OutOfMemory(_) => "out-of-memory",
            Cause::Watchdog => "watchdog",
            Cause::FailedSlot(..) => "failed-slot",
        };
        Self { kind: kind.to_owned(), text: cause.text() }
    }

    fn encode(&self) -> String {
        format!("{} {}\n", self.kind, self.text.replace('\n', " "))
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, text) = text.trim_end().split_once(' ')?;
        Some(Self { kind: kind.to_owned(), text: text.to_owned() })
    }

    /// Whether the machine went down as it should.
    pub fn is_well(&self) -> bool {
        matches!(self.kind.as_str(), "asked" | "unknown")
    }
}

/// The record of this boot and the answer about the last one. Cheap to clone.
#[derive(Clone)]
pub struct LastBoot {
    meta: Meta,
    record: PathBuf,
    answer: PathBuf,
    ended: Arc<AtomicBool>,
}

impl LastBoot {
    /// Of a node with these directories.
    pub fn new(paths: &Paths, meta: Meta) -> Self {
        Self {
            meta,
            record: paths.state.join(RECORD_FILE),
            answer: paths.run.join(ANSWER_FILE),
            ended: Arc::default(),
        }
    }

    /// Finds out why the machine went down, once in a boot, and notes that it runs. META has been read.
    pub async fn learn(&self, logs: &LogManager, own_kernel: bool) {
        if self.told().is_some() {
            return;
        }
        let this = boot_id(own_kernel);
        let crashes = match own_kernel {
            true => tokio::task::spawn_blocking(take_crashes).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let log = (!crashes.is_empty()).then(|| logs.ring(CRASH_LOG));
        // Oldest first, as it happened.
        crashes.iter().rev().zip(log.iter().cycle()).for_each(|(text, log)| log.write_line(text));
        let slots = self.meta.get(SLOTS_KEY).and_then(|value| String::from_utf8(value).ok());
        let facts = Facts {
            record: self.read().and_then(|text| BootRecord::parse(&text)),
            this,
            crashes,
            watchdog_fired: own_kernel && pstore::watchdog_fired(Path::new(WATCHDOGS)),
            watchdog_armed: false,
            slots: slots.and_then(|text| Record::parse(&text).ok()).map(|record| record.slots),
        };
        let answer = LastBootAnswer::of(&classify(&facts));
        info!(cause = answer.kind, "last boot: {}", answer.text);
        if let Err(error) = ichor_sys::file::replace(&self.answer, answer.encode().as_bytes(), 0o600) {
            warn!(path = %self.answer.display(), %error, "why the machine went down is not kept");
        }
        if let Some(id) = this {
            self.write(BootRecord { id, end: None }).await;
        }
    }

    /// The answer, once it is known.
    pub fn told(&self) -> Option<LastBootAnswer> {
        LastBootAnswer::parse(&std::fs::read_to_string(&self.answer).ok()?)
    }

    /// Notes that the machine is about to end because somebody asked for it. The first word counts.
    pub async fn asked(&self, own_kernel: bool, action: &str, by: &str) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        let Some(id) = boot_id(own_kernel) else { return };
        let end = AskedEnd { action: action.to_owned(), by: by.to_owned() };
        self.write(BootRecord { id, end: Some(end) }).await;
    }

    fn read(&self) -> Option<String> {
        match self.meta.is_on_partition() {
            true => String::from_utf8(self.meta.get(BOOT_KEY)?).ok(),
            false => std::fs::read_to_string(&self.record).ok(),
        }
    }

    async fn write(&self, record: BootRecord) {
        let text = record.encode();
        let written = match self.meta.is_on_partition() {
            true => self.meta.set(BOOT_KEY, text.into_bytes()).await.map_err(|error| error.to_string()),
            false => {
                let path = self.record.clone();
                let write = move || ichor_sys::file::replace(&path, text.as_bytes(), 0o600);
                match tokio::task::spawn_blocking(write).await {
                    Ok(written) => written.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        if let Err(error) = written {
            warn!(error, "the record of this boot is not kept; its end will look like a power cut");
        }
    }
}

/// What ends the machine, if this task of a sequence does: all of a sequence that is there to end it, and of others the
/// step that does.
pub fn action(sequence: Sequence, task: Task) -> Option<&'static str> {
    let ends = match sequence {
        Sequence::Noop | Sequence::Boot | Sequence::Initialize | Sequence::Install => {
            matches!(task, Task::Reboot | Task::Shutdown)
        }
        Sequence::Shutdown
        | Sequence::Upgrade
        | Sequence::StageUpgrade
        | Sequence::MaintenanceUpgrade
        | Sequence::Reset
        | Sequence::Reboot => true,
    };
    ends.then(|| sequence.as_str())
}

/// Who asked, as far as one knows.
pub fn who(actor: &str) -> String {
    match actor {
        "" => "a new configuration, the power button or a signal".to_owned(),
        actor => format!("a client (request {actor})"),
    }
}

/// Reads what the kernel kept and makes room for the next crash. Blocks.
fn take_crashes() -> Vec<String> {
    // No device asks for this module, and without it a panic leaves nothing behind.
    if Path::new(FIRMWARE).is_dir() && !Path::new("/sys/module").join(FIRMWARE_STORE).exists() {
        let folder = Path::new("/usr/lib/modules").join(ichor_sys::host::uname().release);
        if let Err(error) = ichor_sys::module::load_by_name(&folder, FIRMWARE_STORE, "") {
            warn!(module = FIRMWARE_STORE, %error, "the firmware keeps no records of crashes");
        }
    }
    if let Err(error) = pstore::show() {
        warn!(%error, "records of crashes are not mounted");
    }
    let folder = Path::new(pstore::FOLDER);
    let crashes = pstore::read(folder);
    pstore::clear(folder);
    crashes
}

/// This boot of the kernel; in a sandbox, whose kernel is its host's, this start of its first process.
fn boot_id(own_kernel: bool) -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let kernel = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
    match own_kernel {
        true => Some(BootId(kernel)),
        false => Some(BootId(kernel ^ u128::from(ichor_sys::process::read(1).ok()?.start_ticks))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        dir: tempfile::TempDir,
        logs: LogManager,
        last: LastBoot,
    }

    fn bench() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            state: dir.path().join("state"),
            run: dir.path().join("run"),
            ephemeral: dir.path().join("var"),
            containerd: dir.path().join("containerd.sock"),
        };
        std::fs::create_dir_all(&paths.state).unwrap();
        std::fs::create_dir_all(&paths.run).unwrap();
        let (state, _) = ichor_testkit::state();
        let meta = Meta::new(state, paths.state.join("meta"), tokio::runtime::Handle::current());
        Bench { last: LastBoot::new(&paths, meta), logs: LogManager::new(), dir }
    }

    impl Bench {
        /// The machine starts again: what is in memory is gone, and the record is of another boot.
        fn restart(&mut self) {
            std::fs::remove_file(self.dir.path().join("run").join(ANSWER_FILE)).unwrap();
            let path = self.dir.path().join("state").join(RECORD_FILE);
            let mut record = BootRecord::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
            record.id.0 ^= 1;
            std::fs::write(&path, record.encode()).unwrap();
            self.last.ended = Arc::default();
        }

        async fn learned(&self) -> LastBootAnswer {
            self.last.learn(&self.logs, false).await;
            self.last.told().unwrap()
        }
    }

    #[tokio::test]
    async fn an_end_that_was_asked_for_is_told_from_a_power_cut() {
        let mut bench = bench();
        let first = bench.learned().await;
        assert_eq!((first.kind.as_str(), first.is_well()), ("unknown", true));
        bench.last.asked(false, "reboot", &who("7")).await;
        bench.last.asked(false, "shutdown", "somebody later").await;
        bench.restart();
        let asked = bench.learned().await;
        assert_eq!(asked.text, "reboot was asked for by a client (request 7)");
        assert_eq!(bench.learned().await, asked, "a machined that is restarted still knows");
        bench.restart();
        let cut = bench.learned().await;
        assert_eq!((cut.kind.as_str(), cut.is_well()), ("power-cut", false));
    }

    #[test]
    fn answers_come_back() {
        let answer = LastBootAnswer::of(&Cause::Panic("Attempted to kill init!\nx".into()));
        let back = LastBootAnswer::parse(&answer.encode()).unwrap();
        assert_eq!(
            (back.kind.as_str(), back.text.as_str()),
            ("panic", "the kernel panicked: Attempted to kill init! x")
        );
        assert_eq!(LastBootAnswer::parse(""), None);
    }

    #[test]
    fn only_what_ends_the_machine_is_an_end() {
        assert_eq!(action(Sequence::Reboot, Task::StopAllPods), Some("reboot"));
        assert_eq!(action(Sequence::Shutdown, Task::StoreShutdown), Some("shutdown"));
        assert_eq!(action(Sequence::Boot, Task::StartAllServices), None);
        assert_eq!(action(Sequence::Install, Task::Reboot), Some("install"));
    }
}
