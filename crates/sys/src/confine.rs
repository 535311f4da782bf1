//! What the daemons of a node may still do, and how that is enforced.
//!
//! Four filters of system calls, from strict to loose:
//!
//! - [`Filter::Sealed`], a list of what is allowed: for a program that reads, computes and prints, and is not trusted
//!   to do anything else. No sockets of any kind, nothing opened to be written to.
//! - [`Filter::Daemon`], a list of what is allowed: for apid and trustd, which face the network. It stands from
//!   before their first instruction on; [`lock`] puts a stricter one on top that refuses to start programs, too.
//! - [`Filter::Manager`], a list of what is refused: for machined, by [`lock_manager`].
//! - [`Filter::Service`], a list of what is refused: for other services without privileges.
//!
//! A refused call fails with EPERM; in a locked daemon it is also told on standard error, each once, by name.

mod calls;
mod filter;
mod trap;

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Which system calls a process may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// All.
    #[default]
    None,
    /// All but those that no service without privileges needs.
    Service,
    /// Those that a daemon needs that serves sockets, and `execve`, which starts it.
    Daemon,
    /// Those that a program needs that reads files, computes and prints, and `execve`, which starts it.
    Sealed,
    /// All but those that the manager of a node leaves to init or never needs.
    Manager,
}

/// Puts a filter on this thread and its future children. Needs `no_new_privs` or CAP_SYS_ADMIN. Allocates nothing.
pub(crate) fn install(filter: Filter) -> io::Result<()> {
    match filter {
        Filter::None => Ok(()),
        Filter::Service => set(&filter::SERVICE, 0),
        Filter::Daemon => set(&filter::DAEMON, 0),
        Filter::Sealed => set(&filter::SEALED, 0),
        Filter::Manager => set(&filter::MANAGER, libc::SECCOMP_FILTER_FLAG_TSYNC),
    }
}

/// Gives up, for good, what a daemon needed only to start: programs, files that grow, cores, being looked into.
/// All threads are bound.
///
/// # Errors
/// When the kernel has no filters; the daemon must not run then.
pub fn lock() -> io::Result<()> {
    crate::credentials::set_no_new_privs()?;
    // SAFETY: takes a number; no core and no debugger from now on.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    for resource in [Resource::Core, Resource::Fsize, Resource::Memlock, Resource::Msgqueue] {
        setrlimit(resource, none)?;
    }
    trap::install()?;
    set(&filter::LOCKED, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same for the manager of a node: programs are started by init, and what only an intruder wants is refused.
///
/// # Errors
/// When the kernel has no filters.
pub fn lock_manager() -> io::Result<()> {
    crate::credentials::set_no_new_privs()?;
    trap::install()?;
    install(Filter::Manager)
}

fn set(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program before the call returns and does not write to it.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match done {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // With TSYNC: the thread that could not be bound.
        _ => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_calls_fail_and_the_others_work() {
        // A thread of its own: the filter cannot be taken off again.
        std::thread::spawn(|| {
            crate::credentials::set_no_new_privs().unwrap();
            install(Filter::Service).unwrap();
            // SAFETY: no pointer is followed; the call is refused.
            let (refused, errno) = unsafe {
                let done = libc::syscall(libc::SYS_unshare, 0);
                (done, io::Error::last_os_error().raw_os_error())
            };
            assert_eq!((refused, errno), (-1, Some(libc::EPERM)));
            assert!(std::fs::read_to_string("/proc/self/status").is_ok());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_sealed_thread_reads_and_computes_but_neither_talks_nor_writes_files() {
        use std::os::unix::net::UnixStream;

        let dir = tempfile::tempdir().unwrap();
        let (given, new) = (dir.path().join("given"), dir.path().join("new"));
        std::fs::write(&given, "text").unwrap();
        std::thread::spawn(move || {
            crate::credentials::set_no_new_privs().unwrap();
            install(Filter::Sealed).unwrap();
            assert_eq!(std::fs::read_to_string(&given).unwrap(), "text");
            assert_eq!(vec![1_u8; 16 << 20].iter().map(|byte| usize::from(*byte)).sum::<usize>(), 16 << 20);
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            let refused = |error: io::Error| error.raw_os_error() == Some(libc::EPERM);
            assert!(refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err()));
            assert!(refused(std::net::TcpStream::connect("127.0.0.1:1").unwrap_err()));
            assert!(refused(UnixStream::connect("/nowhere").unwrap_err()));
            assert!(refused(UnixStream::pair().unwrap_err()));
            assert!(refused(std::fs::write(&given, "other").unwrap_err()));
            assert!(refused(std::fs::File::create(&new).unwrap_err()));
            assert!(refused(std::fs::remove_file(&given).unwrap_err()));
            assert!(refused(std::fs::rename(&given, &new).unwrap_err()));
        })
        .join()
        .unwrap();
    }
}
