//! The audit log: who called what, when, and what came of it.
//!
//! One JSON object per line in the log `audit`, written at the end of each call (and at the beginning of calls that
//! last), so `logs audit -f` streams it and log shipping ships it. Arguments are never in it; of a few methods the
//! thing that was asked for is, see [`target`]. The first calls of a kind are written one by one; when they come
//! in a flood the rest is counted and told together, so that nobody can wash the log out by calling often.
//!
//! Calls that are written one by one also leave a short line in the logs of the daemons they pass, where people and
//! scripts look for signs of life.
//!
//! A second copy of the last lines is in memory files of the machine: a machined that died finds them there and goes on
//! with them ([`keep`]). They end with the machine.
//!
//! - [`record`]: one line, and the table that counts. No I/O.
//! - [`layer`]: the layer around the services.

pub mod keep;
pub mod layer;
pub mod record;
mod report;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ichor_observe::{LogManager, LogRing};
use jiff::Timestamp;

pub use layer::Audited;
pub use report::Reports;

use keep::Keep;
use record::{Event, Table, What};

/// The id of the log.
pub const LOG: &str = "audit";

/// The logs of the daemons that a call passes: every call, and those that came over the network.
const PASSED: [&str; 2] = ["machined", "apid"];

/// The audit log of a node. Cheap to clone.
#[derive(Clone)]
pub struct Audit {
    inner: Arc<Inner>,
}

struct Inner {
    ring: Arc<LogRing>,
    table: Mutex<Table>,
    keep: Option<Mutex<Keep>>,
    passed: Option<[Arc<LogRing>; 2]>,
}

impl Audit {
    /// The audit log among `logs`.
    pub fn new(logs: &LogManager) -> Self {
        Self::with(logs, None, None)
    }

    /// The same, beginning with what the machined before kept in `folder`.
    pub fn kept(logs: &LogManager, folder: &Path) -> Self {
        let (keep, before) = Keep::open(folder);
        let audit = Self::with(logs, Some(keep), Some(PASSED.map(|id| logs.ring(id))));
        audit.inner.ring.write(&before);
        audit
    }

    fn with(logs: &LogManager, keep: Option<Keep>, passed: Option<[Arc<LogRing>; 2]>) -> Self {
        let ring = logs.ring(LOG);
        let keep = keep.map(Mutex::new);
        Self { inner: Arc::new(Inner { ring, table: Mutex::default(), keep, passed }) }
    }

    fn write(&self, lines: &str) {
        self.inner.ring.write(lines.as_bytes());
        if let Some(keep) = &self.inner.keep {
            keep.lock().unwrap_or_else(PoisonError::into_inner).append(lines.as_bytes());
        }
    }

    /// Writes down what happened, or counts it. Called on a runtime, which the counts are told from later.
    pub fn tell(&self, event: &Event<'_>) {
        let now = Timestamp::now();
        let (line, wake) = self.table().add(event, now);
        if let Some(line) = line {
            self.write(&line);
            self.write_brief(event, now);
        }
        if let Some(after) = wake {
            self.tell_later(after);
        }
    }

    fn write_brief(&self, event: &Event<'_>, now: Timestamp) {
        let Some([machined, apid]) = &self.inner.passed else { return };
        if event.what == What::Handshake {
            return;
        }
        let line = event.brief(now);
        machined.write(line.as_bytes());
        if event.is_remote() {
            apid.write(line.as_bytes());
        }
    }

    /// Tells the counts when their time is over. There is no timer while nothing is counted.
    fn tell_later(&self, after: Duration) {
        let audit = self.clone();
        tokio::spawn(async move {
            let mut next = Some(after);
            while let Some(after) = next {
                tokio::time::sleep(after).await;
                let (lines, again) = audit.table().flush(Timestamp::now());
                audit.write(&lines);
                next = again;
            }
        });
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the extensions of a request where the handler leaves what was asked for.
#[derive(Clone, Default)]
pub struct Target(Arc<OnceLock<String>>);

/// Bytes of a target that are kept.
const TARGET_MAX: usize = 128;

/// Leaves in the audit log what a call is about: a service's id, a path, a resource's name. Never a secret, and
/// never anything whose reader could not also see it otherwise.
pub fn target(extensions: &http::Extensions, text: impl FnOnce() -> String) {
    if let Some(Target(cell)) = extensions.get::<Target>() {
        cell.get_or_init(|| {
            let mut text = text();
            let end = (0..=TARGET_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text
        });
    }
}

impl Target {
    fn get(&self) -> &str {
        self.0.get().map_or("", String::as_str)
    }
}
