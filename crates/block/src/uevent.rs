//! The kernel's word that a device came, went or changed.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Bytes of a message at most; the kernel's are shorter.
const MESSAGE_MAX: usize = 16 << 10;
/// The group of messages that come from the kernel itself, without the device manager in between.
const FROM_KERNEL: u32 = 1;
/// What the kernel keeps for a reader that is slow.
const BUFFER_LEN: libc::c_int = 1 << 20;

/// What happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change` and the like.
    pub action: String,
    /// `block`, `net` and the like.
    pub subsystem: String,
    /// The place below `/sys`.
    pub device_path: String,
    /// The name below `/dev`, if it has one.
    pub device_name: Option<String>,
}

impl Uevent {
    /// Reads a message; one of another shape is `None`.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut parts = message.split(|byte| *byte == 0).filter_map(|part| std::str::from_utf8(part).ok());
        // `add@/devices/…`; messages of the device manager begin otherwise.
        parts.next().filter(|head| head.contains('@'))?;
        let (mut action, mut subsystem, mut device_path, mut device_name) = (None, None, None, None);
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.to_owned();
            match key {
                "ACTION" => action = Some(value),
                "SUBSYSTEM" => subsystem = Some(value),
                "DEVPATH" => device_path = Some(value),
                "DEVNAME" => device_name = Some(value),
                _ => {}
            }
        }
        Some(Self { action: action?, subsystem: subsystem?, device_path: device_path?, device_name })
    }
}

/// What a watcher was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// One event.
    Event(Uevent),
    /// Events were lost: look at everything.
    Overrun,
}

/// Waits for events.
#[derive(Debug)]
pub struct Watcher {
    socket: AsyncFd<OwnedFd>,
}

impl Watcher {
    /// Starts to listen. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        let socket = open_socket()?;
        // SAFETY: an `OwnedFd` names the same open file until it is dropped, and the `AsyncFd` owns it.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket })
    }

    /// The next event. Cancel safe.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn next(&mut self) -> io::Result<Told> {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| {
                rustix::net::recv(socket.get_ref(), &mut buffer[..], RecvFlags::empty())
                    .map_err(io::Error::from)
            });
            match received {
                Ok(Ok((len, _))) => {
                    if let Some(event) = buffer.get(..len).and_then(Uevent::parse) {
                        return Ok(Told::Event(event));
                    }
                }
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Told::Overrun),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                // Not ready after all.
                Err(_) => {}
            }
        }
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; the result is a new descriptor or an error.
    let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an all-zero `sockaddr_nl` is a valid value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = FROM_KERNEL;
    let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the address is valid for the call and has the length given.
    if unsafe { libc::bind(raw, (&raw const address).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (size, len) = (BUFFER_LEN, size_of::<libc::c_int>() as libc::socklen_t);
    // A smaller buffer only means that an overrun comes sooner.
    // SAFETY: the value is valid for the call and has the length given.
    let _ = unsafe {
        libc::setsockopt(raw, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const size).cast(), len)
    };
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_kernel_is_read_and_one_of_the_device_manager_is_not() {
        let message = b"add@/devices/virtual/block/loop0\0ACTION=add\0DEVPATH=/devices/virtual/block/loop0\0SUBSYSTEM=block\0DEVNAME=loop0\0SEQNUM=7\0";
        let event = Uevent::parse(message).unwrap();
        assert_eq!((event.action.as_str(), event.subsystem.as_str()), ("add", "block"));
        assert_eq!(
            (event.device_path.as_str(), event.device_name.as_deref()),
            ("/devices/virtual/block/loop0", Some("loop0"))
        );
        assert_eq!(Uevent::parse(b"libudev\0\xfe\xed\xca\xfeACTION=add\0"), None);
        assert_eq!(Uevent::parse(b""), None);
        assert_eq!(Uevent::parse(b"add@/x\0ACTION=add\0"), None);
    }

    #[tokio::test]
    async fn the_socket_opens() {
        Watcher::open().unwrap();
    }
}
