//! The kernel's table of IPv4 neighbours.

use std::io;
use std::net::Ipv4Addr;

/// One neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: Ipv4Addr,
    /// The link.
    pub link: String,
    /// Whether its hardware address is known: it answered when it was asked for.
    pub answers: bool,
}

/// Reads the table of the network namespace of the calling thread.
pub fn read() -> io::Result<Vec<Neighbour>> {
    Ok(parse(&std::fs::read_to_string("/proc/thread-self/net/arp")?))
}

/// Reads the text of `/proc/net/arp`; lines that do not fit are left out.
pub fn parse(text: &str) -> Vec<Neighbour> {
    /// The entry has a hardware address, or needs none.
    const COMPLETE: u32 = 0x02;
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next()?.parse().ok()?;
        let flags = u32::from_str_radix(words.nth(1)?.strip_prefix("0x")?, 16).ok()?;
        let link = words.nth(2)?.to_owned();
        Some(Neighbour { address, link, answers: flags & COMPLETE != 0 })
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_without_a_hardware_address_did_not_answer() {
        let text = "IP address       HW type     Flags       HW address            Mask     Device\n\
                    10.5.0.1         0x1         0x2         02:42:0a:05:00:01     *        eth0\n\
                    10.5.0.99        0x1         0x0         00:00:00:00:00:00     *        eth0\n\
                    nonsense\n";
        let found: Vec<_> =
            parse(text).into_iter().map(|n| (n.address.to_string(), n.link, n.answers)).collect();
        assert_eq!(
            found,
            [("10.5.0.1".into(), "eth0".into(), true), ("10.5.0.99".into(), "eth0".into(), false)]
        );
    }
}
