//! Layers of a packet: Ethernet, VLAN, ARP, IP, TCP, UDP and ICMP; the rest is payload.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The most layers a packet is taken apart into.
const LAYERS_MAX: usize = 16;

/// One layer.
pub(super) struct Layer {
    pub(super) name: &'static str,
    /// Bytes of its header.
    pub(super) length: usize,
    pub(super) text: String,
}

/// What comes next.
#[derive(Clone, Copy)]
enum Next {
    Ethernet,
    Type(u16),
    Protocol(u8),
    Ip,
    Payload,
    Nothing,
}

/// All layers of a packet from a link of this type.
pub(super) fn of(link: u32, packet: &[u8]) -> Vec<Layer> {
    let mut next = match link {
        1 => Next::Ethernet,
        12 | 14 | 101 => Next::Ip,
        228 => Next::Type(0x0800),
        229 => Next::Type(0x86dd),
        _ => Next::Payload,
    };
    let mut rest = packet;
    let mut layers = Vec::new();
    while layers.len() < LAYERS_MAX {
        match layer(next, rest) {
            Some((layer, payload, following)) => {
                layers.push(layer);
                (rest, next) = (payload, following);
            }
            None => {
                if !matches!(next, Next::Nothing) && !rest.is_empty() {
                    let text = "Packet decoding error: the header is cut off".to_owned();
                    layers.push(Layer { name: "DecodeFailure", length: rest.len(), text });
                }
                break;
            }
        }
    }
    layers
}

type Parts<'a> = (Layer, &'a [u8], Next);

fn layer(next: Next, bytes: &[u8]) -> Option<Parts<'_>> {
    match next {
        Next::Ethernet => ethernet(bytes),
        Next::Type(0x0800) => ipv4(bytes),
        Next::Type(0x86dd) => ipv6(bytes),
        Next::Type(0x0806) => arp(bytes),
        Next::Type(0x8100 | 0x88a8) => vlan(bytes),
        Next::Ip => match bytes.first()? >> 4 {
            4 => ipv4(bytes),
            6 => ipv6(bytes),
            _ => None,
        },
        Next::Protocol(1) => icmp4(bytes),
        Next::Protocol(6) => tcp(bytes),
        Next::Protocol(17) => udp(bytes),
        Next::Protocol(58) => icmp6(bytes),
        Next::Type(_) | Next::Protocol(_) | Next::Payload => payload(bytes),
        Next::Nothing => None,
    }
}

fn payload(bytes: &[u8]) -> Option<Parts<'_>> {
    if bytes.is_empty() {
        return None;
    }
    let text = format!("{} byte(s)", bytes.len());
    Some((Layer { name: "Payload", length: bytes.len(), text }, &[], Next::Nothing))
}

/// Bytes as a list; long ones only by their number.
fn list(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=4 => format!("[{}]", bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")),
        count => format!("[..{count}..]"),
    }
}

/// A layer from its header, its payload and the fields beyond these.
fn made<'a>(name: &'static str, header: &[u8], payload: &'a [u8], fields: String, next: Next) -> Parts<'a> {
    let text = format!("{{Contents={} Payload={} {fields}}}", list(header), list(payload));
    let next = if payload.is_empty() { Next::Nothing } else { next };
    (Layer { name, length: header.len(), text }, payload, next)
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

fn type_name(number: u16) -> String {
    match number {
        0x0800 => "IPv4".to_owned(),
        0x0806 => "ARP".to_owned(),
        0x86dd => "IPv6".to_owned(),
        0x8100 => "Dot1Q".to_owned(),
        0x88cc => "LinkLayerDiscovery".to_owned(),
        _ => format!("Unknown EthernetType ({number:#06x})"),
    }
}

fn protocol_name(number: u8) -> String {
    match number {
        0 => "IPv6HopByHop".to_owned(),
        1 => "ICMPv4".to_owned(),
        2 => "IGMP".to_owned(),
        4 => "IPv4".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        41 => "IPv6".to_owned(),
        47 => "GRE".to_owned(),
        58 => "ICMPv6".to_owned(),
        other => other.to_string(),
    }
}

fn ethernet(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, payload) = bytes.split_at_checked(14)?;
    let kind = be16(header, 12);
    // Below this it is a length, not a type.
    let (shown, length) = if kind < 0x0600 { ("LLC".to_owned(), kind) } else { (type_name(kind), 0) };
    let fields = format!(
        "SrcMAC={} DstMAC={} EthernetType={shown} Length={length}",
        mac(&header[6..12]),
        mac(&header[..6])
    );
    let next = if kind < 0x0600 { Next::Payload } else { Next::Type(kind) };
    Some(made("Ethernet", header, payload, fields, next))
}

fn vlan(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, payload) = bytes.split_at_checked(4)?;
    let (tag, kind) = (be16(header, 0), be16(header, 2));
    let fields = format!(
        "Priority={} DropEligible={} VLANIdentifier={} Type={}",
        tag >> 13,
        tag & 0x1000 != 0,
        tag & 0x0fff,
        type_name(kind)
    );
    Some(made("Dot1Q", header, payload, fields, Next::Type(kind)))
}

fn arp(bytes: &[u8]) -> Option<Parts<'_>> {
    let (hardware, protocol) = (usize::from(*bytes.get(4)?), usize::from(*bytes.get(5)?));
    let (header, payload) = bytes.split_at_checked(8 + 2 * (hardware + protocol))?;
    let addresses = &header[8..];
    let (source, target) = addresses.split_at(hardware + protocol);
    let link = if be16(header, 0) == 1 { "Ethernet".to_owned() } else { be16(header, 0).to_string() };
    let fields = format!(
        "AddrType={link} Protocol={} HwAddressSize={hardware} ProtAddressSize={protocol} Operation={} \
         SourceHwAddress={} SourceProtAddress={} DstHwAddress={} DstProtAddress={}",
        type_name(be16(header, 2)),
        be16(header, 6),
        list(&source[..hardware]),
        list(&source[hardware..]),
        list(&target[..hardware]),
        list(&target[hardware..]),
    );
    Some(made("ARP", header, payload, fields, Next::Payload))
}

fn ipv4(bytes: &[u8]) -> Option<Parts<'_>> {
    let words = usize::from(*bytes.first()? & 0x0f);
    if words < 5 {
        return None;
    }
    let (header, rest) = bytes.split_at_checked(words * 4)?;
    let length = be16(header, 2);
    // Links pad short packets; what lies beyond the packet's own length is not its payload.
    let payload = &rest[..rest.len().min(usize::from(length).saturating_sub(header.len()))];
    let (flags, offset) = (header[6] >> 5, be16(header, 6) & 0x1fff);
    let names: Vec<&str> = [(4, "Evil"), (2, "DF"), (1, "MF")]
        .into_iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| name)
        .collect();
    let address = |at: usize| Ipv4Addr::from(be32(header, at));
    let options = if words > 5 { format!("[..{}..]", (words - 5) * 4) } else { "[]".to_owned() };
    let fields = format!(
        "Version={} IHL={words} TOS={} Length={length} Id={} Flags={} FragOffset={offset} TTL={} Protocol={} \
         Checksum={} SrcIP={} DstIP={} Options={options} Padding=[]",
        header[0] >> 4,
        header[1],
        be16(header, 4),
        names.join("|"),
        header[8],
        protocol_name(header[9]),
        be16(header, 10),
        address(12),
        address(16),
    );
    // Only the first fragment has the header of what is inside.
    let next = if offset == 0 { Next::Protocol(header[9]) } else { Next::Payload };
    Some(made("IPv4", header, payload, fields, next))
}

fn ipv6(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, rest) = bytes.split_at_checked(40)?;
    let first = be32(header, 0);
    let length = be16(header, 4);
    let payload = &rest[..rest.len().min(usize::from(length))];
    let address = |at: usize| -> Ipv6Addr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        octets.into()
    };
    let fields = format!(
        "Version={} TrafficClass={} FlowLabel={} Length={length} NextHeader={} HopLimit={} SrcIP={} DstIP={} HopByHop=nil",
        first >> 28,
        first >> 20 & 0xff,
        first & 0xf_ffff,
        protocol_name(header[6]),
        header[7],
        address(8),
        address(24),
    );
    Some(made("IPv6", header, payload, fields, Next::Protocol(header[6])))
}

/// A port, with its name where everybody knows it.
fn port(number: u16, tcp: bool) -> String {
    let name = match (number, tcp) {
        (22, true) => "ssh",
        (53, _) => "domain",
        (67, false) => "bootps",
        (68, false) => "bootpc",
        (80, true) => "http",
        (123, false) => "ntp",
        (443, true) => "https",
        (2379, true) => "etcd-client",
        (2380, true) => "etcd-server",
        (5353, false) => "mdns",
        _ => return number.to_string(),
    };
    format!("{number}({name})")
}

fn tcp(bytes: &[u8]) -> Option<Parts<'_>> {
    let offset = usize::from(*bytes.get(12)? >> 4);
    if offset < 5 {
        return None;
    }
    let (header, payload) = bytes.split_at_checked(offset * 4)?;
    let flag = |bit: u8| header[13] & bit != 0;
    let fields = format!(
        "SrcPort={} DstPort={} Seq={} Ack={} DataOffset={offset} FIN={} SYN={} RST={} PSH={} ACK={} URG={} ECE={} \
         CWR={} NS={} Window={} Checksum={} Urgent={} Options={} Padding=[] Multipath=false",
        port(be16(header, 0), true),
        port(be16(header, 2), true),
        be32(header, 4),
        be32(header, 8),
        flag(1),
        flag(2),
        flag(4),
        flag(8),
        flag(16),
        flag(32),
        flag(64),
        flag(128),
        header[12] & 1 != 0,
        be16(header, 14),
        be16(header, 16),
        be16(header, 18),
        tcp_options(&header[20..]),
    );
    Some(made("TCP", header, payload, fields, Next::Payload))
}

fn tcp_options(mut bytes: &[u8]) -> String {
    let mut options = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        let data = match kind {
            0 | 1 => &[][..],
            _ => match rest.first().and_then(|length| rest.get(1..usize::from(*length).checked_sub(1)?)) {
                Some(data) => data,
                None => break,
            },
        };
        options.push(tcp_option(kind, data));
        let used = if kind <= 1 { 1 } else { data.len() + 2 };
        bytes = &bytes[used..];
        if kind == 0 {
            break;
        }
    }
    match options.len() {
        0..=4 => format!("[{}]", options.join(", ")),
        count => format!("[..{count}..]"),
    }
}

fn tcp_option(kind: u8, data: &[u8]) -> String {
    let name = match kind {
        0 => "EndList".to_owned(),
        1 => "NOP".to_owned(),
        2 => "MSS".to_owned(),
        3 => "WindowScale".to_owned(),
        4 => "SACKPermitted".to_owned(),
        5 => "SACK".to_owned(),
        8 => "Timestamps".to_owned(),
        other => format!("Unknown({other})"),
    };
    let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = if hex.is_empty() { hex } else { format!(" 0x{hex}") };
    let value = match (kind, data.len()) {
        (2, 2..) => be16(data, 0).to_string(),
        (8, 8) => format!("{}/{}", be32(data, 0), be32(data, 4)),
        _ => String::new(),
    };
    format!("TCPOption({name}:{value}{hex})")
}

fn udp(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, rest) = bytes.split_at_checked(8)?;
    let length = be16(header, 4);
    let payload = &rest[..rest.len().min(usize::from(length).saturating_sub(8))];
    let fields = format!(
        "SrcPort={} DstPort={} Length={length} Checksum={}",
        port(be16(header, 0), false),
        port(be16(header, 2), false),
        be16(header, 6),
    );
    Some(made("UDP", header, payload, fields, Next::Payload))
}

fn icmp4(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, payload) = bytes.split_at_checked(8)?;
    let kind = match (header[0], header[1]) {
        (0, 0) => "EchoReply".to_owned(),
        (8, 0) => "EchoRequest".to_owned(),
        (3, 0) => "DestinationUnreachable(Net)".to_owned(),
        (3, 1) => "DestinationUnreachable(Host)".to_owned(),
        (3, 2) => "DestinationUnreachable(Protocol)".to_owned(),
        (3, 3) => "DestinationUnreachable(Port)".to_owned(),
        (11, 0) => "TimeExceeded(TTLExceeded)".to_owned(),
        (kind, code) => format!("{kind}({code})"),
    };
    let fields = format!(
        "TypeCode={kind} Checksum={} Id={} Seq={}",
        be16(header, 2),
        be16(header, 4),
        be16(header, 6)
    );
    Some(made("ICMPv4", header, payload, fields, Next::Payload))
}

fn icmp6(bytes: &[u8]) -> Option<Parts<'_>> {
    let (header, payload) = bytes.split_at_checked(4)?;
    let kind = match header[0] {
        1 => "DestinationUnreachable".to_owned(),
        2 => "PacketTooBig".to_owned(),
        3 => "TimeExceeded".to_owned(),
        128 => "EchoRequest".to_owned(),
        129 => "EchoReply".to_owned(),
        133 => "RouterSolicitation".to_owned(),
        134 => "RouterAdvertisement".to_owned(),
        135 => "NeighborSolicitation".to_owned(),
        136 => "NeighborAdvertisement".to_owned(),
        other => format!("{other}({})", header[1]),
    };
    let fields = format!("TypeCode={kind} Checksum={} TypeBytes=[]", be16(header, 2));
    Some(made("ICMPv6", header, payload, fields, Next::Payload))
}
