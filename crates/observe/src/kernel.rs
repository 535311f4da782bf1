//! Where console lines go: the kernel log, or a stream where the kernel log is not ours to write.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::ring::LogRing;

/// Prefix of every line of ours in the kernel log; tools filter by it.
pub const PREFIX: &str = "[talos] ";

/// The kernel cuts records at 1024 bytes with its own header; this is what is left for text.
pub const LINE_MAX: usize = 976;

/// A place for console lines.
pub trait ConsoleSink: Send + Sync {
    /// Writes one line; `priority` is the syslog level 0 to 7. Failures are swallowed: there is no
    /// better place to report them.
    fn write_line(&self, priority: u8, line: &str);
}

/// The kernel log or a stream.
pub enum KernelSink {
    /// `/dev/kmsg`.
    Kmsg(File),
    /// A console stream; lines carry the prefix but no priority.
    Stream(Mutex<Box<dyn Write + Send>>),
    /// A console stream and a log that keeps what the kernel log would have: for machines whose
    /// kernel log is somebody else's.
    Console(Mutex<Box<dyn Write + Send>>, Arc<LogRing>),
    /// Nowhere.
    Null,
}

impl KernelSink {
    /// Opens the kernel log for writing.
    pub fn kmsg(path: &Path) -> io::Result<Self> {
        OpenOptions::new().write(true).open(path).map(Self::Kmsg)
    }

    /// Lines go to a stream, such as standard error.
    pub fn stream(out: Box<dyn Write + Send>) -> Self {
        Self::Stream(Mutex::new(out))
    }
}

impl KernelSink {
    /// Lines go to a stream and into a log.
    pub fn console(out: Box<dyn Write + Send>, log: Arc<LogRing>) -> Self {
        Self::Console(Mutex::new(out), log)
    }
}

impl ConsoleSink for KernelSink {
    fn write_line(&self, priority: u8, line: &str) {
        match self {
            Self::Kmsg(file) => {
                for text in line.lines() {
                    // One write is one record.
                    let _ = (&*file).write_all(record(priority, text).as_bytes());
                }
            }
            Self::Stream(out) => {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                for text in line.lines() {
                    let _ = out.write_all(format!("{PREFIX}{}\n", shorten(text)).as_bytes());
                }
                let _ = out.flush();
            }
            Self::Console(out, log) => {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                for text in line.lines() {
                    let text = shorten(text);
                    let _ = out.write_all(format!("{PREFIX}{text}\n").as_bytes());
                    log.write(kept(priority, &text, Timestamp::now()).as_bytes());
                }
                let _ = out.flush();
            }
            Self::Null => {}
        }
    }
}

/// The line as a reader of the kernel log would format it.
fn kept(priority: u8, text: &str, now: Timestamp) -> String {
    const NAMES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];
    let name = NAMES[usize::from(priority & 7)];
    format!("user: {name:>7}: [{now}]: {PREFIX}{text}\n")
}

/// A kmsg record: facility user, the priority, our prefix, the text. Without the newline the kernel waits for
/// a continuation and shows the record only when the next one comes.
fn record(priority: u8, text: &str) -> String {
    /// Facility `user`, shifted as the kernel wants it.
    const FACILITY_USER: u8 = 1 << 3;
    format!("<{}>{PREFIX}{}\n", FACILITY_USER | (priority & 7), shorten(text))
}

/// Tabs become spaces and long lines are cut with `...`.
fn shorten(text: &str) -> String {
    let room = LINE_MAX - PREFIX.len();
    let mut line = text.replace('\t', " ");
    if line.len() > room {
        let mut cut = room - 3;
        while !line.is_char_boundary(cut) {
            cut -= 1;
        }
        line.truncate(cut);
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_facility_priority_and_prefix() {
        assert_eq!(record(6, "a\tb"), "<14>[talos] a b\n");
    }

    #[test]
    fn a_kept_line_looks_like_one_of_the_kernel_log() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(kept(4, "careful", now), "user: warning: [2023-11-14T22:13:20Z]: [talos] careful\n");
    }

    #[test]
    fn long_lines_are_cut_on_a_character() {
        let text = "é".repeat(1000);
        let line = record(6, &text);
        assert!(line.len() <= LINE_MAX + 4 && line.ends_with("...\n"), "{}", line.len());
        assert_eq!(shorten("short"), "short");
    }
}
