//! The form of META on disk: tagged values with a checksum, kept twice. Pure.

use std::collections::BTreeMap;

use crate::bytes::be32;

/// Values by key.
pub type Tags = BTreeMap<u8, Vec<u8>>;

/// One copy.
pub const COPY_LEN: usize = 256 * 1024;

/// All of META: two copies, and room for what came before them.
pub const META_LEN: usize = 1024 * 1024;

/// The tag after the last record; no key.
pub const END: u8 = 0;

pub(crate) const MAGIC_HEAD: u32 = 0x5a4b_3c2d;
pub(crate) const MAGIC_TAIL: u32 = 0xa5b4_c3d2;
const RECORDS: usize = 4;
const CHECKSUM: usize = COPY_LEN - 36;
const TAIL: usize = COPY_LEN - 4;

/// Bytes for records, of which a few stay free.
const CAPACITY: usize = CHECKSUM - RECORDS;
const RESERVED: usize = 20;

/// Whether these values fit.
pub fn fits(tags: &Tags) -> bool {
    let records: usize = tags.values().map(|value| value.len().saturating_add(8)).sum();
    records.saturating_add(RESERVED) <= CAPACITY
}

/// One copy; `None` when the values do not fit.
pub fn encode(tags: &Tags) -> Option<Vec<u8>> {
    if !fits(tags) {
        return None;
    }
    let mut copy = Vec::with_capacity(COPY_LEN);
    copy.extend_from_slice(&MAGIC_HEAD.to_be_bytes());
    // Tag 0 ends the records, so there is no value under it.
    for (tag, value) in tags.iter().filter(|(tag, _)| **tag != END) {
        copy.extend_from_slice(&u32::from(*tag).to_be_bytes());
        copy.extend_from_slice(&u32::try_from(value.len()).ok()?.to_be_bytes());
        copy.extend_from_slice(value);
    }
    copy.resize(COPY_LEN, 0);
    copy[TAIL..].copy_from_slice(&MAGIC_TAIL.to_be_bytes());
    let sum = ichor_pki::sha256(&copy);
    copy[CHECKSUM..TAIL].copy_from_slice(&sum);
    Some(copy)
}

/// The values of one copy; `None` when it is no whole copy.
pub fn decode(copy: &[u8]) -> Option<Tags> {
    if copy.len() != COPY_LEN || be32(copy, 0) != Some(MAGIC_HEAD) || be32(copy, TAIL) != Some(MAGIC_TAIL) {
        return None;
    }
    let mut summed = copy.to_vec();
    summed[CHECKSUM..TAIL].fill(0);
    if ichor_pki::sha256(&summed) != copy[CHECKSUM..TAIL] {
        return None;
    }
    let mut tags = Tags::new();
    let mut rest = &copy[RECORDS..CHECKSUM];
    while let (Some(tag), Some(len)) = (be32(rest, 0), be32(rest, 4)) {
        if tag == u32::from(END) {
            break;
        }
        let end = usize::try_from(len).ok()?.checked_add(8)?;
        let value = rest.get(8..end)?;
        // Only the low byte of a tag means something.
        let key = (tag & 0xff) as u8;
        if key != END {
            tags.insert(key, value.to_vec());
        }
        rest = &rest[end..];
    }
    Some(tags)
}

/// What the two copies hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing was ever written to its end: the second copy is written when the first is on disk, so without a second one
    /// the first is what a power cut left of the very first write.
    Blank,
    /// The values of the first good copy, and whether the other one is good as well.
    Values {
        /// The values.
        tags: Tags,
        /// False when one of the two copies is damaged or missing.
        both: bool,
    },
    /// There is something, and neither copy is good.
    Damaged,
}

/// Reads both copies.
pub fn decode_either(meta: &[u8]) -> Content {
    let mut copies = meta.chunks(COPY_LEN).take(2).map(decode);
    match (copies.next().flatten(), copies.next().flatten()) {
        (Some(tags), second) => Content::Values { tags, both: second.is_some() },
        (None, Some(tags)) => Content::Values { tags, both: false },
        (None, None) => {
            let are_zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let second = meta.get(COPY_LEN..2 * COPY_LEN);
            match second.is_some_and(are_zeros) || are_zeros(&meta[..meta.len().min(2 * COPY_LEN)]) {
                true => Content::Blank,
                false => Content::Damaged,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags() -> Tags {
        Tags::from([(0x0a, b"addresses: []".to_vec()), (0x0f, b"uuid".to_vec()), (0x10, Vec::new())])
    }

    #[test]
    fn values_come_back() {
        let copy = encode(&tags()).unwrap();
        assert_eq!(copy.len(), COPY_LEN);
        assert_eq!(&copy[..17], b"\x5a\x4b\x3c\x2d\0\0\0\x0a\0\0\0\x0daddre", "big-endian, in order");
        assert_eq!(decode(&copy), Some(tags()));
    }

    #[test]
    fn two_bad_meta_copies_are_not_an_empty_meta() {
        let copy = encode(&tags()).unwrap();
        for at in [0, 4, 100, CHECKSUM, TAIL] {
            let mut meta = [copy.clone(), copy.clone()].concat();
            assert_eq!(decode_either(&meta), Content::Values { tags: tags(), both: true });
            meta[at] ^= 1;
            assert_eq!(decode_either(&meta), Content::Values { tags: tags(), both: false }, "byte {at}");
            meta[COPY_LEN + at] ^= 1;
            assert_eq!(decode_either(&meta), Content::Damaged, "byte {at} in both");
        }
        assert_eq!(decode_either(&vec![0; META_LEN]), Content::Blank);
        assert_eq!(decode_either(&[]), Content::Blank);
        assert_eq!(decode_either(&copy[..100]), Content::Damaged);
    }

    #[test]
    fn a_first_write_that_is_cut_short_leaves_a_blank_meta() {
        let copy = encode(&tags()).unwrap();
        let mut meta = vec![0; META_LEN];
        meta[..512].copy_from_slice(&copy[..512]);
        assert_eq!(decode_either(&meta), Content::Blank);
        meta[COPY_LEN..COPY_LEN + 512].copy_from_slice(&copy[..512]);
        assert_eq!(decode_either(&meta), Content::Damaged);
    }

    #[test]
    fn a_record_beyond_the_end_is_a_bad_copy() {
        let mut copy = encode(&tags()).unwrap();
        copy[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        copy[CHECKSUM..TAIL].fill(0);
        let sum = ichor_pki::sha256(&copy);
        copy[CHECKSUM..TAIL].copy_from_slice(&sum);
        assert_eq!(decode(&copy), None);
    }

    #[test]
    fn a_value_under_the_end_mark_does_not_hide_the_others() {
        let mut with_end = tags();
        with_end.insert(END, b"lost".to_vec());
        assert_eq!(decode(&encode(&with_end).unwrap()), Some(tags()));
    }

    #[test]
    fn there_is_an_end_to_the_room() {
        let full = CAPACITY - RESERVED - 8;
        assert!(encode(&Tags::from([(1, vec![b'x'; full])])).is_some());
        assert!(encode(&Tags::from([(1, vec![b'x'; full + 1])])).is_none());
    }
}
