//! Entries of directories: short names as DOS had them, and the long ones behind them.

use std::collections::BTreeSet;

use crate::Error;

const SLOT: usize = 32;
/// UTF-16 units of one slot of a long name.
const UNITS: usize = 13;
const NAME_MAX: usize = 255;

const LABEL: u8 = 0x08;
const DIRECTORY: u8 = 0x10;
const ARCHIVE: u8 = 0x20;
const LONG_NAME: u8 = 0x0f;

/// 1980-01-01, the first day that the format knows.
const DATE: u16 = (1 << 5) | 1;

/// Characters of short names besides letters and digits.
const SHORT_EXTRA: &str = "$%'-_@~`!(){}^#&";

/// A file or directory in a directory.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    /// The name as given.
    pub(super) name: &'a str,
    /// Where it begins.
    pub(super) cluster: u32,
    len: u32,
    attributes: u8,
}

impl<'a> Entry<'a> {
    pub(super) fn file(name: &'a str, len: u32) -> Self {
        Self { name, cluster: 0, len, attributes: ARCHIVE }
    }

    pub(super) fn directory(name: &'a str) -> Self {
        Self { name, cluster: 0, len: 0, attributes: DIRECTORY }
    }
}

/// Whether a file can have this name.
pub(super) fn check(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name == "." || name == ".." {
        return Err("it has no name");
    }
    if name.encode_utf16().count() > NAME_MAX {
        return Err("its name is longer than 255 characters");
    }
    if name.chars().any(|c| c.is_control() || "\"*/:<>?\\|".contains(c)) || name.ends_with(['.', ' ']) {
        return Err("its name has characters that FAT does not allow");
    }
    Ok(())
}

/// A label as it is kept.
pub(super) fn label(text: &str) -> Result<[u8; 11], Error> {
    let mut out = [b' '; 11];
    let plain =
        text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_- ".contains(&byte));
    if text.len() > out.len() || !plain {
        let reason = "it has at most 11 capital letters, digits, dashes and underscores";
        return Err(Error::bad(format!("FAT label {text:?}"), reason));
    }
    out[..text.len()].copy_from_slice(text.as_bytes());
    Ok(out)
}

/// The entry of the root directory that repeats the label.
pub(super) fn volume_label(label: [u8; 11]) -> Vec<u8> {
    slot(label, LABEL, 0, 0)
}

/// The entries `.` and `..`.
pub(super) fn dots(own: u32, parent: u32) -> Vec<u8> {
    let mut out = slot(*b".          ", DIRECTORY, own, 0);
    out.extend(slot(*b"..         ", DIRECTORY, parent, 0));
    out
}

/// The bytes of all entries; the number of them depends on the names alone.
pub(super) fn entries(list: &[Entry<'_>]) -> Result<Vec<u8>, &'static str> {
    let mut taken = BTreeSet::new();
    let mut folded = BTreeSet::new();
    for entry in list {
        check(entry.name)?;
        if !folded.insert(entry.name.to_lowercase()) {
            return Err("two names differ in case only");
        }
        if let Some(short) = exact(entry.name) {
            taken.insert(short);
        }
    }
    let mut out = Vec::new();
    for entry in list {
        let short = match exact(entry.name) {
            Some(short) => short,
            None => {
                let short = numbered(entry.name, &taken).ok_or("too many names look alike")?;
                taken.insert(short);
                long(entry.name, short, &mut out);
                short
            }
        };
        out.extend(slot(short, entry.attributes, entry.cluster, entry.len));
    }
    Ok(out)
}

fn is_short(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || SHORT_EXTRA.contains(c)
}

/// A name that needs no long one.
fn exact(name: &str) -> Option<[u8; 11]> {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let fits = (1..=8).contains(&stem.len()) && ending.len() <= 3 && !name.ends_with('.');
    (fits && stem.chars().all(is_short) && ending.chars().all(is_short)).then(|| packed(stem, ending))
}

fn packed(stem: &str, ending: &str) -> [u8; 11] {
    let mut out = [b' '; 11];
    out[..stem.len()].copy_from_slice(stem.as_bytes());
    out[8..8 + ending.len()].copy_from_slice(ending.as_bytes());
    out
}

/// A short name for a long one: its first letters and a number.
fn numbered(name: &str, taken: &BTreeSet<[u8; 11]>) -> Option<[u8; 11]> {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    let plain = |text: &str, max: usize| -> String {
        let upper = text.chars().filter(|c| *c != '.' && *c != ' ').map(|c| c.to_ascii_uppercase());
        upper.map(|c| if is_short(c) { c } else { '_' }).take(max).collect()
    };
    let ending = plain(ending, 3);
    (1..1_000_000_u32).find_map(|number| {
        let tail = format!("~{number}");
        let short = packed(&(plain(stem, 8 - tail.len()) + &tail), &ending);
        (!taken.contains(&short)).then_some(short)
    })
}

/// The slots of a long name, last part first.
fn long(name: &str, short: [u8; 11], out: &mut Vec<u8>) {
    let sum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let units: Vec<u16> = name.encode_utf16().collect();
    let parts = units.chunks(UNITS).enumerate().collect::<Vec<_>>();
    let last = parts.len() - 1;
    for (place, part) in parts.into_iter().rev() {
        let mut padded = [0xffff_u16; UNITS];
        padded[..part.len()].copy_from_slice(part);
        if let Some(end) = padded.get_mut(part.len()) {
            *end = 0;
        }
        let bytes: Vec<u8> = padded.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let mut slot = [0; SLOT];
        slot[0] = (place as u8 + 1) | if place == last { 0x40 } else { 0 };
        slot[1..11].copy_from_slice(&bytes[..10]);
        slot[11] = LONG_NAME;
        slot[13] = sum;
        slot[14..26].copy_from_slice(&bytes[10..22]);
        slot[28..].copy_from_slice(&bytes[22..]);
        out.extend_from_slice(&slot);
    }
}

fn slot(name: [u8; 11], attributes: u8, cluster: u32, len: u32) -> Vec<u8> {
    let mut out = vec![0; SLOT];
    out[..11].copy_from_slice(&name);
    out[11] = attributes;
    for at in [16, 18, 24] {
        out[at..at + 2].copy_from_slice(&DATE.to_le_bytes());
    }
    let cluster = cluster.to_le_bytes();
    out[20..22].copy_from_slice(&cluster[2..]);
    out[26..28].copy_from_slice(&cluster[..2]);
    out[28..].copy_from_slice(&len.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_dos_knew_need_no_long_one() {
        assert_eq!(exact("BOOTX64.EFI"), Some(*b"BOOTX64 EFI"));
        assert_eq!(exact("EFI"), Some(*b"EFI        "));
        for name in ["boot", "A.CONF", "TOOLONGNAME", ".X", "A.B.C"] {
            assert_eq!(exact(name), None, "{name}");
        }
    }

    #[test]
    fn long_names_get_numbers() {
        let taken = BTreeSet::from([*b"TALOS-~1EFI"]);
        assert_eq!(numbered("Talos-v1.12.1.efi", &BTreeSet::new()), Some(*b"TALOS-~1EFI"));
        assert_eq!(numbered("Talos-v1.12.0.efi", &taken), Some(*b"TALOS-~2EFI"));
        assert_eq!(numbered("é x", &BTreeSet::new()), Some(*b"_X~1       "));
    }

    #[test]
    fn bad_names_are_refused() {
        for name in ["", "..", "a/b", "a:b", "a.", "x\n"] {
            assert!(check(name).is_err(), "{name:?}");
        }
        let twice = [Entry::file("a", 0), Entry::file("A", 0)];
        assert_eq!(entries(&twice), Err("two names differ in case only"));
    }
}
