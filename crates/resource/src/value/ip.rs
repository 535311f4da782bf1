//! Addresses, prefixes and sockets, each of which may be unset.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

use super::wire::{put_bytes, put_nested, put_number};
use super::{Field, Reader, Sampler, Value, WireError, Yaml};

/// A text that is not an address, prefix or socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address")]
pub struct BadAddress(pub String);

/// An address with an optional zone, or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ip {
    addr: Option<IpAddr>,
    zone: Option<Box<str>>,
}

impl Ip {
    /// No address.
    pub const UNSET: Self = Self { addr: None, zone: None };

    /// An IPv6 address of one link.
    pub fn with_zone(addr: Ipv6Addr, zone: &str) -> Self {
        Self { addr: Some(addr.into()), zone: (!zone.is_empty()).then(|| zone.into()) }
    }

    /// The address without its zone.
    pub fn get(&self) -> Option<IpAddr> {
        self.addr
    }

    /// The zone, empty when there is none.
    pub fn zone(&self) -> &str {
        self.zone.as_deref().unwrap_or("")
    }

    /// True when there is no address.
    pub fn is_unset(&self) -> bool {
        self.addr.is_none()
    }

    fn raw(&self) -> Vec<u8> {
        let mut bytes = match self.addr {
            Some(IpAddr::V4(addr)) => addr.octets().to_vec(),
            Some(IpAddr::V6(addr)) => addr.octets().to_vec(),
            None => Vec::new(),
        };
        bytes.extend_from_slice(self.zone().as_bytes());
        bytes
    }

    fn from_raw(bytes: &[u8]) -> Result<Self, WireError> {
        let bad = || WireError::Value(format!("an address of {} bytes", bytes.len()));
        if bytes.is_empty() {
            return Ok(Self::UNSET);
        }
        if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
            return Ok(Ipv4Addr::from(octets).into());
        }
        let (octets, zone) = bytes.split_first_chunk::<16>().ok_or_else(bad)?;
        let zone = std::str::from_utf8(zone).map_err(|_| bad())?;
        Ok(Self::with_zone(Ipv6Addr::from(*octets), zone))
    }
}

impl<T: Into<IpAddr>> From<T> for Ip {
    fn from(addr: T) -> Self {
        Self { addr: Some(addr.into()), zone: None }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.addr, &self.zone) {
            (None, _) => Ok(()),
            (Some(addr), None) => addr.fmt(f),
            (Some(addr), Some(zone)) => write!(f, "{addr}%{zone}"),
        }
    }
}

impl FromStr for Ip {
    type Err = BadAddress;

    /// Reads an address with or without a zone; nothing is the unset address.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = |_| BadAddress(text.to_owned());
        match text.split_once('%') {
            _ if text.is_empty() => Ok(Self::UNSET),
            Some((addr, zone)) => Ok(Self::with_zone(addr.parse().map_err(bad)?, zone)),
            None => Ok(text.parse::<IpAddr>().map_err(bad)?.into()),
        }
    }
}

impl Value for Ip {
    fn proto_type() -> String {
        "common.NetIP".into()
    }

    fn is_zero(&self) -> bool {
        self.addr.is_none()
    }

    /// Always: clients of the original never saw an address where it may be left out.
    fn is_empty(&self) -> bool {
        true
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_nested(tag, out, |out| put_ip(self, out));
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        *self = read_ip(field.bytes()?)?.0;
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.to_string());
    }

    fn sample(sampler: &mut Sampler) -> Self {
        let number = sampler.number();
        if number.is_multiple_of(2) {
            Ipv4Addr::new(10, 5, 0, number).into()
        } else {
            Self::with_zone(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, number.into()), "eth0")
        }
    }
}

/// Writes the address part that all three messages share.
fn put_ip(ip: &Ip, out: &mut Vec<u8>) {
    if !ip.is_unset() {
        put_bytes(1, &ip.raw(), out);
    }
}

/// Reads the address and the number that two of the three messages add.
fn read_ip(bytes: &[u8]) -> Result<(Ip, i32), WireError> {
    let (mut ip, mut number) = (Ip::UNSET, 0);
    let mut reader = Reader::new(bytes);
    while let Some((tag, field)) = reader.next_field()? {
        match tag {
            1 => ip = Ip::from_raw(field.bytes()?)?,
            2 => number = field.varint()? as i32,
            _ => {}
        }
    }
    Ok((ip, number))
}

/// An address with the length of its network, or nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix(pub Option<IpNet>);

impl IpPrefix {
    /// No prefix.
    pub const UNSET: Self = Self(None);

    /// The prefix; host bits stay.
    pub fn get(&self) -> Option<IpNet> {
        self.0
    }

    /// True when there is no prefix.
    pub fn is_unset(&self) -> bool {
        self.0.is_none()
    }
}

impl<T: Into<IpNet>> From<T> for IpPrefix {
    fn from(net: T) -> Self {
        Self(Some(net.into()))
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |net| write!(f, "{}/{}", net.addr(), net.prefix_len()))
    }
}

impl FromStr for IpPrefix {
    type Err = BadAddress;

    /// Reads `10.0.0.1/8`; nothing is the unset prefix.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if text.is_empty() {
            return Ok(Self::UNSET);
        }
        text.parse::<IpNet>().map(Self::from).map_err(|_| BadAddress(text.to_owned()))
    }
}

impl Value for IpPrefix {
    fn proto_type() -> String {
        "common.NetIPPrefix".into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    /// Always, as for [`Ip`].
    fn is_empty(&self) -> bool {
        true
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_nested(tag, out, |out| {
            if let Some(net) = self.0 {
                put_ip(&net.addr().into(), out);
                if net.prefix_len() != 0 {
                    put_number(2, net.prefix_len().into(), out);
                }
            }
        });
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let (ip, bits) = read_ip(field.bytes()?)?;
        let net = ip.get().map(|addr| IpNet::new(addr, u8::try_from(bits).unwrap_or(u8::MAX))).transpose();
        self.0 = net.map_err(|_| WireError::Value(format!("a prefix length of {bits}")))?;
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.to_string());
    }

    fn sample(sampler: &mut Sampler) -> Self {
        let number = sampler.number();
        let addr = match number % 2 {
            0 => IpAddr::V4(Ipv4Addr::new(10, 5, 0, number)),
            _ => IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into())),
        };
        Self(IpNet::new(addr, 24).ok())
    }
}

/// An address with a port, or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPort {
    /// The address.
    pub ip: Ip,
    /// The port.
    pub port: u16,
}

impl IpPort {
    /// No address and no port.
    pub const UNSET: Self = Self { ip: Ip::UNSET, port: 0 };

    /// The socket address without a zone.
    pub fn get(&self) -> Option<SocketAddr> {
        self.ip.get().map(|addr| SocketAddr::new(addr, self.port))
    }
}

impl From<SocketAddr> for IpPort {
    fn from(addr: SocketAddr) -> Self {
        Self { ip: addr.ip().into(), port: addr.port() }
    }
}

impl fmt::Display for IpPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip.get() {
            None if self.port == 0 => Ok(()),
            None => write!(f, ":{}", self.port),
            Some(IpAddr::V4(_)) => write!(f, "{}:{}", self.ip, self.port),
            Some(IpAddr::V6(_)) => write!(f, "[{}]:{}", self.ip, self.port),
        }
    }
}

impl FromStr for IpPort {
    type Err = BadAddress;

    /// Reads `10.0.0.1:53` or `[fe80::1%eth0]:53`; nothing is unset.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if text.is_empty() {
            return Ok(Self::UNSET);
        }
        let bad = || BadAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let ip: Ip = bare.unwrap_or(host).parse()?;
        let bracketed = bare.is_some();
        if ip.get().is_none_or(|addr| addr.is_ipv6() != bracketed) {
            return Err(bad());
        }
        Ok(Self { ip, port: port.parse().map_err(|_| bad())? })
    }
}

impl Value for IpPort {
    fn proto_type() -> String {
        "common.NetIPPort".into()
    }

    fn is_zero(&self) -> bool {
        self.ip.is_unset() && self.port == 0
    }

    /// Always, as for [`Ip`].
    fn is_empty(&self) -> bool {
        true
    }

    fn put(&self, tag: u32, out: &mut Vec<u8>) {
        put_nested(tag, out, |out| {
            put_ip(&self.ip, out);
            if self.port != 0 {
                put_number(2, self.port.into(), out);
            }
        });
    }

    fn merge(&mut self, field: Field<'_>) -> Result<(), WireError> {
        let (ip, port) = read_ip(field.bytes()?)?;
        let port = u16::try_from(port).map_err(|_| WireError::Value(format!("port {port}")))?;
        *self = Self { ip, port };
        Ok(())
    }

    fn yaml(&self, yaml: &mut Yaml<'_>) {
        yaml.string(&self.to_string());
    }

    fn sample(sampler: &mut Sampler) -> Self {
        Self { ip: Ip::sample(sampler), port: 50_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive() {
        for text in ["", "10.0.0.1", "fe80::1%eth0", "::ffff:1.2.3.4"] {
            assert_eq!(text.parse::<Ip>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.1/8", "fd00::7/64"] {
            assert_eq!(text.parse::<IpPrefix>().unwrap().to_string(), text);
        }
        for text in ["", "10.0.0.1:53", "[fe80::1%eth0]:53"] {
            assert_eq!(text.parse::<IpPort>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.1", "fe80::1:53", "[10.0.0.1]:5", "10.0.0.1:70000"] {
            assert!(text.parse::<IpPort>().is_err(), "{text}");
        }
    }
}
