//! Sockets and clock around the [`Machine`].

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;

use super::lease::Lease;
use super::machine::{Action, Config, Machine};
use super::message::Message;
use super::packet;
use crate::raw::{BURST_MAX, PacketSocket};
use crate::{arp, kept};

/// A DHCP message with its headers; longer ones are not for us.
const PACKET_MAX: usize = 2048;

/// What happened to the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A lease is there, or was renewed.
    Bound(Box<Lease>),
    /// The lease is gone.
    Lost,
    /// No lease is to be had, and why; told once per silence.
    Silent(String),
}

/// Name and domain of this machine, as told to the server.
pub type Hostname = Option<(String, String)>;

type Probe = Pin<Box<dyn Future<Output = io::Result<Option<[u8; 6]>>> + Send>>;

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
    let socket = match PacketSocket::open(link_index, libc::ETH_P_IP as u16, &filter()) {
        Ok(socket) => socket,
        Err(error) => return error,
    };
    let began = Instant::now();
    let (hardware, keep) = (config.hardware, config.keep.clone());
    let mut machine = Machine::new(config);
    let mut unicast: Option<UdpSocket> = None;
    let mut watching = true;
    let mut buffer = [0; PACKET_MAX];
    // Whether a neighbour has the address already is found out while it is used: waiting delays every boot.
    let mut probe: Option<Probe> = None;
    let mut probed = None;
    if let Some((age, bytes)) = keep.as_deref().and_then(kept::load)
        && let Some(lease) = Message::decode(&bytes).ok().and_then(|answer| machine.resume(&answer, age))
    {
        probed = Some(lease.address);
        on_event(Event::Bound(Box::new(lease)));
    }

    loop {
        let mut messages = Vec::new();
        let actions = tokio::select! {
            received = socket.receive(&mut buffer, |bytes| {
                messages.extend(packet::unwrap(bytes).and_then(|payload| Message::decode(payload).ok()));
            }) => match received {
                Ok(()) => messages.iter().flat_map(|m| machine.receive(m, began.elapsed())).collect(),
                Err(error) => return error,
            },
            () = tokio::time::sleep_until(began + machine.deadline()) => machine.tick(began.elapsed()),
            changed = hostname.changed(), if watching => {
                watching = changed.is_ok();
                let name = hostname.borrow_and_update().clone();
                machine.set_hostname(name, began.elapsed());
                Vec::new()
            }
            answer = finished(&mut probe) => {
                probe = None;
                match answer {
                    Ok(Some(owner)) => machine.decline(owner, began.elapsed()),
                    Ok(None) => Vec::new(),
                    Err(error) => {
                        tracing::debug!(link, %error, "neighbours not asked about the address");
                        Vec::new()
                    }
                }
            }
        };
        for action in actions {
            match action {
                Action::Broadcast(message) => {
                    if let Err(error) = socket.broadcast(&packet::wrap(&message.encode())) {
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
                Action::Bound(lease) => {
                    if let (Some(path), Some(answer)) = (&keep, machine.answer()) {
                        kept::save(path, &answer.encode());
                    }
                    if probed != Some(lease.address) {
                        probed = Some(lease.address);
                        probe = Some(Box::pin(arp::probe(link_index, hardware, lease.address.addr())));
                    }
                    on_event(Event::Bound(lease));
                }
                Action::Lost => {
                    (unicast, probe, probed) = (None, None, None);
                    keep.as_deref().map(kept::forget);
                    on_event(Event::Lost);
                }
                Action::Silent(reason) => on_event(Event::Silent(reason)),
            }
        }
    }
}

/// Waits for the probe; for ever when there is none.
async fn finished(probe: &mut Option<Probe>) -> io::Result<Option<[u8; 6]>> {
    match probe {
        Some(probe) => probe.await,
        None => std::future::pending().await,
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

/// Only UDP to port 68 passes.
fn filter() -> [libc::sock_filter; 9] {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const LOAD_HALF_AT_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
    const LOAD_HEADER_LENGTH: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    [
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
    ]
}
