//! The bit-packing base62 of node identities.
//!
//! The bytes are one big number. From its low end six bits at a time become a character of `A-Za-z0-9`;
//! groups that would need a 63rd or 64th character give up their top bit, which starts the next group.

const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Groups with these four bits set are five bits long.
const SHORT: u8 = 0x1e;

/// A text with a character that is not in the alphabet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not base62")]
pub struct BadBase62(pub String);

/// Bytes as text.
pub fn encode(bytes: &[u8]) -> String {
    let bit = |index: usize| bytes[bytes.len() - 1 - index / 8] >> (index % 8) & 1;
    let total = bytes.len() * 8;
    let mut done = 0;
    let mut out = String::with_capacity(total / 5 + 1);
    while done < total {
        let taken = (total - done).min(6);
        let mut group = (0..taken).fold(0, |group, i| group | bit(done + i) << i);
        done += taken;
        if group & SHORT == SHORT {
            // The last group may keep its zero top bits, whatever they are.
            if done < total || group > 0x1f {
                done -= 1;
            }
            group &= 0x1f;
        }
        out.push(char::from(ALPHABET[usize::from(group)]));
    }
    out
}

/// Text as bytes. Zero bits above the highest group are not known to the text and come out shorter.
pub fn decode(text: &str) -> Result<Vec<u8>, BadBase62> {
    let mut reversed = Vec::with_capacity(text.len() * 6 / 8 + 1);
    let (mut pending, mut bits) = (0u32, 0u32);
    for (i, c) in text.bytes().enumerate() {
        let group =
            ALPHABET.iter().position(|known| *known == c).ok_or_else(|| BadBase62(text.to_owned()))? as u32;
        let width = if i + 1 == text.len() {
            32 - group.leading_zeros()
        } else if group as u8 & SHORT == SHORT {
            5
        } else {
            6
        };
        pending |= group << bits;
        bits += width;
        if bits >= 8 {
            reversed.push(pending as u8);
            pending >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        reversed.push(pending as u8);
    }
    reversed.reverse();
    Ok(reversed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_identity_is_read() {
        let bytes = decode("sou7yy34ykX3n373Zw1DXKb8zD7UnyKT6HT3QDsGH6L").unwrap();
        assert_eq!(bytes.len(), 32);
        assert_eq!(bytes[..4], [0xbe, 0x87, 0x1a, 0xc0]);
        assert_eq!(bytes[12..16], [0xb0, 0xf3, 0xf1, 0xb2]);
        assert_eq!(encode(&bytes), "sou7yy34ykX3n373Zw1DXKb8zD7UnyKT6HT3QDsGH6L");
    }

    #[test]
    fn bytes_survive_whatever_they_are() {
        let mut state = 1u64;
        for len in 1..64 {
            for _ in 0..50 {
                let mut bytes: Vec<u8> = (0..len)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // Many ones, so that short groups are common.
                        (state >> 56) as u8 | (state >> 40) as u8
                    })
                    .collect();
                bytes[0] |= 0x80;
                assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn what_is_not_base62_is_an_error() {
        assert!(decode("ab-c").is_err());
        assert_eq!(decode("").unwrap(), []);
        assert_eq!(encode(&[]), "");
    }
}
