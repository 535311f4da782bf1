//! A capture file as text: every packet with its layers and their fields. No I/O here.

mod layers;

use std::fmt::Write as _;

use jiff::Timestamp;

use crate::text;

/// The largest packet; a length beyond it means that the stream is not a capture.
const PACKET_MAX: usize = 256 * 1024;

/// Why a stream is not a capture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCapture {
    /// The first bytes are others.
    #[error("this is not a capture: it starts with {0:#010x}")]
    Magic(u32),
    /// A packet is larger than can be.
    #[error("the capture is broken: a packet of {0} bytes")]
    Length(u32),
}

/// Takes a capture in pieces of any size.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    header: Option<Header>,
}

#[derive(Clone, Copy)]
struct Header {
    big_endian: bool,
    nanoseconds: bool,
    link: u32,
}

impl Decoder {
    /// The text of all packets that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, BadCapture> {
        self.buffer.extend_from_slice(bytes);
        let header = match self.header {
            Some(header) => header,
            None if self.buffer.len() < 24 => return Ok(String::new()),
            None => {
                let header = Header::read(&self.buffer)?;
                self.buffer.drain(..24);
                *self.header.insert(header)
            }
        };
        let mut out = String::new();
        let mut at = 0;
        while let Some(record) = self.buffer.get(at..at + 16) {
            let [seconds, fraction, captured, length] =
                [0, 4, 8, 12].map(|start| header.number(&record[start..start + 4]));
            let size = usize::try_from(captured).unwrap_or(usize::MAX);
            if size > PACKET_MAX {
                return Err(BadCapture::Length(captured));
            }
            let Some(packet) = self.buffer.get(at + 16..at + 16 + size) else { break };
            at += 16 + size;
            let nanos = if header.nanoseconds { fraction } else { fraction.saturating_mul(1000) };
            let time = Timestamp::new(i64::from(seconds), i32::try_from(nanos).unwrap_or_default());
            describe(&mut out, header.link, packet, length, time.unwrap_or_default());
        }
        self.buffer.drain(..at);
        Ok(out)
    }
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, BadCapture> {
        let magic = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (big_endian, nanoseconds) = match magic {
            0xa1b2_c3d4 => (false, false),
            0xa1b2_3c4d => (false, true),
            0xd4c3_b2a1 => (true, false),
            0x4d3c_b2a1 => (true, true),
            other => return Err(BadCapture::Magic(other)),
        };
        let mut header = Self { big_endian, nanoseconds, link: 0 };
        header.link = header.number(&bytes[20..24]);
        Ok(header)
    }

    fn number(self, bytes: &[u8]) -> u32 {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
}

fn describe(out: &mut String, link: u32, packet: &[u8], wire_length: u32, time: Timestamp) {
    let _ = write!(out, "PACKET: {} bytes", packet.len());
    if (packet.len() as u64) < u64::from(wire_length) {
        out.push_str(", truncated");
    }
    let _ =
        writeln!(out, ", wire length {wire_length} cap length {} @ {}", packet.len(), text::go_time(time));
    for (index, layer) in layers::of(link, packet).iter().enumerate() {
        let _ = writeln!(
            out,
            "- Layer {} ({:02} bytes) = {}\t{}",
            index + 1,
            layer.length,
            layer.name,
            layer.text
        );
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn capture(packets: &[&[u8]]) -> Vec<u8> {
        let mut bytes = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        bytes.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
        for packet in packets {
            bytes.extend(1_700_000_000_u32.to_le_bytes());
            bytes.extend(250_000_u32.to_le_bytes());
            bytes.extend((packet.len() as u32).to_le_bytes());
            bytes.extend((packet.len() as u32).to_le_bytes());
            bytes.extend(*packet);
        }
        bytes
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn layers_are_told_with_their_fields() {
        let syn = hex("020000000002 020000000001 0800 4500003c1a2b40004006 0000 0a050001 0a050002 \
             9c40c350 00000001 00000000 a002faf0 1234 0000 020405b4 0402080a 0000000100000000 01030307");
        let bytes = capture(&[&syn]);
        let mut decoder = Decoder::default();
        let mut text = String::new();
        for piece in bytes.chunks(7) {
            text.push_str(&decoder.push(piece).unwrap());
        }
        expect![[r#"
            PACKET: 74 bytes, wire length 74 cap length 74 @ 2023-11-14 22:13:20.25 +0000 UTC
            - Layer 1 (14 bytes) = Ethernet	{Contents=[..14..] Payload=[..60..] SrcMAC=02:00:00:00:00:01 DstMAC=02:00:00:00:00:02 EthernetType=IPv4 Length=0}
            - Layer 2 (20 bytes) = IPv4	{Contents=[..20..] Payload=[..40..] Version=4 IHL=5 TOS=0 Length=60 Id=6699 Flags=DF FragOffset=0 TTL=64 Protocol=TCP Checksum=0 SrcIP=10.5.0.1 DstIP=10.5.0.2 Options=[] Padding=[]}
            - Layer 3 (40 bytes) = TCP	{Contents=[..40..] Payload=[] SrcPort=40000 DstPort=50000 Seq=1 Ack=0 DataOffset=10 FIN=false SYN=true RST=false PSH=false ACK=false URG=false ECE=false CWR=false NS=false Window=64240 Checksum=4660 Urgent=0 Options=[..5..] Padding=[] Multipath=false}

        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn broken_packets_are_told_as_far_as_they_go() {
        let cut = hex("020000000002 020000000001 0800 4500003c1a2b");
        let text = Decoder::default().push(&capture(&[&cut, b""])).unwrap();
        assert!(text.contains("= DecodeFailure\t"), "{text}");
        assert_eq!(Decoder::default().push(&[0; 24]), Err(BadCapture::Magic(0)));
        let mut huge = capture(&[]);
        huge.extend([0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(Decoder::default().push(&huge), Err(BadCapture::Length(u32::MAX)));
    }
}
