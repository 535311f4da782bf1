//! Listens for questions over UDP and TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::forward::Forwarder;
use super::message::SIZE_MAX;

/// Questions under way at once, per listener; what comes on top is dropped, as a full socket would.
const QUESTIONS_MAX: usize = 256;
/// TCP connections at once.
const CONNECTIONS_MAX: usize = 64;
/// Connections waiting to be accepted.
const BACKLOG: u32 = 64;
const READ_TIMEOUT: Duration = Duration::from_secs(3);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// Datagrams.
    Udp(UdpSocket),
    /// Connections.
    Tcp(TcpListener),
}

impl Listener {
    /// Binds a UDP socket whose answers live for `hops` hops.
    pub async fn udp(address: SocketAddr, hops: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        socket.set_ttl(hops)?;
        Ok(Self::Udp(socket))
    }

    /// Binds a TCP socket whose answers live for `hops` hops.
    pub fn tcp(address: SocketAddr, hops: u32) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        listener.set_ttl(hops)?;
        Ok(Self::Tcp(listener))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Udp(socket) => socket.local_addr(),
            Self::Tcp(listener) => listener.local_addr(),
        }
    }
}

/// Answers questions until dropped; returns only when the socket fails.
pub async fn serve(listener: Listener, forwarder: Arc<Forwarder>) -> io::Error {
    match listener {
        Listener::Udp(socket) => serve_udp(Arc::new(socket), forwarder).await,
        Listener::Tcp(listener) => serve_tcp(listener, forwarder).await,
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, forwarder: Arc<Forwarder>) -> io::Error {
    let slots = Arc::new(Semaphore::new(QUESTIONS_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    let mut buffer = vec![0; SIZE_MAX];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // A client that went away; not ours to fail for.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return error,
        };
        while tasks.try_join_next().is_some() {}
        let Ok(slot) = slots.clone().try_acquire_owned() else { continue };
        let question = buffer[..length].to_vec();
        let (socket, forwarder) = (socket.clone(), forwarder.clone());
        tasks.spawn(async move {
            if let Some(answer) = forwarder.answer(&question, true).await {
                let _ = timeout(WRITE_TIMEOUT, socket.send_to(&answer, from)).await;
            }
            drop(slot);
        });
    }
}

async fn serve_tcp(listener: TcpListener, forwarder: Arc<Forwarder>) -> io::Error {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return io::Error::other("semaphore closed");
        };
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let forwarder = forwarder.clone();
                tasks.spawn(async move {
                    let _ = serve_stream(stream, &forwarder).await;
                    drop(slot);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return error,
        }
    }
}

/// Questions and answers, each with its length before it.
async fn serve_stream(mut stream: TcpStream, forwarder: &Forwarder) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let length = timeout(IDLE_TIMEOUT, stream.read_u16()).await??;
        let mut question = vec![0; length.into()];
        timeout(READ_TIMEOUT, stream.read_exact(&mut question)).await??;
        let Some(answer) = forwarder.answer(&question, false).await else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let bytes = [&length.to_be_bytes()[..], &answer].concat();
        timeout(WRITE_TIMEOUT, stream.write_all(&bytes)).await??;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::message::tests::{answer, question};
    use super::super::message::{code, is_truncated, result_code};
    use super::*;

    const HERE: &str = "127.0.0.1:0";

    /// An upstream that answers everything after a while, and counts.
    async fn upstream(result: u8, delay: Duration) -> (SocketAddr, Arc<AtomicU32>) {
        let socket = Arc::new(UdpSocket::bind(HERE).await.unwrap());
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let counter = asked.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                let mut response = answer(&buffer[..length], 60, [10, 0, 0, 1]);
                response[3] = result;
                let socket = socket.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    socket.send_to(&response, from).await.unwrap();
                });
            }
        });
        (address, asked)
    }

    async fn cache_of(upstreams: Vec<SocketAddr>) -> (SocketAddr, SocketAddr) {
        let forwarder = Arc::new(Forwarder::default());
        forwarder.set_upstreams(upstreams);
        let udp = Listener::udp(HERE.parse().unwrap(), 1).await.unwrap();
        let tcp = Listener::tcp(HERE.parse().unwrap(), 1).unwrap();
        let addresses = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
        tokio::spawn(serve(udp, forwarder.clone()));
        tokio::spawn(serve(tcp, forwarder));
        addresses
    }

    async fn ask(server: SocketAddr, id: u16, name: &str) -> Vec<u8> {
        let socket = UdpSocket::bind(HERE).await.unwrap();
        socket.connect(server).await.unwrap();
        socket.send(&question(id, name)).await.unwrap();
        let mut buffer = [0; 4096];
        let length = timeout(Duration::from_secs(60), socket.recv(&mut buffer)).await.unwrap().unwrap();
        buffer[..length].to_vec()
    }

    #[tokio::test]
    async fn the_second_question_is_answered_from_memory() {
        let (address, asked) = upstream(code::NO_ERROR, Duration::ZERO).await;
        let (udp, tcp) = cache_of(vec![address]).await;
        let first = ask(udp, 7, "example.org").await;
        assert_eq!(first[..2], [0, 7]);
        assert_eq!(first[first.len() - 4..], [10, 0, 0, 1]);
        let second = ask(udp, 8, "EXAMPLE.org").await;
        assert_eq!(second[..2], [0, 8]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);

        let mut stream = TcpStream::connect(tcp).await.unwrap();
        let bytes = question(9, "example.org");
        stream.write_u16(bytes.len() as u16).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut third = vec![0; length.into()];
        stream.read_exact(&mut third).await.unwrap();
        assert_eq!(third[..2], [0, 9]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failing_upstream_is_passed_over() {
        let (bad, _) = upstream(code::SERVER_FAILURE, Duration::ZERO).await;
        let (good, _) = upstream(code::NO_ERROR, Duration::ZERO).await;
        let (udp, _) = cache_of(vec![bad, good]).await;
        assert_eq!(result_code(&ask(udp, 1, "example.org").await), code::NO_ERROR);
    }

    #[tokio::test]
    async fn without_upstreams_the_answer_is_a_failure() {
        let (udp, _) = cache_of(Vec::new()).await;
        let response = ask(udp, 1, "example.org").await;
        assert_eq!(result_code(&response), code::SERVER_FAILURE);
        assert!(!is_truncated(&response));
    }

    #[tokio::test]
    async fn a_flood_of_questions_is_bounded_and_the_server_lives_on() {
        let (slow, _) = upstream(code::NO_ERROR, Duration::from_millis(20)).await;
        let (udp, _) = cache_of(vec![slow]).await;
        let socket = UdpSocket::bind(HERE).await.unwrap();
        socket.connect(udp).await.unwrap();
        for n in 0..2000_u16 {
            socket.send(&question(n, &format!("host-{n}.example.org"))).await.unwrap();
            socket.send(&[0; 5]).await.unwrap();
        }
        // What came on top was dropped, perhaps this one too: a client asks again.
        for _ in 0..40 {
            let answer = timeout(Duration::from_millis(500), ask(udp, 1, "alive.example.org")).await;
            if answer.is_ok_and(|answer| result_code(&answer) == code::NO_ERROR) {
                return;
            }
        }
        panic!("no answer after the flood");
    }

    #[tokio::test]
    async fn members_are_answered_without_asking_anyone() {
        let forwarder = Forwarder::default();
        let addresses = vec!["10.5.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        forwarder.set_members(std::collections::BTreeMap::from([("node-1".to_owned(), addresses)]));
        let answer = forwarder.answer(&question(5, "NODE-1"), true).await.unwrap();
        assert_eq!(result_code(&answer), code::NO_ERROR);
        assert_eq!((answer[2] & 4, answer[7]), (4, 1), "one record, with authority");
        assert_eq!(answer[answer.len() - 4..], [10, 5, 0, 2]);
        let mut other = question(6, "node-1");
        let kind = other.len() - 3;
        other[kind] = 28;
        let answer = forwarder.answer(&other, true).await.unwrap();
        assert_eq!(answer[answer.len() - 2..], [0, 2]);
        let unknown = forwarder.answer(&question(7, "node-2"), true).await.unwrap();
        assert_eq!(result_code(&unknown), code::SERVER_FAILURE);
    }

    #[tokio::test]
    async fn a_dead_upstream_is_told_once_and_asked_last() {
        // Nobody listens there any more: the kernel says so at once.
        let dead = UdpSocket::bind(HERE).await.unwrap().local_addr().unwrap();
        let (good, asked) = upstream(code::NO_ERROR, Duration::ZERO).await;
        let forwarder = Forwarder::default();
        let turned = Arc::new(AtomicU32::new(0));
        let count = turned.clone();
        forwarder.on_health(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        forwarder.set_upstreams(vec![dead, good]);
        assert_eq!(forwarder.order(), [dead, good]);
        for n in 0..4 {
            forwarder.answer(&question(n, &format!("host-{n}.example.org")), true).await.unwrap();
        }
        let trouble = forwarder.trouble(dead).unwrap();
        assert!(trouble.starts_with("does not answer"), "{trouble}");
        assert_eq!((forwarder.trouble(good), turned.load(Ordering::Relaxed)), (None, 1));
        assert_eq!(forwarder.order(), [good, dead]);
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    }
}
