//! A DHCPv4 server of fixed grants: what a client gets depends on its hardware address alone.
//!
//! [`answer`] decides; [`Server`] is the socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ipnet::Ipv4Net;
use tokio::net::UdpSocket;
use tracing::debug;

use super::message::{Kind, Message, option};
use super::packet::{CLIENT_PORT, SERVER_PORT};

/// The largest message that is read; clients ask for no more than a packet holds.
const MESSAGE_MAX: usize = 1500;
/// Pause after a socket that failed, as for want of memory.
const PAUSE: Duration = Duration::from_millis(100);

/// What one client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its address, with the length of the network.
    pub address: Ipv4Net,
    /// Its way out.
    pub router: Option<Ipv4Addr>,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Time servers.
    pub ntp: Vec<Ipv4Addr>,
    /// Packet size of the link.
    pub mtu: Option<u16>,
    /// Its name.
    pub hostname: Option<String>,
    /// What firmware boots from the network.
    pub boot_file: Option<String>,
    /// How long it may keep the address without asking again.
    pub duration: Duration,
}

/// The answer of `server` to a message, if it is due one: those without a grant are not ours, and who chose another
/// server is left alone.
pub fn answer(question: &Message, server: Ipv4Addr, grant: Option<&Grant>) -> Option<Message> {
    if question.is_reply {
        return None;
    }
    let grant = grant?;
    let kind = match question.kind()? {
        Kind::Discover => Kind::Offer,
        Kind::Request => {
            let chosen = question.address(option::SERVER_ID);
            if chosen.is_some_and(|chosen| chosen != server) {
                return None;
            }
            let wanted = question.address(option::REQUESTED_ADDRESS).unwrap_or(question.client);
            if wanted == grant.address.addr() { Kind::Ack } else { Kind::Nak }
        }
        Kind::Offer | Kind::Ack | Kind::Nak | Kind::Decline | Kind::Release => return None,
    };
    let mut reply = Message::request(kind, question.transaction, question.hardware);
    reply.is_reply = true;
    reply.broadcast = question.broadcast;
    reply.relay = question.relay;
    reply.options.insert(option::SERVER_ID, server.octets().to_vec());
    if kind != Kind::Nak {
        reply.client = question.client;
        reply.your = grant.address.addr();
        reply.server = server;
        reply.options.extend(options(grant));
    }
    Some(reply)
}

fn options(grant: &Grant) -> impl Iterator<Item = (u8, Vec<u8>)> + '_ {
    let seconds = u32::try_from(grant.duration.as_secs()).unwrap_or(u32::MAX);
    let list = |addresses: &[Ipv4Addr]| addresses.iter().flat_map(Ipv4Addr::octets).collect::<Vec<u8>>();
    let text = |text: &Option<String>| text.as_ref().map(|text| text.as_bytes().to_vec()).unwrap_or_default();
    let all = [
        (option::SUBNET_MASK, grant.address.netmask().octets().to_vec()),
        (option::ROUTER, list(grant.router.as_slice())),
        (option::DNS, list(&grant.dns)),
        (option::NTP, list(&grant.ntp)),
        (option::MTU, grant.mtu.map(|mtu| mtu.to_be_bytes().to_vec()).unwrap_or_default()),
        (option::HOSTNAME, text(&grant.hostname)),
        (option::BOOT_FILE, text(&grant.boot_file)),
        (option::LEASE_TIME, seconds.to_be_bytes().to_vec()),
    ];
    // An option without a value would say something else than one that is not there.
    all.into_iter().filter(|(_, value)| !value.is_empty())
}

/// Where an answer goes: to the client's address when it has one and may keep it, else to everyone on the link.
fn destination(question: &Message, reply: &Message) -> Ipv4Addr {
    let settled = !question.client.is_unspecified() && reply.kind() != Some(Kind::Nak);
    if settled { question.client } else { Ipv4Addr::BROADCAST }
}

/// The socket of a server on one link.
#[derive(Debug)]
pub struct Server {
    socket: UdpSocket,
    address: Ipv4Addr,
}

impl Server {
    /// Listens on a link, in the network namespace of the caller; `address` is the link's own.
    ///
    /// # Errors
    /// When the caller may not, or somebody else listens there.
    pub async fn bind(link: &str, address: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SERVER_PORT)).await?;
        socket.set_broadcast(true)?;
        // Without it the kernel would look for a route to everyone.
        socket.bind_device(Some(link.as_bytes()))?;
        Ok(Self { socket, address })
    }

    /// Answers for as long as it is polled; `grant` says what a hardware address gets.
    pub async fn serve(&self, grant: impl Fn([u8; 6]) -> Option<Grant>) {
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            let length = match self.socket.recv_from(&mut buffer).await {
                Ok((length, _)) => length,
                Err(error) => {
                    debug!(%error, "dhcp server: receive failed");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(question) = Message::decode(&buffer[..length]) else { continue };
            let Some(reply) = answer(&question, self.address, grant(question.hardware).as_ref()) else {
                continue;
            };
            let to = SocketAddrV4::new(destination(&question, &reply), CLIENT_PORT);
            if let Err(error) = self.socket.send_to(&reply.encode(), to).await {
                debug!(%error, %to, "dhcp server: send failed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::Lease;
    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 1);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 2);

    fn grant() -> Grant {
        Grant {
            address: Ipv4Net::new_assert(CLIENT, 24),
            router: Some(SERVER),
            dns: vec![SERVER],
            ntp: vec![SERVER],
            mtu: Some(1400),
            hostname: Some("lab-worker-1".to_owned()),
            boot_file: None,
            duration: Duration::from_secs(3600),
        }
    }

    fn question(kind: Kind) -> Message {
        Message::request(kind, 7, [2, 0, 0, 0, 0, 1])
    }

    fn asking_for(address: Ipv4Addr) -> Message {
        let mut question = question(Kind::Request);
        question.options.insert(option::REQUESTED_ADDRESS, address.octets().to_vec());
        question
    }

    #[test]
    fn a_client_of_ours_reads_back_what_was_granted() {
        let offer = answer(&question(Kind::Discover), SERVER, Some(&grant())).unwrap();
        assert_eq!((offer.kind(), offer.transaction, offer.is_reply), (Some(Kind::Offer), 7, true));
        let ack = answer(&asking_for(CLIENT), SERVER, Some(&grant())).unwrap();
        assert_eq!(ack.kind(), Some(Kind::Ack));
        let lease = Lease::parse(&Message::decode(&ack.encode()).unwrap()).unwrap();
        assert_eq!(lease.address, grant().address);
        assert_eq!((lease.routers, lease.dns, lease.ntp), (vec![SERVER], vec![SERVER], vec![SERVER]));
        assert_eq!((lease.mtu, lease.hostname.as_deref()), (Some(1400), Some("lab-worker-1")));
        assert_eq!((lease.server, lease.duration), (Some(SERVER), Duration::from_secs(3600)));
    }

    #[test]
    fn another_address_is_refused_and_nothing_is_granted_with_it() {
        let nak = answer(&asking_for(Ipv4Addr::new(10, 5, 0, 9)), SERVER, Some(&grant())).unwrap();
        assert_eq!((nak.kind(), nak.your), (Some(Kind::Nak), Ipv4Addr::UNSPECIFIED));
        assert_eq!(nak.options.len(), 2, "{:?}", nak.options);
    }

    #[test]
    fn strangers_and_those_who_chose_another_server_get_no_answer() {
        assert_eq!(answer(&question(Kind::Discover), SERVER, None), None);
        let mut elsewhere = asking_for(CLIENT);
        elsewhere.options.insert(option::SERVER_ID, vec![10, 5, 0, 99]);
        assert_eq!(answer(&elsewhere, SERVER, Some(&grant())), None);
        for kind in [Kind::Offer, Kind::Ack, Kind::Nak, Kind::Decline, Kind::Release] {
            assert_eq!(answer(&question(kind), SERVER, Some(&grant())), None, "{kind:?}");
        }
        let mut reply = question(Kind::Discover);
        reply.is_reply = true;
        assert_eq!(answer(&reply, SERVER, Some(&grant())), None, "a server does not talk to itself");
    }

    #[test]
    fn a_client_with_an_address_is_answered_there_and_others_with_everyone() {
        let mut renewal = question(Kind::Request);
        renewal.client = CLIENT;
        let ack = answer(&renewal, SERVER, Some(&grant())).unwrap();
        assert_eq!((ack.kind(), destination(&renewal, &ack)), (Some(Kind::Ack), CLIENT));
        let offer = answer(&question(Kind::Discover), SERVER, Some(&grant())).unwrap();
        assert_eq!(destination(&question(Kind::Discover), &offer), Ipv4Addr::BROADCAST);
        renewal.client = Ipv4Addr::new(10, 5, 0, 9);
        let nak = answer(&renewal, SERVER, Some(&grant())).unwrap();
        assert_eq!(destination(&renewal, &nak), Ipv4Addr::BROADCAST, "it has to give the address up");
    }
}
