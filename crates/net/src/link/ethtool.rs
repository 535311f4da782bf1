//! What the driver of a link says: speed, duplex, port, names and versions.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 0x1;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const SPEED_UNKNOWN: u32 = u32::MAX;
/// Longest name that fits `struct ifreq` with its NUL.
const NAME_MAX: usize = 15;

/// The driver of a link and where the device sits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driver {
    /// Kernel driver.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Firmware of the device.
    pub firmware: String,
    /// Bus address, such as `0000:00:03.0`.
    pub bus_path: String,
}

/// What the link negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// In megabits per second; 0 when the driver does not know.
    pub speed_mbit: u32,
    /// 0 half, 1 full, 255 unknown.
    pub duplex: u8,
    /// Connector: 0 twisted pair, 5 direct attach, 239 none, 255 other.
    pub port: u8,
}

/// Asks drivers about their links.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

impl Ethtool {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket })
    }

    /// The driver of a link; an error where it has none (loopback).
    pub fn driver(&self, link: &str) -> io::Result<Driver> {
        // struct ethtool_drvinfo: command, then texts of 32 bytes each, then counters.
        let mut info = [0_u8; 196];
        self.call(link, ETHTOOL_GDRVINFO, &mut info)?;
        let text = |field: usize| {
            let start = 4 + field * 32;
            let bytes = &info[start..start + 32];
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(32);
            let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
            if text == "N/A" { String::new() } else { text }
        };
        Ok(Driver { name: text(0), version: text(1), firmware: text(2), bus_path: text(3) })
    }

    /// Speed, duplex and port; an error where the driver does not tell.
    pub fn mode(&self, link: &str) -> io::Result<Mode> {
        // struct ethtool_cmd: command, two masks, speed, duplex, port, ..., high half of speed.
        let mut command = [0_u8; 44];
        self.call(link, ETHTOOL_GSET, &mut command)?;
        let low = u16::from_ne_bytes([command[12], command[13]]);
        let high = u16::from_ne_bytes([command[28], command[29]]);
        let speed = match u32::from(high) << 16 | u32::from(low) {
            SPEED_UNKNOWN | 0xffff => 0,
            speed => speed,
        };
        Ok(Mode { speed_mbit: speed, duplex: command[14], port: command[15] })
    }

    fn call(&self, link: &str, command: u32, data: &mut [u8]) -> io::Result<()> {
        if link.len() > NAME_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        data[..4].copy_from_slice(&command.to_ne_bytes());
        // SAFETY: an all-zero `ifreq` is a valid value of that plain C struct.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
        // SAFETY: the descriptor is open; `request` points to `data`, which lives through the call and is
        // as large as the structure that `command` reads and writes.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
