//! Precision time (PTP) devices: a network card's clock, or the hypervisor's.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::{device, open};

/// Where devices are.
const DEVICES: &str = "/dev";
/// The kernel's class of PTP clocks.
const CLASS: &str = "ptp";
/// The longest path of a device.
const PATH_MAX: usize = 255;

/// Reads the clock behind a device such as `/dev/ptp0`.
///
/// The path may come from anyone who may ask for the time: nothing outside of `/dev` is resolved, and nothing but a
/// character device of the kernel's PTP class is opened.
///
/// # Errors
/// When the path is none of a device, the device is no PTP clock, or the clock cannot be read.
pub fn read(path: &Path) -> io::Result<SystemTime> {
    let file = open_clock(path)?;
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

fn open_clock(path: &Path) -> io::Result<std::fs::File> {
    let refused = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
    let relative = path
        .strip_prefix(DEVICES)
        .ok()
        .filter(|rest| !rest.as_os_str().is_empty() && path.as_os_str().len() <= PATH_MAX)
        .ok_or_else(|| refused("not a path of a device below /dev"))?;
    let devices =
        rustix::fs::open(DEVICES, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Links inside of /dev are the usual names of clocks; shared memory and terminals are other filesystems.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let handle = open::handle(&devices, relative, resolve).map_err(|error| match error.raw_os_error() {
        Some(libc::EXDEV | libc::ELOOP) => refused("not a path of a device below /dev"),
        _ => error,
    })?;
    let found = rustix::fs::fstat(&handle)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    if !is_device || !is_clock(Path::new("/sys"), found.st_rdev) {
        return Err(refused("not a PTP clock"));
    }
    open::read(&handle)
}

/// Whether the kernel has a character device of this number among its PTP clocks.
fn is_clock(sys: &Path, device: u64) -> bool {
    let number = format!("dev/char/{}:{}/subsystem", device::major(device), device::minor(device));
    let class: Option<PathBuf> = std::fs::read_link(sys.join(number)).ok();
    class.is_some_and(|class| class.file_name().is_some_and(|name| name == CLASS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn what_is_no_clock_is_an_error() {
        assert_eq!(read(Path::new("/dev/null")).unwrap_err().to_string(), "not a PTP clock");
        assert_eq!(read(Path::new("/dev/ptp-none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read(Path::new("/dev")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(read(Path::new("/dev/fd/0")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_clock_argument_leads_to_no_other_file() {
        for path in
            ["/dev/../etc/hostname", "/etc/hostname", "/dev/shm/../../etc/hostname", "/dev/./../proc/1/mem"]
        {
            let error = read(Path::new(path)).unwrap_err();
            assert_eq!(error.to_string(), "not a path of a device below /dev", "{path}");
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_a_clock_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().canonicalize().unwrap().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let path = Path::new("/dev/..").join(fifo.strip_prefix("/").unwrap());
        let (sender, receiver) = mpsc::channel();
        // A thread of its own: the open of a pipe without a writer never returns.
        std::thread::spawn(move || sender.send(read(&path).is_err()));
        assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn the_class_of_a_device_is_what_the_kernel_says() {
        let sys = tempfile::tempdir().unwrap();
        for (number, class) in [("248:0", "ptp"), ("1:3", "mem")] {
            let device = sys.path().join("dev/char").join(number);
            std::fs::create_dir_all(&device).unwrap();
            symlink(format!("../../../class/{class}"), device.join("subsystem")).unwrap();
        }
        let device = |major, minor| rustix::fs::makedev(major, minor);
        assert!(is_clock(sys.path(), device(248, 0)));
        assert!(!is_clock(sys.path(), device(1, 3)));
        assert!(!is_clock(sys.path(), device(248, 1)));
    }
}
