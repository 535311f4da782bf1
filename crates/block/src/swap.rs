//! The header of a swap area.

use std::io;
use std::os::unix::fs::FileExt;

use crate::device::Device;
use crate::guid::Guid;

/// Bytes of a page: what the kernel of this machine swaps.
const PAGE: usize = 4096;
/// The place of the header in the first page; what is before it is left to boot loaders.
const HEADER: usize = 1024;
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
/// Fewer pages are of no use to the kernel.
const PAGES_MIN: u64 = 10;

/// The first page of a swap area of this many bytes.
///
/// # Errors
/// When it is too small.
pub fn header(size: u64, uuid: [u8; 16], label: &str) -> io::Result<Vec<u8>> {
    let pages = size / PAGE as u64;
    let too_small = || io::Error::new(io::ErrorKind::InvalidInput, "too small to swap to");
    if pages < PAGES_MIN {
        return Err(too_small());
    }
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let mut page = vec![0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(HEADER, &1_u32.to_le_bytes());
    put(HEADER + 4, &last.to_le_bytes());
    put(HEADER + 12, &uuid);
    put(HEADER + 28, &label.as_bytes()[..label.len().min(16)]);
    put(PAGE - SIGNATURE.len(), SIGNATURE);
    Ok(page)
}

/// Makes a device a swap area. What was on it is lost.
///
/// # Errors
/// The device's.
pub fn format(device: &Device, label: &str) -> io::Result<()> {
    let page = header(device.size()?, Guid::random()?.to_bytes(), label)?;
    device.file().write_all_at(&page, 0)?;
    device.file().sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe;

    #[test]
    fn a_header_is_found_again() {
        let uuid = [7; 16];
        let mut area = vec![0_u8; 1 << 20];
        area[..PAGE].copy_from_slice(&header(1 << 20, uuid, "s-swap").unwrap());
        let found = probe::probe(&&area[..]).unwrap().unwrap();
        assert_eq!(found.name, "swap");
        assert_eq!(found.label.as_deref(), Some("s-swap"));
        assert_eq!(found.uuid.as_deref(), Some("07070707-0707-0707-0707-070707070707"));
        assert!(header(4096, uuid, "").is_err());
    }
}
