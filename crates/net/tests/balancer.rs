//! The balancer between real sockets: upstreams that come, refuse, fall silent and return.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ichor_net::balancer::Balancer;
use ichor_net::{Netlink, link, netns};

const LIMIT: Duration = Duration::from_secs(10);

/// A server that says its letter for every byte it gets, until it is killed.
struct Server {
    address: SocketAddr,
    dead: Arc<AtomicBool>,
    open: Arc<std::sync::Mutex<Vec<TcpStream>>>,
}

impl Server {
    fn start(at: &str, letter: u8) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, dead: Arc::default(), open: Arc::default() };
        let (dead, open) = (server.dead.clone(), server.open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if dead.load(Ordering::SeqCst) {
                    return;
                }
                open.lock().unwrap().push(stream.try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&vec![letter; length]).is_err() {
                            return;
                        }
                    }
                    // What a server still has to say after its client is done.
                    let _ = stream.write_all(b".");
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        server
    }

    /// As the kernel does for a killed process: no more listener, connections reset.
    fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn balancer(upstreams: &[&Server]) -> (Balancer, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let balancer = Balancer::start(listener, || {}).unwrap();
    balancer.set_upstreams(upstreams.iter().map(|server| server.address.to_string()).collect());
    (balancer, address)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// One question and its answer.
fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
    stream.write_all(b"?")?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer[0])
}

#[test]
fn a_client_that_is_done_still_gets_the_rest() {
    let server = Server::start("127.0.0.1:0", b'a');
    let (_balancer, address) = balancer(&[&server]);
    let mut stream = connect(address);
    stream.write_all(b"???").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "aaa.");
}

#[test]
fn megabytes_pass_a_slow_reader_unharmed() {
    let server = Server::start("127.0.0.1:0", b'b');
    let (_balancer, address) = balancer(&[&server]);
    let mut stream = connect(address);
    let mut writer = stream.try_clone().unwrap();
    let sent = 16 << 20;
    let thread = std::thread::spawn(move || {
        for _ in 0..sent / 65536 {
            writer.write_all(&[1; 65536]).unwrap();
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    std::thread::sleep(Duration::from_millis(100));
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    thread.join().unwrap();
    assert_eq!(answer.len(), sent + 1);
    assert!(answer[..sent].iter().all(|byte| *byte == b'b'));
}

/// A client with one connection that connects again whenever it fails; the longest time without an answer.
fn longest_gap(address: SocketAddr, run: Duration, kill: impl FnOnce()) -> Duration {
    let mut kill = Some(kill);
    let begun = Instant::now();
    let mut stream = connect(address);
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while begun.elapsed() < run {
        if begun.elapsed() > run / 4
            && let Some(kill) = kill.take()
        {
            kill();
        }
        match ask(&mut stream) {
            Ok(_) => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => stream = connect(address),
        }
    }
    longest.max(last.elapsed())
}

#[test]
fn losing_one_of_three_costs_a_client_a_moment() {
    let mut best = Duration::MAX;
    // What else the machine does can only make the gap longer.
    for _ in 0..4 {
        let servers = [b'a', b'b', b'c'].map(|letter| Server::start("127.0.0.1:0", letter));
        let (balancer, address) = balancer(&servers.iter().collect::<Vec<_>>());
        let mut probe = connect(address);
        let used = ask(&mut probe).unwrap();
        drop(probe);
        // Whichever the client uses, two of three die one after the other.
        let longest = longest_gap(address, Duration::from_secs(1), || {
            servers[usize::from(used - b'a')].kill();
            servers[usize::from((used - b'a' + 1) % 3)].kill();
        });
        println!("longest gap with killed servers: {longest:?}");
        assert!(balancer.healthy());
        best = best.min(longest);
        if best < Duration::from_secs(1) {
            break;
        }
    }
    assert!(best < Duration::from_secs(1), "{best:?}");
}

#[test]
fn without_upstreams_a_connection_is_closed_and_health_is_told() {
    let turns = Arc::new(AtomicU32::new(0));
    let counter = turns.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let balancer = Balancer::start(listener, move || {
        counter.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    assert!(!balancer.healthy());
    assert!(ask(&mut connect(address)).is_err());

    let server = Server::start("127.0.0.1:0", b'a');
    balancer.set_upstreams(vec![format!("localhost:{}", server.address.port())]);
    assert_eq!(ask(&mut connect(address)).unwrap(), b'a');
    assert!(balancer.healthy());
    assert_eq!(turns.load(Ordering::SeqCst), 1);

    let mut open = connect(address);
    ask(&mut open).unwrap();
    balancer.set_upstreams(vec!["127.0.0.1:1".to_owned()]);
    assert_eq!(ask(&mut open).unwrap(), b'a', "a connection outlives the change of the list");
    assert!(ask(&mut connect(address)).is_err());
    drop(balancer);
    assert!(ask(&mut open).is_err(), "the end of the balancer ends its connections");
}

#[test]
fn a_server_that_only_listens_is_not_suspected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicU32::new(0));
    let counter = accepted.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || std::io::copy(&mut stream.unwrap(), &mut std::io::sink()));
        }
    });
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = own.local_addr().unwrap();
    let balancer = Balancer::start(own, || {}).unwrap();
    balancer.set_upstreams(vec![upstream.to_string()]);
    let mut stream = connect(address);
    for _ in 0..4 {
        stream.write_all(b"no answer is due").unwrap();
        std::thread::sleep(Duration::from_millis(450));
    }
    // The client and a probe; two probes when the list came before the first.
    assert!(accepted.load(Ordering::SeqCst) <= 3, "{accepted:?}");
}

/// A machine that loses its power says nothing: no reset, no refusal.
#[test]
fn a_machine_that_falls_silent_costs_a_client_less_than_two_seconds() {
    let far = netns::create().unwrap();
    std::thread::spawn(move || {
        netns::isolate_thread().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(wire(&far));
        let here = Server::start("127.0.0.1:0", b'a');
        let silent =
            netns::run_in(std::os::fd::AsFd::as_fd(&far), || Server::start("10.77.0.2:0", b'b')).unwrap();
        let (balancer, address) = balancer(&[&silent]);
        let mut stream = connect(address);
        assert_eq!(ask(&mut stream).unwrap(), b'b');
        balancer.set_upstreams([&silent, &here].map(|server| server.address.to_string()).into());

        runtime.block_on(async {
            let netlink = Netlink::open_in(std::os::fd::AsFd::as_fd(&far)).unwrap();
            link::set_up(&netlink, "far0", false).await.unwrap();
        });
        let begun = Instant::now();
        assert!(ask(&mut stream).is_err(), "the connection ends");
        let cut = begun.elapsed();
        for _ in 0..4 {
            assert_eq!(ask(&mut connect(address)).unwrap(), b'a');
        }
        let whole = begun.elapsed();
        println!("silent machine: connection ended after {cut:?}, four more answered after {whole:?}");
        assert!(whole < Duration::from_secs(8), "{cut:?} {whole:?}");
    })
    .join()
    .unwrap();
}

/// `near0` here with 10.77.0.1, `far0` over there with 10.77.0.2; the near end keeps its carrier.
async fn wire(far: &std::os::fd::OwnedFd) {
    let far = std::os::fd::AsFd::as_fd(far);
    let near = Netlink::open().unwrap();
    link::set_up(&near, "lo", true).await.unwrap();
    // A bridge between the two, so that the link of this side stays up when the other goes down.
    link::create_bridge(&near, "br0").await.unwrap();
    link::create_veth_pair(&near, "port0", "far0", Some(far)).await.unwrap();
    link::set_master(&near, "port0", Some("br0")).await.unwrap();
    link::add_address(&near, "br0", "10.77.0.1/24".parse().unwrap()).await.unwrap();
    for name in ["port0", "br0"] {
        link::set_up(&near, name, true).await.unwrap();
    }
    let there = Netlink::open_in(far).unwrap();
    link::add_address(&there, "far0", "10.77.0.2/24".parse().unwrap()).await.unwrap();
    link::set_up(&there, "far0", true).await.unwrap();
}
