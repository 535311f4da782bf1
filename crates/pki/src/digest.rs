//! Digests for identifiers derived from other identifiers.

use aws_lc_rs::digest;

/// The SHA-256 digest.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// The SHA-256 digest of all that a reader gives.
pub fn sha256_reader(reader: &mut impl std::io::Read) -> std::io::Result<[u8; 32]> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => context.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_digest_is_the_known_one() {
        assert_eq!(sha256(b"")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
    }

    #[test]
    fn a_reader_gives_the_digest_of_its_bytes() {
        let bytes: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        assert_eq!(sha256_reader(&mut &bytes[..]).unwrap(), sha256(&bytes));
    }
}
