//! The whole family against the real kernel, each test in network and UTS namespaces of its own. Needs root;
//! says so when not.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ichor_cosi::{Runtime, State, SystemClock};
use ichor_ctl_network::ports::{Dhcp, Running};
use ichor_ctl_network::system::{SystemDhcp, SystemHost, SystemKernel};
use ichor_ctl_network::{DevicesGate, Ports, register};
use ichor_net::cmdline::NetworkArgs;
use ichor_net::dhcp4::{self, Config, Event, Lease};
use ichor_net::{Netlink, address, dhcp6, link, netns, route};
use ichor_resource::config::MachineConfig;
use ichor_resource::files::EtcFileStatus;
use ichor_resource::network::{
    AddressSpec, AddressStatus, ConfigLayer, DNSResolveCache, DNSUpstream, HostnameStatus, LinkStatus,
    NetworkStatus, NodeAddress, RouteStatus,
};
use ichor_resource::runtime::PlatformMetadata;
use ichor_types::Cmdline;

type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// A DHCP client that hands its events to the test.
#[derive(Clone, Default)]
struct FakeDhcp(Arc<Mutex<Vec<(String, OnEvent)>>>);

impl Dhcp for FakeDhcp {
    fn start(
        &self,
        link: &str,
        _index: u32,
        _config: Config,
        _hostname: tokio::sync::watch::Receiver<dhcp4::client::Hostname>,
        on_event: OnEvent,
    ) -> Running {
        self.0.lock().unwrap().push((link.to_owned(), on_event));
        Running::nothing()
    }

    fn start6(
        &self,
        _link: &str,
        _index: u32,
        _config: dhcp6::Config,
        _on_event: Arc<dyn Fn(dhcp6::Event) + Send + Sync>,
    ) -> Running {
        Running::nothing()
    }
}

struct Node {
    state: State,
    netlink: Netlink,
    dhcp: FakeDhcp,
    directory: PathBuf,
}

impl Node {
    /// Waits until `check` finds what it looks for.
    async fn wait<T>(&self, what: &str, mut check: impl FnMut(&State) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = check(&self.state) {
                return found;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{what}: not within ten seconds");
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    async fn wait_for_default(&self, address: &str) {
        self.wait(address, |state| {
            let view = state.get::<NodeAddress>("network", "default").ok()?;
            (view.addresses.first()?.to_string() == address).then_some(())
        })
        .await;
    }
}

/// A node with a veth link `eth0`, its other end up, and leases handed out by the test.
fn on_a_node(cmdline: &str, test: impl AsyncFnOnce(&Node) + Send) {
    let dhcp = FakeDhcp::default();
    with_dhcp(cmdline, dhcp.clone(), dhcp, test);
}

/// As [`on_a_node`], with any DHCP client.
fn with_dhcp(cmdline: &str, dhcp: impl Dhcp, events: FakeDhcp, test: impl AsyncFnOnce(&Node) + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root for network namespaces");
        return;
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            netns::isolate_thread().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let netlink = Netlink::open().unwrap();
                link::create_veth_pair(&netlink, "eth0", "far0", None).await.unwrap();
                link::set_up(&netlink, "far0", true).await.unwrap();
                let directory = std::env::temp_dir().join(format!(
                    "ichor-net-{}-{:?}",
                    std::process::id(),
                    std::thread::current().id()
                ));
                let host = SystemHost::new(
                    directory.join("etc"),
                    directory.join("shadow"),
                    directory.join("resolv.conf"),
                );
                let state = State::new(SystemClock);
                let controllers = Runtime::new(state.clone());
                let ports = Ports {
                    kernel: SystemKernel::open().unwrap(),
                    host,
                    dhcp,
                    cmdline: NetworkArgs::parse(&Cmdline::parse(cmdline)).unwrap(),
                    devices: DevicesGate::OPEN,
                    platform: "sandbox".to_owned(),
                    on_addresses: None,
                    seed: 1,
                };
                register(&controllers, ports).unwrap();
                let node = Node { state, netlink, dhcp: events, directory: directory.clone() };
                tokio::select! {
                    () = controllers.run(std::future::pending()) => {}
                    () = test(&node) => {}
                }
                let _ = std::fs::remove_dir_all(&directory);
            });
        });
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_static_address_is_ready_within_milliseconds() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1.example.org:eth0:off:10.5.0.1", async |node| {
        let began = Instant::now();
        let status = node
            .wait("ready", |state| {
                let status = state.get::<NetworkStatus>("network", "status").ok()?;
                let ready = status.address_ready
                    && status.connectivity_ready
                    && status.hostname_ready
                    && status.etc_files_ready;
                ready.then_some(status)
            })
            .await;
        let took = began.elapsed();
        assert_eq!(status.meta().owner(), "network.StatusController");
        eprintln!("network ready after {took:?}");
        // Usually 6 ms; the bound only has to tell a timer from none on a busy machine.
        assert!(took < Duration::from_millis(900), "took {took:?}");

        let state = &node.state;
        let hostname = state.get::<HostnameStatus>("network", "hostname").unwrap();
        assert_eq!((hostname.hostname.as_str(), hostname.domainname.as_str()), ("node-1", "example.org"));
        assert_eq!(rustix::system::uname().nodename().to_bytes(), b"node-1");
        let address = state.get::<AddressStatus>("network", "eth0/10.5.0.2/24").unwrap();
        assert_eq!(address.broadcast.to_string(), "10.5.0.255");
        let route = state.get::<RouteStatus>("network", "inet4/10.5.0.1//1024").unwrap();
        assert_eq!((route.out_link_name.as_str(), route.protocol.to_string().as_str()), ("eth0", "boot"));
        let spec = state.get::<AddressSpec>("network", "eth0/10.5.0.2/24").unwrap();
        assert_eq!(spec.meta().owner(), "AddressMergeControllers.net.talos.dev");
        assert_eq!(spec.layer, ConfigLayer::Cmdline);
        let source = state.get::<AddressSpec>("network-config", "cmdline/eth0/10.5.0.2/24").unwrap();
        assert_eq!(source.meta().owner(), "network.AddressConfigController");
        assert!(state.get::<AddressStatus>("network", "lo/127.0.0.1/8").is_ok());
        let link = state.get::<LinkStatus>("network", "eth0").unwrap();
        assert_eq!((link.kind.as_str(), link.link_state), ("veth", true));

        let platform = state.get::<PlatformMetadata>("runtime", "platformmetadata").unwrap();
        assert_eq!(platform.platform, "sandbox");
        assert!(state.get::<EtcFileStatus>("files", "hosts").is_ok());
        let hosts = std::fs::read_to_string(node.directory.join("etc/hosts")).unwrap();
        assert!(hosts.contains("10.5.0.2  node-1.example.org node-1\n"), "{hosts}");
        let resolv = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).unwrap();
        assert_eq!(resolv, "nameserver 10.5.0.1\n");
    });
}

#[test]
fn without_a_device_name_the_first_link_is_taken() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24", async |node| {
        node.wait_for_default("10.5.0.2/24").await;
        // A link with an earlier name comes along: the address stays where it is.
        link::create_bridge(&node.netlink, "aa0").await.unwrap();
        node.wait("aa0", |state| state.get::<LinkStatus>("network", "aa0").ok()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(node.state.get::<AddressSpec>("network", "eth0/10.5.0.2/24").is_ok());
        assert!(node.state.get::<AddressSpec>("network", "aa0/10.5.0.2/24").is_err());
    });
}

#[test]
fn what_others_take_away_is_put_back() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        node.wait("route", |state| state.get::<RouteStatus>("network", "inet4/10.5.0.1//1024").ok()).await;
        link::set_up(&node.netlink, "eth0", false).await.unwrap();
        let addresses = address::list(&node.netlink).await.unwrap();
        let ours = addresses.iter().find(|a| a.prefix == "10.5.0.2/24".parse().unwrap()).unwrap();
        address::remove(&node.netlink, "eth0", ours).await.unwrap();
        let began = Instant::now();
        loop {
            let routes = route::list(&node.netlink).await.unwrap();
            let addresses = address::list(&node.netlink).await.unwrap();
            let back = routes.iter().any(|r| r.destination.is_none() && r.gateway.is_some())
                && addresses.iter().any(|a| a.prefix == "10.5.0.2/24".parse().unwrap());
            if back {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "not put back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

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

#[test]
fn a_configuration_is_applied_live_and_removed_again() {
    on_a_node("", async |node| {
        let first = r"
machine:
    type: worker
    network:
        hostname: configured.example.org
        nameservers: [10.9.0.53]
        interfaces:
            - interface: eth0
              addresses: [10.9.0.2/24]
              mtu: 1300
              routes:
                  - network: 0.0.0.0/0
                    gateway: 10.9.0.1
            - interface: br7
              bridge: {interfaces: []}
              addresses: [10.7.0.1/24]
cluster:
    network: {podSubnets: [10.7.0.0/16]}
";
        let config = |yaml: &str| MachineConfig::new(yaml.as_bytes().to_vec());
        node.state.create("config", MachineConfig::ACTIVE, config(first), "").unwrap();
        node.wait("configured", |state| {
            let ready = state.get::<NetworkStatus>("network", "status").ok()?;
            let route = state.get::<RouteStatus>("network", "inet4/10.9.0.1//1024").ok()?;
            let bridge = state.get::<LinkStatus>("network", "br7").ok()?;
            let address = state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").is_ok();
            let mtu = state.get::<LinkStatus>("network", "eth0").ok()?.mtu == 1300;
            let done = ready.hostname_ready && ready.etc_files_ready && address && mtu;
            (done && bridge.kind == "bridge" && route.protocol.to_string() == "static").then_some(())
        })
        .await;
        node.wait("resolvers", |_| {
            let text = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).ok()?;
            (text == "nameserver 10.9.0.53\n\nsearch example.org\n").then_some(())
        })
        .await;
        node.wait("pods apart", |state| {
            let all = state.get::<NodeAddress>("network", "current").ok()?;
            let own = state.get::<NodeAddress>("network", "current-no-k8s").ok()?;
            let text =
                |view: &NodeAddress| view.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
            let apart = text(&all).contains(&"10.7.0.1/24".to_owned()) && text(&own) == ["10.9.0.2/24"];
            // A bridge without members has no carrier.
            let down = text(&all) == ["10.9.0.2/24"] && text(&own) == ["10.9.0.2/24"];
            (apart || down).then_some(())
        })
        .await;

        let second = "machine:\n    type: worker\n    network:\n        hostname: other\n";
        node.state
            .update_with::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec, _| {
                *spec = config(second)
            })
            .unwrap();
        node.wait("removed", |state| {
            let gone = state.get::<AddressStatus>("network", "eth0/10.9.0.2/24").is_err()
                && state.get::<RouteStatus>("network", "inet4/10.9.0.1//1024").is_err()
                && state.get::<LinkStatus>("network", "br7").is_err()
                && state.get::<AddressSpec>("network", "eth0/10.9.0.2/24").is_err();
            let name = state.get::<HostnameStatus>("network", "hostname").ok()?;
            (gone && name.hostname == "other" && name.domainname.is_empty()).then_some(())
        })
        .await;
        assert_eq!(rustix::system::uname().nodename().to_bytes(), b"other");
    });
}

#[test]
fn a_configuration_that_flips_ends_where_it_ends() {
    on_a_node("", async |node| {
        let with = "machine:\n    type: worker\n    network:\n        interfaces:\n            - interface: eth0\n              addresses: [10.9.0.2/24]\n";
        let without = "machine:\n    type: worker\n";
        let config = |yaml: &str| MachineConfig::new(yaml.as_bytes().to_vec());
        node.state.create("config", MachineConfig::ACTIVE, config(with), "").unwrap();
        for round in 0..40_u64 {
            let yaml = if round % 2 == 0 { without } else { with };
            node.state
                .update_with::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec, _| {
                    *spec = config(yaml)
                })
                .unwrap();
            tokio::time::sleep(Duration::from_micros(round * 37 % 400)).await;
        }
        node.wait_for_default("10.9.0.2/24").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let addresses = address::list(&node.netlink).await.unwrap();
        assert!(addresses.iter().any(|a| a.prefix == "10.9.0.2/24".parse().unwrap()));
        let spec = node.state.get::<AddressSpec>("network", "eth0/10.9.0.2/24").unwrap();
        assert!(spec.meta().is_running());
    });
}

/// A question for the address of `a.test`.
const QUESTION: &[u8] = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01";

#[test]
fn the_host_dns_cache_serves_this_machine_and_its_pods() {
    on_a_node("ip=10.5.0.2::10.5.0.1:24:node-1:eth0", async |node| {
        // The upstream is an address of this node, so that the question finds its way in one namespace.
        link::set_up(&node.netlink, "lo", true).await.unwrap();
        link::add_address(&node.netlink, "lo", "10.99.0.1/32".parse().unwrap()).await.unwrap();
        let upstream = tokio::net::UdpSocket::bind("10.99.0.1:53").await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, from) = upstream.recv_from(&mut buffer).await.unwrap();
                let mut answer = buffer[..length].to_vec();
                answer[2] |= 0x80;
                answer[7] = 1;
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 1, 2, 3]);
                upstream.send_to(&answer, from).await.unwrap();
            }
        });
        let config = r"
machine:
    type: worker
    network: {nameservers: [10.99.0.1]}
    features:
        hostDNS: {enabled: true, forwardKubeDNSToHost: true}
cluster: {}
";
        let config = MachineConfig::new(config.as_bytes().to_vec());
        node.state.create("config", MachineConfig::ACTIVE, config, "").unwrap();
        for id in
            ["udp-127.0.0.53:53", "tcp-127.0.0.53:53", "udp-169.254.116.108:53", "tcp-169.254.116.108:53"]
        {
            node.wait(id, |state| state.get::<DNSResolveCache>("network", id).ok()).await;
        }
        let upstream =
            node.wait("upstream", |state| state.get::<DNSUpstream>("network", "#000 10.99.0.1").ok()).await;
        assert!(upstream.healthy && upstream.addr == "10.99.0.1:53");
        node.wait("resolv.conf", |_| {
            let own = std::fs::read_to_string(node.directory.join("etc/resolv.conf")).ok()?;
            let pods = std::fs::read_to_string(node.directory.join("resolv.conf")).ok()?;
            (own == "nameserver 127.0.0.53\n" && pods == "nameserver 169.254.116.108\n").then_some(())
        })
        .await;
        let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(QUESTION, "127.0.0.53:53").await.unwrap();
        let mut buffer = [0; 512];
        let received = tokio::time::timeout(Duration::from_secs(5), client.recv(&mut buffer)).await;
        let length = received.unwrap().unwrap();
        assert_eq!(buffer[length - 4..length], [10, 1, 2, 3]);
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
        let far = netns::create().unwrap();
        let far = std::os::fd::AsFd::as_fd(&far);
        link::move_to(&node.netlink, "far0", far).await.unwrap();
        let other = Netlink::open_in(far).unwrap();
        link::add_address(&other, "far0", "10.77.0.1/24".parse().unwrap()).await.unwrap();
        let socket = serve_dhcp(far);
        link::set_up(&other, "far0", true).await.unwrap();
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
