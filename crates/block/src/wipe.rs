//! Wiping: so fast that nothing finds what was there, or so thoroughly that nothing is.

use std::io;
use std::os::unix::fs::FileExt;

use crate::device::Device;
use crate::probe::{self, Signature};

/// What a fast wipe zeroes at each end.
const END_LEN: u64 = 1 << 20;
/// Zeros that are written at once.
const CHUNK_LEN: usize = 1 << 20;
/// Signatures are wiped with the sector around them.
const SECTOR: u64 = 512;

/// What a wipe did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wiped {
    /// The signatures with these names.
    Signatures(Vec<&'static str>),
    /// Both ends.
    Ends,
    /// Everything, in this way.
    All(&'static str),
}

/// Wipes what gives the contents away, or both ends where nothing is recognized.
///
/// # Errors
/// The device's.
pub fn fast_or_signatures(device: &Device) -> io::Result<Wiped> {
    let found = probe::probe_all(&device.source()?, device.sector_size())?;
    if found.is_empty() {
        return fast(device).map(|()| Wiped::Ends);
    }
    signatures(device, &found)?;
    Ok(Wiped::Signatures(found.iter().map(|signature| signature.name).collect()))
}

/// Discards everything where the device can, and zeroes the first and the last mebibyte.
///
/// # Errors
/// The device's.
pub fn fast(device: &Device) -> io::Result<()> {
    let size = device.size()?;
    // Only a service to the device: what it keeps is not promised to be zero.
    let _ = device.discard(0, size);
    write_zeros(device, 0, END_LEN.min(size))?;
    if size >= 2 * END_LEN {
        write_zeros(device, size - END_LEN, END_LEN)?;
    }
    device.file().sync_all()
}

/// Zeroes these signatures and the sectors they are in.
///
/// # Errors
/// The device's.
pub fn signatures(device: &Device, found: &[Signature]) -> io::Result<()> {
    let size = device.size()?;
    for (offset, len) in found.iter().flat_map(|signature| &signature.ranges) {
        let start = offset - offset % SECTOR;
        let end = offset.saturating_add(*len).checked_next_multiple_of(SECTOR).unwrap_or(u64::MAX).min(size);
        write_zeros(device, start, end.saturating_sub(start))?;
    }
    device.file().sync_all()
}

/// Zeroes the whole device, in the fastest way that makes sure of it.
///
/// # Errors
/// The device's.
pub fn zeroes(device: &Device) -> io::Result<Wiped> {
    let size = device.size()?;
    let how = if device.discard_securely(0, size).is_ok() {
        "blksecdiscard"
    } else if device.zero_out(0, size).is_ok() {
        "blkzeroout"
    } else {
        write_zeros(device, 0, size)?;
        "writezeroes"
    };
    device.file().sync_all()?;
    Ok(Wiped::All(how))
}

fn write_zeros(device: &Device, offset: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK_LEN.min(usize::try_from(len).unwrap_or(CHUNK_LEN))];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let step = usize::try_from(end - at).unwrap_or(CHUNK_LEN).min(zeros.len());
        device.file().write_all_at(&zeros[..step], at)?;
        at += step as u64;
    }
    Ok(())
}
