//! `Boot####`: what the firmware starts, as an `EFI_LOAD_OPTION` with the device path of a file on a GPT partition.

use super::variable::utf16;

const ACTIVE: u32 = 1;
const MEDIA: u8 = 4;
const HARD_DRIVE: u8 = 1;
const FILE_PATH: u8 = 4;
const END: [u8; 4] = [0x7f, 0xff, 4, 0];
const HARD_DRIVE_LEN: usize = 42;
const GPT: u8 = 2;
const GUID_SIGNATURE: u8 = 2;

/// A partition as firmware finds it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HardDrive {
    /// Its number, from one.
    pub number: u32,
    /// Its first block.
    pub start: u64,
    /// Its length in blocks.
    pub len: u64,
    /// Its GUID, in the byte order of the partition table.
    pub guid: [u8; 16],
}

/// An entry of the firmware for a file on a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOption {
    /// What the menu of the firmware shows.
    pub description: String,
    /// The partition.
    pub drive: HardDrive,
    /// The file, with backslashes.
    pub file: String,
}

impl LoadOption {
    /// The value of the variable.
    pub fn encode(&self) -> Vec<u8> {
        let mut path = vec![MEDIA, HARD_DRIVE];
        path.extend_from_slice(&(HARD_DRIVE_LEN as u16).to_le_bytes());
        path.extend_from_slice(&self.drive.number.to_le_bytes());
        path.extend_from_slice(&self.drive.start.to_le_bytes());
        path.extend_from_slice(&self.drive.len.to_le_bytes());
        path.extend_from_slice(&self.drive.guid);
        path.extend_from_slice(&[GPT, GUID_SIGNATURE]);
        let file = utf16(&self.file);
        path.extend_from_slice(&[MEDIA, FILE_PATH]);
        path.extend_from_slice(&u16::try_from(file.len() + 4).unwrap_or(u16::MAX).to_le_bytes());
        path.extend_from_slice(&file);
        path.extend_from_slice(&END);

        let mut value = ACTIVE.to_le_bytes().to_vec();
        value.extend_from_slice(&u16::try_from(path.len()).unwrap_or(u16::MAX).to_le_bytes());
        value.extend_from_slice(&utf16(&self.description));
        value.extend_from_slice(&path);
        value
    }

    /// Reads an entry of this kind; none for any other.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (description, path) = split(value)?;
        let node = path.get(..HARD_DRIVE_LEN)?;
        if node[..4] != [MEDIA, HARD_DRIVE, HARD_DRIVE_LEN as u8, 0] || node[40..] != [GPT, GUID_SIGNATURE] {
            return None;
        }
        let eight = |at: usize| Some(u64::from_le_bytes(node.get(at..at + 8)?.try_into().ok()?));
        let drive = HardDrive {
            number: u32::from_le_bytes(node.get(4..8)?.try_into().ok()?),
            start: eight(8)?,
            len: eight(16)?,
            guid: node.get(24..40)?.try_into().ok()?,
        };
        let rest = &path[HARD_DRIVE_LEN..];
        let head = rest.get(..4)?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if head[..2] != [MEDIA, FILE_PATH] {
            return None;
        }
        let (file, _) = text(rest.get(4..len)?)?;
        Some(Self { description, drive, file })
    }
}

/// What the menu of the firmware shows for an entry of any kind.
pub fn description(value: &[u8]) -> Option<String> {
    split(value).map(|(description, _)| description)
}

/// Which number to write an entry under, and which to delete: the lowest that has this description is used again, the
/// others go; if there is none, the lowest that is free. `entries` are the numbers and values of all `Boot####`.
pub fn choose(entries: &[(u16, Vec<u8>)], wanted: &str) -> Option<(u16, Vec<u16>)> {
    let mut ours: Vec<u16> = entries
        .iter()
        .filter(|(_, value)| description(value).as_deref() == Some(wanted))
        .map(|(number, _)| *number)
        .collect();
    ours.sort_unstable();
    match ours.split_first() {
        Some((first, rest)) => Some((*first, rest.to_vec())),
        None => {
            let free = (0..=u16::MAX).find(|number| entries.iter().all(|(taken, _)| taken != number));
            free.map(|number| (number, Vec::new()))
        }
    }
}

/// The description and the device path.
fn split(value: &[u8]) -> Option<(String, &[u8])> {
    let len = usize::from(u16::from_le_bytes(value.get(4..6)?.try_into().ok()?));
    let (description, rest) = text(&value[6..])?;
    Some((description, rest.get(..len)?))
}

/// A text up to its NUL, and what follows.
fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let end = units.iter().position(|unit| *unit == 0)?;
    Some((String::from_utf16(&units[..end]).ok()?, &bytes[2 * (end + 1)..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option() -> LoadOption {
        let drive = HardDrive { number: 1, start: 2048, len: 4_302_848, guid: *b"0123456789abcdef" };
        LoadOption {
            description: super::super::BOOT_ENTRY.into(),
            drive,
            file: r"\EFI\boot\BOOTX64.efi".into(),
        }
    }

    #[test]
    fn an_entry_comes_back() {
        let value = option().encode();
        assert_eq!(LoadOption::decode(&value), Some(option()));
        assert_eq!(value.len(), 4 + 2 + 2 * 16 + 42 + 4 + 2 * 22 + 4);
        assert_eq!(&value[..6], [1, 0, 0, 0, 94, 0]);
        assert_eq!(&value[38..46], [4, 1, 42, 0, 1, 0, 0, 0], "the partition comes first");
        assert!(value.ends_with(&END));
        for len in 0..value.len() - END.len() {
            assert_eq!(LoadOption::decode(&value[..len]), None, "cut to {len} bytes");
        }
    }

    #[test]
    fn the_lowest_entry_of_that_name_is_used_again() {
        let (ours, other) = (option().encode(), LoadOption { description: "x".into(), ..option() }.encode());
        let entries = [(7, ours.clone()), (0, other.clone()), (3, ours)];
        assert_eq!(choose(&entries, super::super::BOOT_ENTRY), Some((3, vec![7])));
        assert_eq!(
            choose(&[(0, other.clone()), (1, other)], super::super::BOOT_ENTRY),
            Some((2, Vec::new()))
        );
        assert_eq!(choose(&[], "a"), Some((0, Vec::new())));
    }
}
