//! ARP: tells the neighbours of an address, and asks whether one of them has it already.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::raw::PacketSocket;

const LENGTH: usize = 28;
const PROTOCOL: u16 = libc::ETH_P_ARP as u16;
/// Questions asked before an address counts as free, and the time between them.
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_millis(250);

/// Sends one request in which sender and target are the address. Needs a tokio runtime.
pub fn announce(link_index: u32, hardware: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
    PacketSocket::open(link_index, PROTOCOL, &[])?.broadcast(&request(hardware, address, address))
}

/// Asks the neighbours whether one of them has an address; its hardware address if so (RFC 5227). Takes three
/// quarters of a second when nobody has.
pub async fn probe(link_index: u32, hardware: [u8; 6], address: Ipv4Addr) -> io::Result<Option<[u8; 6]>> {
    let socket = PacketSocket::open(link_index, PROTOCOL, &[])?;
    let question = request(hardware, Ipv4Addr::UNSPECIFIED, address);
    let mut buffer = [0; 64];
    for _ in 0..PROBES {
        socket.broadcast(&question)?;
        let end = Instant::now() + PROBE_PAUSE;
        let mut owner = None;
        while let Ok(received) = timeout_at(
            end,
            socket.receive(&mut buffer, |frame| {
                owner = owner.or(owner_of(frame, hardware, address));
            }),
        )
        .await
        {
            received?;
            if owner.is_some() {
                return Ok(owner);
            }
        }
    }
    Ok(None)
}

/// Who says in this frame that the address is its own, if it is not us.
pub(crate) fn owner_of(frame: &[u8], hardware: [u8; 6], address: Ipv4Addr) -> Option<[u8; 6]> {
    let frame: &[u8; LENGTH] = frame.first_chunk()?;
    let sender: [u8; 6] = frame[8..14].try_into().ok()?;
    let claims = frame[..6] == [0, 1, 8, 0, 6, 4] && frame[14..18] == address.octets();
    (claims && sender != hardware).then_some(sender)
}

fn request(hardware: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    // Ethernet, IPv4, lengths of both, request.
    frame[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame[8..14].copy_from_slice(&hardware);
    frame[14..18].copy_from_slice(&sender.octets());
    frame[24..28].copy_from_slice(&target.octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 9);

    #[test]
    fn in_an_announcement_sender_and_target_are_the_address() {
        let frame = request(US, ADDRESS, ADDRESS);
        assert_eq!(frame[14..18], frame[24..28]);
        assert_eq!(frame[6..8], [0, 1]);
    }

    #[test]
    fn whoever_speaks_from_the_address_has_it_unless_it_is_us() {
        let them = [2, 0, 0, 0, 0, 2];
        let frame = request(them, ADDRESS, Ipv4Addr::new(10, 5, 0, 1));
        assert_eq!(owner_of(&frame, US, ADDRESS), Some(them));
        assert_eq!(owner_of(&frame, them, ADDRESS), None);
        assert_eq!(owner_of(&frame[..27], US, ADDRESS), None);
        let question = request(them, Ipv4Addr::UNSPECIFIED, ADDRESS);
        assert_eq!(owner_of(&question, US, ADDRESS), None, "one who asks too has it no more than we");
    }
}
