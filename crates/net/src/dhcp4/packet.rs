//! IP and UDP headers around a DHCP message, for a machine without an address.

use std::net::Ipv4Addr;

pub(super) const SERVER_PORT: u16 = 67;
pub(super) const CLIENT_PORT: u16 = 68;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const UDP: u8 = 17;

/// A broadcast packet from 0.0.0.0:68 to port 67.
pub(super) fn wrap(payload: &[u8]) -> Vec<u8> {
    let udp_length = (UDP_HEADER + payload.len()) as u16;
    let total = IP_HEADER as u16 + udp_length;
    let source = Ipv4Addr::UNSPECIFIED;
    let destination = Ipv4Addr::BROADCAST;

    let mut out = Vec::with_capacity(usize::from(total));
    out.extend_from_slice(&[0x45, 0x10]);
    out.extend_from_slice(&total.to_be_bytes());
    // No identification, no fragments, 64 hops.
    out.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP, 0, 0]);
    out.extend_from_slice(&source.octets());
    out.extend_from_slice(&destination.octets());
    let header_sum = !checksum(0, &out);
    out[10..12].copy_from_slice(&header_sum.to_be_bytes());

    out.extend_from_slice(&CLIENT_PORT.to_be_bytes());
    out.extend_from_slice(&SERVER_PORT.to_be_bytes());
    out.extend_from_slice(&udp_length.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    let pseudo = u32::from(checksum(0, &out[12..20])) + u32::from(UDP) + u32::from(udp_length);
    let sum = match !checksum(pseudo, &out[IP_HEADER..]) {
        0 => u16::MAX,
        sum => sum,
    };
    out[IP_HEADER + 6..IP_HEADER + 8].copy_from_slice(&sum.to_be_bytes());
    out
}

/// The payload of a UDP packet to port 68. Checksums are not looked at: a packet from the same host or
/// hypervisor carries none yet, and the transaction number guards against noise.
pub(super) fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header = usize::from(first & 0xf) * 4;
    let total = usize::from(u16_at(packet, 2)?);
    let fragment = u16_at(packet, 6)? & 0x3fff;
    if first >> 4 != 4 || header < IP_HEADER || *packet.get(9)? != UDP || fragment != 0 {
        return None;
    }
    let udp = packet.get(header..total.min(packet.len()))?;
    let length = usize::from(u16_at(udp, 4)?);
    if u16_at(udp, 2)? != CLIENT_PORT {
        return None;
    }
    udp.get(UDP_HEADER..length)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The Internet checksum before its final inversion.
fn checksum(start: u32, bytes: &[u8]) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        let word = [pair[0], pair.get(1).copied().unwrap_or(0)];
        sum += u32::from(u16::from_be_bytes(word));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_sum_to_all_ones() {
        let packet = wrap(b"hello");
        assert_eq!(checksum(0, &packet[..20]), 0xffff);
        let pseudo = u32::from(checksum(0, &packet[12..20])) + 17 + 13;
        assert_eq!(checksum(pseudo, &packet[20..]), 0xffff);
    }

    #[test]
    fn a_packet_to_the_client_port_is_opened_and_no_other() {
        let mut packet = wrap(b"hello");
        assert_eq!(unwrap(&packet), None);
        packet[22..24].copy_from_slice(&CLIENT_PORT.to_be_bytes());
        assert_eq!(unwrap(&packet), Some(&b"hello"[..]));
        for cut in 0..packet.len() {
            let _ = unwrap(&packet[..cut]);
        }
        packet[9] = 6;
        assert_eq!(unwrap(&packet), None);
    }
}
