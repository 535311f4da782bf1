//! Addresses, prefixes, ports, routing tables.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ichor_types::HardwareAddr;
use ichor_yaml::{Node, Resolved};
use ipnet::IpNet;

use crate::model::{Decoder, Field, MergeError, Shape};

macro_rules! optional_text {
    ($name:ident, $inner:ty, $what:literal, $parse:expr) => {
        impl $name {
            /// Reads the text form; empty means not given.
            pub fn parse(text: &str) -> Result<Self, String> {
                if text.is_empty() {
                    return Ok(Self(None));
                }
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                parse(text).map(|value| Self(Some(value)))
            }

            /// True if it was given.
            pub fn is_set(&self) -> bool {
                self.0.is_some()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0 {
                    Some(value) => write!(f, "{value}"),
                    None => Ok(()),
                }
            }
        }

        impl Field for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Self {
                decoder.parsed(node, $what, Self::parse)
            }

            fn encode(&self) -> Node {
                Node::string(self.to_string())
            }

            fn is_empty(&self) -> bool {
                self.0.is_none()
            }

            fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
                if right.0.is_some() {
                    self.clone_from(right);
                }
                Ok(())
            }

            fn shape() -> Shape {
                Shape::Format($what)
            }
        }
    };
}

/// An address with its prefix length, host bits kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix(pub Option<IpNet>);

optional_text!(Prefix, IpNet, "CIDR prefix", |text| {
    let fail = |why: &str| Err(format!("netip.ParsePrefix({text:?}): {why}"));
    let Some((_, bits)) = text.rsplit_once('/') else { return fail("no '/'") };
    if bits.len() > 1 && bits.starts_with('0') {
        return fail("bad bits after slash");
    }
    text.parse().or_else(|_| fail("unable to parse IP or prefix length"))
});

/// An address, perhaps with a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addr(pub Option<IpAddr>);

optional_text!(Addr, IpAddr, "IP address", |text| {
    text.parse().map_err(|_| format!("ParseAddr({text:?}): unable to parse IP"))
});

/// An address with a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddrPort(pub Option<SocketAddr>);

optional_text!(AddrPort, SocketAddr, "IP address and port", |text| {
    text.parse().map_err(|_| format!("invalid ip:port {text:?}, expected an address and a port"))
});

impl Field for HardwareAddr {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.parsed(node, "colon-separated hex", |text| {
            let digits: String = text.chars().filter(|c| *c != ':').collect();
            if let Some(c) = digits.chars().find(|c| !c.is_ascii_hexdigit()) {
                return Err(format!("encoding/hex: invalid byte: U+{:04X} {c:?}", c as u32));
            }
            if !digits.len().is_multiple_of(2) {
                return Err("encoding/hex: odd length hex string".to_owned());
            }
            let pairs = (0..digits.len()).step_by(2);
            Ok(Self(pairs.filter_map(|i| u8::from_str_radix(&digits[i..i + 2], 16).ok()).collect()))
        })
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        if !right.0.is_empty() {
            self.clone_from(right);
        }
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("hardware address")
    }
}

/// A port or a range of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRange {
    /// First port.
    pub low: u16,
    /// Last port.
    pub high: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

impl Field for PortRange {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        if let Some(Resolved::Int(value)) = node.as_scalar().map(|scalar| scalar.resolve())
            && let Ok(port) = u16::try_from(value)
        {
            return Self { low: port, high: port };
        }
        decoder.parsed(node, "a port or a range such as 8000-9000", |text| {
            let bad = || format!("invalid port range: {text:?}");
            let (low, high) = text.split_once('-').ok_or_else(bad)?;
            let number = |part: &str| part.parse::<u16>().map_err(|_| bad());
            Ok::<_, String>(Self { low: number(low)?, high: number(high)? })
        })
    }

    fn encode(&self) -> Node {
        if self.low == self.high { Node::plain(self.low.to_string()) } else { Node::string(self.to_string()) }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        *self = *right;
        Ok(())
    }

    fn shape() -> Shape {
        Shape::Format("port or port range")
    }
}

/// A routing table by number; some have names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutingTable(pub u8);

impl RoutingTable {
    const NAMED: [(&'static str, u8); 4] = [("unspec", 0), ("default", 253), ("main", 254), ("local", 255)];

    fn parse(text: &str) -> Option<Self> {
        let lower = text.to_lowercase();
        if let Some((_, number)) = Self::NAMED.iter().find(|(name, _)| *name == lower) {
            return Some(Self(*number));
        }
        let number: u8 = text.parse().ok().filter(|number| (1..=252).contains(number))?;
        (number.to_string() == text).then_some(Self(number))
    }
}

impl fmt::Display for RoutingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Field for RoutingTable {
    fn decode(node: &Node, decoder: &mut Decoder) -> Self {
        decoder.choice(node, "RoutingTable", &["1", "252", "default", "main", "local"], Self::parse)
    }

    fn encode(&self) -> Node {
        Node::string(self.to_string())
    }

    fn is_empty(&self) -> bool {
        self.0 == 0
    }

    fn merge(&mut self, right: &Self) -> Result<(), MergeError> {
        self.0.merge(&right.0)
    }

    fn shape() -> Shape {
        Shape::Format("routing table (1-252, default, main, local)")
    }
}
