//! The language of filters: a useful part of what `tcpdump` reads.

use std::net::IpAddr;

use crate::compile::CompileError;

/// Longest text that is read.
const TEXT_MAX: usize = 4096;
/// Deepest nesting of brackets and negations.
const DEPTH_MAX: usize = 64;

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Is(Primitive),
}

/// One test in the words of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primitive {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) direction: Direction,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Ether,
    Ip,
    Ip6,
    Arp,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmp6,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Direction {
    Source,
    Destination,
    #[default]
    Either,
    Both,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The protocol alone.
    Any,
    Net(IpAddr, u8),
    Hardware([u8; 6]),
    Ports(u16, u16),
    Number(u16),
    Less(u32),
    Greater(u32),
    Broadcast,
    Multicast,
}

/// The kind of value a primitive names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Number,
}

/// What stands before a value; a later value without any takes it over (`port 80 or 443`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Qualifiers {
    protocol: Option<Protocol>,
    direction: Option<Direction>,
    kind: Option<Kind>,
}

/// Reads a filter; an empty one is `None` and takes every packet.
pub(crate) fn parse(text: &str) -> Result<Option<Expression>, CompileError> {
    if text.len() > TEXT_MAX {
        return Err(CompileError::TooLong);
    }
    let mut parser = Parser { words: split(text), at: 0, last: Qualifiers::default(), depth: 0 };
    if parser.words.is_empty() {
        return Ok(None);
    }
    let expression = parser.expression()?;
    match parser.peek() {
        None => Ok(Some(expression)),
        Some(word) => Err(CompileError::Unexpected(word.to_owned())),
    }
}

fn split(text: &str) -> Vec<String> {
    let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('!', " ! ");
    let spaced = spaced.replace("&&", " and ").replace("||", " or ");
    spaced.split_whitespace().map(str::to_ascii_lowercase).collect()
}

struct Parser {
    words: Vec<String>,
    at: usize,
    last: Qualifiers,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Result<String, CompileError> {
        let word = self.words.get(self.at).cloned().ok_or(CompileError::Incomplete)?;
        self.at += 1;
        Ok(word)
    }

    fn accept(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    /// `and` and `or` bind alike, from left to right, as everybody's manual says.
    fn expression(&mut self) -> Result<Expression, CompileError> {
        let mut left = self.unary()?;
        loop {
            if self.accept("and") {
                left = Expression::And(Box::new(left), Box::new(self.unary()?));
            } else if self.accept("or") {
                left = Expression::Or(Box::new(left), Box::new(self.unary()?));
            } else {
                return Ok(left);
            }
        }
    }

    fn unary(&mut self) -> Result<Expression, CompileError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(CompileError::TooDeep);
        }
        let expression = if self.accept("not") || self.accept("!") {
            Expression::Not(Box::new(self.unary()?))
        } else if self.accept("(") {
            let inner = self.expression()?;
            if !self.accept(")") {
                return Err(CompileError::Incomplete);
            }
            inner
        } else {
            Expression::Is(self.primitive()?)
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn primitive(&mut self) -> Result<Primitive, CompileError> {
        let mut found = Qualifiers::default();
        while let Some(word) = self.peek().map(str::to_owned) {
            if let Some(protocol) = protocol(&word).filter(|_| found == Qualifiers::default()) {
                found.protocol = Some(protocol);
                self.at += 1;
            } else if let Some(direction) = self.direction(found) {
                found.direction = Some(direction);
            } else if let Some(kind) = kind(&word).filter(|_| found.kind.is_none()) {
                found.kind = Some(kind);
                self.at += 1;
            } else {
                break;
            }
        }
        let special = |what| Primitive { protocol: found.protocol, direction: Direction::Either, what };
        match self.peek() {
            Some("less") => return Ok(special(What::Less(self.length()?))),
            Some("greater") => return Ok(special(What::Greater(self.length()?))),
            Some("broadcast") => {
                self.at += 1;
                return Ok(special(What::Broadcast));
            }
            Some("multicast") => {
                self.at += 1;
                return Ok(special(What::Multicast));
            }
            None | Some("and" | "or" | ")") if found.kind.is_none() && found.direction.is_none() => {
                return match found.protocol {
                    Some(_) => Ok(special(What::Any)),
                    None => Err(CompileError::Incomplete),
                };
            }
            _ => {}
        }
        if found == Qualifiers::default() {
            found = self.last;
        }
        self.last = found;
        let what = self.value(found)?;
        Ok(Primitive { protocol: found.protocol, direction: found.direction.unwrap_or_default(), what })
    }

    fn direction(&mut self, found: Qualifiers) -> Option<Direction> {
        if found.direction.is_some() || found.kind.is_some() {
            return None;
        }
        let word = |at: usize| self.words.get(self.at + at).map(String::as_str);
        let (direction, words) = match (word(0), word(1), word(2)) {
            (Some("src"), Some("or"), Some("dst")) | (Some("dst"), Some("or"), Some("src")) => {
                (Direction::Either, 3)
            }
            (Some("src"), Some("and"), Some("dst")) | (Some("dst"), Some("and"), Some("src")) => {
                (Direction::Both, 3)
            }
            (Some("src"), _, _) => (Direction::Source, 1),
            (Some("dst"), _, _) => (Direction::Destination, 1),
            _ => return None,
        };
        self.at += words;
        Some(direction)
    }

    fn length(&mut self) -> Result<u32, CompileError> {
        self.at += 1;
        let word = self.next()?;
        word.parse().map_err(|_| CompileError::Unexpected(word))
    }

    fn value(&mut self, found: Qualifiers) -> Result<What, CompileError> {
        let word = self.next()?;
        let bad = || CompileError::Unexpected(word.clone());
        match found.kind.unwrap_or(Kind::Host) {
            Kind::Host if found.protocol == Some(Protocol::Ether) => {
                hardware(&word).map(What::Hardware).ok_or_else(bad)
            }
            Kind::Host => {
                let address: IpAddr = word.parse().map_err(|_| bad())?;
                Ok(What::Net(address, if address.is_ipv4() { 32 } else { 128 }))
            }
            Kind::Net => net(&word).ok_or_else(bad),
            Kind::Port => port(&word).map(|port| What::Ports(port, port)).ok_or_else(bad),
            Kind::PortRange => {
                let (low, high) = word.split_once('-').ok_or_else(bad)?;
                match (port(low), port(high)) {
                    (Some(low), Some(high)) => Ok(What::Ports(low.min(high), low.max(high))),
                    _ => Err(bad()),
                }
            }
            Kind::Number => number(word.trim_start_matches('\\')).map(What::Number).ok_or_else(bad),
        }
    }
}

fn protocol(word: &str) -> Option<Protocol> {
    Some(match word {
        "ether" => Protocol::Ether,
        "ip" => Protocol::Ip,
        "ip6" => Protocol::Ip6,
        "arp" => Protocol::Arp,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        "icmp" => Protocol::Icmp,
        "icmp6" => Protocol::Icmp6,
        _ => return None,
    })
}

fn kind(word: &str) -> Option<Kind> {
    Some(match word {
        "host" => Kind::Host,
        "net" => Kind::Net,
        "port" => Kind::Port,
        "portrange" => Kind::PortRange,
        "proto" => Kind::Number,
        _ => return None,
    })
}

/// Ports people write by name.
fn port(word: &str) -> Option<u16> {
    Some(match word {
        "ssh" => 22,
        "domain" => 53,
        "bootps" => 67,
        "bootpc" => 68,
        "http" => 80,
        "ntp" => 123,
        "https" => 443,
        _ => return word.parse().ok(),
    })
}

/// Protocol numbers, or the names of common ones.
fn number(word: &str) -> Option<u16> {
    match word.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => Some(match word {
            "icmp" => 1,
            "tcp" => 6,
            "udp" => 17,
            "icmp6" => 58,
            "sctp" => 132,
            _ => return word.parse().ok(),
        }),
    }
}

fn hardware(word: &str) -> Option<[u8; 6]> {
    let mut octets = [0; 6];
    let mut parts = word.split([':', '-']);
    for octet in &mut octets {
        *octet = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(octets)
}

/// `10.0.0.0/8`, `fe80::/10`, or the short form `10.1` of an IPv4 network.
fn net(word: &str) -> Option<What> {
    let (address, length) = match word.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (word, None),
    };
    if let Ok(address) = address.parse::<IpAddr>() {
        let all = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(all);
        return (length <= all).then_some(What::Net(address, length));
    }
    let mut octets = [0; 4];
    let parts: Vec<&str> = address.split('.').collect();
    if parts.len() >= 4 {
        return None;
    }
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = part.parse().ok()?;
    }
    let length = length.unwrap_or(u8::try_from(parts.len() * 8).ok()?);
    (length <= 32).then_some(What::Net(IpAddr::from(octets), length))
}
