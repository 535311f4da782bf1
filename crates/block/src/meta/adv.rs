//! The legacy block of META: a few short values that old installations keep at its end. It is read, and values are taken
//! out of it; new ones are never put in. Pure.

use super::tlv::Tags;
use crate::bytes::le32;

/// Both copies.
pub const LEN: usize = 2 * COPY_LEN;

const COPY_LEN: usize = 512;
const MAGIC_HEAD: u32 = 0x5a2d_2fa5;
const MAGIC_TAIL: u32 = 0xdd28_bf64;
const SUM: u32 = 0xa304_1767;
const RECORDS: usize = 8;
const TAIL: usize = COPY_LEN - 4;

/// The values of the first copy that has its marks; a block without any is empty.
pub fn decode(block: &[u8]) -> Tags {
    block.chunks_exact(COPY_LEN).take(2).find_map(decode_copy).unwrap_or_default()
}

fn decode_copy(copy: &[u8]) -> Option<Tags> {
    if le32(copy, 0) != Some(MAGIC_HEAD) || le32(copy, TAIL) != Some(MAGIC_TAIL) {
        return None;
    }
    let mut tags = Tags::new();
    let mut rest = copy.get(RECORDS..TAIL)?;
    while let [tag, len, values @ ..] = rest {
        let Some((value, next)) = values.split_at_checked(usize::from(*len)).filter(|_| *tag != 0) else {
            break;
        };
        tags.insert(*tag, value.to_vec());
        rest = next;
    }
    Some(tags)
}

/// Both copies of a block with these values, which must come from one: more than fit are left out. Without any, the
/// block is zeros.
pub fn encode(tags: &Tags) -> Vec<u8> {
    if tags.is_empty() {
        return vec![0; LEN];
    }
    let mut copy = Vec::with_capacity(COPY_LEN);
    copy.extend_from_slice(&MAGIC_HEAD.to_le_bytes());
    copy.extend_from_slice(&[0; 4]);
    for (tag, value) in tags.iter().filter(|(tag, _)| **tag != 0) {
        let Ok(len) = u8::try_from(value.len()) else { continue };
        if copy.len() + 2 + value.len() <= TAIL {
            copy.extend_from_slice(&[*tag, len]);
            copy.extend_from_slice(value);
        }
    }
    copy.resize(TAIL, 0);
    copy.extend_from_slice(&MAGIC_TAIL.to_le_bytes());
    let words = copy[RECORDS..TAIL].chunks_exact(4).filter_map(|word| le32(word, 0));
    let sum = words.fold(SUM, u32::wrapping_sub);
    copy[4..8].copy_from_slice(&sum.to_le_bytes());
    copy.repeat(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_one_of_them_taken_out() {
        let mut tags = Tags::from([(0x06, b"A".to_vec()), (0x0a, b"network".to_vec()), (0x0f, Vec::new())]);
        let block = encode(&tags);
        assert_eq!(block.len(), LEN);
        assert_eq!(&block[8..11], b"\x06\x01A");
        assert_eq!(decode(&block), tags);
        let words = block[4..508].chunks_exact(4).map(|word| le32(word, 0).unwrap());
        assert_eq!(words.fold(0, u32::wrapping_add), SUM, "checksum and words make the constant");
        tags.remove(&0x06);
        assert_eq!(decode(&encode(&tags)), tags);
        assert_eq!(encode(&Tags::new()), vec![0; LEN]);
    }

    #[test]
    fn a_block_without_marks_is_empty_and_the_second_copy_stands_in_for_the_first() {
        let mut block = encode(&Tags::from([(6, b"A".to_vec())]));
        block[0] ^= 1;
        assert_eq!(decode(&block).len(), 1);
        block[512] ^= 1;
        assert_eq!(decode(&block), Tags::new());
        assert_eq!(decode(&[]), Tags::new());
        // A length beyond the end of the records.
        let mut block = encode(&Tags::from([(6, vec![b'x'; 200])]));
        for at in [9, 512 + 9] {
            block[at] = 255;
        }
        block[8 + 2 + 255] = 7;
        assert!(decode(&block).contains_key(&6));
    }
}
