//! Filters against packets made by hand.

use super::*;
use crate::run;

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    packet.extend(kind.to_be_bytes());
    packet.extend(payload);
    packet
}

fn ip4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x46, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(source);
    packet.extend(destination);
    // An option word: the header is longer than usual.
    packet.extend([1, 1, 1, 1]);
    packet.extend(payload);
    packet
}

fn ip6(next: u8, source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
    let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend(octets(source));
    packet.extend(octets(destination));
    packet.extend(payload);
    packet
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [192, 168, 7, 9];

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let mut arp = vec![0; 28];
    arp[14..18].copy_from_slice(&A);
    arp[24..28].copy_from_slice(&B);
    let mut fragment = ip4(6, A, B, &ports(443, 443));
    fragment[6..8].copy_from_slice(&[0, 9]);
    vec![
        ("https", ethernet(0x0800, &ip4(6, A, B, &ports(40000, 443)))),
        ("answer", ethernet(0x0800, &ip4(6, B, A, &ports(443, 40000)))),
        ("dns", ethernet(0x0800, &ip4(17, A, B, &ports(5353, 53)))),
        ("ping", ethernet(0x0800, &ip4(1, A, B, &[8, 0, 0, 0]))),
        ("https6", ethernet(0x86dd, &ip6(6, "fd00::1", "fd00:1::2", &ports(40000, 443)))),
        ("ping6", ethernet(0x86dd, &ip6(58, "fd00::1", "ff02::1", &[128, 0]))),
        ("arp", ethernet(0x0806, &arp)),
        ("fragment", ethernet(0x0800, &fragment)),
        ("lldp", ethernet(0x88cc, &[0; 10])),
    ]
}

#[track_caller]
fn check(filter: &str, expected: &[&str]) {
    let program = compile(filter, LinkType::Ethernet).unwrap();
    let taken: Vec<&str> =
        packets().iter().filter(|(_, packet)| run(&program, packet) > 0).map(|(name, _)| *name).collect();
    assert_eq!(taken, expected, "{filter}");
}

#[test]
fn protocols_are_told_apart() {
    check("ip", &["https", "answer", "dns", "ping", "fragment"]);
    check("ip6", &["https6", "ping6"]);
    check("arp", &["arp"]);
    check("tcp", &["https", "answer", "https6", "fragment"]);
    check("udp", &["dns"]);
    check("icmp or icmp6", &["ping", "ping6"]);
    check("ether proto 0x88cc", &["lldp"]);
    check("ip proto 17", &["dns"]);
    check("proto \\tcp and ip6", &["https6"]);
}

#[test]
fn ports_hosts_and_nets_match_either_way_unless_said() {
    check("tcp port 443", &["https", "answer", "https6"]);
    check("dst port https", &["https", "https6"]);
    check("tcp src port 443", &["answer"]);
    check("port 53 or 443", &["https", "answer", "dns", "https6"]);
    check("portrange 50-60", &["dns"]);
    check("host 10.0.0.1", &["https", "answer", "dns", "ping", "arp", "fragment"]);
    check("ip src host 10.0.0.1 and not udp", &["https", "ping", "fragment"]);
    check("src and dst net 10.0.0.0/8", &[]);
    check("src net 192.168 and tcp", &["answer"]);
    check("arp host 192.168.7.9", &["arp"]);
    check("host fd00::1", &["https6", "ping6"]);
    check("dst net fd00:1::/32", &["https6"]);
    check("ether src 02:00:00:00:00:02 and arp", &["arp"]);
    check("ether host 02:00:00:00:00:99", &[]);
}

#[test]
fn words_bind_from_left_to_right_and_brackets_group() {
    check("udp or tcp and ip6", &["https6"]);
    check("udp or (tcp and ip6)", &["dns", "https6"]);
    check("!(ip or ip6)", &["arp", "lldp"]);
    check("not not arp", &["arp"]);
    check("tcp port 443 && host 10.0.0.1", &["https", "answer"]);
    check("ip6 multicast", &["ping6"]);
    check("less 30", &["lldp"]);
    check("greater 58", &["https6"]);
}

#[test]
fn an_empty_filter_takes_everything() {
    let all: Vec<&str> = packets().iter().map(|(name, _)| *name).collect();
    check("", &all);
    check("   ", &all);
}

#[test]
fn raw_links_have_no_header() {
    let program = compile("tcp dst port 443", LinkType::Raw).unwrap();
    assert!(run(&program, &ip4(6, A, B, &ports(1, 443))) > 0);
    assert!(run(&program, &ip6(6, "::1", "::2", &ports(1, 443))) > 0);
    assert_eq!(run(&program, &ip4(17, A, B, &ports(1, 443))), 0);
    assert_eq!(compile("ether host 02:00:00:00:00:01", LinkType::Raw), Err(CompileError::Mismatch("ether")));
    assert_eq!(run(&compile("arp", LinkType::Raw).unwrap(), &ip4(6, A, B, &[])), 0);
}

#[test]
fn long_filters_jump_far() {
    let filter: Vec<String> = (1..200).map(|n| format!("host 10.1.0.{n}")).collect();
    let program = compile(&filter.join(" or "), LinkType::Ethernet).unwrap();
    assert!(program.len() > 1000, "{}", program.len());
    let from = |last: u8| ethernet(0x0800, &ip4(6, [10, 1, 0, last], B, &[]));
    assert!(run(&program, &from(1)) > 0 && run(&program, &from(199)) > 0);
    assert_eq!(run(&program, &from(200)), 0);
}

#[test]
fn what_is_no_filter_is_refused_with_the_word() {
    let refused = |filter: &str| compile(filter, LinkType::Ethernet).unwrap_err();
    assert_eq!(refused("tcp prot 443"), CompileError::Unexpected("prot".into()));
    assert_eq!(refused("port 70000"), CompileError::Unexpected("70000".into()));
    assert_eq!(refused("host example"), CompileError::Unexpected("example".into()));
    assert_eq!(refused("net 10.0.0.0/33"), CompileError::Unexpected("10.0.0.0/33".into()));
    assert_eq!(refused("tcp and"), CompileError::Incomplete);
    assert_eq!(refused("(tcp"), CompileError::Incomplete);
    assert_eq!(refused("tcp) or udp"), CompileError::Unexpected(")".into()));
    assert_eq!(refused("icmp port 7"), CompileError::Mismatch("port"));
    assert_eq!(refused("tcp host 10.0.0.1"), CompileError::Mismatch("host or net"));
    assert_eq!(refused(&"(".repeat(100)), CompileError::TooDeep);
    assert_eq!(refused(&"x".repeat(5000)), CompileError::TooLong);
}

#[test]
fn any_words_are_read_without_panic_and_what_compiles_verifies() {
    const WORDS: &[&str] = &[
        "tcp",
        "udp",
        "ip",
        "ip6",
        "arp",
        "ether",
        "src",
        "dst",
        "host",
        "net",
        "port",
        "portrange",
        "and",
        "or",
        "not",
        "(",
        ")",
        "!",
        "10.0.0.1",
        "fd00::/8",
        "443",
        "1-2",
        "proto",
        "less",
        "02:00:00:00:00:01",
        "",
    ];
    let mut seed = 7_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            text.push_str(WORDS[(seed >> 33) as usize % WORDS.len()]);
            text.push(' ');
        }
        if let Ok(program) = compile(&text, LinkType::Ethernet) {
            verify(&program).unwrap();
        }
    }
}
