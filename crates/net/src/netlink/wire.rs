//! The netlink message format: requests are built, answers are walked. No I/O here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::KernelError;

/// Request flags: answer with an acknowledgement.
pub(crate) const ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// Request flags: list all objects.
pub(crate) const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// Extra flags of a request that creates and must not find the object.
pub(crate) const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Extra flags of a request that creates or replaces.
pub(crate) const REPLACE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const DUMP_INTERRUPTED: u16 = 0x10;
const CAPPED: u16 = 0x100;
const HAS_TLVS: u16 = 0x200;
const NESTED: u16 = 1 << 15;
/// The attribute of an error answer that holds its sentence.
const ERROR_TEXT: u16 = 1;

/// A request under construction.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    bytes: Vec<u8>,
    flags: u16,
}

impl Message {
    /// Starts a request of a kind (`RTM_...`) with the fixed header of its family.
    pub(crate) fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&[0; HEADER]);
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(family_header);
        pad(&mut bytes);
        Self { bytes, flags }
    }

    pub(crate) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (ATTRIBUTE_HEADER + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        pad(&mut self.bytes);
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    pub(crate) fn ip(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// Appends bytes as they are: the fixed header of a message inside an attribute.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        pad(&mut self.bytes);
    }

    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Completes the header.
    pub(crate) fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&(flags | self.flags).to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// One message of an answer.
pub(crate) enum Reply<'a> {
    /// An object, as the payload after the netlink header.
    Object { kind: u16, payload: &'a [u8] },
    /// The answer is complete.
    End(Result<(), KernelError>),
}

/// Walks the messages of one datagram, skipping those of other requests.
pub(crate) struct Answers<'a> {
    rest: &'a [u8],
    sequence: u32,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(datagram: &'a [u8], sequence: u32) -> Self {
        Self { rest: datagram, sequence }
    }
}

impl<'a> Iterator for Answers<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        loop {
            let length = u32_at(self.rest, 0)? as usize;
            let kind = u16_at(self.rest, 4)?;
            let flags = u16_at(self.rest, 6)?;
            let sequence = u32_at(self.rest, 8)?;
            let message = self.rest.get(..length).filter(|m| m.len() >= HEADER)?;
            self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if sequence != self.sequence {
                continue;
            }

            let payload = &message[HEADER..];
            let end = match i32::from(kind) {
                libc::NLMSG_ERROR => Reply::End(error_of(payload, flags)),
                libc::NLMSG_DONE if flags & DUMP_INTERRUPTED != 0 => {
                    Reply::End(Err(io::Error::from_raw_os_error(libc::EINTR).into()))
                }
                libc::NLMSG_DONE => Reply::End(error_of(payload, flags)),
                libc::NLMSG_NOOP => continue,
                libc::NLMSG_OVERRUN => Reply::End(Err(io::Error::from_raw_os_error(libc::ENOBUFS).into())),
                _ => Reply::Object { kind, payload },
            };
            return Some(end);
        }
    }
}

pub(crate) fn error_of(payload: &[u8], flags: u16) -> Result<(), KernelError> {
    let code = u32_at(payload, 0).map_or(0, u32::cast_signed);
    if code >= 0 {
        return Ok(());
    }
    // After the code comes the header of the request and, unless capped, the rest of it.
    let request = payload.get(4..).unwrap_or(&[]);
    let echoed = if flags & CAPPED != 0 { HEADER } else { u32_at(request, 0).unwrap_or(0) as usize };
    let text = match flags & HAS_TLVS {
        0 => String::new(),
        _ => Attributes::new(request.get(echoed.next_multiple_of(4)..).unwrap_or(&[]))
            .find(|(kind, _)| *kind == ERROR_TEXT)
            .map(|(_, value)| text_of(value))
            .unwrap_or_default(),
    };
    Err(KernelError {
        source: io::Error::from_raw_os_error(code.checked_neg().unwrap_or(libc::EPROTO)),
        text,
    })
}

/// Walks attributes; stops at the first that does not fit.
#[derive(Clone)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The attributes after the fixed header of a family.
    pub(crate) fn after(payload: &'a [u8], header: usize) -> Self {
        Self::new(payload.get(header.next_multiple_of(4)..).unwrap_or(&[]))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.rest, 0)?);
        let kind = u16_at(self.rest, 2)? & 0x3fff;
        let value = self.rest.get(ATTRIBUTE_HEADER..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let array = bytes.get(offset..offset + 2)?.try_into().ok()?;
    Some(u16::from_ne_bytes(array))
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let array = bytes.get(offset..offset + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(array))
}

/// A number attribute; zero when it is too short to be one.
pub(crate) fn u32_of(value: &[u8]) -> u32 {
    u32_at(value, 0).unwrap_or(0)
}

/// A text attribute up to its NUL.
pub(crate) fn text_of(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// An address attribute of either family.
pub(crate) fn ip_of(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(value).ok()?;
    Some(Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_attribute_reads_back() {
        let mut message = Message::new(libc::RTM_NEWLINK, CREATE, &[0; 16]);
        message.text(3, "eth0");
        message.nested(18, |info| info.text(1, "veth"));
        let bytes = message.finish(ACK, 7);

        assert_eq!(u32_at(&bytes, 0), Some(bytes.len() as u32));
        let found: Vec<_> = Attributes::after(&bytes[HEADER..], 16).collect();
        assert_eq!(found[0], (3, &b"eth0\0"[..]));
        assert_eq!(found[1].0, 18);
        assert_eq!(Attributes::new(found[1].1).next(), Some((1, &b"veth\0"[..])));
    }

    #[test]
    fn a_refusal_carries_the_kernels_sentence() {
        // Error answer: code -EINVAL, capped echo, one text attribute.
        let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
        payload.extend_from_slice(&[0; HEADER]);
        payload.extend_from_slice(&8u16.to_ne_bytes());
        payload.extend_from_slice(&1u16.to_ne_bytes());
        payload.extend_from_slice(b"no\0\0");
        let error = error_of(&payload, CAPPED | HAS_TLVS).unwrap_err();
        assert_eq!((error.errno(), error.text.as_str()), (libc::EINVAL, "no"));
    }

    #[test]
    fn cut_and_random_input_ends_quietly() {
        let mut message = Message::new(libc::RTM_NEWLINK, CREATE, &[0; 16]);
        message.nested(18, |info| info.text(1, "veth"));
        let bytes = message.finish(ACK, 7);
        for cut in 0..bytes.len() {
            assert!(Answers::new(&bytes[..cut], 7).count() <= 1);
        }
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..2000 {
            let noise: Vec<u8> = (0..64)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state as u8
                })
                .collect();
            let _ = Answers::new(&noise, 0).count();
            let _ = Attributes::new(&noise).count();
            let _ = error_of(&noise, CAPPED | HAS_TLVS);
        }
    }
}
