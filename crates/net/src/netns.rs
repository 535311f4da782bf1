//! Network namespaces: make one, work in another.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Makes a network namespace that lives as long as the descriptor (or anything in it).
pub fn create() -> io::Result<OwnedFd> {
    on_a_thread(|| {
        isolate(UnshareFlags::NEWNET)?;
        Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
    })?
}

/// Moves the calling thread, and it alone, into fresh network and UTS namespaces.
pub fn isolate_thread() -> io::Result<()> {
    isolate(UnshareFlags::NEWNET | UnshareFlags::NEWUTS)
}

fn isolate(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: callers pass namespace flags only; the descriptor table and memory stay shared.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }?;
    Ok(())
}

/// Runs `work` on a short-lived thread that has joined the given network namespace.
pub fn run_in<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        io::Result::Ok(work())
    })?
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(work).join();
        worker.map_err(|_| io::Error::other("worker thread panicked"))
    })
}
