//! Descriptors of the kernel's that tokio has no type for, on its reactor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor for readability. A second handle on the same open file is registered, so the
/// caller keeps its own.
///
/// # Errors
/// When there is no descriptor left, or no runtime here.
#[allow(deprecated, reason = "the successor is unsafe for odd types; an `OwnedFd` keeps its promise")]
pub fn readable(fd: &impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd.as_fd().try_clone_to_owned()?, Interest::READABLE)
}
