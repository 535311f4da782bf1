//! Programs nftables: one table of ours, replaced as a whole in one transaction.
//!
//! Only what a packet filter of a node needs: names of links, marks, connection states, addresses, ports, kinds of
//! ICMP, rates, counters and verdicts.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::{KernelError, NetError};
use crate::netlink::wire::{Message, error_of, u16_at, u32_at};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const NEW_RULE: u16 = SUBSYSTEM | 6;
const NEW_SET: u16 = SUBSYSTEM | 9;
const NEW_SET_ELEMENT: u16 = SUBSYSTEM | 12;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACK: u16 = libc::NLM_F_ACK as u16;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Both families in one table.
const INET: u8 = 1;
const IPV4: u8 = 2;
/// The table that iptables programs look for to choose their kind.
const HINT_TABLE: &str = "mangle";
const HINT_CHAIN: &str = "KUBE-IPTABLES-HINT";

const LIST_ELEMENT: u16 = 1;
const DATA_VALUE: u16 = 1;
/// The register that everything goes through.
const REGISTER: u32 = 1;
const SET_ANONYMOUS: u32 = 1;
const SET_CONSTANT: u32 = 2;
const SET_INTERVAL: u32 = 4;
const INTERVAL_END: u32 = 1;
const FULLY_RANDOM: u32 = 0x10;
/// The kernel makes the number up.
const SET_NAME: &str = "__set%d";
/// Answers to a removal that mean that there is no such table, or cannot be.
const NONE: [i32; 4] = [libc::ENOENT, libc::EOPNOTSUPP, libc::EINVAL, libc::EPROTONOSUPPORT];
/// An answer is an error number and a sentence.
const ANSWER_MAX: usize = 8192;

/// A chain at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// `filter`, `route` or `nat`.
    pub kind: String,
    /// `NF_INET_...`: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub hook: u32,
    /// Order among the chains of a hook.
    pub priority: i32,
    /// What becomes of packets that no rule decides.
    pub accept: bool,
    /// Rules in order.
    pub rules: Vec<Vec<Step>>,
}

/// What a step looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Name of the link a packet came in by; 16 bytes.
    InName,
    /// Name of the link a packet goes out by; 16 bytes.
    OutName,
    /// Mark; 4 bytes of the host.
    Mark,
    /// State of the connection; 4 bytes of the host.
    ConntrackState,
    /// Family: 2 or 10.
    Family,
    /// Protocol over IP.
    Protocol,
    /// Bytes of the network header: offset and length.
    Network(u32, u32),
    /// Bytes of the transport header: offset and length.
    Transport(u32, u32),
}

/// One step of a rule; a step that does not match ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Takes a field up.
    Load(Field),
    /// What was taken up is this.
    Equal(Vec<u8>),
    /// What was taken up is not this.
    NotEqual(Vec<u8>),
    /// Keeps the bits of a mask, then flips others.
    Bits {
        /// Bits to keep.
        mask: u32,
        /// Bits to flip.
        xor: u32,
    },
    /// What was taken up is one of these (or none of them).
    In(Set, bool),
    /// Sets the mark to what was taken up.
    SetMark,
    /// Not more packets a second.
    Limit(u64),
    /// Counts.
    Count,
    /// Lets the packet pass, or not.
    Verdict(bool),
    /// Gives the connection an address of the link it leaves by, and a port by chance.
    Masquerade,
}

/// Values of one length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    /// Single values.
    Values(Vec<Vec<u8>>),
    /// Ranges, both ends included, in order and apart.
    Ranges(Vec<(Vec<u8>, Vec<u8>)>),
}

/// Replaces our table by one with these chains; without any there is no table.
pub fn program(table: &str, chains: &[Chain]) -> Result<(), NetError> {
    let failed =
        |operation, source| NetError::Request { operation, subject: format!("table {table}"), source };
    if chains.is_empty() {
        let mut batch = Batch::default();
        batch.add(DELETE_TABLE, 0, INET, |m| m.text(1, table));
        return match batch.send() {
            // There was none, or there cannot be any.
            Err(error) if NONE.contains(&error.errno()) => Ok(()),
            result => result.map_err(|error| failed("remove", error)),
        };
    }
    hint().map_err(|error| failed("prepare", error))?;
    let mut batch = Batch::default();
    // Made so that it can be deleted, deleted so that nothing of it is left.
    batch.add(NEW_TABLE, CREATE, INET, |m| m.text(1, table));
    batch.add(DELETE_TABLE, 0, INET, |m| m.text(1, table));
    batch.add(NEW_TABLE, CREATE, INET, |m| m.text(1, table));
    for chain in chains {
        batch.add(NEW_CHAIN, CREATE, INET, |m| {
            m.text(1, table);
            m.text(3, &chain.name);
            m.nested(4, |hook| {
                be32(hook, 1, chain.hook);
                be32(hook, 2, chain.priority.cast_unsigned());
            });
            be32(m, 5, chain.accept.into());
            m.text(7, &chain.kind);
        });
    }
    for chain in chains {
        for rule in &chain.rules {
            batch.rule(table, &chain.name, rule);
        }
    }
    batch.send().map_err(|error| failed("program", error))
}

/// Makes the table that tells iptables programs that nftables is in use, unless it is there.
fn hint() -> Result<(), KernelError> {
    let mut batch = Batch::default();
    batch.add(NEW_TABLE, CREATE | EXCLUSIVE, IPV4, |m| m.text(1, HINT_TABLE));
    batch.add(NEW_CHAIN, CREATE, IPV4, |m| {
        m.text(1, HINT_TABLE);
        m.text(3, HINT_CHAIN);
    });
    match batch.send() {
        Err(error) if error.errno() == libc::EEXIST => Ok(()),
        result => result,
    }
}

/// Numbers are in network order here.
fn be32(message: &mut Message, kind: u16, value: u32) {
    message.attribute(kind, &value.to_be_bytes());
}

fn be64(message: &mut Message, kind: u16, value: u64) {
    message.attribute(kind, &value.to_be_bytes());
}

fn data(message: &mut Message, kind: u16, value: &[u8]) {
    message.nested(kind, |m| m.attribute(DATA_VALUE, value));
}

/// A transaction under construction.
#[derive(Default)]
struct Batch {
    messages: Vec<(Message, u16)>,
    sets: u32,
}

impl Batch {
    fn add(&mut self, kind: u16, flags: u16, family: u8, fill: impl FnOnce(&mut Message)) {
        let mut message = Message::new(kind, 0, &[family, 0, 0, 0]);
        fill(&mut message);
        self.messages.push((message, flags));
    }

    fn rule(&mut self, table: &str, chain: &str, steps: &[Step]) {
        let first = self.sets;
        for step in steps {
            if let Step::In(set, _) = step {
                self.sets += 1;
                self.set(table, self.sets, set);
            }
        }
        self.add(NEW_RULE, CREATE | APPEND, INET, |m| {
            m.text(1, table);
            m.text(2, chain);
            m.nested(4, |list| {
                let mut number = first;
                for step in steps {
                    expression(list, step, &mut number);
                }
            });
        });
    }

    fn set(&mut self, table: &str, number: u32, set: &Set) {
        let (kind, elements) = match set {
            Set::Values(values) => (0, values.iter().map(|value| (value.clone(), 0)).collect()),
            Set::Ranges(ranges) => (SET_INTERVAL, intervals(ranges)),
        };
        let length = elements.first().map_or(0, |(value, _)| value.len());
        self.add(NEW_SET, CREATE, INET, |m| {
            m.text(1, table);
            m.text(2, SET_NAME);
            be32(m, 3, SET_ANONYMOUS | SET_CONSTANT | kind);
            be32(m, 4, 0);
            be32(m, 5, length as u32);
            be32(m, 10, number);
        });
        self.add(NEW_SET_ELEMENT, CREATE, INET, |m| {
            m.text(1, table);
            m.text(2, SET_NAME);
            be32(m, 4, number);
            m.nested(3, |list| {
                for (value, flags) in &elements {
                    list.nested(LIST_ELEMENT, |element| {
                        if *flags != 0 {
                            be32(element, 3, *flags);
                        }
                        data(element, 1, value);
                    });
                }
            });
        });
    }

    /// Sends everything; the first refusal is the answer.
    fn send(self) -> Result<(), KernelError> {
        let marker = |kind: u16| {
            let mut header = [0, 0, 0, 0];
            header[2..].copy_from_slice(&(SUBSYSTEM >> 8).to_be_bytes());
            Message::new(kind, 0, &header)
        };
        let mut bytes = marker(BATCH_BEGIN).finish(REQUEST, 0);
        let last = self.messages.len() as u32;
        for (sequence, (message, flags)) in (1..).zip(self.messages) {
            let ack = if sequence == last { ACK } else { 0 };
            bytes.extend_from_slice(&message.finish(REQUEST | flags | ack, sequence));
        }
        bytes.extend_from_slice(&marker(BATCH_END).finish(REQUEST, last + 1));

        let socket = open()?;
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&socket, &bytes, SendFlags::empty(), &kernel).map_err(io::Error::from)?;
        let mut buffer = vec![0; ANSWER_MAX];
        loop {
            let (length, _) =
                rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()).map_err(io::Error::from)?;
            let mut rest = &buffer[..length];
            while let (Some(size), Some(kind), Some(flags), Some(sequence)) =
                (u32_at(rest, 0), u16_at(rest, 4), u16_at(rest, 6), u32_at(rest, 8))
            {
                let Some(message) = rest.get(..size as usize).filter(|m| m.len() >= 16) else { break };
                if i32::from(kind) == libc::NLMSG_ERROR {
                    error_of(&message[16..], flags)?;
                    if sequence == last {
                        return Ok(());
                    }
                }
                rest = rest.get((size as usize).next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    )?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
    // The kernel answers within the call that sends; this only guards against one that does not.
    let limit = Some(std::time::Duration::from_secs(5));
    rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, limit)?;
    crate::netlink::set_option(&fd, libc::NETLINK_EXT_ACK);
    crate::netlink::set_option(&fd, libc::NETLINK_CAP_ACK);
    Ok(fd)
}

/// Beginnings of ranges and of what is between them.
fn intervals(ranges: &[(Vec<u8>, Vec<u8>)]) -> Vec<(Vec<u8>, u32)> {
    let mut elements = Vec::new();
    if let Some((first, _)) = ranges.first().filter(|(first, _)| first.iter().any(|byte| *byte != 0)) {
        elements.push((vec![0; first.len()], INTERVAL_END));
    }
    for (low, high) in ranges {
        elements.push((low.clone(), 0));
        elements.extend(successor(high).map(|next| (next, INTERVAL_END)));
    }
    elements
}

/// The next number of the same length; `None` after the last.
fn successor(value: &[u8]) -> Option<Vec<u8>> {
    let mut next = value.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

fn expression(list: &mut Message, step: &Step, sets: &mut u32) {
    let mut add = |name: &str, fill: &mut dyn FnMut(&mut Message)| {
        list.nested(LIST_ELEMENT, |m| {
            m.text(1, name);
            m.nested(2, |m| fill(m));
        });
    };
    let meta = |key: u32| {
        move |m: &mut Message| {
            be32(m, 1, REGISTER);
            be32(m, 2, key);
        }
    };
    let payload = |base: u32, offset: u32, length: u32| {
        move |m: &mut Message| {
            be32(m, 1, REGISTER);
            be32(m, 2, base);
            be32(m, 3, offset);
            be32(m, 4, length);
        }
    };
    let compare = |op: u32, value: &[u8]| {
        let value = value.to_vec();
        move |m: &mut Message| {
            be32(m, 1, REGISTER);
            be32(m, 2, op);
            data(m, 3, &value);
        }
    };
    match step {
        Step::Load(Field::Mark) => add("meta", &mut meta(3)),
        Step::Load(Field::InName) => add("meta", &mut meta(6)),
        Step::Load(Field::OutName) => add("meta", &mut meta(7)),
        Step::Load(Field::Family) => add("meta", &mut meta(15)),
        Step::Load(Field::Protocol) => add("meta", &mut meta(16)),
        Step::Load(Field::ConntrackState) => add("ct", &mut |m| {
            be32(m, 1, REGISTER);
            be32(m, 2, 0);
        }),
        Step::Load(Field::Network(offset, length)) => add("payload", &mut payload(1, *offset, *length)),
        Step::Load(Field::Transport(offset, length)) => add("payload", &mut payload(2, *offset, *length)),
        Step::Equal(value) => add("cmp", &mut compare(0, value)),
        Step::NotEqual(value) => add("cmp", &mut compare(1, value)),
        Step::Bits { mask, xor } => add("bitwise", &mut |m| {
            be32(m, 1, REGISTER);
            be32(m, 2, REGISTER);
            be32(m, 3, 4);
            data(m, 4, &mask.to_ne_bytes());
            data(m, 5, &xor.to_ne_bytes());
        }),
        Step::In(_, negate) => {
            *sets += 1;
            let number = *sets;
            add("lookup", &mut |m| {
                m.text(1, SET_NAME);
                be32(m, 2, REGISTER);
                be32(m, 4, number);
                be32(m, 5, (*negate).into());
            });
        }
        Step::SetMark => add("meta", &mut |m| {
            be32(m, 2, 3);
            be32(m, 3, REGISTER);
        }),
        Step::Limit(rate) => add("limit", &mut |m| {
            be64(m, 1, *rate);
            be64(m, 2, 1);
            be32(m, 3, u32::try_from(*rate).unwrap_or(u32::MAX));
            be32(m, 4, 0);
            be32(m, 5, 0);
        }),
        Step::Count => add("counter", &mut |m| {
            be64(m, 1, 0);
            be64(m, 2, 0);
        }),
        Step::Masquerade => add("masq", &mut |m| be32(m, 1, FULLY_RANDOM)),
        Step::Verdict(accept) => add("immediate", &mut |m| {
            be32(m, 1, 0);
            m.nested(2, |m| m.nested(2, |m| be32(m, 1, (*accept).into())));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_mark_beginnings_and_ends() {
        let ranges = [(vec![0, 80], vec![0, 80]), (vec![0xff, 0], vec![0xff, 0xff])];
        assert_eq!(
            intervals(&ranges),
            [(vec![0, 0], 1), (vec![0, 80], 0), (vec![0, 81], 1), (vec![0xff, 0], 0)]
        );
        assert_eq!(intervals(&[(vec![0], vec![255])]), [(vec![0], 0)]);
    }
}
