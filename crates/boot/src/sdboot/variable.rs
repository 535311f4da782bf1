//! EFI variables as files of efivarfs hold them: attributes, then the value; texts in UTF-16 with a NUL at the end.

/// The vendor of the variables of systemd-boot.
pub const LOADER_VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";
/// The vendor of `BootOrder` and `Boot####`.
pub const GLOBAL_VENDOR: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Non-volatile, seen by boot services, seen at run time.
const ATTRIBUTES: u32 = 0x1 | 0x2 | 0x4;
/// No text of a boot loader is longer.
const UNITS_MAX: usize = 4096;

/// A variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variable {
    /// The entry that is started.
    EntryDefault,
    /// The entry that is started once.
    EntryOneShot,
    /// The entry that was started.
    EntrySelected,
    /// The GUID of the partition that the boot loader was started from.
    DevicePartUuid,
    /// How long the menu waits.
    ConfigTimeout,
    /// An entry of the firmware.
    Boot(u16),
}

impl Variable {
    /// The name of its file in efivarfs.
    pub fn file(self) -> String {
        match self {
            Self::EntryDefault => format!("LoaderEntryDefault-{LOADER_VENDOR}"),
            Self::EntryOneShot => format!("LoaderEntryOneShot-{LOADER_VENDOR}"),
            Self::EntrySelected => format!("LoaderEntrySelected-{LOADER_VENDOR}"),
            Self::DevicePartUuid => format!("LoaderDevicePartUUID-{LOADER_VENDOR}"),
            Self::ConfigTimeout => format!("LoaderConfigTimeout-{LOADER_VENDOR}"),
            Self::Boot(number) => format!("Boot{number:04X}-{GLOBAL_VENDOR}"),
        }
    }
}

/// The content of the file of a variable.
pub fn encode(value: &[u8]) -> Vec<u8> {
    [&ATTRIBUTES.to_le_bytes()[..], value].concat()
}

/// The value in the content of a file; none when it is too short for one.
pub fn decode(file: &[u8]) -> Option<&[u8]> {
    file.split_first_chunk::<4>().map(|(_, value)| value)
}

/// The content of the file of a variable that is a text.
pub fn encode_text(text: &str) -> Vec<u8> {
    encode(&utf16(text))
}

/// The text in the content of a file, up to its NUL; none when it is no text.
pub fn decode_text(file: &[u8]) -> Option<String> {
    let value = decode(file)?;
    let units: Vec<u16> = value
        .chunks_exact(2)
        .take(UNITS_MAX)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    String::from_utf16(&units).ok().filter(|text| !text.is_empty())
}

/// UTF-16, little-endian, with a NUL.
pub(crate) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_attributes_and_a_nul() {
        assert_eq!(encode_text("a5"), b"\x07\0\0\0a\x005\0\0\0");
        assert_eq!(decode_text(&encode_text("Talos-v1.efi")).as_deref(), Some("Talos-v1.efi"));
        for bad in [&b""[..], b"\x07\0\0", b"\x07\0\0\0", b"\x07\0\0\0\0\0", b"\x07\0\0\0\x00\xd8"] {
            assert_eq!(decode_text(bad), None);
        }
        assert_eq!(decode_text(b"\x07\0\0\0a\0b").as_deref(), Some("a"), "half a unit and no NUL");
    }

    #[test]
    fn files_are_named_with_their_vendor() {
        assert_eq!(Variable::EntryOneShot.file(), "LoaderEntryOneShot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f");
        assert_eq!(Variable::Boot(0xab).file(), "Boot00AB-8be4df61-93ca-11d2-aa0d-00e098032b8c");
    }
}
