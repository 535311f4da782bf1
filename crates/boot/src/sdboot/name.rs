//! File names of unified kernel images: `Talos-<tag>.efi`, and `Talos-<tag>~<n>.efi` for a tag that is there already.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

const PREFIX: &str = "Talos-";
const SUFFIX: &str = ".efi";
/// FAT has 255; what is left is for the index.
const TAG_MAX: usize = 200;

/// The name of an image. Names are compared as FAT does, without case.
#[derive(Debug, Clone)]
pub struct UkiName {
    tag: String,
    index: u32,
}

/// A tag that cannot be part of a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "version tag {0:?} cannot be part of an image's file name: letters, digits, `.`, `_` and `-` can, 200 at most; a `+` \
     would be read as a count of attempts by the boot loader"
)]
pub struct UkiNameError(String);

impl UkiName {
    /// The name for a new image of this version beside those that are there.
    ///
    /// # Errors
    /// When the tag cannot be part of a name.
    pub fn next(tag: &str, existing: &[UkiName]) -> Result<Self, UkiNameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if tag.is_empty() || tag.len() > TAG_MAX || !tag.bytes().all(allowed) {
            return Err(UkiNameError(tag.to_owned()));
        }
        let taken = existing.iter().filter(|name| name.tag.eq_ignore_ascii_case(tag)).map(|name| name.index);
        let index = taken.max().map_or(0, |index| index.saturating_add(1));
        Ok(Self { tag: tag.to_owned(), index })
    }

    /// Reads a file name; none when it is no image of ours. The boot loader knows names in lower case.
    pub fn parse(file: &str) -> Option<Self> {
        let (head, rest) = file.split_at_checked(PREFIX.len())?;
        let (middle, tail) = rest.split_at_checked(rest.len().checked_sub(SUFFIX.len())?)?;
        if !head.eq_ignore_ascii_case(PREFIX) || !tail.eq_ignore_ascii_case(SUFFIX) || middle.is_empty() {
            return None;
        }
        let whole = || Self { tag: middle.to_owned(), index: 0 };
        let Some((tag, digits)) = middle.rsplit_once('~') else { return Some(whole()) };
        // Written in one way only, so that a name that was read is the name of the file.
        match digits.parse::<u32>() {
            Ok(index) if index > 0 && index.to_string() == digits && !tag.is_empty() => {
                Some(Self { tag: tag.to_owned(), index })
            }
            Ok(_) | Err(_) => Some(whole()),
        }
    }

    /// The version.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Whether a text is this name.
    pub fn is(&self, text: &str) -> bool {
        Self::parse(text).is_some_and(|name| name == *self)
    }

    fn key(&self) -> (String, u32) {
        (self.tag.to_ascii_lowercase(), self.index)
    }
}

impl fmt::Display for UkiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "{PREFIX}{}{SUFFIX}", self.tag),
            index => write!(f, "{PREFIX}{}~{index}{SUFFIX}", self.tag),
        }
    }
}

impl PartialEq for UkiName {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.tag.eq_ignore_ascii_case(&other.tag)
    }
}

impl Eq for UkiName {}

impl Hash for UkiName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for UkiName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UkiName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_is_there_gets_the_next_index() {
        let names = |files: &[&str]| -> Vec<UkiName> {
            files.iter().filter_map(|file| UkiName::parse(file)).collect()
        };
        for (files, tag, expected) in [
            (&[][..], "v1.12.1", "Talos-v1.12.1.efi"),
            (&["Talos-v1.12.0.efi"], "v1.12.1", "Talos-v1.12.1.efi"),
            (&["Talos-v1.12.1.efi"], "v1.12.1", "Talos-v1.12.1~1.efi"),
            (&["TALOS-V1.12.1~4.EFI", "Talos-v1.12.1.efi"], "v1.12.1", "Talos-v1.12.1~5.efi"),
        ] {
            assert_eq!(UkiName::next(tag, &names(files)).unwrap().to_string(), expected);
        }
        assert_eq!(names(&["Talos-.efi", "talos.efi", "x.efi", "Talos-v1.conf", "é", ""]).len(), 0);
    }

    #[test]
    fn names_compare_without_case_and_print_as_they_were_read() {
        let name = UkiName::parse("talos-v1.12.1~02.efi").unwrap();
        assert_eq!(name.to_string(), "Talos-v1.12.1~02.efi", "not an index of ours");
        assert!(UkiName::parse("Talos-v1.efi").unwrap().is("TALOS-V1.EFI"));
        assert!(!UkiName::parse("Talos-v1.efi").unwrap().is("Talos-v1~1.efi"));
    }

    #[test]
    fn a_tag_that_the_boot_loader_would_misread_is_refused() {
        for tag in ["", "v1+3", "v1~2", "a/b", "v1 2", "v\u{e9}", &"x".repeat(201)] {
            assert!(UkiName::next(tag, &[]).is_err(), "{tag:?}");
        }
    }
}
