//! Device nodes.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

/// The nodes a machine needs where no devtmpfs can be mounted: name, major, minor, mode.
pub const ESSENTIAL: [(&str, u32, u32, u32); 8] = [
    ("null", 1, 3, 0o666),
    ("zero", 1, 5, 0o666),
    ("full", 1, 7, 0o666),
    ("random", 1, 8, 0o666),
    ("urandom", 1, 9, 0o666),
    ("kmsg", 1, 11, 0o640),
    ("tty", 5, 0, 0o666),
    ("net/tun", 10, 200, 0o666),
];

/// Makes a character device; one that is there already is fine. The mode does not depend on the umask.
pub fn make_char(path: &Path, major: u32, minor: u32, mode: u32) -> io::Result<()> {
    let device = rustix::fs::makedev(major, minor);
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, mode, device) {
        Ok(()) => Ok(rustix::fs::chmod(path, mode)?),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The major number of a device.
pub fn major(device: u64) -> u32 {
    rustix::fs::major(device)
}

/// The minor number of a device.
pub fn minor(device: u64) -> u32 {
    rustix::fs::minor(device)
}
