//! From the host's loopback to the machines: each connection is copied to its machine's address.
//!
//! The listening sockets were bound in the host's network namespace; the connections to the machines are made in
//! the fleet's, where this code runs.

use std::collections::HashMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_sys::namespace::{self, Namespaces};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

use crate::error::SetupError;

/// Ports that are forwarded: the machine API and the Kubernetes API.
pub(crate) const PORTS: [u16; 2] = [50_000, 6443];
/// Ports of an address whose machine is gone: those, and the one where machines join and find each other.
const STAND_IN_PORTS: [u16; 3] = [50_000, 50_001, 6443];
/// Connections at a time through one listener; more wait in its queue.
const CONNECTIONS_MAX: usize = 4096;
/// The pause after an attempt that found nobody, as a part of the time that an attempt may take.
const PAUSE_PART: u32 = 10;
/// How long a booting machine is waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an accept that failed, as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket of an address.
#[derive(Debug)]
pub(crate) struct Forward {
    listener: TcpListener,
    address: Ipv4Addr,
    port: u16,
}

/// Binds the loopback sockets of these addresses in the network namespace of the caller.
pub(crate) fn bind(addresses: &[Ipv4Addr]) -> Result<Vec<Forward>, SetupError> {
    let mut forwards = Vec::new();
    for address in addresses {
        for port in PORTS {
            forwards.push(bind_one(crate::ipv4::loopback(*address), *address, port)?);
        }
    }
    Ok(forwards)
}

/// The same in another network namespace, on a thread of its own.
pub(crate) fn bind_in(host: &File, addresses: &[Ipv4Addr]) -> Result<Vec<Forward>, SetupError> {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            namespace::enter(host, Namespaces::NET)
                .map_err(SetupError::step("enter the network namespace of the host"))?;
            bind(addresses)
        });
        bound.join().unwrap_or_else(|_| Err(SetupError::step("bind sockets")(std::io::Error::other("panic"))))
    })
}

/// Binds an address itself, whose machine is gone, in the network namespace of the caller.
pub(crate) fn bind_stand_in(address: Ipv4Addr) -> Result<Vec<Forward>, SetupError> {
    STAND_IN_PORTS.into_iter().map(|port| bind_one(address, address, port)).collect()
}

fn bind_one(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Result<Forward, SetupError> {
    let address = SocketAddr::from((from, port));
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => SetupError::AddressInUse(address),
        _ => SetupError::Step { what: "listen on the loopback address of a machine", source },
    })?;
    listener.set_nonblocking(true).map_err(SetupError::step("make a socket non-blocking"))?;
    Ok(Forward { listener, address: to, port })
}

/// Who answers for an address: its machine, or others when that one is gone.
type Targets = Arc<Mutex<Vec<Ipv4Addr>>>;

/// Everything that is forwarded, by address.
#[derive(Debug)]
pub(crate) struct Forwards {
    entries: HashMap<Ipv4Addr, Entry>,
    cuts: Cuts,
    /// A machine that is up accepts or refuses within this time; one whose link is still down does neither. The kernel
    /// would try again after a second, we do sooner.
    attempt: Duration,
}

#[derive(Debug, Default)]
struct Entry {
    targets: Targets,
    tasks: Vec<AbortHandle>,
}

/// Ends the connections of machines that are gone. A machine that is switched off says nothing to those who are
/// connected to it, and a client would wait for it.
#[derive(Clone, Debug, Default)]
struct Cuts(Arc<Mutex<HashMap<Ipv4Addr, Arc<Notify>>>>);

impl Cuts {
    fn of(&self, machine: Ipv4Addr) -> Arc<Notify> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(machine).or_default())
    }
}

impl Forwards {
    /// To machines that accept connections within `attempt` once they are up.
    pub(crate) fn new(attempt: Duration) -> Self {
        Self { entries: HashMap::new(), cuts: Cuts::default(), attempt }
    }

    /// Starts forwarding, in the current runtime.
    pub(crate) fn start(&mut self, forwards: Vec<Forward>) -> Result<(), SetupError> {
        for forward in forwards {
            let listener = tokio::net::TcpListener::from_std(forward.listener)
                .map_err(SetupError::step("watch a listening socket"))?;
            let entry = self.entries.entry(forward.address).or_default();
            let cuts = self.cuts.clone();
            let task = accept(listener, forward.port, Arc::clone(&entry.targets), cuts, self.attempt);
            entry.tasks.push(tokio::spawn(task).abort_handle());
        }
        Ok(())
    }

    /// Those of these addresses that are not forwarded.
    pub(crate) fn missing(&self, addresses: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
        addresses.iter().filter(|address| !self.entries.contains_key(address)).copied().collect()
    }

    /// Forwards these addresses only.
    pub(crate) fn keep(&mut self, addresses: &[Ipv4Addr]) {
        self.entries.retain(|address, entry| {
            let kept = addresses.contains(address);
            if !kept {
                entry.tasks.iter().for_each(AbortHandle::abort);
            }
            kept
        });
    }

    /// Says who answers for an address from now on.
    pub(crate) fn lead(&self, address: Ipv4Addr, targets: Vec<Ipv4Addr>) {
        if let Some(entry) = self.entries.get(&address) {
            *entry.targets.lock().unwrap_or_else(PoisonError::into_inner) = targets;
        }
    }

    /// The tasks of a stand-in, to be ended when the address has a machine again.
    pub(crate) fn stand_in(
        &self,
        forwards: Vec<Forward>,
        address: Ipv4Addr,
    ) -> Result<Vec<AbortHandle>, SetupError> {
        let targets = self.entries.get(&address).map(|entry| Arc::clone(&entry.targets)).unwrap_or_default();
        let start = |forward: Forward| {
            let listener = tokio::net::TcpListener::from_std(forward.listener)
                .map_err(SetupError::step("watch a listening socket"))?;
            let cuts = self.cuts.clone();
            let task = accept(listener, forward.port, Arc::clone(&targets), cuts, self.attempt);
            Ok(tokio::spawn(task).abort_handle())
        };
        forwards.into_iter().map(start).collect()
    }

    /// Ends all connections to this machine.
    pub(crate) fn cut(&self, machine: Ipv4Addr) {
        self.cuts.of(machine).notify_waiters();
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    port: u16,
    targets: Targets,
    cuts: Cuts,
    attempt: Duration,
) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let targets = targets.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let cuts = cuts.clone();
                tokio::spawn(async move {
                    // Either side may break off at any time; that ends the other, and nobody else cares.
                    let _ = carry(client, &targets, port, &cuts, attempt).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Carries a connection to the first that takes it.
async fn carry(
    mut client: TcpStream,
    targets: &[Ipv4Addr],
    port: u16,
    cuts: &Cuts,
    attempt: Duration,
) -> std::io::Result<()> {
    for target in targets {
        let cut = cuts.of(*target);
        let mut cut = std::pin::pin!(cut.notified());
        cut.as_mut().enable();
        let connect = tokio::time::timeout(CONNECT_TIMEOUT, connect((*target, port).into(), attempt));
        let mut machine = tokio::select! {
            connected = connect => match connected {
                Ok(Ok(machine)) => machine,
                _ => continue,
            },
            () = cut.as_mut() => continue,
        };
        client.set_nodelay(true)?;
        machine.set_nodelay(true)?;
        tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut machine) => drop(copied?),
            () = cut => {}
        }
        return Ok(());
    }
    Ok(())
}

async fn connect(target: SocketAddr, attempt: Duration) -> std::io::Result<TcpStream> {
    use std::io::ErrorKind;
    loop {
        match tokio::time::timeout(attempt, TcpStream::connect(target)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == ErrorKind::HostUnreachable => {
                tokio::time::sleep(attempt / PAUSE_PART).await;
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const ATTEMPT: Duration = Duration::from_millis(50);

    /// A machine at `address`, and the way to it.
    async fn machine(address: Ipv4Addr) -> (tokio::net::TcpListener, Forward, SocketAddr) {
        let machine = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
        let port = machine.local_addr().unwrap().port();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let front = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        (machine, Forward { listener, address, port }, front)
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_too() {
        let (machine, forward, front) = machine(Ipv4Addr::LOCALHOST).await;
        let mut forwards = Forwards::new(ATTEMPT);
        forwards.start(vec![forward]).unwrap();
        forwards.lead(Ipv4Addr::LOCALHOST, vec![Ipv4Addr::LOCALHOST]);
        let mut client = TcpStream::connect(front).await.unwrap();
        let (mut served, _) = machine.accept().await.unwrap();
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = String::new();
        served.read_to_string(&mut got).await.unwrap();
        served.write_all(b"pong").await.unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((got.as_str(), answer.as_str()), ("ping", "pong"));
    }

    #[tokio::test]
    async fn the_connections_of_a_machine_end_with_it() {
        let (machine, forward, front) = machine(Ipv4Addr::LOCALHOST).await;
        let mut forwards = Forwards::new(ATTEMPT);
        forwards.start(vec![forward]).unwrap();
        forwards.lead(Ipv4Addr::LOCALHOST, vec![Ipv4Addr::LOCALHOST]);
        let mut client = TcpStream::connect(front).await.unwrap();
        let (_served, _) = machine.accept().await.unwrap();
        forwards.cut(Ipv4Addr::new(127, 0, 0, 9));
        let still = tokio::time::timeout(Duration::from_millis(50), client.read_u8()).await;
        assert!(still.is_err(), "the end of another machine is none of this one's business");
        forwards.cut(Ipv4Addr::LOCALHOST);
        let read = tokio::time::timeout(Duration::from_secs(10), client.read_u8()).await;
        assert!(read.expect("the connection ends").is_err());
    }

    #[tokio::test]
    async fn others_answer_for_a_machine_that_is_gone() {
        let (gone, left) = (Ipv4Addr::new(127, 0, 0, 8), Ipv4Addr::LOCALHOST);
        let (machine, mut forward, front) = machine(left).await;
        forward.address = gone;
        let mut forwards = Forwards::new(ATTEMPT);
        forwards.start(vec![forward]).unwrap();
        assert!(forwards.missing(&[gone, left]) == [left]);
        // The first of them does not listen.
        forwards.lead(gone, vec![gone, left]);
        let mut client = TcpStream::connect(front).await.unwrap();
        let (mut served, _) = machine.accept().await.unwrap();
        served.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        forwards.cut(left);
        let read = tokio::time::timeout(Duration::from_secs(10), client.read_u8()).await;
        assert!(read.expect("the connection ends with who answered").is_err());
        forwards.keep(&[]);
        let ended = || async { TcpStream::connect(front).await.is_err() };
        for _ in 0..200 {
            if ended().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("an address that is not forwarded any more is still listened on");
    }

    #[test]
    fn a_busy_address_is_named() {
        let taken = TcpListener::bind("127.77.0.9:50000").unwrap();
        let error = bind_one(Ipv4Addr::new(127, 77, 0, 9), Ipv4Addr::LOCALHOST, 50_000).unwrap_err();
        drop(taken);
        assert_eq!(
            error.sentence(),
            "address 127.77.0.9:50000 is in use by another program; stop it, or choose another network with --cidr"
        );
    }
}
