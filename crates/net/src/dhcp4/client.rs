//! Sockets and clock around the [`Machine`].

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;

use super::lease::Lease;
use super::machine::{Action, Config, Machine};
use super::message::Message;
use super::packet;

/// A DHCP message with its headers; longer ones are not for us.
const PACKET_MAX: usize = 2048;
/// Datagrams handled per wake-up before others get their turn.
const BURST_MAX: usize = 32;

/// What happened to the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A lease is there, or was renewed.
    Bound(Box<Lease>),
    /// The lease is gone.
    Lost,
}

/// Name and domain of this machine, as told to the server.
pub type Hostname = Option<(String, String)>;

/// Runs a client on a link until dropped; returns only when a socket fails.
///
/// `on_event` is called for every change of the lease; `hostname` may change while running.
pub async fn run(
    link: &str,
    link_index: u32,
    config: Config,
    mut hostname: watch::Receiver<Hostname>,
    mut on_event: impl FnMut(Event),
) -> io::Error {
    let socket = match RawSocket::open(link_index) {
        Ok(socket) => socket,
        Err(error) => return error,
    };
    let began = Instant::now();
    let mut machine = Machine::new(config);
    let mut unicast: Option<UdpSocket> = None;
    let mut watching = true;

    loop {
        let actions = tokio::select! {
            received = socket.receive() => match received {
                Ok(messages) => {
                    messages.iter().flat_map(|m| machine.receive(m, began.elapsed())).collect()
                }
                Err(error) => return error,
            },
            () = tokio::time::sleep_until(began + machine.deadline()) => machine.tick(began.elapsed()),
            changed = hostname.changed(), if watching => {
                watching = changed.is_ok();
                let name = hostname.borrow_and_update().clone();
                machine.set_hostname(name, began.elapsed());
                Vec::new()
            }
        };
        for action in actions {
            match action {
                Action::Broadcast(message) => {
                    if let Err(error) = socket.broadcast(&message) {
                        // The link may be down for a moment; the machine tries again by itself.
                        tracing::debug!(link, %error, "dhcp message not sent");
                    }
                }
                Action::Unicast(message, server) => {
                    let from = message.client;
                    if let Err(error) = send_unicast(&mut unicast, link, from, server, &message).await {
                        tracing::debug!(link, %server, %error, "dhcp renewal not sent");
                    }
                }
                Action::Bound(lease) => on_event(Event::Bound(lease)),
                Action::Lost => {
                    unicast = None;
                    on_event(Event::Lost);
                }
            }
        }
    }
}

/// Sends from our own address. The socket stays open so that the kernel does not refuse the answer,
/// which is read from the raw socket.
async fn send_unicast(
    socket: &mut Option<UdpSocket>,
    link: &str,
    from: Ipv4Addr,
    server: Ipv4Addr,
    message: &Message,
) -> io::Result<()> {
    let socket = match socket {
        Some(open) => open,
        None => {
            let fresh = UdpSocket::bind((from, packet::CLIENT_PORT)).await?;
            fresh.bind_device(Some(link.as_bytes()))?;
            socket.insert(fresh)
        }
    };
    // Throw away what piled up, so that the buffer never holds more than a few answers.
    let mut unread = [0; 1];
    for _ in 0..BURST_MAX {
        if socket.try_recv(&mut unread).is_err() {
            break;
        }
    }
    let limit = Duration::from_secs(1);
    let bytes = message.encode();
    let sent = socket.send_to(&bytes, (server, packet::SERVER_PORT));
    tokio::time::timeout(limit, sent).await.map_err(io::Error::from)??;
    Ok(())
}

/// A packet socket on one link that sees only UDP to port 68.
struct RawSocket {
    fd: AsyncFd<OwnedFd>,
    link_index: u32,
}

impl RawSocket {
    fn open(link_index: u32) -> io::Result<Self> {
        // Protocol 0: nothing arrives until bind names one, so the filter is in place before.
        let fd = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        attach_filter(&fd)?;
        bind(&fd, link_index)?;
        // SAFETY: an `OwnedFd` names the same open file until it is dropped, and the `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(Self { fd, link_index })
    }

    /// Waits for at least one datagram; returns the DHCP messages among those waiting. Cancel safe.
    async fn receive(&self) -> io::Result<Vec<Message>> {
        let mut ready = self.fd.readable().await?;
        let mut messages = Vec::new();
        let mut buffer = [0; PACKET_MAX];
        for _ in 0..BURST_MAX {
            let received = ready.try_io(|fd| {
                let (length, _) = rustix::net::recv(fd.get_ref(), &mut buffer[..], RecvFlags::empty())?;
                Ok(length)
            });
            match received {
                Ok(Ok(length)) => {
                    let payload = packet::unwrap(&buffer[..length]);
                    messages.extend(payload.and_then(|p| Message::decode(p).ok()));
                }
                // The link went down; its coming back is somebody else's to notice.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => break,
            }
        }
        Ok(messages)
    }

    fn broadcast(&self, message: &Message) -> io::Result<()> {
        let bytes = packet::wrap(&message.encode());
        let to = link_address(self.link_index);
        // SAFETY: the descriptor is open; buffer and address outlive the call and match their lengths.
        let sent = unsafe {
            libc::sendto(
                self.fd.get_ref().as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                SendFlags::empty().bits() as libc::c_int,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The ethernet broadcast address on a link.
fn link_address(link_index: u32) -> libc::sockaddr_ll {
    // SAFETY: an all-zero `sockaddr_ll` is a valid value of that plain C struct.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = link_index.cast_signed();
    address.sll_halen = 6;
    address.sll_addr[..6].fill(0xff);
    address
}

fn bind(fd: &OwnedFd, link_index: u32) -> io::Result<()> {
    let address = link_address(link_index);
    // SAFETY: the descriptor is open; the address outlives the call and matches its length.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn attach_filter(fd: &OwnedFd) -> io::Result<()> {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const LOAD_HALF_AT_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
    const LOAD_HEADER_LENGTH: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let program = [
        // UDP?
        step(LOAD_BYTE, 0, 0, 9),
        step(IF_EQUAL, 0, 6, 17),
        // Not a later fragment?
        step(LOAD_HALF, 0, 0, 6),
        step(IF_ANY, 4, 0, 0x1fff),
        // To our port?
        step(LOAD_HEADER_LENGTH, 0, 0, 0),
        step(LOAD_HALF_AT_X, 0, 0, 2),
        step(IF_EQUAL, 0, 1, packet::CLIENT_PORT.into()),
        step(RETURN, 0, 0, PACKET_MAX as u32),
        step(RETURN, 0, 0, 0),
    ];
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
