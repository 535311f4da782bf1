//! Swapping to devices.

use std::ffi::CString;
use std::io;
use std::path::Path;

/// Tell the device once, when swapping begins, that its old content is not needed.
const DISCARD_ONCE: libc::c_int = 0x1_0000 | 0x2_0000;

fn path(device: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(device.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Begins to swap to a device that holds an empty swap area.
///
/// # Errors
/// The kernel's: `ResourceBusy` where it swaps there already.
pub fn on(device: &Path) -> io::Result<()> {
    let path = path(device)?;
    // SAFETY: the path is a string that outlives the call.
    done(unsafe { libc::swapon(path.as_ptr(), DISCARD_ONCE) })
}

/// Takes everything back from a device. Waits for that.
///
/// # Errors
/// The kernel's: `InvalidInput` where nothing is swapped to it.
pub fn off(device: &Path) -> io::Result<()> {
    let path = path(device)?;
    // SAFETY: the path is a string that outlives the call.
    done(unsafe { libc::swapoff(path.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_device_is_an_error() {
        assert!(on(Path::new("/does/not/exist")).is_err());
        assert!(off(Path::new("/does/not/exist")).is_err());
        assert!(on(Path::new("a\0b")).is_err());
    }
}
