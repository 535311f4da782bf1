//! Whatever arrives from the network or the kernel is read or left out, never with a panic, and in bounded time and
//! memory.

use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use ichor_fuzz::{Target, shape};
use ichor_net::cmdline::NetworkArgs;
use ichor_net::dhcp4::message as dhcp4_message;
use ichor_net::dhcp6::message as dhcp6_message;
use ichor_net::dns::cache::Cache;
use ichor_net::dns::message::{self as dns, Query};
use ichor_net::netlink::Objects;
use ichor_net::{dhcp4, dhcp6, sntp};
use ichor_types::Cmdline;

#[test]
fn dhcp4_messages() {
    use dhcp4_message::{Kind, Message, option};
    let mut ack = Message::request(Kind::Ack, 1, [2, 0, 0, 0, 0, 1]);
    ack.is_reply = true;
    ack.your = [10, 5, 0, 9].into();
    for (number, value) in [
        (option::SUBNET_MASK, vec![255, 255, 255, 0]),
        (option::ROUTER, vec![10, 5, 0, 1]),
        (option::DNS, vec![10, 5, 0, 1, 10, 5, 0, 2]),
        (option::HOSTNAME, b"node-1".to_vec()),
        (option::SERVER_ID, vec![10, 5, 0, 1]),
        (option::LEASE_TIME, vec![0, 0, 1, 0]),
        (option::DOMAIN_SEARCH, b"\x07example\x03org\x00\x01a\xc0\x00".to_vec()),
        (option::CLASSLESS_ROUTES, vec![24, 10, 9, 0, 10, 5, 0, 1]),
        (option::OVERLOAD, vec![3]),
    ] {
        ack.options.insert(number, value);
    }
    Target::binary("dhcp4").seeds([ack.encode()]).run(|input| {
        let Ok(message) = Message::decode(input) else { return (false, 0, 0) };
        assert_eq!(
            Message::decode(&message.encode()).map(|again| again.options),
            Ok(message.options.clone())
        );
        let mut machine = dhcp4::machine::Machine::new(dhcp4::Config::new(message.hardware, 7));
        machine.resume(&message, Duration::from_secs(1));
        machine.tick(Duration::ZERO);
        machine.receive(&message, Duration::ZERO);
        let grant = dhcp4::server::Grant {
            address: ipnet::Ipv4Net::new_assert([10, 5, 0, 9].into(), 24),
            router: None,
            dns: Vec::new(),
            ntp: Vec::new(),
            mtu: None,
            hostname: None,
            boot_file: None,
            duration: Duration::from_secs(60),
        };
        let reply = dhcp4::server::answer(&message, [10, 5, 0, 1].into(), Some(&grant));
        assert!(reply.is_none_or(|reply| reply.is_reply && reply.hardware == message.hardware));
        let lease = dhcp4::Lease::parse(&message);
        let known =
            lease.as_ref().map_or(0, |lease| lease.routes.len() + lease.search.len() + lease.dns.len());
        (lease.is_some(), message.options.len().min(12), known.min(12))
    });
}

#[test]
fn dhcp6_messages() {
    use dhcp6_message::{Kind, Message, Options, option};
    let mut options = Options::default();
    options.push(option::CLIENT_ID, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 1]);
    options.push(option::SERVER_ID, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
    options.push(option::RAPID_COMMIT, Vec::new());
    let mut inner = Options::default();
    inner.push(option::IA_ADDRESS, [&[0xfd; 16][..], &[0, 0, 1, 0], &[0, 0, 2, 0]].concat());
    inner.push(option::STATUS_CODE, b"\x00\x00fine".to_vec());
    let mut association = vec![0; 12];
    inner.encode(&mut association);
    options.push(option::IA_NA, association);
    options.push(option::DNS, vec![0xfd; 32]);
    options.push(option::CLIENT_FQDN, b"\x00\x06node-1\x07example\x00".to_vec());
    options.push(option::NTP, [&[0, 1, 0, 16][..], &[0xfd; 16], &[0, 3, 0, 3, 1, b't', 0]].concat());
    let seed = Message { kind: Kind::Reply, transaction: 1, options }.encode();
    Target::binary("dhcp6").seeds([seed]).run(|input| {
        let Some(message) = Message::decode(input) else { return (false, 0) };
        assert!(Message::decode(&message.encode()).is_some());
        let config =
            dhcp6::Config { duid: dhcp6::Duid::LinkLayer, ..dhcp6::Config::new([2, 0, 0, 0, 0, 1], 7) };
        let mut machine = dhcp6::machine::Machine::new(config);
        machine.resume(&message, Duration::from_secs(1));
        machine.tick(Duration::ZERO);
        machine.receive(&message, Duration::ZERO);
        let lease = dhcp6::Lease::parse(&message, 0);
        let known = lease.as_ref().map_or(0, |lease| 1 + lease.dns.len() + lease.ntp.len());
        (true, known.min(12))
    });
}

#[test]
fn dns_messages() {
    let question = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x01a\x04test\x00\x00\x01\x00\x01\x00\x00\x29\x10\x00\x00\x00\x80\x00\x00\x00";
    let mut answer =
        b"\x00\x07\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01".to_vec();
    answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 1, 2, 3]);
    Target::binary("dns").seeds([&question[..], &answer]).run(|input| {
        // The same bytes as a question, and as an answer to one.
        let mut aged = input.to_vec();
        dns::age(&mut aged, 30);
        assert_eq!(aged.len(), input.len());
        let kept = format!("{:?}", dns::keep(input)).split('(').next().map(str::to_owned);
        let Ok(query) = Query::parse(input) else { return (kept, 0, false) };
        for response in [query.refuse(2), query.truncated()] {
            assert!(query.is_answered_by(&response, u16::from_be_bytes([input[0], input[1]])));
        }
        query.is_answered_by(input, 7);
        let mut cache = Cache::default();
        let mut response = query.refuse(0);
        response.extend_from_slice(&answer);
        cache.put(query.key.clone(), &response, Duration::ZERO);
        cache.get(&query.key, Duration::from_secs(1));
        let asked = query.asks();
        let own =
            asked.as_ref().and_then(|(_, kind)| query.answer(*kind, &["10.0.0.1".parse().unwrap()], 10));
        if let Some(own) = &own {
            assert!(query.is_answered_by(own, u16::from_be_bytes([input[0], input[1]])));
        }
        (kept, query.size / 512, asked.is_some())
    });
}

#[test]
fn time_answers() {
    let server = SocketAddr::from(([10, 5, 0, 1], 123));
    let sent = sntp::NtpTime::from_system(UNIX_EPOCH + Duration::from_secs(1));
    let mut seed = sntp::encode(sent).to_vec();
    seed[0] = 4 << 3 | 4;
    seed[1] = 2;
    let stamp = seed[40..48].to_vec();
    seed[24..32].copy_from_slice(&stamp);
    Target::binary("ntp").seeds([seed]).run(|input| {
        let departed = UNIX_EPOCH + Duration::from_secs(1000);
        match sntp::decode(input, server, sent, departed, departed + Duration::from_millis(5)) {
            Ok(sample) => format!("{} {:?}", sample.stratum, sample.leap),
            Err(error) => shape(&error.to_string()),
        }
    });
}

/// A netlink message with this payload.
fn netlink(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&1_u32.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn netlink_answers() {
    let vlan = attribute(18, &[attribute(1, b"vlan"), attribute(2, &attribute(1, &[7, 0]))].concat());
    let bridge =
        attribute(18, &[attribute(1, b"bridge"), attribute(2, &attribute(5, &[1, 0, 0, 0]))].concat());
    let names = attribute(52, &attribute(53, b"lan0\0"));
    let link = |more: &[u8]| netlink(16, &[&[0; 16][..], &attribute(3, b"eth0\0"), more].concat());
    let address = netlink(20, &[&[2, 24, 0, 0, 2, 0, 0, 0][..], &attribute(1, &[10, 5, 0, 2])].concat());
    let route =
        netlink(24, &[&[2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0][..], &attribute(1, &[10, 5, 0, 0])].concat());
    let rule =
        netlink(32, &[&[2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0][..], &attribute(6, &[1, 0, 0, 0])].concat());
    let error = netlink(2, &[&(-22_i32).to_ne_bytes()[..], &[0; 16]].concat());
    let done = netlink(3, &[0; 4]);
    let seeds = [
        link(&vlan),
        [link(&bridge), link(&names)].concat(),
        [address, done.clone()].concat(),
        [route, rule].concat(),
        error,
        done,
    ];
    Target::binary("netlink").seeds(seeds).run(|input| {
        let found = Objects::read(input, 1);
        let counts = [found.links.len(), found.addresses.len(), found.routes.len(), found.rules.len()];
        (counts.map(|count| count.min(4)), found.end.map(|end| end.is_ok()))
    });
}

#[test]
fn command_lines() {
    let seeds = [
        "ip=10.5.0.2::10.5.0.1:24:node-1.example.org:eth0:off:10.5.0.1:[fd00::53]:10.5.0.1",
        "ip=[fd00::2]::[fd00::1]:64::eth1:dhcp ip=eth2:dhcp",
        "bond=bond0:eth0,eth1:mode=802.3ad,miimon=100:9000 vlan=bond0.7:bond0 talos.hostname=a",
    ];
    Target::text("cmdline")
        .seeds(seeds)
        .words(["ip=", "bond=", "vlan=", ":", "[", "]", "dhcp", "vlan7"])
        .run(|input| match NetworkArgs::parse(&Cmdline::parse(&String::from_utf8_lossy(input))) {
            Ok(args) => {
                format!("{} {} {}", args.links.len().min(4), args.bond.is_some(), args.vlan.is_some())
            }
            Err(error) => shape(&error.reason),
        });
}
