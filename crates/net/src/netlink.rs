//! One request, one answer: a route netlink socket.
//!
//! The kernel answers a route request inside the call that sends it, so a transaction is a send and a
//! few receives that find their data waiting; nothing here needs a task, a queue or a timer. The receive
//! timeout only guards against a kernel that breaks that promise.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::{KernelError, NetError};
use crate::netns;

pub(crate) mod wire;

use wire::{Answers, Message, Reply};

/// The kernel fills at most this much of a dump into one datagram when it knows the reader's buffer.
const RECEIVE_MAX: usize = 32 * 1024;

/// Far above what a dump takes; reached only when the kernel never answers.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A dump that the kernel marks as torn by a concurrent change is repeated this often.
const DUMP_ATTEMPTS: u32 = 4;

/// A connection to the kernel's network configuration, for the namespace of the thread that opened it.
///
/// May be shared; requests take turns.
#[derive(Debug)]
pub struct Netlink {
    socket: Mutex<Socket>,
}

#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a connection in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetError> {
        let fd = open_socket(0).map_err(|source| NetError::Open { what: "netlink socket", source })?;
        Ok(Self { socket: Mutex::new(Socket { fd, sequence: 0, buffer: vec![0; RECEIVE_MAX] }) })
    }

    /// Opens a connection in another network namespace, such as one from `/proc/<pid>/ns/net`.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, NetError> {
        netns::run_in(namespace, Self::open)
            .map_err(|source| NetError::Open { what: "network namespace", source })?
    }

    /// Sends a request that the kernel acknowledges.
    pub(crate) fn request(&self, message: Message) -> Result<(), KernelError> {
        self.lock().transact(message, wire::ACK, &mut |_, _| {})
    }

    /// Sends a request for one object and hands its answer to `on_reply`.
    pub(crate) fn get(
        &self,
        message: Message,
        on_reply: &mut dyn FnMut(u16, &[u8]),
    ) -> Result<(), KernelError> {
        self.lock().transact(message, wire::ACK, on_reply)
    }

    /// Lists all objects of a kind. `parse` turns one answer into a value or skips it.
    pub(crate) fn dump<T>(
        &self,
        message: &Message,
        mut parse: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, KernelError> {
        let mut socket = self.lock();
        let mut attempt = 1;
        loop {
            let mut found = Vec::new();
            let result = socket.transact(message.clone(), wire::DUMP, &mut |kind, payload| {
                found.extend(parse(kind, payload));
            });
            match result {
                Err(error) if error.errno() == libc::EINTR && attempt < DUMP_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
                Ok(()) => return Ok(found),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        // A panic while holding the lock leaves at most stale datagrams, which the sequence check drops.
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    fn transact(
        &mut self,
        message: Message,
        flags: u16,
        on_reply: &mut dyn FnMut(u16, &[u8]),
    ) -> Result<(), KernelError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message.finish(flags, self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.fd, &bytes, SendFlags::empty(), &kernel).map_err(io::Error::from)?;

        loop {
            let length = self.receive()?;
            for reply in Answers::new(&self.buffer[..length], self.sequence) {
                match reply {
                    Reply::Object { kind, payload } => on_reply(kind, payload),
                    Reply::End(Ok(())) => return Ok(()),
                    Reply::End(Err(error)) => return Err(error),
                }
            }
        }
    }

    fn receive(&mut self) -> Result<usize, KernelError> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, length)) if length > self.buffer.len() => {
                    // Grown once and kept: the next answer of this size fits. The request is lost.
                    self.buffer.resize(length.min(16 * RECEIVE_MAX).next_power_of_two(), 0);
                    return Err(io::Error::from_raw_os_error(libc::EINTR).into());
                }
                Ok((length, _)) => return Ok(length),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }
}

/// What a datagram of the kernel holds, as far as it is read here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// Links.
    pub links: Vec<crate::link::Link>,
    /// Addresses.
    pub addresses: Vec<crate::address::Address>,
    /// Routes.
    pub routes: Vec<crate::route::Route>,
    /// Rules.
    pub rules: Vec<crate::rule::Rule>,
    /// How the answer ended, if it did: the error, or nothing.
    pub end: Option<Result<(), String>>,
}

impl Objects {
    /// Reads the answers to one request. What does not parse is left out.
    pub fn read(datagram: &[u8], sequence: u32) -> Self {
        let mut objects = Self::default();
        for reply in Answers::new(datagram, sequence) {
            match reply {
                Reply::Object { kind, payload } => {
                    objects.links.extend(crate::link::parse(kind, payload));
                    objects.addresses.extend(crate::address::parse(kind, payload));
                    objects.routes.extend(crate::route::parse(kind, payload));
                    objects.rules.extend(crate::rule::parse(kind, payload));
                }
                Reply::End(result) => objects.end = Some(result.map_err(|error| error.to_string())),
            }
        }
        objects
    }
}

/// Opens and binds a route netlink socket that listens to the given multicast groups.
pub(crate) fn open_socket(groups: u32) -> io::Result<OwnedFd> {
    let flags = match groups {
        0 => SocketFlags::CLOEXEC,
        _ => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    };
    // No protocol number: the route family is number 0.
    let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    rustix::net::sockopt::set_socket_timeout(
        &fd,
        rustix::net::sockopt::Timeout::Recv,
        Some(RECEIVE_TIMEOUT),
    )?;
    // Sentences with refusals, and no echo of the request. Old kernels know neither: not an error.
    set_option(&fd, libc::NETLINK_EXT_ACK);
    set_option(&fd, libc::NETLINK_CAP_ACK);
    Ok(fd)
}

pub(crate) fn set_option(fd: &OwnedFd, option: libc::c_int) {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open and the pointer and length describe `on`, alive for the call.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}
