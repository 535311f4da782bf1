//! What a DHCPv6 server granted, read out of its answer.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::message::{Message, Options, Status, ip_at, option, status, u16_at, u32_at};
use crate::dhcp4::lease::{RENEW_MIN, is_name, names};

/// Entries of one list; more than any sane server sends.
const LIST_MAX: usize = 16;
const NTP_ADDRESS: u16 = 1;
const NTP_NAME: u16 = 3;

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv6Addr,
    /// The server that granted it, as it names itself.
    pub server: Vec<u8>,
    /// Name servers.
    pub dns: Vec<Ipv6Addr>,
    /// Name of the machine, perhaps with its domain.
    pub hostname: Option<String>,
    /// Time servers, addresses and names.
    pub ntp: Vec<String>,
    /// How long the lease lasts.
    pub duration: Duration,
    /// When to renew it with its server.
    pub renew_after: Duration,
    /// When to renew it with any server.
    pub rebind_after: Duration,
}

/// Why an answer grants nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is not for us, or makes no sense.
    Noise,
    /// The server says no.
    Status(Status),
}

impl Lease {
    /// Reads an advertisement or reply for our association.
    pub fn parse(message: &Message, association: u32) -> Result<Self, Refusal> {
        if let Some(status) = message.failure() {
            return Err(Refusal::Status(status));
        }
        let server = message.options.get(option::SERVER_ID).filter(|id| id.len() >= 3);
        let server = server.ok_or(Refusal::Noise)?.to_vec();
        let ours = message.options.all(option::IA_NA).find(|ia| u32_at(ia, 0) == Some(association));
        let ours = ours.ok_or(Refusal::Noise)?;
        let inner = ours.get(12..).and_then(Options::decode).ok_or(Refusal::Noise)?;
        if let Some(status) = status(&inner) {
            return Err(Refusal::Status(status));
        }
        let (address, valid) = inner.all(option::IA_ADDRESS).find_map(granted).ok_or(Refusal::Noise)?;

        let duration = Duration::from_secs(valid.into()).max(2 * RENEW_MIN);
        let renew_after = (duration / 2).max(RENEW_MIN);
        let rebind_after = (duration / 5 * 4).max(renew_after);
        let options = &message.options;
        // A name that is not full has no end mark; a second one does no harm.
        let fqdn = options.get(option::CLIENT_FQDN).and_then(|value| {
            let name = [value.get(1..)?, &[0]].concat();
            names(&name).into_iter().next()
        });
        Ok(Self {
            address,
            server,
            dns: options.get(option::DNS).map_or_else(Vec::new, addresses),
            hostname: fqdn.filter(|name| is_name(name)),
            ntp: options.all(option::NTP).flat_map(time_servers).take(LIST_MAX).collect(),
            duration,
            renew_after,
            rebind_after,
        })
    }
}

/// One address of an association and its lifetime; `None` when it may not be used.
fn granted(value: &[u8]) -> Option<(Ipv6Addr, u32)> {
    let address = ip_at(value, 0)?;
    let valid = u32_at(value, 20)?;
    let inner = Options::decode(value.get(24..)?)?;
    let usable = !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
    (usable && valid != 0 && status(&inner).is_none()).then_some((address, valid))
}

fn addresses(value: &[u8]) -> Vec<Ipv6Addr> {
    let found = value.as_chunks::<16>().0.iter().map(|octets| Ipv6Addr::from(*octets));
    found.filter(|address| !address.is_unspecified()).take(LIST_MAX).collect()
}

/// RFC 5908: addresses and names, each in an option of its own.
fn time_servers(value: &[u8]) -> Vec<String> {
    let Some(inner) = Options::decode(value) else { return Vec::new() };
    let of_address = inner.all(NTP_ADDRESS).filter_map(|v| Some(ip_at(v, 0)?.to_string()));
    let of_name = inner.all(NTP_NAME).flat_map(names).filter(|name| is_name(name));
    of_address.chain(of_name).collect()
}

/// An empty association, or one that asks for an address it had.
pub(super) fn association(number: u32, address: Option<Ipv6Addr>) -> Vec<u8> {
    let mut out = number.to_be_bytes().to_vec();
    out.extend_from_slice(&[0; 8]);
    if let Some(address) = address {
        let mut inner = Options::default();
        let mut value = address.octets().to_vec();
        value.extend_from_slice(&[0; 8]);
        inner.push(option::IA_ADDRESS, value);
        inner.encode(&mut out);
    }
    out
}

/// True when a server's choice lists rank it above all others.
pub(super) fn preference(message: &Message) -> u8 {
    let value = message.options.get(option::PREFERENCE).and_then(|value| value.first());
    value.copied().unwrap_or(0)
}

/// The options we ask for.
pub(super) fn requested(hostname: bool) -> Vec<u8> {
    let mut wanted = vec![option::DNS, option::DOMAIN_LIST, option::NTP];
    if hostname {
        wanted.push(option::CLIENT_FQDN);
    }
    wanted.into_iter().flat_map(u16::to_be_bytes).collect()
}

/// True when a message is addressed to this client.
pub(super) fn is_for(message: &Message, client: &[u8]) -> bool {
    message.options.get(option::CLIENT_ID) == Some(client) && u16_at(client, 0).is_some()
}
