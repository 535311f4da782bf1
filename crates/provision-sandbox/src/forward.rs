//! From the host's loopback to the machines: each connection is copied to its machine's address.
//!
//! The listening sockets were bound in the host's network namespace; the connections to the machines are made in
//! the fleet's, where this code runs.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ichor_provision::Cluster;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use crate::error::SetupError;

/// Ports that are forwarded: the machine API and the Kubernetes API.
pub(crate) const PORTS: [u16; 2] = [50_000, 6443];
/// Connections at a time through one listener; more wait in its queue.
const CONNECTIONS_MAX: usize = 4096;
/// A machine that is up answers or refuses at once; one whose link is still down does neither. The kernel would
/// try again after a second, we do sooner.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a booting machine is waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after an accept that failed, as for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket and where it leads.
#[derive(Debug)]
pub(crate) struct Forward {
    listener: TcpListener,
    target: SocketAddr,
}

/// Binds all of a cluster's sockets in the network namespace of the caller.
pub(crate) fn bind(cluster: &Cluster) -> Result<Vec<Forward>, SetupError> {
    let mut forwards = Vec::new();
    for machine in &cluster.machines {
        for port in PORTS {
            forwards.push(bind_one(machine.loopback, machine.address, port)?);
        }
    }
    Ok(forwards)
}

fn bind_one(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Result<Forward, SetupError> {
    let address = SocketAddr::from((from, port));
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => SetupError::AddressInUse(address),
        _ => SetupError::Step { what: "listen on the loopback address of a machine", source },
    })?;
    listener.set_nonblocking(true).map_err(SetupError::step("make a socket non-blocking"))?;
    Ok(Forward { listener, target: SocketAddr::from((to, port)) })
}

/// Ends the connections of machines that are gone. A machine that is switched off says nothing to those who are
/// connected to it, and a client would wait for it.
#[derive(Debug, Default)]
pub(crate) struct Cuts(HashMap<IpAddr, Arc<Notify>>);

impl Cuts {
    /// Ends all connections to this machine.
    pub(crate) fn cut(&self, machine: Ipv4Addr) {
        if let Some(cut) = self.0.get(&IpAddr::from(machine)) {
            cut.notify_waiters();
        }
    }
}

/// Starts forwarding, in the current runtime.
pub(crate) fn start(forwards: Vec<Forward>) -> Result<Cuts, SetupError> {
    let mut cuts = Cuts::default();
    for forward in forwards {
        let listener = tokio::net::TcpListener::from_std(forward.listener)
            .map_err(SetupError::step("watch a listening socket"))?;
        let cut = cuts.0.entry(forward.target.ip()).or_default().clone();
        tokio::spawn(accept(listener, forward.target, cut));
    }
    Ok(cuts)
}

async fn accept(listener: tokio::net::TcpListener, target: SocketAddr, cut: Arc<Notify>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let cut = cut.clone();
                tokio::spawn(async move {
                    // Either side may break off at any time; that ends the other, and nobody else cares.
                    tokio::select! {
                        _ = carry(client, target) => {}
                        () = cut.notified() => {}
                    }
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn carry(mut client: TcpStream, target: SocketAddr) -> std::io::Result<()> {
    let mut machine = tokio::time::timeout(CONNECT_TIMEOUT, connect(target)).await??;
    client.set_nodelay(true)?;
    machine.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut client, &mut machine).await?;
    Ok(())
}

async fn connect(target: SocketAddr) -> std::io::Result<TcpStream> {
    use std::io::ErrorKind;
    loop {
        match tokio::time::timeout(ATTEMPT_TIMEOUT, TcpStream::connect(target)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == ErrorKind::HostUnreachable => {
                tokio::time::sleep(ATTEMPT_TIMEOUT / 10).await;
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

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_too() {
        let machine = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = machine.local_addr().unwrap();
        let forward = Forward { listener: TcpListener::bind("127.0.0.1:0").unwrap(), target };
        let address = forward.listener.local_addr().unwrap();
        forward.listener.set_nonblocking(true).unwrap();
        start(vec![forward]).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
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
        let machine = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = machine.local_addr().unwrap();
        let forward = Forward { listener: TcpListener::bind("127.0.0.1:0").unwrap(), target };
        let address = forward.listener.local_addr().unwrap();
        forward.listener.set_nonblocking(true).unwrap();
        let cuts = start(vec![forward]).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (_served, _) = machine.accept().await.unwrap();
        cuts.cut(Ipv4Addr::new(127, 0, 0, 9));
        let still = tokio::time::timeout(Duration::from_millis(50), client.read_u8()).await;
        assert!(still.is_err(), "the end of another machine is none of this one's business");
        cuts.cut(Ipv4Addr::LOCALHOST);
        let read = tokio::time::timeout(Duration::from_secs(10), client.read_u8()).await;
        assert!(read.expect("the connection ends").is_err());
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
