//! Clocks that are devices: precision time hardware, or a hypervisor's clock.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads the clock behind a device such as `/dev/ptp0`.
///
/// # Errors
/// When the device cannot be opened, or is no clock.
pub fn read(device: &Path) -> io::Result<SystemTime> {
    let file = File::open(device)?;
    // The kernel makes a clock of a descriptor: its complement, shifted, with a mark.
    let clock = (!file.as_raw_fd() << 3) | 3;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the descriptor is open during the call, which writes one `timespec`.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999);
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_clock_is_an_error() {
        assert!(read(Path::new("/dev/null")).is_err());
        assert_eq!(read(Path::new("/dev/ptp-none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
