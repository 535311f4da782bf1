//! The environment block of GRUB: a file of 1024 bytes that GRUB itself can change, in place and without growing it.
//!
//! ```text
//! # GRUB Environment Block
//! next_entry=B - Talos v1.13.0
//! ###############… to the end
//! ```
//!
//! GRUB writes the blocks of the file directly, past the filesystem. What we write stays within its first 512 bytes, one
//! sector, so that no power cut leaves half of it.

/// The size of the file, exactly.
pub const ENV_LEN: usize = 1024;
/// What is written in one piece by any disk.
pub const SECTOR: usize = 512;

const SIGNATURE: &[u8] = b"# GRUB Environment Block\n";

/// The variables of an environment block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvBlock {
    variables: Vec<(String, String)>,
}

/// What is wrong with an environment block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// Another size.
    #[error("grubenv is {0} bytes long, expected 1024")]
    Len(usize),
    /// Not begun as it should be.
    #[error("grubenv does not begin with `# GRUB Environment Block`")]
    Signature,
    /// The second sector holds something: a write that a power cut ended, or more than was ever meant.
    #[error("grubenv holds something after its first 512 bytes")]
    Torn,
    /// A name that would be read as something else.
    #[error("{0:?} cannot be the name of a GRUB variable")]
    Name(String),
    /// Too much for one sector.
    #[error("the variables of grubenv take {0} bytes, and 512 fit into what is written in one piece")]
    Full(usize),
}

impl EnvBlock {
    /// Reads a block. Lines that are no variables are left out.
    ///
    /// # Errors
    /// When GRUB would not take it for a block.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnvError> {
        if bytes.len() != ENV_LEN {
            return Err(EnvError::Len(bytes.len()));
        }
        let mut rest = bytes.strip_prefix(SIGNATURE).ok_or(EnvError::Signature)?;
        if bytes[SECTOR..].iter().any(|byte| *byte != b'#') {
            return Err(EnvError::Torn);
        }
        let mut variables = Vec::new();
        while !rest.is_empty() {
            let (line, after) = take_line(rest);
            rest = after;
            if line.first() == Some(&b'#') {
                continue;
            }
            if let Some(at) = line.iter().position(|byte| *byte == b'=') {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                variables.push((text(&line[..at]), text(&unescape(&line[at + 1..]))));
            }
        }
        Ok(Self { variables })
    }

    /// A variable; one that is empty is as good as none.
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.variables.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => value.clone_into(old),
            None => self.variables.push((name.to_owned(), value.to_owned())),
        }
    }

    /// Removes a variable.
    pub fn remove(&mut self, name: &str) {
        self.variables.retain(|(other, _)| other != name);
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// When the variables do not fit into a sector.
    pub fn encode(&self) -> Result<Vec<u8>, EnvError> {
        let mut bytes = SIGNATURE.to_vec();
        for (name, value) in &self.variables {
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                return Err(EnvError::Name(name.clone()));
            }
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(b'=');
            for byte in value.bytes() {
                if matches!(byte, b'\\' | b'\n') {
                    bytes.push(b'\\');
                }
                bytes.push(byte);
            }
            bytes.push(b'\n');
        }
        if bytes.len() > SECTOR {
            return Err(EnvError::Full(bytes.len()));
        }
        bytes.resize(ENV_LEN, b'#');
        Ok(bytes)
    }
}

/// A line up to the first newline without a backslash before it.
fn take_line(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\n' => return (&bytes[..at], &bytes[at + 1..]),
            _ => at += 1,
        }
    }
    (bytes, &[])
}

fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        plain.push(*if *byte == b'\\' { rest.next().unwrap_or(byte) } else { byte });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_come_back_and_the_block_keeps_its_size() {
        let mut block = EnvBlock::default();
        block.set("next_entry", "B - Talos v1.13.0");
        block.set("odd", "a\\b\nc=d");
        let bytes = block.encode().unwrap();
        assert_eq!(bytes.len(), ENV_LEN);
        assert!(
            bytes.starts_with(
                b"# GRUB Environment Block\nnext_entry=B - Talos v1.13.0\nodd=a\\\\b\\\nc=d\n###"
            )
        );
        assert_eq!(EnvBlock::parse(&bytes), Ok(block.clone()));
        block.remove("odd");
        block.set("next_entry", "");
        assert_eq!(block.get("next_entry"), None, "as GRUB leaves it");
        assert_eq!(block.get("odd"), None);
    }

    #[test]
    fn a_change_of_the_next_entry_changes_the_first_sector_only() {
        let mut block = EnvBlock::default();
        let empty = block.encode().unwrap();
        block.set("next_entry", &"x".repeat(400));
        assert_eq!(block.encode().unwrap()[SECTOR..], empty[SECTOR..]);
        block.set("next_entry", &"x".repeat(500));
        assert!(matches!(block.encode(), Err(EnvError::Full(_))));
    }

    #[test]
    fn what_grub_would_not_take_is_refused() {
        assert_eq!(EnvBlock::parse(b"# GRUB Environment Block\n"), Err(EnvError::Len(25)));
        assert_eq!(EnvBlock::parse(&[b'#'; ENV_LEN]), Err(EnvError::Signature));
        let mut block = EnvBlock::default();
        block.set("a=b", "");
        assert_eq!(block.encode(), Err(EnvError::Name("a=b".into())));
        let mut cut = EnvBlock::default().encode().unwrap();
        cut[SECTOR - 1] = b'\\';
        assert!(EnvBlock::parse(&cut).is_ok());
        cut[ENV_LEN - 1] = 0;
        assert_eq!(EnvBlock::parse(&cut), Err(EnvError::Torn));
    }
}
