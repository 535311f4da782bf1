//! The DHCPv4 client against a small server of our own, over a veth pair in two network namespaces.
//! Needs root; says so when not.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ichor_net::dhcp4::message::{Kind, Message, option};
use ichor_net::dhcp4::{self, Config, Event};
use ichor_net::{Netlink, link, netns};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

/// Answers until told to stop. `lease` is the time it grants, `refuse` makes it refuse requests.
struct Server {
    lease: u32,
    refuse: Arc<AtomicBool>,
    discovers: Arc<AtomicU32>,
    renewals: Arc<AtomicU32>,
    declined: Arc<AtomicU32>,
    /// The server's machine has the address it hands out.
    taken: bool,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn new(lease: u32) -> Self {
        let flag = || Arc::new(AtomicBool::new(false));
        let count = || Arc::new(AtomicU32::new(0));
        Self {
            lease,
            refuse: flag(),
            discovers: count(),
            renewals: count(),
            declined: count(),
            taken: false,
            stop: flag(),
        }
    }

    fn serve(&self, socket: &UdpSocket) -> io::Result<()> {
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        socket.set_broadcast(true)?;
        while !self.stop.load(Ordering::Relaxed) {
            let mut buffer = [0; 2048];
            let Ok((length, _)) = socket.recv_from(&mut buffer) else { continue };
            let request = Message::decode(&buffer[..length]).expect("a message of our client");
            let renewal = !request.client.is_unspecified();
            let kind = match request.kind().expect("a type") {
                Kind::Discover => {
                    self.discovers.fetch_add(1, Ordering::Relaxed);
                    Kind::Offer
                }
                Kind::Request if self.refuse.load(Ordering::Relaxed) => Kind::Nak,
                Kind::Request => Kind::Ack,
                Kind::Decline => {
                    self.declined.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                other => panic!("client sent {other:?}"),
            };
            if renewal {
                self.renewals.fetch_add(1, Ordering::Relaxed);
            }
            let mut reply = Message::request(kind, request.transaction, request.hardware);
            reply.is_reply = true;
            reply.your = CLIENT;
            for (number, value) in [
                (option::SUBNET_MASK, vec![255, 255, 255, 0]),
                (option::ROUTER, SERVER.octets().to_vec()),
                (option::DNS, vec![9, 9, 9, 9]),
                (option::HOSTNAME, b"from-dhcp".to_vec()),
                (option::SERVER_ID, SERVER.octets().to_vec()),
                (option::LEASE_TIME, self.lease.to_be_bytes().to_vec()),
            ] {
                reply.options.insert(number, value);
            }
            let to = if renewal { request.client } else { Ipv4Addr::new(10, 77, 0, 255) };
            socket.send_to(&reply.encode(), (to, 68))?;
        }
        Ok(())
    }
}

/// Client on `c0` in this thread's namespace, server on `s0` in another.
fn with_server(server: Server, test: impl AsyncFnOnce(Netlink, u32, [u8; 6], &Server) + Send) {
    if !rustix::process::geteuid().is_root() {
        // Past the harness, which would keep it to itself.
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"skipped: needs root for network namespaces\n",
        );
        return;
    }
    let server = &server;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            netns::isolate_thread().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let nl = Netlink::open().unwrap();
                let other = netns::create().unwrap();
                link::create_veth_pair(&nl, "c0", "s0", Some(other.as_fd())).await.unwrap();
                let inside = Netlink::open_in(other.as_fd()).unwrap();
                link::add_address(&inside, "s0", "10.77.0.1/24".parse().unwrap()).await.unwrap();
                if server.taken {
                    link::add_address(&inside, "s0", "10.77.0.50/32".parse().unwrap()).await.unwrap();
                }
                link::set_up(&inside, "s0", true).await.unwrap();
                link::set_up(&nl, "c0", true).await.unwrap();
                let socket = netns::run_in(other.as_fd(), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)));
                let socket = socket.unwrap().unwrap();
                let serving = scope.spawn(move || {
                    server.serve(&socket).unwrap();
                });
                let c0 = link::find(&nl, "c0").await.unwrap().unwrap();
                let hardware = c0.hardware_addr.clone().try_into().unwrap();
                let body = test(nl, c0.index, hardware, server);
                tokio::time::timeout(Duration::from_secs(40), body).await.expect("took too long");
                server.stop.store(true, Ordering::Relaxed);
                serving.join().unwrap();
            });
        });
        let result = worker.join();
        server.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A client with the usual settings.
fn start(index: u32, hardware: [u8; 6]) -> (tokio::sync::mpsc::Receiver<Event>, tokio::task::JoinHandle<()>) {
    start_with(index, Config::new(hardware, 7))
}

/// Starts a client; its events arrive on the receiver.
fn start_with(
    index: u32,
    config: Config,
) -> (tokio::sync::mpsc::Receiver<Event>, tokio::task::JoinHandle<()>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    let (_name, names) = tokio::sync::watch::channel(None);
    let task = tokio::spawn(async move {
        let _keep = _name;
        let error = dhcp4::run("c0", index, config, names, |event| {
            let _ = sender.try_send(event);
        })
        .await;
        panic!("client ended: {error}");
    });
    (receiver, task)
}

#[test]
fn a_lease_arrives_within_milliseconds() {
    with_server(Server::new(3600), async |_nl, index, hardware, server| {
        let began = std::time::Instant::now();
        let (mut events, task) = start(index, hardware);
        let Some(Event::Bound(lease)) = events.recv().await else { panic!("no lease") };
        let took = began.elapsed();
        assert_eq!(lease.address.to_string(), "10.77.0.50/24");
        assert_eq!(lease.routers, [SERVER]);
        assert_eq!(lease.hostname.as_deref(), Some("from-dhcp"));
        // One try, unless a busy machine kept the server from answering within the first pause.
        let tries = server.discovers.load(Ordering::Relaxed);
        assert!(tries == 1 || took > Duration::from_millis(500), "{tries} tries in {took:?}");
        task.abort();
    });
}

#[test]
fn a_lease_is_renewed_by_unicast_from_its_own_address() {
    with_server(Server::new(10), async |nl, index, hardware, server| {
        let (mut events, task) = start(index, hardware);
        let Some(Event::Bound(lease)) = events.recv().await else { panic!("no lease") };
        let found = server.discovers.load(Ordering::Relaxed);
        link::add_address(&nl, "c0", lease.address.into()).await.unwrap();
        let Some(Event::Bound(again)) = events.recv().await else { panic!("not renewed") };
        assert_eq!(again.address, lease.address);
        assert!(server.renewals.load(Ordering::Relaxed) >= 1);
        // A busy machine may need a second try for the first offer, but none afterwards.
        assert_eq!(server.discovers.load(Ordering::Relaxed), found);
        task.abort();
    });
}

#[test]
fn a_refused_renewal_is_a_lost_lease() {
    with_server(Server::new(10), async |nl, index, hardware, server| {
        let (mut events, task) = start(index, hardware);
        let Some(Event::Bound(lease)) = events.recv().await else { panic!("no lease") };
        link::add_address(&nl, "c0", lease.address.into()).await.unwrap();
        server.refuse.store(true, Ordering::Relaxed);
        assert_eq!(events.recv().await, Some(Event::Lost));
        server.refuse.store(false, Ordering::Relaxed);
        assert!(matches!(events.recv().await, Some(Event::Bound(_))));
        task.abort();
    });
}

#[test]
fn a_restart_keeps_the_lease_and_asks_whether_it_holds() {
    let keep = std::env::temp_dir().join(format!("ichor-dhcp4-{}/c0", std::process::id()));
    let path = keep.clone();
    with_server(Server::new(3600), async |_nl, index, hardware, server| {
        let config = Config { keep: Some(path), ..Config::new(hardware, 7) };
        let (mut events, task) = start_with(index, config.clone());
        let Some(Event::Bound(first)) = events.recv().await else { panic!("no lease") };
        task.abort();
        let asked = server.discovers.load(Ordering::Relaxed);
        let (mut events, task) = start_with(index, config);
        let Some(Event::Bound(again)) = events.recv().await else { panic!("not kept") };
        assert_eq!(again.address, first.address);
        assert!(again.duration <= first.duration);
        let Some(Event::Bound(confirmed)) = events.recv().await else { panic!("not confirmed") };
        assert_eq!(confirmed.address, first.address);
        assert_eq!(server.discovers.load(Ordering::Relaxed), asked, "nobody looked for servers");
        task.abort();
    });
    let _ = std::fs::remove_dir_all(keep.parent().unwrap());
}

#[test]
fn an_address_that_a_neighbour_has_is_declined() {
    with_server(Server { taken: true, ..Server::new(3600) }, async |_nl, index, hardware, server| {
        let (mut events, task) = start(index, hardware);
        assert!(matches!(events.recv().await, Some(Event::Bound(_))));
        assert_eq!(events.recv().await, Some(Event::Lost));
        let Some(Event::Silent(text)) = events.recv().await else { panic!("not told") };
        assert!(text.starts_with("the server offers 10.77.0.50, which "), "{text}");
        for _ in 0..200 {
            if server.declined.load(Ordering::Relaxed) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(server.declined.load(Ordering::Relaxed), 1);
        task.abort();
    });
}
