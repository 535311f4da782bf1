//! Packet sockets: whole packets of one protocol on one link, without any address of our own.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Packets handled per wake-up before others get their turn.
pub(crate) const BURST_MAX: usize = 32;

/// A packet socket bound to one link and one protocol.
pub(crate) struct PacketSocket {
    fd: AsyncFd<OwnedFd>,
    link_index: u32,
    protocol: u16,
}

impl PacketSocket {
    /// Opens a socket for an ethernet protocol (`ETH_P_...`); `filter` drops what is not wanted in the kernel.
    pub(crate) fn open(link_index: u32, protocol: u16, filter: &[libc::sock_filter]) -> io::Result<Self> {
        // Protocol 0: nothing arrives until bind names one, so the filter is in place before.
        let fd = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        if !filter.is_empty() {
            attach_filter(&fd, filter)?;
        }
        let address = broadcast_address(link_index, protocol);
        // SAFETY: the descriptor is open; the address outlives the call and matches its length.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: an `OwnedFd` names the same open file until it is dropped, and the `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self { fd, link_index, protocol })
    }

    /// Waits for at least one packet and hands those waiting to `take`. Cancel safe.
    pub(crate) async fn receive(&self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut ready = self.fd.readable().await?;
        for _ in 0..BURST_MAX {
            let received = ready.try_io(|fd| {
                let (length, _) = rustix::net::recv(fd.get_ref(), &mut *buffer, RecvFlags::empty())?;
                Ok(length)
            });
            match received {
                Ok(Ok(length)) => take(&buffer[..length]),
                // The link went down; its coming back is somebody else's to notice.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => break,
            }
        }
        Ok(())
    }

    /// Sends a packet to everyone on the link.
    pub(crate) fn broadcast(&self, packet: &[u8]) -> io::Result<()> {
        let to = broadcast_address(self.link_index, self.protocol);
        // SAFETY: the descriptor is open; packet and address outlive the call and match their lengths.
        let sent = unsafe {
            libc::sendto(
                self.fd.get_ref().as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The ethernet broadcast address on a link.
fn broadcast_address(link_index: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: an all-zero `sockaddr_ll` is a valid value of that plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = link_index.cast_signed();
    address.sll_halen = 6;
    address.sll_addr[..6].fill(0xff);
    address
}

fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the descriptor is open; the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
