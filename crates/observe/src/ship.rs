//! Sending logs away: one JSON object per line, over TCP or UDP.
//!
//! - [`event`]: what a line says, and its JSON form; pure;
//! - [`outlet`]: one receiver: connects, sends, tries again with growing pauses;
//! - [`drain`]: waiting a little for what is on its way when the machine stops.
//!
//! Nothing is queued twice: the rings are the buffer. A receiver that does not read holds up its own sender only;
//! what the ring gives up meanwhile is lost and counted.

pub mod drain;
pub mod event;
pub mod outlet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use crate::manager::LogManager;
use crate::ring::{LogReader, Start};

pub use drain::Drain;
pub use event::Event;
pub use outlet::{Destination, Outlet, Transport};

/// Lines between the followers of all logs and the one connection; the rest waits in the rings.
const QUEUE: usize = 64;

/// Longer lines are cut into pieces.
const LINE_MAX: usize = 16 * 1024;

/// Bytes taken from a ring at once.
const CHUNK: usize = 16 * 1024;

/// What became of the lines for one receiver.
#[derive(Debug, Default)]
pub struct Tally {
    /// Events that were sent.
    pub sent: AtomicU64,
    /// Bytes of logs that were overwritten before they could be sent.
    pub lost: AtomicU64,
}

/// Sends all logs, those to come included, to one receiver, for as long as it is polled. Begins with what the rings
/// still hold.
pub async fn ship_logs(logs: LogManager, destination: Destination, drain: Drain, tally: Arc<Tally>) {
    let (queue, mut lines) = mpsc::channel(QUEUE);
    // Followers end with this set, which ends with this future.
    let mut followers = JoinSet::new();
    let mut known = 0;
    let mut outlet = Outlet::new(destination, drain);
    loop {
        tokio::select! {
            ids = logs.grown(known) => {
                for id in ids.iter().skip(known) {
                    let Ok(ring) = logs.get(id) else { continue };
                    let reader = Lines::new(ring.follow(Start::Oldest));
                    followers.spawn(follow(id.clone(), reader, queue.clone(), Arc::clone(&tally)));
                }
                known = ids.len();
            }
            line = lines.recv() => {
                // The set holds one end of the queue itself, so there is always a next line.
                let Some(event) = line else { return };
                outlet.deliver(&event).await;
                tally.sent.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

async fn follow(id: String, mut lines: Lines, queue: mpsc::Sender<Event>, tally: Arc<Tally>) {
    while let Some(line) = lines.next().await {
        let lost = lines.take_lost();
        if lost > 0 {
            tally.lost.fetch_add(lost, Ordering::Relaxed);
            warn!(log = id, bytes = lost, "log lines were overwritten before their receiver took them");
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        if text.is_empty() {
            continue;
        }
        let event = Event::parse(text, Timestamp::now()).of_service(&id);
        if queue.send(event).await.is_err() {
            return;
        }
    }
}

/// Cuts a log into lines of a bounded length.
pub struct Lines {
    reader: LogReader,
    partial: Vec<u8>,
    ready: std::collections::VecDeque<Bytes>,
    lost: u64,
}

impl Lines {
    /// The lines of this reader.
    pub fn new(reader: LogReader) -> Self {
        Self { reader, partial: Vec::new(), ready: Default::default(), lost: 0 }
    }

    /// The next line, with its newline if it has one; `None` at the end of the log.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            let Some(bytes) = self.reader.next(CHUNK).await else {
                let rest = std::mem::take(&mut self.partial);
                return (!rest.is_empty()).then(|| rest.into());
            };
            let lost = self.reader.take_lost();
            if lost > 0 {
                // What was begun has no end any more.
                self.lost += lost + self.partial.len() as u64;
                self.partial.clear();
            }
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                self.partial.extend_from_slice(piece);
                if piece.ends_with(b"\n") || self.partial.len() >= LINE_MAX {
                    self.ready.push_back(std::mem::take(&mut self.partial).into());
                }
            }
        }
    }

    /// Bytes lost since this was last asked.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}
