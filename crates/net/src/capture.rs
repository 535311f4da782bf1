//! Packets of a link as they pass, for looking at them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of packets the kernel keeps while nobody reads; what comes then is dropped and counted.
const KERNEL_BUFFER: libc::c_int = 2 << 20;

/// The longest packet there is: a segment before it is cut for the wire, with room for its headers.
pub const LENGTH_MAX: usize = 256 << 10;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When it passed.
    pub at: SystemTime,
    /// How long it was on the wire.
    pub length: usize,
    /// Its beginning, as much as was asked for.
    pub data: &'a [u8],
}

/// An instruction of a filter, as the kernel takes it: operation, both distances, operand.
pub type Instruction = (u16, u8, u8, u32);

/// A capture in progress. It ends when it is dropped.
pub struct Capture {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Capture {
    /// Captures on the link with this index: packets that `filter` takes (all, if it is empty), the first `snap`
    /// bytes of each. Needs a tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` when the kernel refuses the filter, else what it says about the link or our rights.
    pub fn open(link_index: u32, filter: &[Instruction], promiscuous: bool, snap: usize) -> io::Result<Self> {
        // Protocol 0: nothing arrives until bind names one, so the filter is in place before.
        let fd = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        if !filter.is_empty() {
            attach(&fd, filter)?;
        }
        // Best effort: without it the buffer is the kernel's default, and times are ours.
        let _ = option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &KERNEL_BUFFER);
        let _ = option(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32);
        let index = link_index.cast_signed();
        if promiscuous {
            // SAFETY: an all-zero `packet_mreq` is a valid value of that plain C struct.
            let mut membership: libc::packet_mreq = unsafe { std::mem::zeroed() };
            membership.mr_ifindex = index;
            membership.mr_type = libc::PACKET_MR_PROMISC as u16;
            option(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        }
        // SAFETY: an all-zero `sockaddr_ll` is a valid value of that plain C struct.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
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
        Ok(Self { fd, buffer: vec![0; snap.clamp(1, LENGTH_MAX)] })
    }

    /// Waits for packets and hands those that are there to `take`, until it returns `false`. Cancel safe.
    pub async fn receive(&mut self, mut take: impl FnMut(Packet<'_>) -> bool) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            let mut any = false;
            loop {
                match ready.try_io(|fd| receive(fd.get_ref(), &mut self.buffer)) {
                    Ok(Ok((at, length))) => {
                        any = true;
                        let data = &self.buffer[..length.min(self.buffer.len())];
                        if !take(Packet { at, length, data }) {
                            return Ok(());
                        }
                    }
                    Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(Err(error)) => return Err(error),
                    Err(_would_block) => break,
                }
            }
            if any {
                return Ok(());
            }
        }
    }

    /// Packets seen and packets lost since the last time this was asked.
    pub fn statistics(&self) -> io::Result<(u32, u32)> {
        let mut statistics = [0_u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the descriptor is open; the kernel writes at most `length` bytes into the array.
        let result = unsafe {
            libc::getsockopt(
                self.fd.get_ref().as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok((statistics[0], statistics[1])) }
    }
}

fn option<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is open; the value outlives the call and matches its length.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn attach(fd: &OwnedFd, filter: &[Instruction]) -> io::Result<()> {
    let program: Vec<libc::sock_filter> =
        filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The kernel copies the program, which outlives the call.
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Space for one timestamp and its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives one packet: its time and its full length; the buffer holds its beginning.
fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<(SystemTime, usize)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: an all-zero `msghdr` is a valid value of that plain C struct.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the descriptor is open; buffer and control space outlive the call and match their lengths.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
    let Ok(length) = usize::try_from(length) else {
        return Err(io::Error::last_os_error());
    };
    let mut at = None;
    // SAFETY: the message is as the kernel filled it; CMSG_FIRSTHDR checks the length of the control space.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if !header.is_null() {
        // SAFETY: not null, inside `control`, and aligned like it.
        let found = unsafe { header.read() };
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_TIMESTAMPNS {
            // SAFETY: a header of this type carries a `timespec`, which may stand anywhere.
            let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
            let since = Duration::new(
                u64::try_from(time.tv_sec).unwrap_or(0),
                u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999),
            );
            at = Some(UNIX_EPOCH + since);
        }
    }
    Ok((at.unwrap_or_else(SystemTime::now), length))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// The index of the loopback link, the same in every namespace.
    const LOOPBACK: u32 = 1;

    /// Runs in a network namespace of its own; needs root, as capturing does.
    fn isolated<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let run = || {
                crate::netns::isolate_thread().unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let netlink = crate::Netlink::open().unwrap();
                    crate::link::set_up(&netlink, "lo", true).await.unwrap();
                    tokio::time::timeout(Duration::from_secs(10), work()).await.unwrap()
                })
            };
            scope.spawn(run).join().unwrap()
        })
    }

    fn send(port: u16, text: &[u8]) {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(text, ("127.0.0.1", port)).unwrap();
    }

    #[test]
    fn packets_are_cut_filtered_and_counted() {
        isolated(async || {
            // UDP to port 7 only: load the port behind Ethernet and IP headers, compare, take or drop.
            let filter = [(0x28, 0, 0, 36), (0x15, 0, 1, 7), (0x06, 0, 0, 0x4_0000), (0x06, 0, 0, 0)];
            let mut capture = Capture::open(LOOPBACK, &filter, true, 50).unwrap();
            send(9, b"not this one");
            send(7, b"this is the one that is taken");
            let mut seen = Vec::new();
            capture
                .receive(|packet| {
                    seen.push((packet.length, packet.data.to_vec(), packet.at));
                    false
                })
                .await
                .unwrap();
            let (length, data, at) = &seen[0];
            assert_eq!((*length, data.len()), (14 + 20 + 8 + 29, 50));
            assert_eq!(&data[42..], b"this is ");
            assert!(at.elapsed().unwrap() < Duration::from_secs(10));
            let (packets, lost) = capture.statistics().unwrap();
            assert!(packets >= 1 && lost == 0, "{packets} {lost}");
        });
    }

    #[test]
    fn a_filter_the_kernel_refuses_and_a_missing_link_are_errors() {
        isolated(async || {
            let refused = Capture::open(LOOPBACK, &[(0xffff, 0, 0, 0)], false, 50).err().unwrap();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
            let missing = Capture::open(4_000_000, &[], false, 50).err().unwrap();
            assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
        });
    }
}
