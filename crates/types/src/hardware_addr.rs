//! Link-layer addresses and other byte strings written as colon-separated hex.

use std::{fmt, str::FromStr};

/// Bytes printed as `2e:3c:4d:5e:6f:70`: a MAC address or a DUID.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HardwareAddr(pub Vec<u8>);

/// A text that is not colon-separated hex.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {0}: invalid MAC address")]
pub struct BadHardwareAddr(pub String);

impl HardwareAddr {
    /// Reads a link-layer address: 6, 8 or 20 bytes split by `:` or `-`, or by dots in groups of four digits.
    pub fn parse_mac(text: &str) -> Result<Self, BadHardwareAddr> {
        let bad = || BadHardwareAddr(text.to_owned());
        let bytes = if text.contains('.') {
            let joined: Option<String> = text
                .split('.')
                .map(|group| (group.len() == 4).then_some(group))
                .collect::<Option<Vec<_>>>()
                .map(|v| v.concat());
            hex_pairs(&joined.ok_or_else(bad)?).ok_or_else(bad)?
        } else {
            let separator = if text.contains('-') { '-' } else { ':' };
            split_hex(text, separator).ok_or_else(bad)?
        };
        if matches!(bytes.len(), 6 | 8 | 20) { Ok(Self(bytes)) } else { Err(bad()) }
    }
}

impl FromStr for HardwareAddr {
    type Err = BadHardwareAddr;

    /// Reads any number of colon-separated bytes.
    fn from_str(text: &str) -> Result<Self, BadHardwareAddr> {
        split_hex(text, ':').map(Self).ok_or_else(|| BadHardwareAddr(text.to_owned()))
    }
}

fn split_hex(text: &str, separator: char) -> Option<Vec<u8>> {
    text.split(separator)
        .map(|pair| {
            let hex = pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
            if hex { u8::from_str_radix(pair, 16).ok() } else { None }
        })
        .collect()
}

fn hex_pairs(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

impl fmt::Display for HardwareAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_read_in_every_common_spelling() {
        for text in ["2e:3c:4d:5e:6f:70", "2E-3C-4D-5E-6F-70", "2e3c.4d5e.6f70"] {
            assert_eq!(HardwareAddr::parse_mac(text).unwrap().to_string(), "2e:3c:4d:5e:6f:70");
        }
        for text in ["", "2e:3c", "2e:3c:4d:5e:6f:7g", "é.aa", "+1:3c:4d:5e:6f:70"] {
            assert!(HardwareAddr::parse_mac(text).is_err(), "{text}");
        }
    }
}
