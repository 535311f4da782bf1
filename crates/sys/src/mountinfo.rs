//! The table of mounts, and how full they are.

use std::io;
use std::path::Path;

/// One line of `/proc/<pid>/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of this mount.
    pub id: u64,
    /// Number of the mount it sits on.
    pub parent: u64,
    /// Device, `major:minor`.
    pub device: String,
    /// What of the filesystem is visible here.
    pub root: String,
    /// Where.
    pub target: String,
    /// Options of the mount.
    pub options: String,
    /// Filesystem type.
    pub kind: String,
    /// Device or name.
    pub source: String,
    /// Options of the filesystem.
    pub super_options: String,
}

/// How full a filesystem is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub size: u64,
    /// Free for anybody.
    pub available: u64,
    /// Free, the reserve for root included.
    pub free: u64,
}

/// The mounts of this process, in the kernel's order.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read_to_string("/proc/self/mountinfo")?))
}

/// Parses the text of `mountinfo`; lines that make no sense are left out.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut head = head.split(' ');
    let mut tail = tail.split(' ');
    Some(Mount {
        id: head.next()?.parse().ok()?,
        parent: head.next()?.parse().ok()?,
        device: head.next()?.to_owned(),
        root: unescape(head.next()?),
        target: unescape(head.next()?),
        options: head.next()?.to_owned(),
        kind: tail.next()?.to_owned(),
        source: unescape(tail.next()?),
        super_options: tail.next().unwrap_or_default().to_owned(),
    })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
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

/// How full the filesystem that holds `path` is.
pub fn usage(path: &Path) -> io::Result<Usage> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Usage {
        size: stat.f_blocks.saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
        free: stat.f_bfree.saturating_mul(stat.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_and_escapes_are_read() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:7 - ext3 /dev/root rw,errors=continue\n\
                    40 36 0:5 / /proc rw - proc proc rw\n\
                    garbage\n";
        expect_test::expect![[r#"
            [
                Mount {
                    id: 36,
                    parent: 35,
                    device: "98:0",
                    root: "/mnt1",
                    target: "/mnt 2",
                    options: "rw,noatime",
                    kind: "ext3",
                    source: "/dev/root",
                    super_options: "rw,errors=continue",
                },
                Mount {
                    id: 40,
                    parent: 36,
                    device: "0:5",
                    root: "/",
                    target: "/proc",
                    options: "rw",
                    kind: "proc",
                    source: "proc",
                    super_options: "rw",
                },
            ]
        "#]]
        .assert_debug_eq(&parse(text));
    }

    #[test]
    fn the_own_table_has_a_root_with_a_size() {
        assert!(mounts().unwrap().iter().any(|mount| mount.target == "/"));
        assert!(usage(Path::new("/")).unwrap().size > 0);
    }
}
