//! Socket and clock around the [`Machine`].

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::Event;
use super::machine::{Action, Config, Machine};
use super::message::Message;
use crate::address::{self, FLAG_DAD_FAILED, FLAG_TENTATIVE};
use crate::kept;
use crate::netlink::Netlink;
use crate::watch::{Topics, Watcher};

/// All servers and relays of a link.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;
/// An address of the link itself is there after a second, when the kernel has looked for duplicates.
const ADDRESS_WAIT: Duration = Duration::from_secs(30);
const PACKET_MAX: usize = 4096;

/// Runs a client on a link until dropped; returns only when it cannot work.
///
/// `on_event` is called for every change of the lease.
pub async fn run(link: &str, link_index: u32, config: Config, mut on_event: impl FnMut(Event)) -> io::Error {
    let keep = config.keep.clone();
    let began = Instant::now();
    let mut machine = Machine::new(config);
    if let Some((age, bytes)) = keep.as_deref().and_then(kept::load)
        && let Some(lease) = Message::decode(&bytes).and_then(|answer| machine.resume(&answer, age))
    {
        on_event(Event::Bound(Box::new(lease)));
    }
    let local = match link_local(link, link_index).await {
        Ok(local) => local,
        Err(error) => return error,
    };
    let socket = match UdpSocket::bind(SocketAddrV6::new(local, CLIENT_PORT, 0, link_index)).await {
        Ok(socket) => socket,
        Err(error) => return error,
    };
    let servers = SocketAddr::V6(SocketAddrV6::new(SERVERS, SERVER_PORT, 0, link_index));
    let mut buffer = vec![0; PACKET_MAX];
    loop {
        let actions = tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, _)) => match Message::decode(&buffer[..length]) {
                    Some(message) => machine.receive(&message, began.elapsed()),
                    None => Vec::new(),
                },
                Err(error) => return error,
            },
            () = tokio::time::sleep_until(began + machine.deadline()) => machine.tick(began.elapsed()),
        };
        for action in actions {
            match action {
                Action::Send(message) => {
                    if let Err(error) = socket.send_to(&message.encode(), servers).await {
                        // The link may be down for a moment; the machine tries again by itself.
                        tracing::debug!(link, %error, "dhcpv6 message not sent");
                    }
                }
                Action::Bound(lease, answer) => {
                    if let Some(path) = &keep {
                        kept::save(path, &answer.encode());
                    }
                    on_event(Event::Bound(lease));
                }
                Action::Lost => {
                    keep.as_deref().map(kept::forget);
                    on_event(Event::Lost);
                }
                Action::Silent(reason) => on_event(Event::Silent(reason)),
            }
        }
    }
}

/// Waits for an address of the link itself that may be used.
async fn link_local(link: &str, link_index: u32) -> io::Result<Ipv6Addr> {
    let mut watcher = Watcher::open(Topics::ADDRESSES).map_err(io::Error::other)?;
    let netlink = Netlink::open().map_err(io::Error::other)?;
    let end = Instant::now() + ADDRESS_WAIT;
    loop {
        let addresses = address::list(&netlink).await.map_err(io::Error::other)?;
        for address in addresses.iter().filter(|a| a.link_index == link_index) {
            match address.prefix.addr() {
                IpAddr::V6(v6) if v6.is_unicast_link_local() && address.flags & FLAG_DAD_FAILED != 0 => {
                    let text = format!("{v6} on {link} is in use by another machine");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                IpAddr::V6(v6) if v6.is_unicast_link_local() && address.flags & FLAG_TENTATIVE == 0 => {
                    return Ok(v6);
                }
                _ => {}
            }
        }
        match timeout_at(end, watcher.changed()).await {
            Ok(changed) => changed.map_err(io::Error::other)?,
            Err(_) => {
                let text = format!("{link} has no link-local IPv6 address");
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
            }
        }
    }
}
