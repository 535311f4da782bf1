//! Against the real kernel, each test in a network namespace of its own. Needs root; says so when not.

use std::future::Future;
use std::time::Duration;

use ichor_net::route::{Family, Route};
use ichor_net::watch::{Topics, Watcher};
use ichor_net::{Netlink, address, link, netns, route, rule};

/// Runs a test on a thread with a fresh network namespace.
fn in_fresh_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    if !rustix::process::geteuid().is_root() {
        // Past the harness, which would keep it to itself.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"skipped: needs root for network namespaces\n",
        );
        return;
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            netns::isolate_thread().expect("fresh namespaces");
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime")
                .block_on(async { bounded(test()).await });
        });
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

async fn bounded<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("took too long")
}

#[test]
fn a_bridge_with_a_veth_member_carries_an_address_and_a_route() {
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        link::set_up(&nl, "lo", true).await.unwrap();
        link::create_bridge(&nl, "br0").await.unwrap();
        link::create_veth_pair(&nl, "v0", "v1", None).await.unwrap();
        link::set_master(&nl, "v0", Some("br0")).await.unwrap();
        link::add_address(&nl, "br0", "10.5.0.1/24".parse().unwrap()).await.unwrap();
        for name in ["br0", "v0", "v1"] {
            link::set_up(&nl, name, true).await.unwrap();
        }
        link::set_mtu(&nl, "v1", 1400).await.unwrap();

        let links = link::list(&nl).await.unwrap();
        let by_name = |name: &str| links.iter().find(|l| l.name == name).unwrap();
        assert_eq!(by_name("br0").kind, "bridge");
        assert_eq!(by_name("v0").master_index, by_name("br0").index);
        assert_eq!(by_name("v0").slave_kind, "bridge");
        assert_eq!(by_name("v1").mtu, 1400);
        assert!(by_name("v1").carrier && by_name("v1").is_up());
        assert!(!by_name("v1").is_physical(), "veth has a kind");
        assert_eq!(by_name("lo").hardware_type, link::TYPE_LOOPBACK);

        let wanted: Vec<_> = address::list(&nl).await.unwrap();
        let found = wanted.iter().find(|a| a.prefix == "10.5.0.1/24".parse().unwrap()).unwrap();
        assert_eq!(found.broadcast, Some("10.5.0.255".parse().unwrap()));
        assert_eq!(found.flags, address::FLAG_PERMANENT);

        let mut default = Route::new(Family::V4, None, Some("10.5.0.9".parse().unwrap()));
        default.priority = 1024;
        default.mtu = 1300;
        route::add(&nl, &default).await.unwrap();
        let again = route::add(&nl, &default).await.unwrap_err();
        assert!(again.is_exists(), "{again:?}");
        assert_eq!(again.to_string(), "add route default via 10.5.0.9");
        let routes = route::list(&nl).await.unwrap();
        let found = routes.iter().find(|r| r.gateway.is_some()).unwrap();
        assert_eq!((found.destination, found.priority, found.mtu), (None, 1024, 1300));
        assert_eq!(found.link_index, by_name("br0").index);
        route::remove(&nl, &default).await.unwrap();
        assert!(route::remove(&nl, &default).await.unwrap_err().is_missing());

        address::remove(&nl, "br0", found_address(&wanted, "10.5.0.1/24")).await.unwrap();
        link::delete(&nl, "v0").await.unwrap();
        assert_eq!(link::find(&nl, "v1").await.unwrap(), None);
    });
}

fn found_address<'a>(all: &'a [address::Address], prefix: &str) -> &'a address::Address {
    all.iter().find(|a| a.prefix == prefix.parse().unwrap()).unwrap()
}

#[test]
fn a_veth_peer_appears_in_another_namespace_that_a_second_connection_reaches() {
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        let other = netns::create().unwrap();
        let other = std::os::fd::AsFd::as_fd(&other);
        link::create_veth_pair(&nl, "v2", "eth0", Some(other)).await.unwrap();
        assert!(link::find(&nl, "eth0").await.unwrap().is_none());

        let inside = Netlink::open_in(other).unwrap();
        link::add_address(&inside, "eth0", "10.5.0.2/24".parse().unwrap()).await.unwrap();
        link::add_address(&inside, "eth0", "fd00::2/64".parse().unwrap()).await.unwrap();
        link::set_up(&inside, "eth0", true).await.unwrap();
        assert!(link::find(&inside, "v2").await.unwrap().is_none());
    });
}

#[test]
fn errors_name_the_operation_and_the_link() {
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        let missing = link::set_up(&nl, "nope", true).await.unwrap_err();
        assert_eq!(missing.to_string(), "no link nope");
        assert!(missing.is_missing());
        link::create_bridge(&nl, "br0").await.unwrap();
        let twice = link::create_bridge(&nl, "br0").await.unwrap_err();
        assert_eq!(twice.to_string(), "create link br0 of kind bridge");
        assert!(twice.is_exists());
        let address = link::add_address(&nl, "none0", "10.0.0.1/8".parse().unwrap()).await;
        assert_eq!(address.unwrap_err().to_string(), "no link none0");
    });
}

#[test]
fn a_watcher_wakes_for_its_topics_and_coalesces() {
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        let mut links = Watcher::open(Topics::LINKS).unwrap();
        let mut rules = Watcher::open(Topics::RULES).unwrap();
        for n in 0..20 {
            link::create_bridge(&nl, &format!("br{n}")).await.unwrap();
        }
        bounded(links.changed()).await.unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(50), links.changed()).await;
        assert!(quiet.is_err(), "twenty changes were one wake-up");
        let quiet = tokio::time::timeout(Duration::from_millis(10), rules.changed()).await;
        assert!(quiet.is_err(), "links are not rules");

        let mark = rule::Rule::by_mark(Family::V4, 32500, 0x40, 0x60, 180);
        rule::add(&nl, &mark).await.unwrap();
        bounded(rules.changed()).await.unwrap();
        assert!(rule::list(&nl).await.unwrap().contains(&mark));
        rule::remove(&nl, &mark).await.unwrap();
        assert!(!rule::list(&nl).await.unwrap().contains(&mark));
    });
}

#[test]
fn a_list_of_thousands_is_complete() {
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        link::create_bridge(&nl, "br0").await.unwrap();
        link::set_up(&nl, "br0", true).await.unwrap();
        let index = link::index(&nl, "br0").await.unwrap();
        for n in 0..3000_u32 {
            let net = std::net::Ipv4Addr::from(0x0b00_0000 + n * 256);
            let mut r = Route::new(Family::V4, Some(ipnet::Ipv4Net::new(net, 24).unwrap().into()), None);
            r.link_index = index;
            route::add(&nl, &r).await.unwrap();
        }
        let found = route::list(&nl).await.unwrap();
        assert!(found.iter().filter(|r| r.protocol == libc::RTPROT_STATIC).count() == 3000);
    });
}

#[test]
fn a_link_tells_and_takes_ethernet_settings_and_an_alias() {
    use ichor_net::link::ethtool::{Change, Ethtool};
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        link::create_veth_pair(&nl, "v0", "v1", None).await.unwrap();
        let ethtool = Ethtool::open().unwrap();
        let before = ethtool.ethernet("v0").unwrap();
        let named = |name: &str, all: &link::ethtool::Ethernet| {
            all.features.iter().find(|feature| feature.name == name).cloned().unwrap()
        };
        let tso = named("tx-tcp-segmentation", &before);
        assert!(!tso.fixed, "{tso:?}");
        let change = Change::Features(vec![(tso.name.clone(), !tso.active)]);
        ethtool.change("v0", &change).unwrap();
        assert_eq!(named(&tso.name, &ethtool.ethernet("v0").unwrap()).active, !tso.active);
        let unknown = Change::Features(vec![("warp-drive".into(), true)]);
        assert_eq!(ethtool.change("v0", &unknown).unwrap_err().to_string(), "there is no feature warp-drive");
        assert!(before.mode.is_some_and(|mode| mode.speed_mbit == 10_000), "{:?}", before.mode);
        assert!(ethtool.ethernet("lo").is_err());

        link::set_alias(&nl, "v0", "lan").await.unwrap();
        assert_eq!(link::find(&nl, "v0").await.unwrap().unwrap().alias, "lan");
        link::set_alias(&nl, "v0", "").await.unwrap();
        assert_eq!(link::find(&nl, "v0").await.unwrap().unwrap().alias, "");
    });
}

#[test]
fn a_filter_lets_in_what_it_names_and_goes_without_a_trace() {
    use ichor_net::nftables::{self, Chain, Field, Set, Step};
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::AsFd;
    in_fresh_namespace(|| async {
        let nl = Netlink::open().unwrap();
        let other = netns::create().unwrap();
        link::create_veth_pair(&nl, "v0", "v1", Some(other.as_fd())).await.unwrap();
        let inside = Netlink::open_in(other.as_fd()).unwrap();
        link::add_address(&nl, "v0", "10.5.0.1/24".parse().unwrap()).await.unwrap();
        link::add_address(&inside, "v1", "10.5.0.2/24".parse().unwrap()).await.unwrap();
        link::set_up(&nl, "v0", true).await.unwrap();
        link::set_up(&inside, "v1", true).await.unwrap();
        let good = std::net::TcpListener::bind("10.5.0.1:8080").unwrap();
        let bad = std::net::TcpListener::bind("10.5.0.1:9090").unwrap();
        let reach = |port: u16| {
            let to = SocketAddr::from(([10, 5, 0, 1], port));
            netns::run_in(other.as_fd(), move || {
                TcpStream::connect_timeout(&to, Duration::from_millis(1500)).is_ok()
            })
            .unwrap()
        };
        // The kernel takes its time to notice the carrier.
        assert!((0..20).any(|_| reach(8080)) && (0..20).any(|_| reach(9090)));
        let port = |port: u16| port.to_be_bytes().to_vec();
        let source = [10, 5, 0, 0].to_vec();
        let chain = Chain {
            name: "ingress".into(),
            kind: "filter".into(),
            hook: 1,
            priority: -140,
            accept: false,
            rules: vec![
                vec![
                    Step::Load(Field::InName),
                    Step::In(
                        Set::Values(vec![{
                            let mut name = b"lo".to_vec();
                            name.resize(16, 0);
                            name
                        }]),
                        false,
                    ),
                    Step::Count,
                    Step::Verdict(true),
                ],
                vec![
                    Step::Load(Field::ConntrackState),
                    Step::Bits { mask: 2 | 4, xor: 0 },
                    Step::NotEqual(vec![0; 4]),
                    Step::Verdict(true),
                ],
                vec![
                    Step::Load(Field::Protocol),
                    Step::Equal(vec![6]),
                    Step::Load(Field::Family),
                    Step::Equal(vec![2]),
                    Step::Load(Field::Network(12, 4)),
                    Step::In(Set::Ranges(vec![(source, [10, 5, 0, 255].to_vec())]), false),
                    Step::Load(Field::Transport(2, 2)),
                    Step::In(Set::Ranges(vec![(port(22), port(22)), (port(8000), port(8999))]), false),
                    Step::Limit(1000),
                    Step::Count,
                    Step::Verdict(true),
                ],
            ],
        };
        for _ in 0..2 {
            nftables::program("talos", std::slice::from_ref(&chain)).unwrap();
            assert!(reach(8080), "let in");
            assert!(!reach(9090), "kept out");
        }
        let wrong = Chain { kind: "warp".into(), ..chain };
        let error = nftables::program("talos", &[wrong]).unwrap_err();
        assert_eq!(error.to_string(), "program table talos");
        assert!(!reach(9090), "a refused change changes nothing");
        nftables::program("talos", &[]).unwrap();
        nftables::program("talos", &[]).unwrap();
        assert!(reach(9090));
        drop((good, bad));
    });
}
