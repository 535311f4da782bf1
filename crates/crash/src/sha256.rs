//! SHA-256 (FIPS 180-4), for a reader that shares no code with what it judges.

/// The fractional parts of the cube roots of the first primes, computed and not listed.
fn constants() -> [u32; 64] {
    let mut out = [0; 64];
    let mut count = 0;
    let mut number = 2_u64;
    while count < out.len() {
        if (2..number).take_while(|by| by * by <= number).all(|by| !number.is_multiple_of(by)) {
            out[count] = root(number, 3);
            count += 1;
        }
        number += 1;
    }
    out
}

/// The first 32 bits of the fractional part of a root of a small number.
fn root(number: u64, degree: u32) -> u32 {
    // The largest `x` with x^degree <= number * 2^(32 * degree), found bit by bit.
    let mut x: u128 = 0;
    for bit in (0..40).rev() {
        let next = x | 1 << bit;
        let fits = match degree {
            2 => next * next <= u128::from(number) << 64,
            // Divided by 2^96 on both sides, which the last bits of the cube survive in 128 bits.
            _ => cube_fits(next, number),
        };
        if fits {
            x = next;
        }
    }
    x as u32
}

/// Whether x³ is at most number · 2^96, for x below 2^40.
fn cube_fits(x: u128, number: u64) -> bool {
    x.checked_mul(x)
        .and_then(|square| square.checked_mul(x))
        .is_some_and(|cube| cube <= u128::from(number) << 96)
}

/// The digest.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    let constants = constants();
    let mut hash = [2, 3, 5, 7, 11, 13, 17, 19].map(|prime| root(prime, 2));
    let mut blocks = bytes.chunks_exact(64);
    for block in &mut blocks {
        compress(&mut hash, block, &constants);
    }
    let mut last = blocks.remainder().to_vec();
    last.push(0x80);
    last.resize(if last.len() > 56 { 120 } else { 56 }, 0);
    last.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in last.chunks_exact(64) {
        compress(&mut hash, block, &constants);
    }
    let mut out = [0; 32];
    for (place, word) in out.chunks_exact_mut(4).zip(hash) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn compress(hash: &mut [u32; 8], block: &[u8], constants: &[u32; 64]) {
    let mut schedule = [0_u32; 64];
    for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (two, fifteen) = (schedule[at - 2], schedule[at - 15]);
        let low = fifteen.rotate_right(7) ^ fifteen.rotate_right(18) ^ (fifteen >> 3);
        let high = two.rotate_right(17) ^ two.rotate_right(19) ^ (two >> 10);
        schedule[at] = schedule[at - 16].wrapping_add(low).wrapping_add(schedule[at - 7]).wrapping_add(high);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *hash;
    for (word, constant) in schedule.iter().zip(constants) {
        let choice = (e & f) ^ (!e & g);
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(*constant).wrapping_add(*word);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let second = (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22)).wrapping_add(majority);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
    }
    for (word, more) in hash.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        let hex = |bytes: &[u8]| digest(bytes).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let long = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(long), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        assert_eq!(constants()[63], 0xc671_78f2);
    }
}
