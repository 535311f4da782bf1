//! Asks a time server for the time (SNTP, RFC 4330).
//!
//! [`decode`] and [`encode`] are pure; [`query`] does the talking.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::UdpSocket;

/// The port of time servers.
pub const PORT: u16 = 123;
/// A packet.
const LENGTH: usize = 48;
/// Seconds from 1900 to 1970.
const EPOCH_OFFSET: u64 = 2_208_988_800;
/// An answer whose path to the reference clock is worse than this says nothing (RFC 5905 MAXDISP).
const DISTANCE_MAX: Duration = Duration::from_secs(16);
/// Stratum of a server that is not synchronized itself.
const STRATUM_UNSYNCHRONIZED: u8 = 16;
const MODE_CLIENT: u8 = 3;
const MODE_SERVER: u8 = 4;
const LEAP_UNSYNCHRONIZED: u8 = 3;

/// A second that comes or goes at the end of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leap {
    /// None.
    None,
    /// The last minute has 61 seconds.
    Insert,
    /// The last minute has 59 seconds.
    Delete,
}

/// A server's answer, judged and measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Who answered.
    pub server: SocketAddr,
    /// Our time when the answer came.
    pub local: SystemTime,
    /// The server's time at that moment, as well as we can tell.
    pub remote: SystemTime,
    /// Nanoseconds to add to our clock.
    pub offset_ns: i64,
    /// Time on the wire, both ways.
    pub round_trip: Duration,
    /// Steps to a reference clock.
    pub stratum: u8,
    /// A leap second ahead.
    pub leap: Leap,
    /// Largest error the server and the path admit.
    pub root_distance: Duration,
}

/// Why there is no time from a server.
#[derive(Debug, thiserror::Error)]
pub enum SntpError {
    /// The name does not resolve.
    #[error("resolve time server {server}")]
    Resolve {
        /// The name.
        server: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No exchange of packets.
    #[error("ask time server {server}")]
    Exchange {
        /// The address.
        server: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The answer is of no use.
    #[error("time server {server} answered: {reason}")]
    Answer {
        /// The address.
        server: SocketAddr,
        /// What was wrong.
        #[source]
        reason: BadAnswer,
    },
}

/// Why an answer is of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// Too short, or not from a server.
    #[error("not an answer")]
    Malformed,
    /// Not to our question.
    #[error("answer to another question")]
    Foreign,
    /// The server wants to be left alone.
    #[error("kiss of death {0:?}")]
    Kiss(String),
    /// The server has no time itself.
    #[error("server is not synchronized")]
    Unsynchronized,
    /// Too far from a reference clock.
    #[error("server is too inexact")]
    Inexact,
    /// Times that cannot be.
    #[error("server contradicts itself")]
    Inconsistent,
}

/// A point in time as NTP writes it: seconds since 1900 and 2^-32 parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NtpTime(u64);

impl NtpTime {
    /// From our clock.
    pub fn from_system(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = (since.as_secs() + EPOCH_OFFSET) & 0xffff_ffff;
        let fraction = (u64::from(since.subsec_nanos()) << 32) / 1_000_000_000;
        Self(seconds << 32 | fraction)
    }

    /// Nanoseconds from `earlier` to here, across the wrap of 2036.
    fn since(self, earlier: Self) -> i64 {
        let ticks = self.0.wrapping_sub(earlier.0).cast_signed();
        ((i128::from(ticks) * 1_000_000_000) >> 32) as i64
    }
}

/// Writes a question; the server returns `sent` in its answer.
pub fn encode(sent: NtpTime) -> [u8; LENGTH] {
    let mut packet = [0; LENGTH];
    // Version 4, client.
    packet[0] = 4 << 3 | MODE_CLIENT;
    packet[40..48].copy_from_slice(&sent.0.to_be_bytes());
    packet
}

/// The answer of a server whose clock is this host's: to a question that came at `received`, sent `now`. `None` when it is
/// not a question.
pub fn reply(question: &[u8], received: SystemTime, now: SystemTime) -> Option<[u8; LENGTH]> {
    let question: &[u8; LENGTH] = question.first_chunk()?;
    if question[0] & 7 != MODE_CLIENT {
        return None;
    }
    let mut answer = [0; LENGTH];
    // Version 4, a server next to a reference clock, precise to a microsecond.
    answer[..4].copy_from_slice(&[4 << 3 | MODE_SERVER, 1, 6, 0xec]);
    answer[12..16].copy_from_slice(b"HOST");
    answer[24..32].copy_from_slice(&question[40..48]);
    let received = NtpTime::from_system(received);
    for (at, time) in [(16, received), (32, received), (40, NtpTime::from_system(now))] {
        answer[at..at + 8].copy_from_slice(&time.0.to_be_bytes());
    }
    Some(answer)
}

/// Judges and measures an answer. `sent` is what the question carried; `departed` and `arrived` are our
/// times around the exchange.
pub fn decode(
    packet: &[u8],
    server: SocketAddr,
    sent: NtpTime,
    departed: SystemTime,
    arrived: SystemTime,
) -> Result<Sample, BadAnswer> {
    let packet: &[u8; LENGTH] = packet.first_chunk().ok_or(BadAnswer::Malformed)?;
    let time_at = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&packet[at..at + 8]);
        NtpTime(u64::from_be_bytes(bytes))
    };
    let short_at = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&packet[at..at + 4]);
        Duration::from_nanos((u64::from(u32::from_be_bytes(bytes)) * 1_000_000_000) >> 16)
    };
    if packet[0] & 7 != MODE_SERVER {
        return Err(BadAnswer::Malformed);
    }
    let (reference, origin, received, transmitted) = (time_at(16), time_at(24), time_at(32), time_at(40));
    if origin != sent {
        return Err(BadAnswer::Foreign);
    }
    let stratum = packet[1];
    if stratum == 0 {
        let code = packet[12..16].iter().filter(|b| b.is_ascii_graphic()).map(|b| char::from(*b));
        return Err(BadAnswer::Kiss(code.collect()));
    }
    let leap = match packet[0] >> 6 {
        1 => Leap::Insert,
        2 => Leap::Delete,
        LEAP_UNSYNCHRONIZED => return Err(BadAnswer::Unsynchronized),
        _ => Leap::None,
    };
    if stratum >= STRATUM_UNSYNCHRONIZED || transmitted == NtpTime(0) {
        return Err(BadAnswer::Unsynchronized);
    }
    let (delay, dispersion) = (short_at(4), short_at(8));
    let (t1, t4) = (NtpTime::from_system(departed), NtpTime::from_system(arrived));
    let round_trip_ns = t4.since(t1) - transmitted.since(received);
    if transmitted.since(reference) < 0 || transmitted.since(received) < 0 {
        return Err(BadAnswer::Inconsistent);
    }
    let round_trip = Duration::from_nanos(round_trip_ns.max(0).cast_unsigned());
    let root_distance = (round_trip + delay) / 2 + dispersion;
    if root_distance > DISTANCE_MAX {
        return Err(BadAnswer::Inexact);
    }
    // Half the sum of both differences; halved first, as either may be decades.
    let offset_ns = received.since(t1) / 2 + transmitted.since(t4) / 2;
    let magnitude = Duration::from_nanos(offset_ns.unsigned_abs());
    let remote = if offset_ns < 0 { arrived.checked_sub(magnitude) } else { arrived.checked_add(magnitude) };
    Ok(Sample {
        server,
        local: arrived,
        remote: remote.ok_or(BadAnswer::Inconsistent)?,
        offset_ns,
        round_trip,
        stratum,
        leap,
        root_distance,
    })
}

/// All addresses of a time server, given as name or address, with or without a port.
pub async fn resolve(server: &str) -> Result<Vec<SocketAddr>, SntpError> {
    if let Some(address) = literal(server) {
        return Ok(vec![address]);
    }
    let failed = |source| SntpError::Resolve { server: server.to_owned(), source };
    let found: Vec<_> = tokio::net::lookup_host((server, PORT)).await.map_err(failed)?.collect();
    if found.is_empty() { Err(failed(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// The same on this thread, which waits for the name server: for callers that have threads of their own for it.
pub fn resolve_blocking(server: &str) -> Result<Vec<SocketAddr>, SntpError> {
    if let Some(address) = literal(server) {
        return Ok(vec![address]);
    }
    let failed = |source| SntpError::Resolve { server: server.to_owned(), source };
    let found: Vec<_> = (server, PORT).to_socket_addrs().map_err(failed)?.collect();
    if found.is_empty() { Err(failed(io::ErrorKind::NotFound.into())) } else { Ok(found) }
}

/// A server that is given by its address needs no look-up.
fn literal(server: &str) -> Option<SocketAddr> {
    let address = server.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
    address.or_else(|_| server.parse()).ok()
}

/// Asks one server once.
pub async fn query(server: SocketAddr, limit: Duration) -> Result<Sample, SntpError> {
    let failed = |source| SntpError::Exchange { server, source };
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let exchange = async {
        let socket = UdpSocket::bind(local).await?;
        socket.connect(server).await?;
        // What the question carries is only an echo to know the answer by; our clock stays our own.
        let sent = NtpTime(random());
        let departed = SystemTime::now();
        socket.send(&encode(sent)).await?;
        let mut packet = [0; 512];
        let length = socket.recv(&mut packet).await?;
        Ok((packet, length, sent, departed, SystemTime::now()))
    };
    let answer = tokio::time::timeout(limit, exchange).await;
    let (packet, length, sent, departed, arrived) =
        answer.map_err(|late| failed(late.into()))?.map_err(failed)?;
    decode(&packet[..length], server, sent, departed, arrived)
        .map_err(|reason| SntpError::Answer { server, reason })
}

/// Resolves a server and asks its addresses in order until one answers well.
pub async fn query_name(server: &str, limit: Duration) -> Result<Sample, SntpError> {
    let resolved = tokio::time::timeout(limit, resolve(server)).await;
    let addresses =
        resolved.map_err(|late| SntpError::Resolve { server: server.to_owned(), source: late.into() })??;
    query_any(server, addresses, limit).await
}

/// Asks the addresses of a server in order until one answers well.
pub async fn query_any(
    server: &str,
    addresses: Vec<SocketAddr>,
    limit: Duration,
) -> Result<Sample, SntpError> {
    let mut last = None;
    for address in addresses {
        match query(address, limit).await {
            Ok(sample) => return Ok(sample),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| SntpError::Resolve {
        server: server.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    }))
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Early in a boot without entropy: the time is unique enough.
        _ => NtpTime::from_system(SystemTime::now()).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(seconds: u64, millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis)
    }

    fn answer(sent: NtpTime, received: SystemTime, transmitted: SystemTime) -> [u8; LENGTH] {
        let mut packet = reply(&encode(sent), received, transmitted).unwrap();
        packet[1] = 2;
        packet
    }

    fn server() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, PORT).into()
    }

    #[test]
    fn offset_and_round_trip_follow_from_four_times() {
        let sent = NtpTime(77);
        // We are five seconds behind; 40 ms each way, 10 ms in the server.
        let packet = answer(sent, unix(1005, 40), unix(1005, 50));
        let sample = decode(&packet, server(), sent, unix(1000, 0), unix(1000, 90)).unwrap();
        assert!((sample.offset_ns - 5_000_000_000).abs() < 1000, "{}", sample.offset_ns);
        assert!(sample.round_trip.abs_diff(Duration::from_millis(80)) < Duration::from_micros(1));
        assert_eq!((sample.stratum, sample.leap), (2, Leap::None));
    }

    #[test]
    fn only_questions_are_answered() {
        let (question, now) = (encode(NtpTime(5)), unix(1000, 0));
        assert!(reply(&question, now, now).is_some());
        assert_eq!(reply(&question[..47], now, now), None);
        assert_eq!(reply(&answer(NtpTime(5), now, now), now, now), None, "two servers would talk forever");
    }

    #[test]
    fn a_clock_at_1970_learns_of_2040() {
        let sent = NtpTime(1);
        let there = unix(2_209_000_000, 0);
        let packet = answer(sent, there, there);
        let sample = decode(&packet, server(), sent, unix(100, 0), unix(100, 0)).unwrap();
        let error = sample.remote.duration_since(there).unwrap_or_default();
        assert!(error < Duration::from_millis(1), "{sample:?}");
    }

    #[test]
    fn bad_answers_are_told_apart() {
        let sent = NtpTime(77);
        let good = answer(sent, unix(1000, 0), unix(1000, 0));
        let judge = |packet: &[u8]| decode(packet, server(), sent, unix(1000, 0), unix(1000, 1)).map(|_| ());
        assert_eq!(judge(&good), Ok(()));
        assert_eq!(judge(&good[..47]), Err(BadAnswer::Malformed));
        let spoil = |at: usize, value: u8| {
            let mut bad = good;
            bad[at] = value;
            judge(&bad)
        };
        assert_eq!(spoil(0, 4 << 3 | 3), Err(BadAnswer::Malformed));
        assert_eq!(spoil(31, 0), Err(BadAnswer::Foreign));
        assert_eq!(spoil(0, 3 << 6 | 4 << 3 | 4), Err(BadAnswer::Unsynchronized));
        assert_eq!(spoil(1, 16), Err(BadAnswer::Unsynchronized));
        assert_eq!(spoil(9, 200), Err(BadAnswer::Inexact));
        let mut kiss = good;
        kiss[1] = 0;
        kiss[12..16].copy_from_slice(b"RATE");
        assert_eq!(judge(&kiss), Err(BadAnswer::Kiss("RATE".to_owned())));
    }

    #[tokio::test]
    async fn a_server_on_loopback_is_asked() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut packet = [0; LENGTH];
            let (_, from) = socket.recv_from(&mut packet).await.unwrap();
            let mut sent = [0; 8];
            sent.copy_from_slice(&packet[40..48]);
            let now = SystemTime::now() + Duration::from_secs(60);
            socket.send_to(&answer(NtpTime(u64::from_be_bytes(sent)), now, now), from).await.unwrap();
        });
        let sample = query_name(&address.to_string(), Duration::from_secs(5)).await.unwrap();
        assert!((59_000_000_000..61_000_000_000).contains(&sample.offset_ns), "{sample:?}");
    }

    #[tokio::test]
    async fn silence_is_an_error_that_names_the_server() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = silent.local_addr().unwrap();
        let error = query(address, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("ask time server {address}"));
    }
}
