//! "Something changed": wakes up when the kernel's links, addresses, routes or rules change.
//!
//! What changed is not told. A reader that lists afresh after each wake-up can neither miss a change nor
//! be confused by one, and a burst of a thousand changes is one wake-up.

use std::os::fd::OwnedFd;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::NetError;
use crate::netlink::open_socket;

/// What to watch; values combine with `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topics(u32);

impl Topics {
    /// Links.
    pub const LINKS: Self = Self(1);
    /// Addresses of both families.
    pub const ADDRESSES: Self = Self(1 << 4 | 1 << 8);
    /// Routes of both families.
    pub const ROUTES: Self = Self(1 << 6 | 1 << 10);
    /// Rules of both families.
    pub const RULES: Self = Self(1 << 7 | 1 << 18);
}

impl std::ops::BitOr for Topics {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Waits for changes.
#[derive(Debug)]
pub struct Watcher {
    socket: AsyncFd<OwnedFd>,
}

impl Watcher {
    /// Starts to watch the network namespace of the calling thread. Needs a tokio runtime.
    pub fn open(topics: Topics) -> Result<Self, NetError> {
        open_socket(topics.0)
            .and_then(|socket| {
                // SAFETY: an `OwnedFd` names the same open file until it is dropped, and the `AsyncFd`
                // owns it.
                unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }.map_err(Into::into)
            })
            .map(|socket| Self { socket })
            .map_err(|source| NetError::Open { what: "netlink watch socket", source })
    }

    /// Returns after at least one change since the last call. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), NetError> {
        let failed = |source| NetError::Open { what: "netlink watch socket", source };
        loop {
            let mut ready = self.socket.readable().await.map_err(failed)?;
            let mut any = false;
            let drained: Result<std::io::Result<()>, _> = ready.try_io(|socket| {
                loop {
                    // The contents do not matter: a byte is enough to take a datagram off the queue.
                    match rustix::net::recv(socket.get_ref(), &mut [0_u8; 1][..], RecvFlags::TRUNC) {
                        Ok(_) => any = true,
                        // The queue ran over: changes were lost, which is a change.
                        Err(rustix::io::Errno::NOBUFS) => any = true,
                        Err(rustix::io::Errno::INTR) => {}
                        Err(errno) => return Err(std::io::Error::from(errno)),
                    }
                }
            });
            if any {
                return Ok(());
            }
            if let Ok(Err(source)) = drained {
                return Err(failed(source));
            }
        }
    }
}
