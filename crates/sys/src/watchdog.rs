//! A watchdog: a timer that resets the machine unless it is fed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// The device that is armed where nobody names another one.
pub const FIRST: &str = "/dev/watchdog0";
/// The old name of the first device.
const FIRST_ALIAS: &str = "/dev/watchdog";
/// Where the kernel says whether the first device can be switched off again.
const FIRST_NOWAYOUT: &str = "/sys/class/watchdog/watchdog0/nowayout";

/// Whether a path names the first device.
pub fn is_first(device: &str) -> bool {
    device == FIRST || device == FIRST_ALIAS
}

/// Whether the first device can be switched off once it is armed. Not where the kernel does not tell.
pub fn first_can_stop() -> bool {
    std::fs::read(FIRST_NOWAYOUT).is_ok_and(|text| text.trim_ascii() == b"0")
}

/// `WDIOC_SETTIMEOUT`: read and write an `int`, group `W`, number 6.
const SET_TIMEOUT: libc::c_ulong = 0xc004_5706;
/// `WDIOC_KEEPALIVE`: read an `int`, group `W`, number 5.
const KEEP_ALIVE: libc::c_ulong = 0x8004_5705;

/// An armed watchdog. Dropping it leaves it armed, so that the end of its owner is the end of the machine.
#[derive(Debug)]
pub struct Watchdog {
    device: File,
}

impl Watchdog {
    /// Opens the device, which arms it, and sets its timeout in whole seconds. Tells the timeout it really has.
    pub fn arm(device: &Path, timeout: Duration) -> io::Result<(Self, Duration)> {
        let device = OpenOptions::new().read(true).write(true).open(device)?;
        let mut seconds = libc::c_int::try_from(timeout.as_secs()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the descriptor is open, and the pointer is to an `int` that lives through the call.
        let answer = unsafe { libc::ioctl(device.as_raw_fd(), SET_TIMEOUT as _, &raw mut seconds) };
        let watchdog = Self { device };
        if answer < 0 {
            let error = io::Error::last_os_error();
            // Nobody will feed it.
            let _ = watchdog.disarm();
            return Err(error);
        }
        Ok((watchdog, Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
    }

    /// Starts the timeout anew.
    pub fn feed(&self) -> io::Result<()> {
        let mut unused: libc::c_int = 0;
        // SAFETY: as above; the call writes nothing beyond the `int`.
        let answer = unsafe { libc::ioctl(self.device.as_raw_fd(), KEEP_ALIVE as _, &raw mut unused) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Switches the timer off, if the hardware can.
    pub fn disarm(mut self) -> io::Result<()> {
        self.device.write_all(b"V")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_watchdog() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Watchdog::arm(file.path(), Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        assert!(Watchdog::arm(Path::new("/dev/no-watchdog"), Duration::ZERO).is_err());
    }
}
