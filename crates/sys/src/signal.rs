//! Signals as something to poll, and waiting for children: what the loop of PID 1 is made of.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Blocked signals, read from a descriptor instead of a handler.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Signals {
    /// Blocks `signals` in this thread and collects them. Call before any other thread starts.
    pub fn collect(signals: &[i32]) -> io::Result<Self> {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before it is used; the descriptor is new and ours.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            match libc::signalfd(-1, set.as_ptr(), flags) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(Self(OwnedFd::from_raw_fd(fd))),
            }
        }
    }

    /// The number of the next signal that has come, `None` when none has.
    pub fn try_next(&self) -> Option<i32> {
        let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: reads at most `size` bytes into a value of that size.
        let got = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(got) != Ok(size) {
            return None;
        }
        // SAFETY: the kernel filled the whole value.
        i32::try_from(unsafe { info.assume_init() }.ssi_signo).ok()
    }
}

/// Leaves `signal` without effect in this process (not in what it execs through the supervisor).
pub fn ignore(signal: i32) {
    // SAFETY: installs no handler code.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

/// Signals as a fresh program expects them: none blocked, none ignored. Call right before exec.
pub fn reset() {
    // SAFETY: the set is initialised by sigemptyset before it is used; handlers are only removed.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        for signal in 1..32 {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Sends a signal to a process.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes two numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps one exited child, any of them; `None` when none has exited.
///
/// Only for a process whose children are all started and waited for by one loop.
pub fn reap_any() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: does not block; `status` is a live integer.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        pid if pid > 0 => Some((pid, status)),
        _ => None,
    }
}

/// Whether one child has ended, without waiting for it; one that has is reaped.
///
/// # Errors
/// When there is no such child.
pub fn has_ended(pid: i32) -> io::Result<bool> {
    let mut status = 0;
    // SAFETY: does not block; `status` is a live integer.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        found => Ok(found == pid),
    }
}

/// Waits for one child; returns its raw status.
pub fn wait_for(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live integer.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Adopts orphans of this process's descendants, as PID 1 does for all.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes numbers only.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel send `signal` to this process when its parent thread ends.
pub fn set_parent_death_signal(signal: i32) -> io::Result<()> {
    // SAFETY: takes numbers only.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
