//! What the machines find on their network, at the gateway: addresses, names, the time, and their configurations.
//!
//! A machine that boots without a disk has nothing but its kernel arguments, so those lead to its configuration: it has it
//! again after each restart, and nobody has to wait for its maintenance API to apply it. The path holds the machine's
//! number, which others do not know; whatever runs on the machine itself can read it, as on any machine whose arguments
//! lead to its configuration.

use std::convert::Infallible;
use std::fs;
use std::time::{Duration, SystemTime};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use ichor_http::{RequestBody, empty, full, server};
use ichor_net::dhcp4::server::{Grant, Server};
use ichor_net::dns::message::Query;
use ichor_net::sntp;
use ichor_provision::{Cluster, Machine};
use ichor_provision_local::{BRIDGE, Layout, SetupError, ipv4};
use ipnet::Ipv4Net;
use tokio::net::{TcpListener, UdpSocket};

use crate::kind::uuid_file;
use crate::options::{Boot, Options};
use crate::start;

/// A machine keeps its address for good; it asks now and then nevertheless.
const LEASE: Duration = Duration::from_secs(24 * 60 * 60);
const HTTP_PORT: u16 = 80;
const DNS_PORT: u16 = 53;
/// The longest question by UDP.
const DATAGRAM_MAX: usize = 1500;
const PAUSE: Duration = Duration::from_millis(100);
const LIMITS: server::Limits =
    server::Limits { connections: 64, request: Duration::from_secs(10), stall: Duration::from_secs(30) };
const NAME_TTL: u32 = 60;
/// The name is known, and has no such record.
const NO_ERROR: u8 = 0;
const REFUSED: u8 = 5;

/// Starts all of it, for as long as the process lives.
pub(crate) async fn start(layout: &Layout, cluster: &Cluster) -> Result<(), SetupError> {
    let gateway = ipv4::gateway(cluster)?;
    let dhcp = Server::bind(BRIDGE, gateway).await.map_err(SetupError::step("listen for DHCP"))?;
    // Machines come and go, so the state file is looked at for each question; there are few.
    let state = layout.clone();
    tokio::spawn(async move { dhcp.serve(|hardware| grant(&state.load().ok()?, hardware)).await });

    let clock = UdpSocket::bind((gateway, sntp::PORT)).await.map_err(SetupError::step("listen for NTP"))?;
    tokio::spawn(datagrams(clock, |question| {
        let received = SystemTime::now();
        sntp::reply(question, received, SystemTime::now()).map(Vec::from)
    }));

    let names = UdpSocket::bind((gateway, DNS_PORT)).await.map_err(SetupError::step("listen for DNS"))?;
    let state = layout.clone();
    tokio::spawn(datagrams(names, move |question| {
        let query = Query::parse(question).ok()?;
        let cluster = state.load().ok();
        Some(named(&query, cluster.as_ref().map_or(&[], |cluster| &cluster.machines)))
    }));

    let listener = TcpListener::bind((gateway, HTTP_PORT))
        .await
        .map_err(SetupError::step("listen for questions for configurations"))?;
    let layout = layout.clone();
    let service = move || {
        let layout = layout.clone();
        service_fn(move |request: Request<Incoming>| {
            let response = configuration(&layout, request.uri().path());
            async move { Ok::<_, Infallible>(response) }
        })
    };
    tokio::spawn(server::serve("configurations", listener, LIMITS, service, std::future::pending()));
    Ok(())
}

/// Answers datagrams one after the other.
async fn datagrams(socket: UdpSocket, answer: impl Fn(&[u8]) -> Option<Vec<u8>>) {
    let mut buffer = [0; DATAGRAM_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Some(reply) = answer(&buffer[..length]) {
                    // Who asked asks again.
                    let _ = socket.send_to(&reply, from).await;
                }
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// What a hardware address gets: the first interface of a machine its address, all others nothing.
fn grant(cluster: &Cluster, hardware: [u8; 6]) -> Option<Grant> {
    let options = Options::parse(&cluster.settings).ok()?;
    let gateway = ipv4::gateway(cluster).ok()?;
    let network = ipv4::network(cluster).ok()?;
    let machines =
        cluster.machines.iter().filter_map(|machine| Some((machine, ipv4::address(machine).ok()?)));
    let (machine, address) =
        machines.into_iter().find(|(_, address)| ipv4::hardware(*address, 0) == hardware)?;
    Some(Grant {
        address: Ipv4Net::new(address, network.prefix_len()).ok()?,
        router: Some(gateway),
        dns: if options.nameservers.is_empty() { vec![gateway] } else { options.nameservers },
        ntp: vec![gateway],
        mtu: u16::try_from(cluster.network.mtu).ok(),
        hostname: options.hostname.then(|| machine.name.clone()),
        boot_file: match options.boot {
            Some(Boot::Ipxe(url)) => Some(url),
            _ => None,
        },
        duration: LEASE,
    })
}

/// The answer to a question for a name: machines have theirs, and those of others are not our business.
fn named(query: &Query<'_>, machines: &[Machine]) -> Vec<u8> {
    let Some((name, kind)) = query.asks() else { return query.refuse(REFUSED) };
    match machines.iter().find(|machine| machine.name == name) {
        Some(machine) => {
            query.answer(kind, &machine.addresses, NAME_TTL).unwrap_or_else(|| query.refuse(NO_ERROR))
        }
        None => query.refuse(REFUSED),
    }
}

/// The configuration at a path.
fn configuration(layout: &Layout, path: &str) -> Response<RequestBody> {
    let found = layout.load().ok().and_then(|cluster| {
        let owner = cluster.machines.into_iter().find(|machine| {
            fs::read_to_string(uuid_file(layout, &machine.name))
                .is_ok_and(|uuid| path == start::config_path(uuid.trim()))
        })?;
        fs::read(layout.config(&owner.name)).ok()
    });
    match found {
        Some(config) => Response::new(full(config)),
        None => {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ichor_provision::{ClusterRequest, MachineKind, MachineRequest, Resources, Store};

    use super::*;

    fn cluster(settings: &[(&str, &str)]) -> Cluster {
        let machine = |name: &str| MachineRequest {
            name: name.into(),
            kind: MachineKind::Worker,
            kernel_args: Vec::new(),
            resources: Resources::default(),
        };
        let request = ClusterRequest {
            name: "lab".into(),
            mtu: 1400,
            machines: vec![machine("a"), machine("b")],
            settings: settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..ClusterRequest::default()
        };
        Cluster::plan("qemu", &request, "10.5.0.0/24".parse().unwrap(), "").unwrap()
    }

    #[test]
    fn machines_are_found_by_name_and_nobody_else_is() {
        let machines = cluster(&[]).machines;
        // One question in the class of the Internet: a name of one letter, or none of ours.
        let code_and_records = |name: u8, kind: u8| {
            let question = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, name, 0, 0, kind, 0, 1];
            let reply = named(&Query::parse(&question).unwrap(), &machines);
            (reply[3] & 0xf, reply[7])
        };
        assert_eq!(code_and_records(b'a', 1), (NO_ERROR, 1));
        assert_eq!(code_and_records(b'a', 28), (NO_ERROR, 0), "no IPv6 address");
        assert_eq!(code_and_records(b'x', 1), (REFUSED, 0));
    }

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 1);

    #[test]
    fn the_first_interface_of_a_machine_gets_its_address_and_name() {
        let address = Ipv4Addr::new(10, 5, 0, 3);
        let granted = grant(&cluster(&[]), ipv4::hardware(address, 0)).unwrap();
        assert_eq!(granted.address.to_string(), "10.5.0.3/24");
        assert_eq!((granted.router, granted.dns, granted.ntp), (Some(GATEWAY), vec![GATEWAY], vec![GATEWAY]));
        assert_eq!((granted.mtu, granted.hostname.as_deref()), (Some(1400), Some("b")));
        assert_eq!(grant(&cluster(&[]), ipv4::hardware(address, 1)), None, "another interface");
        assert_eq!(grant(&cluster(&[]), [2, 0, 0, 0, 0, 1]), None, "a stranger");
    }

    #[test]
    fn names_name_servers_and_boot_files_are_as_asked_for() {
        let settings = [
            ("nameservers", "9.9.9.9"),
            ("disable-dhcp-hostname", "true"),
            ("ipxe-boot-script", "http://10.5.0.1/boot.ipxe"),
        ];
        let hardware = ipv4::hardware(Ipv4Addr::new(10, 5, 0, 2), 0);
        let granted = grant(&cluster(&settings), hardware).unwrap();
        assert_eq!((granted.dns, granted.hostname), (vec![Ipv4Addr::new(9, 9, 9, 9)], None));
        assert_eq!(granted.boot_file.as_deref(), Some("http://10.5.0.1/boot.ipxe"));
    }

    #[test]
    fn a_configuration_is_found_by_the_number_of_its_machine_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let layout = Layout::new(&store.reserve("lab").unwrap());
        store.save(&cluster(&[])).unwrap();
        for machine in ["a", "b"] {
            fs::create_dir_all(layout.machine(machine)).unwrap();
            fs::write(uuid_file(&layout, machine), format!("number-of-{machine}\n")).unwrap();
        }
        fs::write(layout.config("a"), "machine: {}").unwrap();
        let status = |path: &str| configuration(&layout, path).status().as_u16();
        assert_eq!(status("/number-of-a/config.yaml"), 200);
        for path in ["/number-of-b/config.yaml", "/a/config.yaml", "/", "//config.yaml", "/../config.yaml"] {
            assert_eq!(status(path), 404, "{path}");
        }
    }
}
