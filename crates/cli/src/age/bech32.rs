//! Keys as text: Bech32 (BIP 173) without its limit of length.

const LETTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
/// Letters of the checksum.
const SUM: usize = 6;

/// Reads the prefix (in small letters) and the bytes.
pub fn decode(text: &str) -> Result<(String, Vec<u8>), &'static str> {
    let (small, large) =
        (text.bytes().any(|b| b.is_ascii_lowercase()), text.bytes().any(|b| b.is_ascii_uppercase()));
    if small && large {
        return Err("small and capital letters are mixed");
    }
    let text = text.to_ascii_lowercase();
    let (prefix, data) = text.rsplit_once('1').ok_or("there is no 1 in it")?;
    if prefix.is_empty() || data.len() < SUM || !prefix.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("it is too short");
    }
    let values: Option<Vec<u8>> = data
        .bytes()
        .map(|letter| LETTERS.iter().position(|known| *known == letter).map(|at| at as u8))
        .collect();
    let values = values.ok_or("a letter in it is none of the alphabet")?;
    if checksum(prefix, &values) != 1 {
        return Err("its checksum does not fit");
    }
    let bytes = regroup::<5, 8>(&values[..values.len() - SUM], false).ok_or("it has bits to spare")?;
    Ok((prefix.to_owned(), bytes))
}

/// Writes bytes with a prefix, in small letters.
pub fn encode(prefix: &str, bytes: &[u8]) -> String {
    let mut values = regroup::<8, 5>(bytes, true).unwrap_or_default();
    let open: Vec<u8> = values.iter().copied().chain([0; SUM]).collect();
    let sum = checksum(prefix, &open) ^ 1;
    values.extend((0..SUM).map(|at| (sum >> (5 * (SUM - 1 - at)) & 31) as u8));
    let letters = values.iter().map(|value| char::from(LETTERS[usize::from(*value)]));
    [prefix, "1"].into_iter().flat_map(str::chars).chain(letters).collect()
}

fn checksum(prefix: &str, values: &[u8]) -> u32 {
    const FACTORS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let high = prefix.bytes().map(|byte| byte >> 5);
    let low = prefix.bytes().map(|byte| byte & 31);
    high.chain([0]).chain(low).chain(values.iter().copied()).fold(1, |sum, value| {
        let top = sum >> 25;
        let next = (sum & 0x01ff_ffff) << 5 ^ u32::from(value);
        (0..5).filter(|bit| top >> bit & 1 == 1).fold(next, |sum, bit| sum ^ FACTORS[bit])
    })
}

/// Bits in groups of one size into groups of another; what is left over must be padding of zeros.
fn regroup<const FROM: u32, const TO: u32>(values: &[u8], pad: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(values.len() * 2);
    let (mut held, mut bits) = (0_u32, 0);
    for value in values {
        held = (held << FROM | u32::from(*value)) & 0xfff;
        bits += FROM;
        while bits >= TO {
            bits -= TO;
            out.push((held >> bits & ((1 << TO) - 1)) as u8);
        }
    }
    let rest = held << (TO - bits) & ((1 << TO) - 1);
    match pad {
        true if bits > 0 => out.push(rest as u8),
        true => {}
        false if bits >= FROM || (bits > 0 && rest != 0) => return None,
        false => {}
    }
    Some(out)
}
