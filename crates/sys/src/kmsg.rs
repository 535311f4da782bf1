//! The kernel log: records from `/dev/kmsg`, and lines into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, SeekFrom};

/// The longest line the kernel takes whole; longer ones are cut and end with dots.
pub const LINE_MAX: usize = 976;
/// Longer than any record the kernel hands out.
const RECORD_MAX: usize = 8192;

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// 0 for the kernel itself; the others as in syslog.
    pub facility: u8,
    /// 0 (emergency) to 7 (debug).
    pub priority: u8,
    /// Grows by one with each record.
    pub sequence: u64,
    /// When, on the monotonic clock.
    pub clock: Duration,
    /// What, without the trailing newline and the dictionary lines.
    pub message: String,
}

impl Record {
    /// Parses `<prefix>,<sequence>,<µs>[,<flags>[,…]];<text>`.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let split = raw.iter().position(|byte| *byte == b';')?;
        let head = std::str::from_utf8(&raw[..split]).ok()?;
        let mut fields = head.split(',');
        let prefix: u64 = fields.next()?.parse().ok()?;
        let sequence = fields.next()?.parse().ok()?;
        let clock = fields.next()?.parse().ok()?;
        let text = &raw[split + 1..];
        let end = text.iter().position(|byte| *byte == b'\n');
        Some(Self {
            facility: u8::try_from(prefix >> 3).unwrap_or(u8::MAX),
            priority: (prefix & 7) as u8,
            sequence,
            clock: Duration::from_micros(clock),
            message: unescape(&text[..end.unwrap_or(text.len())]),
        })
    }

    /// Name of the facility, as log viewers write it.
    pub fn facility_name(&self) -> &'static str {
        const NAMES: [&str; 24] = [
            "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
            "ftp", "ntp", "security", "console", "clock", "local0", "local1", "local2", "local3", "local4",
            "local5", "local6", "local7",
        ];
        NAMES.get(usize::from(self.facility)).unwrap_or(&"unknown")
    }

    /// Name of the priority.
    pub fn priority_name(&self) -> &'static str {
        const NAMES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];
        NAMES[usize::from(self.priority & 7)]
    }
}

/// The kernel writes bytes outside ASCII as `\xNN`.
fn unescape(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let byte = (*first == b'\\' && after.first() == Some(&b'x'))
            .then(|| after.get(1..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Where to start reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record the kernel still has.
    Oldest,
    /// After the newest, so that only new ones come.
    End,
}

/// Reads records. Never blocks; readable when there is one more.
#[derive(Debug)]
pub struct Reader(OwnedFd);

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Reader {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl Reader {
    /// Opens the log.
    pub fn open(start: Start) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
        match start {
            Start::Oldest => rustix::fs::seek(&fd, SeekFrom::Start(0))?,
            Start::End => rustix::fs::seek(&fd, SeekFrom::End(0))?,
        };
        Ok(Self(fd))
    }

    /// The next record, `None` when all are read. Records that were overwritten unread are skipped.
    pub fn try_next(&mut self) -> io::Result<Option<Record>> {
        let mut buffer = [0; RECORD_MAX];
        // Bounded: a writer faster than us must not keep us here for ever.
        for _ in 0..1024 {
            match rustix::io::read(&self.0, &mut buffer) {
                Ok(0) => return Ok(None),
                Ok(len) => {
                    if let Some(record) = Record::parse(&buffer[..len]) {
                        return Ok(Some(record));
                    }
                }
                // EPIPE: overwritten while we were away; the next read goes on at the oldest.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

/// Writes lines into the log.
#[derive(Debug)]
pub struct Writer(OwnedFd);

impl Writer {
    /// Opens the log.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open("/dev/kmsg", flags, Mode::empty())?))
    }

    /// Writes each line of `text` as one record with the given priority (0 to 7) and prefix; does not allocate.
    pub fn write(&self, priority: u8, prefix: &str, text: &str) -> io::Result<()> {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut buffer = [0; LINE_MAX + 4];
            let len = format_line(&mut buffer, priority, prefix, line);
            rustix::io::write(&self.0, &buffer[..len])?;
        }
        Ok(())
    }
}

/// `<priority>prefix line`, tabs as blanks, cut to the limit. Returns its length.
fn format_line(buffer: &mut [u8; LINE_MAX + 4], priority: u8, prefix: &str, line: &str) -> usize {
    let head = [b'<', b'0' + (priority & 7), b'>'];
    let text = prefix.bytes().chain(line.bytes());
    let mut len = head.len();
    buffer[..len].copy_from_slice(&head);
    let mut cut = false;
    for byte in text {
        if len == head.len() + LINE_MAX {
            cut = true;
            break;
        }
        buffer[len] = if byte == b'\t' { b' ' } else { byte };
        len += 1;
    }
    if cut {
        buffer[len - 3..len].copy_from_slice(b"...");
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let check = |raw: &str, expect: expect_test::Expect| {
            expect.assert_eq(&format!("{:?}", Record::parse(raw.as_bytes())));
        };
        check(
            "6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n",
            expect_test::expect![[
                r#"Some(Record { facility: 0, priority: 6, sequence: 339, clock: 5.1409s, message: "NET: Registered" })"#
            ]],
        );
        check(
            "30,1,7,c,caller=T1;daemon says \\xc3\\xa4 \\x5c \\xZZ",
            expect_test::expect![[
                r#"Some(Record { facility: 3, priority: 6, sequence: 1, clock: 7µs, message: "daemon says ä \\ \\xZZ" })"#
            ]],
        );
        check("6,1;short", expect_test::expect!["None"]);
        check("no text", expect_test::expect!["None"]);
    }

    #[test]
    fn long_lines_are_cut_and_tabs_are_blanks() {
        let mut buffer = [0; LINE_MAX + 4];
        let len = format_line(&mut buffer, 6, "[talos] ", "a\tb");
        assert_eq!(&buffer[..len], b"<6>[talos] a b");
        let len = format_line(&mut buffer, 3, "", &"x".repeat(LINE_MAX + 1));
        assert_eq!(len, 3 + LINE_MAX);
        assert!(buffer[..len].ends_with(b"xx..."));
        let len = format_line(&mut buffer, 3, "", &"x".repeat(LINE_MAX));
        assert!(buffer[..len].ends_with(b"xxx"));
    }

    #[test]
    fn the_real_log_can_be_read_to_its_end() {
        let Ok(mut reader) = Reader::open(Start::Oldest) else {
            return;
        };
        let mut last = None;
        for _ in 0..100_000 {
            match reader.try_next().unwrap() {
                Some(record) => {
                    assert!(last < Some(record.sequence), "records come in order");
                    last = Some(record.sequence);
                }
                None => return,
            }
        }
        panic!("the log has no end");
    }
}
