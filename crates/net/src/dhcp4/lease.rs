//! What a server granted, read out of its answer.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::message::{Message, option};

/// Taken when the server does not say how long the lease is.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// No lease is renewed more often than this.
pub const RENEW_MIN: Duration = Duration::from_secs(5);
/// Entries of one list; more than any sane server sends.
const LIST_MAX: usize = 64;

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address with its prefix length.
    pub address: Ipv4Net,
    /// The server to renew with.
    pub server: Option<Ipv4Addr>,
    /// Default gateways, best first. Meaningless when there are `routes`.
    pub routers: Vec<Ipv4Addr>,
    /// Destinations and their gateways (0.0.0.0 for on-link).
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Name servers.
    pub dns: Vec<Ipv4Addr>,
    /// Domain of the machine.
    pub domain: Option<String>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Name of the machine.
    pub hostname: Option<String>,
    /// Time servers.
    pub ntp: Vec<Ipv4Addr>,
    /// Packet size of the link.
    pub mtu: Option<u16>,
    /// How long the lease lasts.
    pub duration: Duration,
    /// When to renew it with its server.
    pub renew_after: Duration,
    /// When to renew it with any server.
    pub rebind_after: Duration,
}

impl Lease {
    /// Reads an offer or acknowledgement; `None` when it grants no usable address.
    pub fn parse(message: &Message) -> Option<Self> {
        let address = message.your;
        if address.is_unspecified() || address.is_broadcast() || address.is_multicast() {
            return None;
        }
        let mask = message.address(option::SUBNET_MASK).unwrap_or_else(|| class_mask(address));
        let address = Ipv4Net::with_netmask(address, mask).ok()?;

        let seconds = |number| message.u32(number).map(|s| Duration::from_secs(s.into()));
        let duration = seconds(option::LEASE_TIME).unwrap_or(LEASE_DEFAULT).max(2 * RENEW_MIN);
        let renew_after =
            seconds(option::RENEWAL_TIME).filter(|t| *t < duration).unwrap_or(duration / 2).max(RENEW_MIN);
        let rebind_after = seconds(option::REBINDING_TIME)
            .filter(|t| *t < duration && *t >= renew_after)
            .unwrap_or(duration / 8 * 7)
            .max(renew_after);

        let list = |number| {
            let mut found = message.addresses(number);
            found.retain(|a| !a.is_unspecified());
            found.truncate(LIST_MAX);
            found
        };
        Some(Self {
            address,
            server: message
                .address(option::SERVER_ID)
                .or(Some(message.server))
                .filter(|s| !s.is_unspecified()),
            routers: list(option::ROUTER),
            routes: message.options.get(&option::CLASSLESS_ROUTES).map_or_else(Vec::new, |b| routes(b)),
            dns: list(option::DNS),
            domain: message.text(option::DOMAIN).filter(|name| is_name(name)),
            search: message.options.get(&option::DOMAIN_SEARCH).map_or_else(Vec::new, |b| names(b)),
            hostname: message.text(option::HOSTNAME).filter(|name| is_name(name)),
            ntp: list(option::NTP),
            mtu: message.u16(option::MTU).filter(|mtu| *mtu >= 68),
            duration,
            renew_after,
            rebind_after,
        })
    }
}

/// True for what may be a name. It ends up in `/etc/hosts` and certificates, and anybody on the link may have
/// sent it.
pub(crate) fn is_name(text: &str) -> bool {
    let clean = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    clean && (1..=253).contains(&text.len()) && !text.starts_with('.')
}

fn class_mask(address: Ipv4Addr) -> Ipv4Addr {
    match address.octets()[0] {
        0..128 => Ipv4Addr::new(255, 0, 0, 0),
        128..192 => Ipv4Addr::new(255, 255, 0, 0),
        192..=255 => Ipv4Addr::new(255, 255, 255, 0),
    }
}

/// RFC 3442: prefix length, the significant bytes of the destination, gateway; repeated.
fn routes(mut bytes: &[u8]) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let mut found = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let significant = usize::from(length.div_ceil(8));
        if length > 32 || rest.len() < significant + 4 || found.len() == LIST_MAX {
            break;
        }
        let mut destination = [0; 4];
        destination[..significant].copy_from_slice(&rest[..significant]);
        let gateway = &rest[significant..significant + 4];
        let gateway = Ipv4Addr::new(gateway[0], gateway[1], gateway[2], gateway[3]);
        if let Ok(net) = Ipv4Net::new(destination.into(), length) {
            found.push((net.trunc(), gateway));
        }
        bytes = &rest[significant + 4..];
    }
    found
}

/// RFC 3397: domain names as in DNS, with pointers to earlier ones.
pub(crate) fn names(bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() && found.len() < LIST_MAX {
        let Some((name, next)) = name_at(bytes, at) else { break };
        if !name.is_empty() {
            found.push(name);
        }
        at = next;
    }
    found
}

fn name_at(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = start;
    let mut next = None;
    // A name of 253 bytes has at most 127 labels; pointers only ever lead back.
    for _ in 0..128 {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some((name, next.unwrap_or(at + 1))),
            1..64 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                let clean = label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
                if !clean || name.len() + label.len() > 253 {
                    return None;
                }
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(std::str::from_utf8(label).ok()?);
                at += 1 + usize::from(length);
            }
            192..=255 => {
                let target = usize::from(length & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
                next = next.or(Some(at + 2));
                if target >= at {
                    return None;
                }
                at = target;
            }
            64..192 => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::message::Kind;
    use super::*;

    fn ack(options: &[(u8, &[u8])]) -> Message {
        let mut message = Message::request(Kind::Ack, 1, [2, 0, 0, 0, 0, 1]);
        message.is_reply = true;
        message.your = Ipv4Addr::new(10, 5, 0, 9);
        for (number, value) in options {
            message.options.insert(*number, value.to_vec());
        }
        message
    }

    #[test]
    fn a_full_answer_is_read() {
        let lease = Lease::parse(&ack(&[
            (option::SUBNET_MASK, &[255, 255, 255, 0]),
            (option::ROUTER, &[10, 5, 0, 1, 10, 5, 0, 2, 9]),
            (option::DNS, &[1, 1, 1, 1, 0, 0, 0, 0]),
            (option::DOMAIN, b"example.org\0\0"),
            (option::HOSTNAME, b"node-1"),
            (option::NTP, &[10, 5, 0, 3]),
            (option::MTU, &[5, 0x78]),
            (option::LEASE_TIME, &3600_u32.to_be_bytes()),
            (option::SERVER_ID, &[10, 5, 0, 1]),
            (option::CLASSLESS_ROUTES, &[0, 10, 5, 0, 1, 24, 10, 9, 8, 10, 5, 0, 2, 32, 1]),
            (option::DOMAIN_SEARCH, b"\x03lab\x07example\x03org\0\x01a\xc0\x04"),
        ]));
        expect![[r#"
            Lease {
                address: 10.5.0.9/24,
                server: Some(
                    10.5.0.1,
                ),
                routers: [
                    10.5.0.1,
                    10.5.0.2,
                ],
                routes: [
                    (
                        0.0.0.0/0,
                        10.5.0.1,
                    ),
                    (
                        10.9.8.0/24,
                        10.5.0.2,
                    ),
                ],
                dns: [
                    1.1.1.1,
                ],
                domain: Some(
                    "example.org",
                ),
                search: [
                    "lab.example.org",
                    "a.example.org",
                ],
                hostname: Some(
                    "node-1",
                ),
                ntp: [
                    10.5.0.3,
                ],
                mtu: Some(
                    1400,
                ),
                duration: 3600s,
                renew_after: 1800s,
                rebind_after: 3150s,
            }
        "#]]
        .assert_debug_eq(&lease.unwrap());
    }

    #[test]
    fn an_answer_without_a_mask_takes_that_of_its_class() {
        let lease = Lease::parse(&ack(&[])).unwrap();
        assert_eq!(lease.address.to_string(), "10.5.0.9/8");
        assert_eq!((lease.duration, lease.renew_after), (LEASE_DEFAULT, LEASE_DEFAULT / 2));
    }

    #[test]
    fn senseless_times_are_replaced() {
        let lease = Lease::parse(&ack(&[
            (option::LEASE_TIME, &1_u32.to_be_bytes()),
            (option::RENEWAL_TIME, &u32::MAX.to_be_bytes()),
            (option::REBINDING_TIME, &0_u32.to_be_bytes()),
        ]))
        .unwrap();
        assert_eq!(lease.duration, Duration::from_secs(10));
        assert_eq!(lease.renew_after, RENEW_MIN);
        assert!(lease.rebind_after >= lease.renew_after && lease.rebind_after <= lease.duration);
    }

    #[test]
    fn a_mask_with_holes_or_no_address_is_no_lease() {
        assert_eq!(Lease::parse(&ack(&[(option::SUBNET_MASK, &[255, 0, 255, 0])])), None);
        let mut none = ack(&[]);
        none.your = Ipv4Addr::UNSPECIFIED;
        assert_eq!(Lease::parse(&none), None);
    }

    #[test]
    fn names_that_are_none_are_dropped() {
        for bad in ["a b", "a\tb", "<script>", ".a", "ä"] {
            let lease =
                Lease::parse(&ack(&[(option::HOSTNAME, bad.as_bytes()), (option::DOMAIN, bad.as_bytes())]));
            let lease = lease.unwrap();
            assert_eq!((lease.hostname, lease.domain), (None, None), "{bad}");
        }
    }

    #[test]
    fn a_name_that_points_to_itself_ends() {
        assert_eq!(names(&[0xc0, 0x00]), Vec::<String>::new());
        assert_eq!(names(&[1, b'a', 0xc0, 0x02]), Vec::<String>::new());
        assert_eq!(names(&[63]), Vec::<String>::new());
    }
}
