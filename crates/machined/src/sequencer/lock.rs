//! One sequence at a time, and who may take over from whom.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::table::Sequence;

/// A takeover is done within this time, or refused.
pub const TAKEOVER_MAX: Duration = Duration::from_secs(60);

/// Another sequence holds the machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// It may not be interrupted.
    #[error("sequence {asked} is locked: sequence {running} is running")]
    Locked {
        /// What was asked for.
        asked: &'static str,
        /// What runs.
        running: &'static str,
    },
    /// It was told to stop and did not.
    #[error("sequence {asked} is locked: sequence {running} did not stop within 60 s")]
    Stuck {
        /// What was asked for.
        asked: &'static str,
        /// What runs.
        running: &'static str,
    },
}

/// Holds the machine for one sequence.
pub struct SequenceLock {
    running: Mutex<Option<Running>>,
    ended: watch::Sender<u64>,
    takeover: Semaphore,
}

struct Running {
    sequence: Sequence,
    cancel: CancellationToken,
    number: u64,
}

impl Default for SequenceLock {
    fn default() -> Self {
        Self::new()
    }
}

impl SequenceLock {
    /// A free machine.
    pub fn new() -> Self {
        Self { running: Mutex::new(None), ended: watch::Sender::new(0), takeover: Semaphore::new(1) }
    }

    /// Takes the machine, from a running sequence if that may be.
    pub async fn acquire(&self, asked: Sequence, force: bool) -> Result<LockGuard<'_>, LockError> {
        let deadline = Instant::now() + TAKEOVER_MAX;
        let stuck = |running: Option<Sequence>| LockError::Stuck {
            asked: asked.as_str(),
            running: running.map_or("unknown", Sequence::as_str),
        };
        let _slot = match timeout_at(deadline, self.takeover.acquire()).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) | Err(_) => return Err(stuck(self.current())),
        };
        let mut ended = self.ended.subscribe();
        if let Some(running) = &*self.lock() {
            if !force && !may_take_over(running.sequence, asked) {
                return Err(LockError::Locked { asked: asked.as_str(), running: running.sequence.as_str() });
            }
            running.cancel.cancel();
        }
        let free = ended.wait_for(|_| self.lock().is_none());
        if timeout_at(deadline, free).await.is_err() {
            return Err(stuck(self.current()));
        }
        let cancel = CancellationToken::new();
        let number = *self.ended.borrow();
        *self.lock() = Some(Running { sequence: asked, cancel: cancel.clone(), number });
        Ok(LockGuard { lock: self, cancel, number })
    }

    /// The sequence that runs now.
    pub fn current(&self) -> Option<Sequence> {
        self.lock().as_ref().map(|running| running.sequence)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The machine, held for one sequence.
pub struct LockGuard<'a> {
    lock: &'a SequenceLock,
    cancel: CancellationToken,
    number: u64,
}

impl LockGuard<'_> {
    /// Cancelled when another sequence takes over.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        let mut running = self.lock.lock();
        if running.as_ref().is_some_and(|running| running.number == self.number) {
            *running = None;
        }
        drop(running);
        self.lock.ended.send_modify(|count| *count += 1);
    }
}

/// Whether `asked` may interrupt `running`.
pub fn may_take_over(running: Sequence, asked: Sequence) -> bool {
    matches!(
        (running, asked),
        (Sequence::Initialize, Sequence::MaintenanceUpgrade)
            | (Sequence::Boot, Sequence::Reboot | Sequence::Reset | Sequence::Upgrade)
            | (Sequence::Reboot | Sequence::Reset, Sequence::Reboot)
    )
}
