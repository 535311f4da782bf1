//! Two nodes and a server in memory, each node in a network namespace of its own, joined by a switch; pods in
//! namespaces behind them. Needs root; says so when not.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_flannel::args::Args;
use ichor_flannel::daemon::{self, Connect};
use ichor_flannel::net_conf::NetConf;
use ichor_kube::{Client, Error, Reply, Request, Transport};
use ichor_net::route::{Family, Route};
use ichor_net::{Netlink, address, link, neighbour, netns, route};
use ichor_testkit::kube::Server;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(15);

/// The server in memory keeps the status with the rest of an object.
struct Whole(Server);

impl Transport for Whole {
    fn send(&self, mut request: Request) -> futures_util::future::BoxFuture<'_, Result<Reply, Error>> {
        request.path = request.path.replace("/status?", "?");
        self.0.send(request)
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A machine: a namespace, and what runs in it.
struct Machine {
    namespace: Arc<OwnedFd>,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { namespace: Arc::new(netns::create().unwrap()) };
        machine
            .run(|| block_on(async { link::set_up(&Netlink::open().unwrap(), "lo", true).await.unwrap() }));
        machine
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(self.namespace.as_fd(), work).unwrap()
    }

    /// A wire to another machine, each end with an address if any.
    fn wire(&self, name: &str, other: &Machine, there: &str, at: Option<&str>, at_there: Option<&str>) {
        self.run(|| {
            block_on(async {
                let netlink = Netlink::open().unwrap();
                let to = Some(other.namespace.as_fd());
                link::create_veth_pair(&netlink, name, there, to).await.unwrap();
                up(&netlink, name, at).await;
            });
        });
        other.run(|| block_on(async { up(&Netlink::open().unwrap(), there, at_there).await }));
    }

    fn bridge(&self, name: &str, at: &str) {
        self.run(|| {
            block_on(async {
                let netlink = Netlink::open().unwrap();
                link::create_bridge(&netlink, name).await.unwrap();
                up(&netlink, name, Some(at)).await;
            });
        });
    }

    fn join(&self, name: &str, bridge: &str) {
        self.run(|| {
            block_on(async {
                link::set_master(&Netlink::open().unwrap(), name, Some(bridge)).await.unwrap()
            });
        });
    }

    fn default_route(&self, via: &str) {
        self.run(|| {
            block_on(async {
                let route = Route::new(Family::V4, None, Some(via.parse().unwrap()));
                route::add(&Netlink::open().unwrap(), &route).await.unwrap();
            });
        });
    }

    /// Answers every connection with the address it came from.
    fn serve(&self, port: u16) {
        let listener = self.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let from = stream.peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default();
                let _ = (&stream).write_all(from.as_bytes());
            }
        });
    }

    /// The address that a server sees this machine under; tried again for a while.
    fn seen_by(&self, server: &str) -> IpAddr {
        let server: SocketAddr = server.parse().unwrap();
        self.run(|| {
            let end = Instant::now() + LIMIT;
            loop {
                let seen =
                    TcpStream::connect_timeout(&server, Duration::from_millis(300)).and_then(|mut stream| {
                        let mut text = String::new();
                        stream.set_read_timeout(Some(LIMIT))?;
                        stream.read_to_string(&mut text)?;
                        Ok(text)
                    });
                match seen {
                    Ok(text) => return text.parse().unwrap(),
                    Err(error) => assert!(Instant::now() < end, "{server} not reached: {error}"),
                }
            }
        })
    }

    /// Waits until the routes of the machine are as wanted.
    fn routes_become(&self, wanted: impl Fn(&[Route]) -> bool + Send + Sync) {
        self.run(|| {
            block_on(async {
                let netlink = Netlink::open().unwrap();
                let end = Instant::now() + LIMIT;
                loop {
                    let routes = route::list(&netlink).await.unwrap();
                    if wanted(&routes) {
                        return;
                    }
                    assert!(Instant::now() < end, "{routes:#?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        });
    }
}

async fn up(netlink: &Netlink, name: &str, at: Option<&str>) {
    if let Some(at) = at {
        link::add_address(netlink, name, at.parse().unwrap()).await.unwrap();
    }
    link::set_up(netlink, name, true).await.unwrap();
}

/// A node with a pod: 10.88.0.1N on the switch, pods in 10.244.N.0/24.
struct Node {
    name: String,
    host: Machine,
    pod: Machine,
    files: tempfile::TempDir,
}

impl Node {
    fn new(switch: &Machine, number: u8) -> Self {
        let name = format!("node-{number}");
        let (host, pod) = (Machine::new(), Machine::new());
        let port = format!("port{number}");
        switch.wire(&port, &host, "eth0", None, Some(&format!("10.88.0.1{number}/24")));
        switch.join(&port, "br0");
        host.default_route("10.88.0.1");
        host.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        host.bridge("cni0", &format!("10.244.{number}.1/24"));
        host.wire("veth0", &pod, "eth0", None, Some(&format!("10.244.{number}.2/24")));
        host.join("veth0", "cni0");
        pod.default_route(&format!("10.244.{number}.1"));
        pod.serve(80);
        Self { name, host, pod, files: tempfile::tempdir().unwrap() }
    }

    /// The daemon, on a thread of its own in the namespace of the node.
    fn start(&self, server: &Server, backend: &str) {
        let conf = json!({ "Network": "10.244.0.0/16", "Backend": { "Type": backend, "Port": 4789 } });
        let conf = NetConf::parse(&conf.to_string()).unwrap();
        let args = Args {
            ip_masq: true,
            subnet_file: self.files.path().join("subnet.env").display().to_string(),
            ..Args::default()
        };
        let server = server.clone();
        let connect: Connect = Arc::new(move || Ok(Client::over(Whole(server.clone()))));
        let (name, namespace) = (self.name.clone(), Arc::clone(&self.host.namespace));
        std::thread::spawn(move || {
            let ended = netns::run_in(namespace.as_fd(), || {
                block_on(daemon::run(args, conf, connect, |_| std::future::ready(Ok(name.clone()))))
            });
            panic!("the daemon ended: {ended:?}");
        });
    }

    fn path(&self) -> String {
        format!("/api/v1/nodes/{}", self.name)
    }
}

fn skipped() -> bool {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0);
    if !root {
        let _ = std::io::stderr().write_all(b"skipped: needs root for network namespaces\n");
    }
    !root
}

fn two_nodes(backend: &str) -> (Server, Machine, Node, Node) {
    let switch = Machine::new();
    switch.bridge("br0", "10.88.0.1/24");
    switch.serve(80);
    let server = Server::new();
    let (a, b) = (Node::new(&switch, 1), Node::new(&switch, 2));
    for (number, node) in [(1, &a), (2, &b)] {
        // The part of the network comes a moment later, as it does in a cluster.
        let mut object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": node.name },
            "spec": {}, "status": { "conditions": [{ "type": "Ready" }, { "type": "NetworkUnavailable", "status": "True" }] },
        });
        server.put(&node.path(), object.clone());
        node.start(&server, backend);
        object["spec"]["podCIDRs"] = json!([format!("10.244.{number}.0/24")]);
        server.put(&node.path(), object);
    }
    (server, switch, a, b)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn pods_of_two_nodes_reach_each_other_over_the_overlay() {
    if skipped() {
        return;
    }
    let begun = Instant::now();
    let (server, _switch, a, b) = two_nodes("vxlan");
    assert_eq!(a.pod.seen_by("10.244.2.2:80"), ip("10.244.1.2"), "pods see each other as they are");
    println!("joined after {:?}", begun.elapsed());
    assert_eq!(b.pod.seen_by("10.244.1.2:80"), ip("10.244.2.2"));
    assert_eq!(a.host.seen_by("10.244.2.2:80"), ip("10.244.1.0"), "a node comes from its end of the overlay");
    assert_eq!(a.pod.seen_by("10.88.0.1:80"), ip("10.88.0.11"), "the world sees the node");

    let env = std::fs::read_to_string(a.files.path().join("subnet.env")).unwrap();
    assert_eq!(
        env,
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    );
    let node = server.object(&a.path()).unwrap();
    let notes = &node["metadata"]["annotations"];
    assert_eq!(notes["flannel.alpha.coreos.com/public-ip"], "10.88.0.11");
    assert_eq!(node["status"]["conditions"][0]["reason"], "FlannelIsUp");

    // Somebody removes the link: it is made again, and the others hear of its new hardware address.
    a.host.run(|| block_on(async { link::delete(&Netlink::open().unwrap(), "flannel.1").await.unwrap() }));
    a.host.routes_become(|routes| routes.iter().any(|route| route.gateway == Some(ip("10.244.2.0"))));
    assert_eq!(a.pod.seen_by("10.244.2.2:80"), ip("10.244.1.2"));

    // The node leaves; so does everything about it.
    block_on(server.client().delete(
        &ichor_kube::Target::new(ichor_kube::Kind::NODES, "", &b.name),
        ichor_kube::Delete::default(),
    ))
    .unwrap();
    a.host.routes_become(|routes| routes.iter().all(|route| route.gateway != Some(ip("10.244.2.0"))));
    a.host.run(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let overlay = link::index(&netlink, "flannel.1").await.unwrap();
            let left = neighbour::list(&netlink, overlay).await.unwrap();
            let left: Vec<_> = left
                .iter()
                .filter(|entry| !matches!(entry, neighbour::Entry::Neighbour(ip, _) if ip.is_multicast()))
                .collect();
            assert!(left.is_empty(), "{left:?}");
            let at = address::list(&netlink).await.unwrap();
            assert!(at.iter().any(
                |address| address.link_index == overlay && address.prefix.to_string() == "10.244.1.0/32"
            ));
        });
    });
}

#[test]
fn neighbours_are_joined_by_routes_alone_where_that_is_configured() {
    if skipped() {
        return;
    }
    let (_server, _switch, a, b) = two_nodes("host-gw");
    assert_eq!(b.pod.seen_by("10.244.1.2:80"), ip("10.244.2.2"));
    assert_eq!(a.pod.seen_by("10.244.2.2:80"), ip("10.244.1.2"));
    let env = std::fs::read_to_string(b.files.path().join("subnet.env")).unwrap();
    assert!(env.contains("FLANNEL_MTU=1500\n"), "{env}");
}

#[test]
fn the_server_may_be_gone_and_the_network_stays() {
    if skipped() {
        return;
    }
    let (server, _switch, a, b) = two_nodes("vxlan");
    a.pod.seen_by("10.244.2.2:80");
    server.set_down(true);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(b.pod.seen_by("10.244.1.2:80"), ip("10.244.2.2"));
    server.set_down(false);
    let mut object = server.object(&b.path()).unwrap();
    object["metadata"]["name"] = json!("node-3");
    object["spec"]["podCIDRs"] = json!(["10.244.3.0/24"]);
    server.put("/api/v1/nodes/node-3", object);
    a.host.routes_become(|routes| routes.iter().any(|route| route.gateway == Some(ip("10.244.3.0"))));
}
