//! Leases of DHCP servers.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ichor_ctl_network::system::SystemDhcp;
use ichor_net::dhcp4::{Event, Lease};
use ichor_net::dhcp6::message as message6;
use ichor_net::{link, netns};
use ichor_resource::network::{
    AddressSpec, AddressStatus, HostnameStatus, LinkStatus, ResolverStatus, RouteStatus, TimeServerStatus,
};

use crate::node::{FakeDhcp, on_a_node, with_dhcp};

#[test]
fn a_lease_configures_the_link_and_its_loss_undoes_it() {
    on_a_node("ip=eth0:dhcp", async |node| {
        let on_event = node
            .wait("dhcp client", |_| {
                let started = node.dhcp.0.lock().unwrap();
                started.first().map(|(link, on_event)| {
                    assert_eq!(link, "eth0");
                    on_event.clone()
                })
            })
            .await;
        let lease = Lease {
            address: "10.77.0.50/24".parse().unwrap(),
            server: None,
            routers: vec!["10.77.0.1".parse().unwrap()],
            routes: Vec::new(),
            dns: vec!["10.77.0.1".parse().unwrap()],
            domain: Some("lease.example".into()),
            search: Vec::new(),
            hostname: Some("leased".into()),
            ntp: Vec::new(),
            mtu: Some(1400),
            duration: Duration::from_secs(3600),
            renew_after: Duration::from_secs(1800),
            rebind_after: Duration::from_secs(3000),
        };
        on_event(Event::Bound(Box::new(lease)));
        node.wait_for_default("10.77.0.50/24").await;
        let route = node
            .wait("route", |state| state.get::<RouteStatus>("network", "inet4/10.77.0.1//1024").ok())
            .await;
        assert_eq!(route.src.to_string(), "10.77.0.50");
        let source =
            node.state.get::<AddressSpec>("network-config", "dhcp4/eth0/eth0/10.77.0.50/24").unwrap();
        assert_eq!(source.meta().owner(), "network.OperatorSpecController");
        node.wait("mtu", |state| {
            let link = state.get::<LinkStatus>("network", "eth0").ok()?;
            (link.mtu == 1400).then_some(())
        })
        .await;
        let name = node.wait("name", |state| state.get::<HostnameStatus>("network", "hostname").ok()).await;
        assert_eq!((name.hostname.as_str(), name.domainname.as_str()), ("leased", "lease.example"));

        on_event(Event::Lost);
        node.wait("address gone", |state| {
            let gone = state.get::<AddressStatus>("network", "eth0/10.77.0.50/24").is_err()
                && state.get::<AddressSpec>("network", "eth0/10.77.0.50/24").is_err()
                && state.get::<HostnameStatus>("network", "hostname").is_err();
            gone.then_some(())
        })
        .await;
    });
}

/// Answers every DHCP message on `far0`, from there.
fn serve_dhcp(namespace: std::os::fd::BorrowedFd<'_>) -> std::net::UdpSocket {
    use ichor_net::dhcp4::message::{Kind, Message, option};
    let bind = || std::net::UdpSocket::bind("0.0.0.0:67").unwrap();
    let socket = netns::run_in(namespace, bind).unwrap();
    socket.set_broadcast(true).unwrap();
    let serving = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, _)) = serving.recv_from(&mut buffer) {
            let Ok(request) = Message::decode(&buffer[..length]) else { return };
            let kind = if request.kind() == Some(Kind::Discover) { Kind::Offer } else { Kind::Ack };
            let mut reply = Message::request(kind, request.transaction, request.hardware);
            reply.is_reply = true;
            reply.your = "10.77.0.50".parse().unwrap();
            for (number, value) in [
                (option::SUBNET_MASK, vec![255, 255, 255, 0]),
                (option::ROUTER, vec![10, 77, 0, 1]),
                (option::DNS, vec![10, 77, 0, 3]),
                (option::SERVER_ID, vec![10, 77, 0, 1]),
                (option::LEASE_TIME, vec![0, 1, 0x51, 0x80]),
            ] {
                reply.options.insert(number, value);
            }
            let _ = serving.send_to(&reply.encode(), "10.77.0.255:68");
        }
    });
    socket
}

#[test]
fn a_real_client_gets_a_real_lease() {
    with_dhcp("ip=eth0:dhcp", SystemDhcp::default(), FakeDhcp::default(), async |node| {
        let (far, _netlink) = node.neighbour(&["10.77.0.1/24"]).await;
        let far = far.as_fd();
        let socket = serve_dhcp(far);
        let began = Instant::now();
        node.wait_for_default("10.77.0.50/24").await;
        eprintln!("leased after {:?}", began.elapsed());
        node.wait("route", |state| state.get::<RouteStatus>("network", "inet4/10.77.0.1//1024").ok()).await;
        // Wakes the server for its end.
        let _ =
            netns::run_in(far, || std::net::UdpSocket::bind("10.77.0.1:0")?.send_to(b"x", "10.77.0.1:67"));
        drop(socket);
    });
}

/// Answers every DHCPv6 message on `far0`, from there.
fn serve_dhcp6(namespace: std::os::fd::BorrowedFd<'_>, index: u32) {
    use message6::{Kind, Message, Options, option};
    let bind = || std::net::UdpSocket::bind("[::]:547").unwrap();
    let socket = netns::run_in(namespace, bind).unwrap();
    socket.join_multicast_v6(&"ff02::1:2".parse().unwrap(), index).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        let address = "fd77::50".parse::<std::net::Ipv6Addr>().unwrap().octets();
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let Some(question) = Message::decode(&buffer[..length]) else { return };
            let mut options = Options::default();
            options.push(option::CLIENT_ID, question.options.get(option::CLIENT_ID).unwrap().to_vec());
            options.push(option::SERVER_ID, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
            options.push(option::RAPID_COMMIT, Vec::new());
            let mut inner = Options::default();
            inner.push(
                option::IA_ADDRESS,
                [&address[..], &600_u32.to_be_bytes(), &600_u32.to_be_bytes()].concat(),
            );
            let mut association = question.options.get(option::IA_NA).unwrap()[..12].to_vec();
            inner.encode(&mut association);
            options.push(option::IA_NA, association);
            options.push(option::DNS, address.to_vec());
            options.push(option::NTP, [&[0, 1, 0, 16][..], &address].concat());
            let kind = if question.kind == Kind::Solicit || question.kind == Kind::Renew {
                Kind::Reply
            } else {
                return;
            };
            // Its own address may still be looked at for duplicates: the client asks again.
            let _ =
                socket.send_to(&Message { kind, transaction: question.transaction, options }.encode(), from);
        }
    });
}

#[test]
fn a_dhcpv6_lease_brings_an_address_servers_and_no_routes() {
    with_dhcp("", SystemDhcp::default(), FakeDhcp::default(), async |node| {
        let (far, other) = node.neighbour(&[]).await;
        let index = link::index(&other, "far0").await.unwrap();
        serve_dhcp6(far.as_fd(), index);
        node.configure(
            "apiVersion: v1alpha1\nkind: DHCPv6Config\nname: eth0\nclientIdentifier: mac\nrouteMetric: 99\n",
        );
        let status = node
            .wait("address", |state| state.get::<AddressStatus>("network", "eth0/fd77::50/128").ok())
            .await;
        assert_eq!(status.priority, 99);
        let spec = node.state.get::<AddressSpec>("network-config", "dhcp6/eth0/eth0/fd77::50/128").unwrap();
        assert_eq!(spec.meta().owner(), "network.OperatorSpecController");
        node.wait("servers", |state| {
            let resolvers = state.get::<ResolverStatus>("network", "resolvers").ok()?;
            let times = state.get::<TimeServerStatus>("network", "timeservers").ok()?;
            let names = resolvers.dns_servers.iter().map(ToString::to_string).collect::<Vec<_>>();
            // IPv4 servers of the defaults stay: the lease speaks of IPv6 only.
            (names == ["fd77::50", "1.1.1.1", "8.8.8.8"] && times.time_servers == ["fd77::50"]).then_some(())
        })
        .await;
        node.configure("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\n");
        node.wait("gone", |state| {
            state.get::<AddressStatus>("network", "eth0/fd77::50/128").is_err().then_some(())
        })
        .await;
    });
}
