//! Taps: ethernet links whose other end is a descriptor, as a virtual machine holds it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const DEVICE: &str = "/dev/net/tun";

/// Makes a tap in the network namespace of the caller; it is gone when its last descriptor is closed. Packets carry the
/// header of virtio, so that large ones pass in one piece.
///
/// # Errors
/// When the kernel has no taps, the caller may not make one, or the name is taken or none.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    // SAFETY: an all-zero `ifreq` is a valid value of that plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    if name.is_empty() || name.len() > room {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a link")));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the descriptor is open; the request outlives the call and is of the type the kernel expects.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(file.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_is_refused_before_the_kernel_cuts_it() {
        // Where there is no such device that is the error, and nothing was made either.
        for bad in ["", "1234567890123456"] {
            assert!(open(bad).is_err(), "{bad:?}");
        }
    }
}
