//! The kernel's socket tables, `/proc/net/tcp` and its siblings.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// A table of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// TCP over IPv4.
    Tcp,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp,
    /// UDP over IPv6.
    Udp6,
    /// UDP-Lite over IPv4.
    UdpLite,
    /// UDP-Lite over IPv6.
    UdpLite6,
    /// Raw sockets over IPv4.
    Raw,
    /// Raw sockets over IPv6.
    Raw6,
}

impl Table {
    /// Its file, which is also how tools call the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp6 => "udp6",
            Self::UdpLite => "udplite",
            Self::UdpLite6 => "udplite6",
            Self::Raw => "raw",
            Self::Raw6 => "raw6",
        }
    }
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Where it was found.
    pub table: Table,
    /// Its own address.
    pub local: (IpAddr, u16),
    /// Its peer; unspecified with port 0 when it has none.
    pub remote: (IpAddr, u16),
    /// The kernel's number of its state, 1 established to 11 closing.
    pub state: u8,
    /// Bytes not acknowledged yet.
    pub tx_queue: u64,
    /// Bytes not read yet.
    pub rx_queue: u64,
    /// Which timer runs: 0 none, 1 retransmit, 2 keep-alive, 3 time-wait, 4 window probe.
    pub timer: u8,
    /// Clock ticks until it expires.
    pub timer_when: u64,
    /// Retransmissions so far.
    pub retransmits: u64,
    /// Owner.
    pub uid: u32,
    /// Unanswered probes.
    pub timeout: u64,
    /// The inode; with `/proc/PID/fd` it tells who has it open.
    pub inode: u64,
    /// References the kernel holds.
    pub references: u64,
    /// The kernel's address of it, 0 where that is kept secret.
    pub pointer: u64,
}

impl Socket {
    /// Whether it waits for peers: no peer, no port.
    pub fn is_listening(&self) -> bool {
        self.remote.0.is_unspecified() && self.remote.1 == 0
    }

    /// Whether it has a peer.
    pub fn is_connected(&self) -> bool {
        !self.remote.0.is_unspecified() && self.remote.1 != 0
    }
}

/// Reads one table below `net` (such as `/proc/thread-self/net`), at most `max` sockets that `keep` accepts.
/// A protocol the kernel does not have is an empty table.
pub fn read(net: &Path, table: Table, max: usize, keep: impl Fn(&Socket) -> bool) -> io::Result<Vec<Socket>> {
    let file = match fs::File::open(net.join(table.name())) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut sockets = Vec::new();
    for line in BufReader::new(file).lines().skip(1) {
        if let Some(socket) = parse(table, &line?).filter(|socket| keep(socket)) {
            if sockets.len() == max {
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many sockets"));
            }
            sockets.push(socket);
        }
    }
    Ok(sockets)
}

/// Reads one line of a table; a line of another shape is `None`.
pub fn parse(table: Table, line: &str) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace();
    let number = |text: &str| text.parse::<u64>().ok();
    let _slot = words.next()?;
    let local = address(words.next()?)?;
    let remote = address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    let (tx, rx) = words.next()?.split_once(':')?;
    let (timer, when) = words.next()?.split_once(':')?;
    let retransmits = hex(words.next()?)?;
    let uid = words.next()?.parse().ok()?;
    let timeout = number(words.next()?)?;
    let inode = number(words.next()?)?;
    Some(Socket {
        table,
        local,
        remote,
        state,
        tx_queue: hex(tx)?,
        rx_queue: hex(rx)?,
        timer: u8::from_str_radix(timer, 16).ok()?,
        timer_when: hex(when)?,
        retransmits,
        uid,
        timeout,
        inode,
        references: words.next().and_then(number).unwrap_or(0),
        pointer: words.next().and_then(hex).unwrap_or(0),
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `0100007F:C350`: words of the address in the machine's byte order, then the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut octets = [0; 16];
    if !ip.is_ascii() || ip.len() % 8 != 0 || ip.len() > 32 {
        return None;
    }
    for (word, place) in ip.as_bytes().chunks_exact(8).zip(octets.chunks_exact_mut(4)) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        32 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_every_kind_is_read() {
        let listening = "   0: 0100007F:C350 00000000:0000 0A 00000000:00000001 00:00000000 00000000    50        0 12345 1 ffff8880 100 0 0 10 0";
        let socket = parse(Table::Tcp, listening).unwrap();
        assert_eq!(socket.local, ("127.0.0.1".parse().unwrap(), 50000));
        assert!(socket.is_listening() && !socket.is_connected());
        assert_eq!((socket.state, socket.uid, socket.inode, socket.rx_queue), (10, 50, 12345, 1));
        assert_eq!((socket.references, socket.pointer), (1, 0xffff_8880));

        let waiting = "   1: 0200050A:8A3C 0100050A:C350 06 00000000:00000000 03:00000176 00000000     0        0 0 3 0000000000000000";
        let socket = parse(Table::Tcp, waiting).unwrap();
        assert!(socket.is_connected());
        assert_eq!((socket.state, socket.timer, socket.timer_when), (6, 3, 0x176));
        assert_eq!(socket.remote, ("10.5.0.1".parse().unwrap(), 50000));

        let six = " 5: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0";
        let socket = parse(Table::Udp6, six).unwrap();
        assert_eq!(socket.local, ("::1".parse().unwrap(), 53));
    }

    #[test]
    fn other_lines_are_none() {
        for line in
            ["", "sl local", "0: zz:1 00000000:0000 0A", "0: 0100007F:C350 00000000:0000 0A 0:0 0:0 0 x 0 0"]
        {
            assert_eq!(parse(Table::Tcp, line), None, "{line}");
        }
        let whole = "0: 0100007F:C350 00000000:0000 0A 00000000:00000001 00:00000000 00000000 50 0 12345 1 0";
        for cut in 0..whole.len() {
            let _ = parse(Table::Tcp, &whole[..cut]);
        }
    }

    #[test]
    fn a_socket_of_this_test_is_found_and_the_limit_holds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let net = Path::new("/proc/thread-self/net");
        let mine = |socket: &Socket| socket.local.1 == port;
        let found = read(net, Table::Tcp, 10, mine).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].state, 10);
        let error = read(net, Table::Tcp, 0, mine).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(read(Path::new("/no/such"), Table::Raw, 10, |_| true).unwrap().is_empty());
    }
}
