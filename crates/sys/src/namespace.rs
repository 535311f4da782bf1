//! Namespaces: leaving, entering, and starting a first process in new ones.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Kinds of namespaces, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(i32);

impl Namespaces {
    /// Mounts.
    pub const MOUNT: Self = Self(libc::CLONE_NEWNS);
    /// Network.
    pub const NET: Self = Self(libc::CLONE_NEWNET);
    /// Process ids; takes effect for children.
    pub const PID: Self = Self(libc::CLONE_NEWPID);
    /// Host name.
    pub const UTS: Self = Self(libc::CLONE_NEWUTS);
    /// System V and POSIX queues.
    pub const IPC: Self = Self(libc::CLONE_NEWIPC);
    /// View of the cgroup tree.
    pub const CGROUP: Self = Self(libc::CLONE_NEWCGROUP);

    /// Both sets together.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Moves this thread into new namespaces; with one thread that is the process.
pub fn unshare(kinds: Namespaces) -> io::Result<()> {
    // SAFETY: none of the accepted kinds splits memory or descriptors between threads.
    match unsafe { libc::unshare(kinds.0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A handle on the network namespace of this thread.
pub fn own_net() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// A handle on a namespace by path, as `/proc/7/ns/net`.
pub fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Moves this thread into the namespace of a handle.
pub fn enter(namespace: impl AsFd, kind: Namespaces) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is live; the kernel checks that it is of this kind.
    match unsafe { libc::setns(namespace.as_fd().as_raw_fd(), kind.0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Forks; the child runs `child` and exits with what it returns. Returns the child's pid.
///
/// Only for a program with one thread: another thread's locks would stay locked in the child.
///
/// # Errors
/// `Unsupported` when this process has more than one thread.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<i32> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads > 1 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "fork from a program with several threads"));
    }
    // SAFETY: there is one thread, so the child's copy of memory holds no lock of another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => Ok(pid),
    }
}

/// Replaces this process; returns only on failure.
pub fn exec(path: &Path, args: &[&str], env: &[&str]) -> io::Error {
    use std::ffi::CString;
    let text = |text: &&str| CString::new(*text);
    let (Ok(path), Ok(args), Ok(env)) = (
        CString::new(path.as_os_str().as_encoded_bytes()),
        args.iter().map(text).collect::<Result<Vec<_>, _>>(),
        env.iter().map(text).collect::<Result<Vec<_>, _>>(),
    ) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let list = |texts: &[CString]| {
        let pointers = texts.iter().map(|text| text.as_ptr());
        pointers.chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (args, env) = (list(&args), list(&env));
    // SAFETY: all strings are zero-terminated and outlive the call, both lists end with null.
    unsafe { libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}
