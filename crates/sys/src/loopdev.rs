//! Loop devices: a file as a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const LOOP_CTL_REMOVE: libc::c_ulong = 0x4c81;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// How often another process may take the free device first.
const ATTEMPTS: usize = 64;

#[repr(C)]
struct Info64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info64,
    reserved: [u64; 8],
}

/// A loop device that goes away with its last user.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    number: i32,
    created: bool,
    // Open until it is mounted: the device clears itself when nobody has it.
    _device: File,
}

impl LoopDevice {
    /// Gives `file` a block device, read-only. It is freed when this value and all mounts of it are gone.
    pub fn attach_read_only(file: &Path) -> io::Result<Self> {
        let backing = File::open(file)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
        let mut created = false;
        for _ in 0..ATTEMPTS {
            let before = std::fs::read_dir("/sys/block").map_or(0, Iterator::count);
            // SAFETY: this request takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            created |= before < std::fs::read_dir("/sys/block").map_or(0, Iterator::count);
            let path = PathBuf::from(format!("/dev/loop{number}"));
            make_node(&path, number)?;
            // Without writing it cannot be configured, though it will be read-only.
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, &backing, file) {
                Ok(()) => {
                    return Ok(Self { path, number, created, _device: device });
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Its number, as in `/dev/loop7`.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Whether the kernel made it for this use, so that [`remove`] leaves as many as there were.
    pub fn created(&self) -> bool {
        self.created
    }

    /// The device, to be mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The file behind a loop device, `None` when it is free.
pub fn backing_file(number: i32) -> Option<PathBuf> {
    let text = std::fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Takes a free loop device away from the system.
pub fn remove(number: i32) -> io::Result<()> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: this request takes a number.
    match unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE as _, number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Where no device manager runs, the node of a new device is missing.
fn make_node(path: &Path, number: i32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let device = rustix::fs::makedev(7, number.unsigned_abs());
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::from_raw_mode(0o660),
        device,
    ) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn configure(device: &File, backing: &File, name: &Path) -> io::Result<()> {
    let mut file_name = [0; 64];
    let bytes = name.as_os_str().as_encoded_bytes();
    let shown = bytes.len().min(file_name.len() - 1);
    file_name[..shown].copy_from_slice(&bytes[..shown]);
    let config = Config {
        fd: backing.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info: Info64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the argument has the layout of `struct loop_config` and outlives the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
