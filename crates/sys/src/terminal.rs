//! Terminals: raw mode, sizes, and which virtual terminal is on the screen.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Where a child finds the terminal it was given.
pub const INHERITED_FD: RawFd = 3;

/// Any virtual terminal stands for all of them here.
const ANY: &str = "/dev/tty0";
/// What draws virtual terminals.
const DRIVERS: &str = "/sys/class/vtconsole";
/// A driver that draws nothing.
const NOTHING: &str = "dummy device";

/// `VT_ACTIVATE`.
const ACTIVATE: libc::c_ulong = 0x5606;
/// `TIOCLINUX` and the number of its part that says where the kernel's messages go.
const LINUX: libc::c_ulong = 0x541c;
const REDIRECT_MESSAGES: u8 = 11;

/// A terminal without a size, say a serial line, is taken for one of these columns and rows.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// Opens a terminal in raw mode, not as the controlling one. Does not wait for a serial line to be connected.
///
/// # Errors
/// When there is none, or it is something else.
pub fn open_raw(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let mut modes = tcgetattr(&file)?;
    modes.make_raw();
    tcsetattr(&file, OptionalActions::Now, &modes)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file.into())
}

/// The terminal that whoever started this process left at [`INHERITED_FD`]. Call once, early in `main`.
///
/// # Errors
/// When there is nothing, or no terminal.
pub fn inherited() -> io::Result<OwnedFd> {
    // SAFETY: takes a number; fails for a closed one.
    if unsafe { libc::fcntl(INHERITED_FD, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and nothing else in this process has it: it was there when the process began.
    let terminal = unsafe { OwnedFd::from_raw_fd(INHERITED_FD) };
    if !isatty(&terminal) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptor 3 is no terminal"));
    }
    Ok(terminal)
}

/// Columns and rows.
///
/// # Errors
/// When it is no terminal.
pub fn size(terminal: impl AsFd) -> io::Result<(u16, u16)> {
    let size = tcgetwinsize(terminal)?;
    Ok(if size.ws_col == 0 || size.ws_row == 0 { USUAL_SIZE } else { (size.ws_col, size.ws_row) })
}

/// Whether anything draws virtual terminals: a machine without a screen has a driver that does not.
pub fn has_screen() -> bool {
    draws_below(Path::new(DRIVERS))
}

fn draws_below(drivers: &Path) -> bool {
    let Ok(found) = std::fs::read_dir(drivers) else { return false };
    found.flatten().any(|driver| {
        let read = |name: &str| std::fs::read_to_string(driver.path().join(name)).unwrap_or_default();
        read("bind").trim() == "1" && !read("name").contains(NOTHING)
    })
}

/// Has the kernel write its messages to one virtual terminal, whichever is on the screen.
///
/// # Errors
/// When there are no virtual terminals.
pub fn keep_kernel_messages_on(number: u8) -> io::Result<()> {
    let mut arguments = [REDIRECT_MESSAGES, number];
    // SAFETY: the descriptor is open, and the kernel reads two bytes of an array that lives through the call.
    done(unsafe { libc::ioctl(any()?.as_raw_fd(), LINUX as _, arguments.as_mut_ptr()) })
}

/// Puts a virtual terminal on the screen. Does not wait until it is there.
///
/// # Errors
/// When there are no virtual terminals.
pub fn show(number: u8) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the argument is a number.
    done(unsafe { libc::ioctl(any()?.as_raw_fd(), ACTIVATE as _, libc::c_ulong::from(number)) })
}

fn any() -> io::Result<File> {
    let flags = (OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(ANY)
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, Winsize, tcsetwinsize};

    use super::*;

    #[test]
    fn a_terminal_is_opened_raw_and_waits_for_keys() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = open_raw(Path::new(&name)).unwrap();
        let modes = tcgetattr(&terminal).unwrap();
        assert!(!modes.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
        assert!(!fcntl_getfl(&terminal).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(size(&terminal).unwrap(), USUAL_SIZE, "it has no size yet");
        let wide = Winsize { ws_col: 132, ws_row: 50, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, wide).unwrap();
        assert_eq!(size(&terminal).unwrap(), (132, 50));
    }

    #[test]
    fn what_is_no_terminal_is_refused() {
        assert_eq!(open_raw(Path::new("/dev/null")).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert!(open_raw(Path::new("/dev/no-such-tty")).is_err());
    }

    #[test]
    fn a_driver_that_draws_nothing_is_no_screen() {
        let dir = tempfile::tempdir().unwrap();
        let driver = |id: &str, name: &str, bind: &str| {
            let path = dir.path().join(id);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("name"), name).unwrap();
            std::fs::write(path.join("bind"), bind).unwrap();
        };
        assert!(!draws_below(dir.path()));
        driver("vtcon0", "(S) dummy device\n", "1\n");
        assert!(!draws_below(dir.path()));
        driver("vtcon1", "(M) frame buffer device\n", "0\n");
        assert!(!draws_below(dir.path()), "it is not in use");
        driver("vtcon1", "(M) frame buffer device\n", "1\n");
        assert!(draws_below(dir.path()));
    }
}
