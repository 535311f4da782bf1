//! Tells the neighbours of an address by a gratuitous ARP request.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

const LENGTH: usize = 28;

/// Sends one request in which sender and target are the address.
pub fn announce(link_index: u32, hardware: [u8; 6], address: Ipv4Addr) -> io::Result<()> {
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let frame = request(hardware, address);
    // SAFETY: an all-zero `sockaddr_ll` is a valid value of that plain C struct.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_protocol = (libc::ETH_P_ARP as u16).to_be();
    to.sll_ifindex = link_index.cast_signed();
    to.sll_halen = 6;
    to.sll_addr[..6].fill(0xff);
    // SAFETY: the descriptor is open; frame and address outlive the call and match their lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn request(hardware: [u8; 6], address: Ipv4Addr) -> [u8; LENGTH] {
    let mut frame = [0; LENGTH];
    // Ethernet, IPv4, lengths of both, request.
    frame[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame[8..14].copy_from_slice(&hardware);
    frame[14..18].copy_from_slice(&address.octets());
    frame[24..28].copy_from_slice(&address.octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_and_target_are_the_address() {
        let frame = request([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 5, 0, 9));
        assert_eq!(frame[14..18], frame[24..28]);
        assert_eq!(frame[6..8], [0, 1]);
    }
}
