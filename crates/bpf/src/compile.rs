//! From an expression to a program.

use std::net::IpAddr;

use crate::code::{Condition, assemble};
use crate::expression::{self, Direction, Expression, Primitive, Protocol, What};
use crate::instruction::*;
use crate::{BadProgram, Instruction, LinkType, verify};

/// Bytes kept of a packet that is taken: all of it.
const KEEP: u32 = 262_144;

const IPV4: u32 = 0x0800;
const ARP: u32 = 0x0806;
const IPV6: u32 = 0x86dd;

/// An expression that is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A word that does not fit there.
    #[error("{0:?} is not understood here; filters look like `tcp port 443 and host 10.0.0.1`")]
    Unexpected(String),
    /// Something is missing at the end.
    #[error("the filter ends too early")]
    Incomplete,
    /// A longer text than anybody writes.
    #[error("the filter is too long")]
    TooLong,
    /// More brackets than anybody needs.
    #[error("the filter is nested too deeply")]
    TooDeep,
    /// Words that do not go together.
    #[error("`{0}` does not go with what it is applied to")]
    Mismatch(&'static str),
    /// The program is more than the kernel takes.
    #[error("the filter is too large: {0}")]
    Program(#[from] BadProgram),
}

/// Compiles a filter for packets of a link. An empty filter takes every packet.
///
/// Understood are `ether|ip|ip6|arp|tcp|udp|sctp|icmp|icmp6`, `src|dst`, `host|net|port|portrange|proto`,
/// `less|greater LENGTH`, `broadcast`, `multicast`, `and|or|not` and brackets. Names of hosts are not looked up.
pub fn compile(text: &str, link: LinkType) -> Result<Vec<Instruction>, CompileError> {
    let condition = match expression::parse(text)? {
        Some(expression) => lower(&expression, link)?,
        None => Condition::All(Vec::new()),
    };
    let program = assemble(&condition, KEEP);
    verify(&program)?;
    Ok(program)
}

fn lower(expression: &Expression, link: LinkType) -> Result<Condition, CompileError> {
    Ok(match expression {
        Expression::And(left, right) => Condition::All(vec![lower(left, link)?, lower(right, link)?]),
        Expression::Or(left, right) => Condition::Any(vec![lower(left, link)?, lower(right, link)?]),
        Expression::Not(inner) => lower(inner, link)?.not(),
        Expression::Is(primitive) => Packet { link }.primitive(primitive)?,
    })
}

/// Where things are in the packets of a link.
#[derive(Clone, Copy)]
struct Packet {
    link: LinkType,
}

impl Packet {
    fn at(self, size: u16, offset: u32) -> Instruction {
        Instruction::plain(LD | ABS | size, self.link.header() + offset)
    }

    fn network(self, kind: u32) -> Condition {
        match (self.link, kind) {
            (LinkType::Ethernet, kind) => Condition::test(Instruction::plain(LD | ABS | H, 12), JEQ, kind),
            (LinkType::Raw, IPV4) => Condition::masked(self.at(B, 0), 0xf0, 0x40),
            (LinkType::Raw, IPV6) => Condition::masked(self.at(B, 0), 0xf0, 0x60),
            (LinkType::Raw, _) => Condition::never(),
        }
    }

    fn primitive(self, primitive: &Primitive) -> Result<Condition, CompileError> {
        let Primitive { protocol, direction, what } = primitive;
        let direction = *direction;
        match what {
            What::Any => Ok(self.protocol(protocol.unwrap_or(Protocol::Ip))?),
            What::Net(address, length) => self.net(*protocol, direction, *address, *length),
            What::Hardware(address) => self.hardware(direction, *address),
            What::Ports(low, high) => self.ports(*protocol, direction, *low, *high),
            What::Number(number) => self.number(*protocol, *number),
            What::Less(length) => Ok(self.length(JGT, *length).not()),
            What::Greater(length) => Ok(self.length(JGE, *length)),
            What::Broadcast => match protocol {
                None | Some(Protocol::Ether) => self.hardware(Direction::Destination, [0xff; 6]),
                Some(_) => Err(CompileError::Mismatch("broadcast")),
            },
            What::Multicast => self.multicast(*protocol),
        }
    }

    fn protocol(self, protocol: Protocol) -> Result<Condition, CompileError> {
        Ok(match protocol {
            Protocol::Ether => return Err(CompileError::Mismatch("ether")),
            Protocol::Ip => self.network(IPV4),
            Protocol::Ip6 => self.network(IPV6),
            Protocol::Arp => self.network(ARP),
            Protocol::Tcp => self.transport(&[4, 6], 6),
            Protocol::Udp => self.transport(&[4, 6], 17),
            Protocol::Sctp => self.transport(&[4, 6], 132),
            Protocol::Icmp => self.transport(&[4], 1),
            Protocol::Icmp6 => self.transport(&[6], 58),
        })
    }

    fn transport(self, versions: &[u8], number: u32) -> Condition {
        let of = |version: &u8| match version {
            4 => Condition::All(vec![self.network(IPV4), Condition::test(self.at(B, 9), JEQ, number)]),
            _ => Condition::All(vec![self.network(IPV6), Condition::test(self.at(B, 6), JEQ, number)]),
        };
        Condition::Any(versions.iter().map(of).collect())
    }

    fn number(self, protocol: Option<Protocol>, number: u16) -> Result<Condition, CompileError> {
        let number = u32::from(number);
        match protocol {
            Some(Protocol::Ether) => Ok(self.network(number)),
            Some(Protocol::Ip) => Ok(self.transport(&[4], number)),
            Some(Protocol::Ip6) => Ok(self.transport(&[6], number)),
            None => Ok(self.transport(&[4, 6], number)),
            Some(_) => Err(CompileError::Mismatch("proto")),
        }
    }

    fn length(self, jump: u16, length: u32) -> Condition {
        Condition::test(Instruction::plain(LD | LEN, 0), jump, length)
    }

    fn multicast(self, protocol: Option<Protocol>) -> Result<Condition, CompileError> {
        match protocol {
            None | Some(Protocol::Ether) => match self.link {
                LinkType::Ethernet => Ok(Condition::test(Instruction::plain(LD | ABS | B, 0), JSET, 1)),
                LinkType::Raw => Err(CompileError::Mismatch("ether")),
            },
            Some(Protocol::Ip) => {
                Ok(Condition::All(vec![self.network(IPV4), Condition::test(self.at(B, 16), JGE, 224)]))
            }
            Some(Protocol::Ip6) => {
                Ok(Condition::All(vec![self.network(IPV6), Condition::test(self.at(B, 24), JEQ, 255)]))
            }
            Some(_) => Err(CompileError::Mismatch("multicast")),
        }
    }

    fn hardware(self, direction: Direction, address: [u8; 6]) -> Result<Condition, CompileError> {
        if self.link == LinkType::Raw {
            return Err(CompileError::Mismatch("ether"));
        }
        let [a, b, c, d, e, f] = address;
        Ok(both_ways(direction, |source| {
            let start = if source { 6 } else { 0 };
            Condition::All(vec![
                Condition::test(
                    Instruction::plain(LD | ABS | W, start + 2),
                    JEQ,
                    u32::from_be_bytes([c, d, e, f]),
                ),
                Condition::test(
                    Instruction::plain(LD | ABS | H, start),
                    JEQ,
                    u32::from_be_bytes([0, 0, a, b]),
                ),
            ])
        }))
    }

    fn net(
        self,
        protocol: Option<Protocol>,
        direction: Direction,
        address: IpAddr,
        length: u8,
    ) -> Result<Condition, CompileError> {
        let words: Vec<u32> = match address {
            IpAddr::V4(ip) => vec![ip.to_bits()],
            IpAddr::V6(ip) => ip
                .octets()
                .chunks_exact(4)
                .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
        };
        let matches = |kind: u32, source_at: u32, destination_at: u32| {
            let words = both_ways(direction, |source| {
                let start = if source { source_at } else { destination_at };
                Condition::All(
                    (0_u32..)
                        .zip(&words)
                        .filter_map(|(index, word)| {
                            let mask = mask(u32::from(length).saturating_sub(index * 32));
                            let load = self.at(W, start + index * 4);
                            (mask != 0).then(|| Condition::masked(load, mask, word & mask))
                        })
                        .collect(),
                )
            });
            Condition::All(vec![self.network(kind), words])
        };
        match (address, protocol) {
            (IpAddr::V4(_), None) => Ok(Condition::Any(vec![matches(IPV4, 12, 16), matches(ARP, 14, 24)])),
            (IpAddr::V4(_), Some(Protocol::Ip)) => Ok(matches(IPV4, 12, 16)),
            (IpAddr::V4(_), Some(Protocol::Arp)) => Ok(matches(ARP, 14, 24)),
            (IpAddr::V6(_), None | Some(Protocol::Ip6)) => Ok(matches(IPV6, 8, 24)),
            (IpAddr::V4(_) | IpAddr::V6(_), Some(_)) => Err(CompileError::Mismatch("host or net")),
        }
    }

    fn ports(
        self,
        protocol: Option<Protocol>,
        direction: Direction,
        low: u16,
        high: u16,
    ) -> Result<Condition, CompileError> {
        let numbers: &[u32] = match protocol {
            None | Some(Protocol::Ip | Protocol::Ip6) => &[6, 17, 132],
            Some(Protocol::Tcp) => &[6],
            Some(Protocol::Udp) => &[17],
            Some(Protocol::Sctp) => &[132],
            Some(_) => return Err(CompileError::Mismatch("port")),
        };
        let one_of = |offset: u32| {
            let is = |number: &u32| Condition::test(self.at(B, offset), JEQ, *number);
            Condition::Any(numbers.iter().map(is).collect())
        };
        let within = |load: Vec<Instruction>| {
            let (low, high) = (u32::from(low), u32::from(high));
            let test = |jump, k| Condition::Test { load: load.clone(), jump, k };
            match low == high {
                true => test(JEQ, low),
                false => Condition::All(vec![test(JGE, low), test(JGT, high).not()]),
            }
        };
        let offset = |source: bool| if source { 0 } else { 2 };
        let v4 = Condition::All(vec![
            self.network(IPV4),
            one_of(9),
            // Only the first fragment has ports.
            Condition::test(self.at(H, 6), JSET, 0x1fff).not(),
            both_ways(direction, |source| {
                within(vec![
                    Instruction::plain(LDX | MSH | B, self.link.header()),
                    Instruction::plain(LD | IND | H, self.link.header() + offset(source)),
                ])
            }),
        ]);
        let v6 = Condition::All(vec![
            self.network(IPV6),
            one_of(6),
            both_ways(direction, |source| within(vec![self.at(H, 40 + offset(source))])),
        ]);
        Ok(match protocol {
            Some(Protocol::Ip) => v4,
            Some(Protocol::Ip6) => v6,
            _ => Condition::Any(vec![v4, v6]),
        })
    }
}

fn both_ways(direction: Direction, of: impl Fn(bool) -> Condition) -> Condition {
    match direction {
        Direction::Source => of(true),
        Direction::Destination => of(false),
        Direction::Either => Condition::Any(vec![of(true), of(false)]),
        Direction::Both => Condition::All(vec![of(true), of(false)]),
    }
}

/// The first `length` bits of a word.
fn mask(length: u32) -> u32 {
    match length {
        0 => 0,
        32.. => u32::MAX,
        length => u32::MAX << (32 - length),
    }
}

#[cfg(test)]
mod tests;
