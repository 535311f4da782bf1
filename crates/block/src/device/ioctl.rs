//! The requests of block devices that the standard library has no words for.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::{KernelChange, Media};

pub(super) const BLKDISCARD: c_ulong = 0x1277;
pub(super) const BLKSECDISCARD: c_ulong = 0x127d;
pub(super) const BLKZEROOUT: c_ulong = 0x127f;
const BLKRRPART: c_ulong = 0x125f;
const BLKSSZGET: c_ulong = 0x1268;
const BLKPG: c_ulong = 0x1269;
const BLKIOMIN: c_ulong = 0x1278;
const BLKIOOPT: c_ulong = 0x1279;
const BLKGETSIZE64: c_ulong = 0x8008_1272;
const CDROM_DRIVE_STATUS: c_ulong = 0x5326;
const CDROM_GET_CAPABILITY: c_ulong = 0x5331;

const PARTITION_ADD: c_int = 1;
const PARTITION_DELETE: c_int = 2;
const PARTITION_RESIZE: c_int = 3;

#[repr(C)]
struct PartitionArgument {
    operation: c_int,
    flags: c_int,
    len: c_int,
    data: *mut c_void,
}

#[repr(C)]
struct PartitionData {
    start: i64,
    length: i64,
    number: c_int,
    device_name: [c_char; 64],
    volume_name: [c_char; 64],
}

fn done(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn size(device: BorrowedFd<'_>) -> io::Result<u64> {
    let mut size = 0_u64;
    // SAFETY: the request writes one 64-bit number to the pointer, which is valid for the call.
    done(unsafe { libc::ioctl(device.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) })?;
    Ok(size)
}

fn number(device: BorrowedFd<'_>, request: c_ulong) -> io::Result<u32> {
    let mut value: c_uint = 0;
    // SAFETY: the requests given to this function write one `int` to the pointer, which is valid for the call.
    done(unsafe { libc::ioctl(device.as_raw_fd(), request as _, &raw mut value) })?;
    Ok(value)
}

pub(super) fn sector_size(device: BorrowedFd<'_>) -> io::Result<u32> {
    number(device, BLKSSZGET)
}

pub(super) fn io_size(device: BorrowedFd<'_>) -> Option<u64> {
    let sizes = [BLKIOOPT, BLKIOMIN].into_iter().filter_map(|request| number(device, request).ok());
    sizes.map(u64::from).find(|size| size.is_power_of_two())
}

pub(super) fn reread_table(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this request takes no argument.
    done(unsafe { libc::ioctl(device.as_raw_fd(), BLKRRPART as _, 0 as c_long) }).map(drop)
}

pub(super) fn media(device: BorrowedFd<'_>) -> Media {
    // SAFETY: both requests take a number and return one.
    let ask = |request: c_ulong| done(unsafe { libc::ioctl(device.as_raw_fd(), request as _, 0 as c_long) });
    match (ask(CDROM_GET_CAPABILITY), ask(CDROM_DRIVE_STATUS)) {
        (Err(_), _) => Media::NotOptical,
        // No disc, tray open.
        (Ok(_), Ok(1 | 2)) => Media::Missing,
        (Ok(_), _) => Media::Present,
    }
}

/// A request over a range of bytes.
pub(super) fn range(device: BorrowedFd<'_>, request: c_ulong, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the requests given to this function read two 64-bit numbers from the pointer, valid for the call.
    done(unsafe { libc::ioctl(device.as_raw_fd(), request as _, &raw const range) }).map(drop)
}

/// Adds, resizes or deletes one partition of the kernel's.
pub(super) fn change_partition(device: RawFd, change: KernelChange) -> io::Result<()> {
    let (operation, number, start, length) = match change {
        KernelChange::Delete(number) => (PARTITION_DELETE, number, 0, 0),
        KernelChange::Add(number, partition) => (PARTITION_ADD, number, partition.start, partition.size),
        KernelChange::Resize(number, partition) => {
            (PARTITION_RESIZE, number, partition.start, partition.size)
        }
    };
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut data = PartitionData {
        start: start.try_into().map_err(invalid)?,
        length: length.try_into().map_err(invalid)?,
        number: number.try_into().map_err(invalid)?,
        device_name: [0; 64],
        volume_name: [0; 64],
    };
    let argument = PartitionArgument {
        operation,
        flags: 0,
        len: size_of::<PartitionData>() as c_int,
        data: (&raw mut data).cast(),
    };
    // SAFETY: the argument has the layout of `struct blkpg_ioctl_arg`, its data that of `struct blkpg_partition`, and
    // both outlive the call.
    done(unsafe { libc::ioctl(device, BLKPG as _, &raw const argument) }).map(drop)
}
