//! Numbers and paths as text without allocating, for code between fork and exec and for PID 1.

use std::ffi::CStr;
use std::io;

/// Calls `with` with `value` in decimal digits, written into `buffer`.
pub(crate) fn write_number<T>(buffer: &mut [u8; 12], value: i64, with: impl FnOnce(&[u8]) -> T) -> T {
    let mut left = value.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (left % 10) as u8;
        left /= 10;
        // Eleven digits and a sign fit; what callers pass is far smaller.
        if left == 0 || at == 1 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    with(&buffer[at..])
}

/// A path put together in place.
pub(crate) struct PathBuffer {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl PathBuffer {
    const LEN: usize = 512;

    /// The parts, one after the other; too long is an error.
    pub(crate) fn new(parts: &[&[u8]]) -> io::Result<Self> {
        let mut path = Self { bytes: [0; Self::LEN], len: 0 };
        for part in parts {
            let end = path.len + part.len();
            // One byte stays for the closing zero.
            if end >= Self::LEN {
                return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
            }
            path.bytes[path.len..end].copy_from_slice(part);
            path.len = end;
        }
        Ok(path)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_usual() {
        let check = |value: i64| {
            let mut buffer = [0; 12];
            write_number(&mut buffer, value, |digits| {
                assert_eq!(digits, value.to_string().as_bytes());
            });
        };
        for value in [0, 7, -7, 1000, -998, i64::from(i32::MAX), i64::from(i32::MIN)] {
            check(value);
        }
    }

    #[test]
    fn a_path_too_long_is_an_error() {
        assert_eq!(PathBuffer::new(&[b"/a", b"/b"]).unwrap().as_c_str(), c"/a/b");
        assert!(PathBuffer::new(&[&[b'x'; 512]]).is_err());
    }
}
