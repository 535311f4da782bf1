//! The kernel's records for those who send them away: the kernel's own, or the node's where the kernel is shared.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::io::unix::AsyncFd;

use ichor_ctl_runtime::{KernelLog, KernelRecords};
use ichor_observe::ship::Lines;
use ichor_observe::{LogRing, Start};
use ichor_sys::kmsg::{self, Record};

use crate::api::streams::boot_time;
use crate::reactor;

/// Where records come from.
pub enum NodeKernelLog {
    /// The kernel.
    Kernel,
    /// What the node would have written there: the kernel of a sandbox is the host's.
    Ring(Arc<LogRing>),
}

/// A reader of either.
pub enum Records {
    /// Of the kernel.
    Kernel(kmsg::Reader, AsyncFd<OwnedFd>, Timestamp),
    /// Of the node; records are numbered by this reader.
    Ring(Box<Lines>, u64, Timestamp),
}

impl KernelLog for NodeKernelLog {
    type Reader = Records;

    fn open(&self) -> io::Result<Records> {
        match self {
            Self::Kernel => {
                let reader = kmsg::Reader::open(kmsg::Start::Oldest)?;
                let ready = reactor::readable(&reader)?;
                Ok(Records::Kernel(reader, ready, boot_time()))
            }
            Self::Ring(ring) => {
                Ok(Records::Ring(Box::new(Lines::new(ring.follow(Start::Oldest))), 0, boot_time()))
            }
        }
    }
}

impl KernelRecords for Records {
    async fn next(&mut self) -> io::Result<(Record, Timestamp)> {
        match self {
            Self::Kernel(reader, ready, boot) => loop {
                match reader.try_next()? {
                    Some(record) => {
                        let time = boot.checked_add(record.clock).unwrap_or(*boot);
                        return Ok((record, time));
                    }
                    None => ready.readable().await?.clear_ready(),
                }
            },
            Self::Ring(lines, sequence, boot) => loop {
                let line = lines.next().await.ok_or(io::ErrorKind::UnexpectedEof)?;
                let Some((mut record, time)) = parse(&String::from_utf8_lossy(&line)) else { continue };
                record.sequence = *sequence;
                *sequence += 1;
                record.clock = Duration::try_from(time.duration_since(*boot)).unwrap_or_default();
                return Ok((record, time));
            },
        }
    }
}

/// Reads `user: warning: [<time>]: <text>`.
fn parse(line: &str) -> Option<(Record, Timestamp)> {
    let (facility, rest) = line.split_once(": ")?;
    let (priority, rest) = rest.trim_start().split_once(": [")?;
    let (time, text) = rest.split_once("]: ")?;
    let record = |facility, priority| Record {
        facility,
        priority,
        sequence: 0,
        clock: Duration::ZERO,
        message: text.trim_end_matches('\n').to_owned(),
    };
    let facility = (0..24).find(|number| record(*number, 0).facility_name() == facility)?;
    let priority = (0..8).find(|number| record(0, *number).priority_name() == priority)?;
    Some((record(facility, priority), time.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_of_the_node_become_records() {
        let ring = Arc::new(LogRing::new());
        ring.write(b"user: warning: [2023-11-14T22:13:20Z]: [talos] careful: now\nodd line\n");
        ring.write(b"user:    info: [2023-11-14T22:13:21Z]: [talos] fine\n");
        let mut records = NodeKernelLog::Ring(ring).open().unwrap();
        let (first, time) = records.next().await.unwrap();
        assert_eq!((first.facility, first.priority, first.sequence), (1, 4, 0));
        assert_eq!((first.message.as_str(), time.as_second()), ("[talos] careful: now", 1_700_000_000));
        let (second, _) = records.next().await.unwrap();
        assert_eq!((second.priority, second.sequence), (6, 1));
    }
}
