//! What the driver of a link says: speed, duplex, port, names and versions.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GSET: u32 = 0x1;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const SPEED_UNKNOWN: u32 = u32::MAX;
const ETHTOOL_GWOL: u32 = 0x5;
const ETHTOOL_SWOL: u32 = 0x6;
const ETHTOOL_GLINK: u32 = 0xa;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_SRINGPARAM: u32 = 0x11;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
/// String sets.
const FEATURES: u32 = 4;
const LINK_MODES: u32 = 9;
/// Strings of one set; the kernel has fewer than a hundred of either.
const STRINGS_MAX: usize = 512;
const STRING: usize = 32;
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

/// Everything the driver of an ethernet link says about its settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// There is a carrier; `None` when the driver does not tell.
    pub link: Option<bool>,
    /// Negotiated speed, duplex and connector.
    pub mode: Option<Mode>,
    /// Modes this side offers.
    pub ours: Vec<String>,
    /// Modes the other side offers.
    pub peer: Vec<String>,
    /// Sizes of rings: receive, mini, jumbo, transmit.
    pub rings: Option<Four>,
    /// Numbers of channels: receive, transmit, other, combined.
    pub channels: Option<Four>,
    /// Features, in the order of the kernel.
    pub features: Vec<Feature>,
    /// What wakes the machine, as bits.
    pub wake_on_lan: u32,
}

/// Four settings and their limits; a limit of zero means that there is no such thing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Four {
    /// The limits.
    pub max: [u32; 4],
    /// The present values.
    pub now: [u32; 4],
}

/// A feature of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// It is on.
    pub active: bool,
    /// It was asked for.
    pub requested: bool,
    /// It cannot be changed.
    pub fixed: bool,
}

/// A change of an ethernet link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sizes of rings: receive, mini, jumbo, transmit. Those not named stay.
    Rings([Option<u32>; 4]),
    /// Features by name.
    Features(Vec<(String, bool)>),
    /// Numbers of channels: receive, transmit, other, combined. Those not named stay.
    Channels([Option<u32>; 4]),
    /// What wakes the machine, as bits.
    WakeOnLan(u32),
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

    /// Everything about an ethernet link; an error where the driver knows nothing of such settings.
    pub fn ethernet(&self, link: &str) -> io::Result<Ethernet> {
        let (mode, ours, peer) = self.link_settings(link)?;
        let mut carrier = [0_u8; 8];
        let carrier = self.call(link, ETHTOOL_GLINK, &mut carrier).map(|()| word(&carrier, 1) != 0);
        let mut wake = [0_u8; 20];
        let wake = self.call(link, ETHTOOL_GWOL, &mut wake).map_or(0, |()| word(&wake, 2));
        Ok(Ethernet {
            link: carrier.ok(),
            mode: Some(mode),
            ours,
            peer,
            rings: self.four(link, ETHTOOL_GRINGPARAM).ok(),
            channels: self.four(link, ETHTOOL_GCHANNELS).ok(),
            features: self.features(link).unwrap_or_default(),
            wake_on_lan: wake,
        })
    }

    /// Changes a link.
    pub fn change(&self, link: &str, change: &Change) -> io::Result<()> {
        match change {
            Change::Rings(wanted) => self.set_four(link, ETHTOOL_GRINGPARAM, ETHTOOL_SRINGPARAM, wanted),
            Change::Channels(wanted) => self.set_four(link, ETHTOOL_GCHANNELS, ETHTOOL_SCHANNELS, wanted),
            Change::Features(wanted) => self.set_features(link, wanted),
            Change::WakeOnLan(bits) => {
                let mut data = [0_u8; 20];
                data[8..12].copy_from_slice(&bits.to_ne_bytes());
                self.call(link, ETHTOOL_SWOL, &mut data)
            }
        }
    }

    fn link_settings(&self, link: &str) -> io::Result<(Mode, Vec<String>, Vec<String>)> {
        const FIXED: usize = 48;
        const MASK_WORDS: usize = 15;
        // The first call says how many words a mask has, as a negative number.
        let mut data = vec![0_u8; FIXED];
        self.call(link, ETHTOOL_GLINKSETTINGS, &mut data)?;
        let words = data[MASK_WORDS].wrapping_neg();
        if words == 0 || words > 127 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mask = usize::from(words) * 4;
        data = vec![0; FIXED + 3 * mask];
        data[MASK_WORDS] = words;
        self.call(link, ETHTOOL_GLINKSETTINGS, &mut data)?;
        let speed_mbit = match word(&data, 1) {
            SPEED_UNKNOWN => 0,
            speed => speed,
        };
        let mode = Mode { speed_mbit, duplex: data[8], port: data[9] };
        let named = |part: usize| {
            let bits = &data[FIXED + part * mask..FIXED + (part + 1) * mask];
            if bits.iter().all(|byte| *byte == 0) {
                return Vec::new();
            }
            let names = self.strings(link, LINK_MODES).unwrap_or_default();
            let set = |at: usize| word(bits, at / 32) >> (at % 32) & 1 == 1;
            let of_bit = |(at, name): (usize, String)| (at < mask * 8 && set(at)).then_some(name);
            names.into_iter().enumerate().filter_map(of_bit).collect()
        };
        Ok((mode, named(1), named(2)))
    }

    fn four(&self, link: &str, command: u32) -> io::Result<Four> {
        let mut data = [0_u8; 36];
        self.call(link, command, &mut data)?;
        let words = |from: usize| [0, 1, 2, 3].map(|at| word(&data, from + at));
        Ok(Four { max: words(1), now: words(5) })
    }

    fn set_four(&self, link: &str, get: u32, set: u32, wanted: &[Option<u32>; 4]) -> io::Result<()> {
        let mut data = [0_u8; 36];
        self.call(link, get, &mut data)?;
        for (at, value) in wanted.iter().enumerate() {
            if let Some(value) = value {
                data[(5 + at) * 4..(6 + at) * 4].copy_from_slice(&value.to_ne_bytes());
            }
        }
        self.call(link, set, &mut data)
    }

    /// Blocks of 32 features: available, requested, active, never changed.
    fn feature_blocks(&self, link: &str, count: usize) -> io::Result<Vec<u8>> {
        let blocks = count.div_ceil(32);
        let mut data = vec![0_u8; 8 + blocks * 16];
        data[4..8].copy_from_slice(&(blocks as u32).to_ne_bytes());
        self.call(link, ETHTOOL_GFEATURES, &mut data)?;
        Ok(data)
    }

    fn features(&self, link: &str) -> io::Result<Vec<Feature>> {
        let names = self.strings(link, FEATURES)?;
        let data = self.feature_blocks(link, names.len())?;
        let of_bit = |(at, name): (usize, String)| {
            let bit = |part: usize| word(&data, 2 + at / 32 * 4 + part) >> (at % 32) & 1 == 1;
            (!name.is_empty()).then(|| Feature {
                name,
                active: bit(2),
                requested: bit(1),
                fixed: bit(3) || !bit(0),
            })
        };
        Ok(names.into_iter().enumerate().filter_map(of_bit).collect())
    }

    fn set_features(&self, link: &str, wanted: &[(String, bool)]) -> io::Result<()> {
        let names = self.strings(link, FEATURES)?;
        let blocks = names.len().div_ceil(32);
        let mut data = vec![0_u8; 8 + blocks * 8];
        data[4..8].copy_from_slice(&(blocks as u32).to_ne_bytes());
        for (name, on) in wanted {
            let Some(at) = names.iter().position(|known| known == name) else {
                let text = format!("there is no feature {name}");
                return Err(io::Error::new(io::ErrorKind::NotFound, text));
            };
            let (valid, requested) = (8 + at / 32 * 8, 12 + at / 32 * 8);
            let bit = 1_u32 << (at % 32);
            for place in [Some(valid), on.then_some(requested)].into_iter().flatten() {
                let held = word(&data, place / 4);
                data[place..place + 4].copy_from_slice(&(held | bit).to_ne_bytes());
            }
        }
        self.call(link, ETHTOOL_SFEATURES, &mut data)
    }

    /// The names of a string set.
    fn strings(&self, link: &str, set: u32) -> io::Result<Vec<String>> {
        let mut info = [0_u8; 20];
        info[8..16].copy_from_slice(&(1_u64 << set).to_ne_bytes());
        self.call(link, ETHTOOL_GSSET_INFO, &mut info)?;
        let count = (word(&info, 4) as usize).min(STRINGS_MAX);
        let mut data = vec![0_u8; 12 + count * STRING];
        data[4..8].copy_from_slice(&set.to_ne_bytes());
        data[8..12].copy_from_slice(&(count as u32).to_ne_bytes());
        self.call(link, ETHTOOL_GSTRINGS, &mut data)?;
        Ok(data[12..].chunks(STRING).map(crate::netlink::wire::text_of).collect())
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
        // SAFETY: the descriptor is open; `request` points to `data`, which lives through the call and is as
        // large as the structure that `command` reads and writes, including the lists whose lengths it names.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    crate::netlink::wire::u32_at(bytes, at * 4).unwrap_or(0)
}
