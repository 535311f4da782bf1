//! GUIDs as partition tables keep them: the first three groups little-endian.

use std::fmt;
use std::str::FromStr;

/// A GUID, in the byte order of a partition table.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid([u8; 16]);

/// A text that is no GUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no GUID; one looks like 0fc63daf-8483-4772-8e79-3d69d8477de4")]
pub struct BadGuid {
    text: String,
}

impl Guid {
    /// The type of an entry that is not used.
    pub const NIL: Self = Self([0; 16]);
    /// An EFI system partition.
    pub const EFI_SYSTEM: Self = Self::from_fields(0xc12a_7328, 0xf81f, 0x11d2, 0xba4b_00a0_c93e_c93b);
    /// The partition that GRUB keeps its core in.
    pub const BIOS_BOOT: Self = Self::from_fields(0x2168_6148, 0x6449, 0x6e6f, 0x744e_6565_6445_4649);
    /// Linux data.
    pub const LINUX_DATA: Self = Self::from_fields(0x0fc6_3daf, 0x8483, 0x4772, 0x8e79_3d69_d847_7de4);
    /// Linux swap.
    pub const LINUX_SWAP: Self = Self::from_fields(0x0657_fd6d, 0xa4ab, 0x43c4, 0x84e5_0933_c84b_4f4f);

    const fn from_fields(a: u32, b: u16, c: u16, d: u64) -> Self {
        let (a, b, c, d) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes(), d.to_be_bytes());
        Self([a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]])
    }

    /// From the bytes of a partition table.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// As a partition table has it.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// A version 4 GUID made of these random bytes, in the order they are shown.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(swap(bytes))
    }

    /// A new random GUID.
    ///
    /// # Errors
    /// When the kernel has no randomness to give.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        ichor_pki::random::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self::from_random(bytes))
    }
}

/// Changes between the order of a table and the one that is shown.
fn swap(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

/// Sixteen bytes with dashes, as they are.
pub(crate) fn dashed(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&dashed(swap(self.0)))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Guid {
    type Err = BadGuid;

    fn from_str(text: &str) -> Result<Self, BadGuid> {
        let bad = || BadGuid { text: text.chars().take(64).collect() };
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
            return Err(bad());
        }
        let digits = groups.concat();
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(swap(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_types_read_as_documented() {
        for (guid, text) in [
            (Guid::EFI_SYSTEM, "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"),
            (Guid::BIOS_BOOT, "21686148-6449-6e6f-744e-656564454649"),
            (Guid::LINUX_DATA, "0fc63daf-8483-4772-8e79-3d69d8477de4"),
            (Guid::LINUX_SWAP, "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"),
        ] {
            assert_eq!(guid.to_string(), text);
            assert_eq!(text.to_uppercase().parse::<Guid>().unwrap(), guid);
        }
        // The bytes of this one are a text, whichever way they are printed.
        assert_eq!(&Guid::BIOS_BOOT.to_bytes(), b"Hah!IdontNeedEFI");
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        for text in [
            "",
            "0fc63daf",
            "0fc63daf-8483-4772-8e79-3d69d8477deg",
            "0fc63daf-8483-4772-8e793-d69d8477de4",
            "é",
        ] {
            let error = text.parse::<Guid>().unwrap_err();
            assert!(error.to_string().contains("is no GUID"), "{error}");
        }
    }

    #[test]
    fn random_ones_say_that_they_are() {
        let guid = Guid::from_random([0xff; 16]).to_string();
        assert_eq!(guid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_ne!(Guid::random().unwrap(), Guid::random().unwrap());
    }
}
