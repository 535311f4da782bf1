//! Datagrams that carry file descriptors: `SOCK_SEQPACKET` pairs with `SCM_RIGHTS`.
//!
//! Nothing here allocates; the caller brings the buffers.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most descriptors one message may carry.
pub const FDS_MAX: usize = 8;

/// Descriptors that came with a message, in the order they were sent.
#[derive(Debug, Default)]
pub struct Fds([Option<OwnedFd>; FDS_MAX]);

impl Fds {
    /// Takes the descriptor at `index` out, if one came there.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.0.get_mut(index).and_then(Option::take)
    }

    /// Just one descriptor.
    pub(crate) fn one(fd: OwnedFd) -> Self {
        let mut fds = Self::default();
        fds.0[0] = Some(fd);
        fds
    }

    /// How many descriptors are (still) held.
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether no descriptor is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The held descriptors, in order.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().flatten().map(AsFd::as_fd)
    }
}

/// A pair of connected sockets that keep message boundaries; non-blocking, closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Sends one message made of `parts`, with `fds` attached; `WouldBlock` when the peer's queue is full.
///
/// # Errors
/// `InvalidInput` for more than [`FDS_MAX`] descriptors, else what the kernel says.
pub fn send(socket: impl AsFd, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > FDS_MAX || parts.len() > 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let iov = [
        IoSlice::new(parts.first().copied().unwrap_or_default()),
        IoSlice::new(parts.get(1).copied().unwrap_or_default()),
    ];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &iov, &mut control, flags)?;
    Ok(())
}

/// Receives one message into `buffer`; `None` when none is waiting, length 0 when the peer is gone.
///
/// # Errors
/// `InvalidData` for a message longer than the buffer or with too many descriptors.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Fds)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
        Ok(got) => got,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut fds = Fds::default();
    let mut count = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for fd in rights {
                if let Some(slot) = fds.0.get_mut(count) {
                    *slot = Some(fd);
                }
                count += 1;
            }
        }
    }
    if got.flags.contains(ReturnFlags::TRUNC) || count > FDS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some((got.bytes, fds)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_descriptor_crosses_with_its_message() {
        let (a, b) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&a, &[b"he", b"llo"], &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 16];
        let (len, mut fds) = receive(&b, &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..len], b"hello");
        let mut file = std::fs::File::from(fds.take(0).unwrap());
        file.write_all(b"through").unwrap();
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn an_empty_queue_is_none_and_a_lost_peer_is_length_zero() {
        let (a, b) = pair().unwrap();
        assert!(receive(&b, &mut [0; 4]).unwrap().is_none());
        drop(a);
        assert_eq!(receive(&b, &mut [0; 4]).unwrap().unwrap().0, 0);
    }

    #[test]
    fn a_message_longer_than_the_buffer_is_refused() {
        let (a, b) = pair().unwrap();
        send(&a, &[b"too long"], &[]).unwrap();
        assert_eq!(receive(&b, &mut [0; 4]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
