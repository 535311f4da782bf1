//! The DHCPv6 client against a small server of our own, over a veth pair in two network namespaces. Needs
//! root; says so when not.

use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ichor_net::dhcp6::message::{Kind, Message, Options, option};
use ichor_net::dhcp6::{self, Config, Event};
use ichor_net::{Netlink, link, netns};

const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0x50);

#[derive(Default)]
struct Server {
    /// The time it grants.
    lease: u32,
    /// It grants what is asked for at once.
    rapid: bool,
    refuse: AtomicBool,
    solicits: AtomicU32,
    renewals: AtomicU32,
    stop: AtomicBool,
}

impl Server {
    fn answer(&self, question: &Message) -> Message {
        let kind = match question.kind {
            Kind::Solicit => {
                self.solicits.fetch_add(1, Ordering::Relaxed);
                if self.rapid { Kind::Reply } else { Kind::Advertise }
            }
            Kind::Renew | Kind::Rebind => {
                self.renewals.fetch_add(1, Ordering::Relaxed);
                Kind::Reply
            }
            _ => Kind::Reply,
        };
        let mut options = Options::default();
        options.push(option::CLIENT_ID, question.options.get(option::CLIENT_ID).unwrap().to_vec());
        options.push(option::SERVER_ID, vec![0, 3, 0, 1, 2, 0, 0, 0, 0, 9]);
        if self.rapid {
            options.push(option::RAPID_COMMIT, Vec::new());
        }
        let mut association = question.options.get(option::IA_NA).unwrap()[..12].to_vec();
        let mut inner = Options::default();
        if self.refuse.load(Ordering::Relaxed) {
            inner.push(option::STATUS_CODE, b"\x00\x03gone".to_vec());
        } else {
            let times = [self.lease.to_be_bytes(), self.lease.to_be_bytes()].concat();
            inner.push(option::IA_ADDRESS, [&ADDRESS.octets()[..], &times].concat());
        }
        inner.encode(&mut association);
        options.push(option::IA_NA, association);
        options.push(option::DNS, ADDRESS.octets().to_vec());
        Message { kind, transaction: question.transaction, options }
    }

    fn serve(&self, socket: &UdpSocket) {
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut buffer = [0; 2048];
        while !self.stop.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
            let question = Message::decode(&buffer[..length]).expect("a message of our client");
            // Its own address may still be looked at for duplicates: the client asks again.
            let _ = socket.send_to(&self.answer(&question).encode(), from);
        }
    }
}

/// Client on `c0` in this thread's namespace, server on `s0` in another.
fn with_server(server: Server, test: impl AsyncFnOnce(u32, [u8; 6], &Server) + Send) {
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
                link::set_up(&inside, "s0", true).await.unwrap();
                link::set_up(&nl, "c0", true).await.unwrap();
                let far = link::index(&inside, "s0").await.unwrap();
                let socket = netns::run_in(other.as_fd(), || UdpSocket::bind("[::]:547").unwrap()).unwrap();
                socket.join_multicast_v6(&"ff02::1:2".parse().unwrap(), far).unwrap();
                scope.spawn(move || server.serve(&socket));
                let near = link::find(&nl, "c0").await.unwrap().unwrap();
                let hardware = near.hardware_addr.as_slice().try_into().unwrap();
                let bounded =
                    tokio::time::timeout(Duration::from_secs(40), test(near.index, hardware, server));
                bounded.await.expect("took too long");
            });
        });
        let result = worker.join();
        server.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Starts a client; its events arrive on the receiver.
fn start(index: u32, config: Config) -> (tokio::sync::mpsc::Receiver<Event>, tokio::task::JoinHandle<()>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    let task = tokio::spawn(async move {
        let error = dhcp6::run("c0", index, config, |event| drop(sender.try_send(event))).await;
        panic!("client ended: {error}");
    });
    (receiver, task)
}

async fn bound(events: &mut tokio::sync::mpsc::Receiver<Event>) -> dhcp6::Lease {
    match events.recv().await {
        Some(Event::Bound(lease)) => *lease,
        other => panic!("no lease: {other:?}"),
    }
}

#[test]
fn a_lease_is_advertised_requested_and_renewed() {
    with_server(Server { lease: 10, ..Server::default() }, async |index, hardware, server| {
        let (mut events, task) = start(index, Config::new(hardware, 7));
        let lease = bound(&mut events).await;
        assert_eq!((lease.address, lease.dns.as_slice()), (ADDRESS, &[ADDRESS][..]));
        assert_eq!(bound(&mut events).await.address, ADDRESS);
        assert_eq!(server.renewals.load(Ordering::Relaxed), 1);
        server.refuse.store(true, Ordering::Relaxed);
        assert_eq!(events.recv().await, Some(Event::Lost));
        server.refuse.store(false, Ordering::Relaxed);
        bound(&mut events).await;
        task.abort();
    });
}

#[test]
fn a_server_may_commit_at_once_and_a_restart_keeps_the_lease() {
    let keep = std::env::temp_dir().join(format!("ichor-dhcp6-{}/c0", std::process::id()));
    let path = keep.clone();
    with_server(Server { lease: 600, rapid: true, ..Server::default() }, async |index, hardware, server| {
        let config = Config { keep: Some(path), ..Config::new(hardware, 7) };
        let (mut events, task) = start(index, config.clone());
        bound(&mut events).await;
        let asked = server.solicits.load(Ordering::Relaxed);
        task.abort();
        // What a crash leaves behind.
        let began = std::time::Instant::now();
        let (mut events, task) = start(index, config);
        let lease = bound(&mut events).await;
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(lease.address, ADDRESS);
        assert!(lease.duration <= Duration::from_secs(600));
        bound(&mut events).await;
        assert_eq!(server.renewals.load(Ordering::Relaxed), 1);
        assert_eq!(server.solicits.load(Ordering::Relaxed), asked, "nobody looked for servers");
        task.abort();
    });
    let _ = std::fs::remove_dir_all(keep.parent().unwrap());
}
