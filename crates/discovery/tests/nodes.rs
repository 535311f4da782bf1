//! Nodes that find each other through a service on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ichor_discovery::{Affiliate, Client, Discovery, Local, Options};
use ichor_pki::seal::SealKey;
use ichor_rpc::{Channel, Dialer, Endpoint};
use ichor_testkit::{listen_again, own_loopback};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;

const PATIENCE: Duration = Duration::from_secs(20);

/// A service in a runtime of its own, so that its end is also that of its connections.
fn service(address: SocketAddr) -> (SocketAddr, Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let listener = listen_again(address).await;
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder().add_service(Discovery::start().server());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    });
    (address, Runtime(Some(runtime)))
}

/// Ends without waiting, as a runtime must inside of another.
struct Runtime(Option<tokio::runtime::Runtime>);

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn start_at(address: SocketAddr) -> (SocketAddr, Runtime) {
    tokio::task::spawn_blocking(move || service(address)).await.unwrap()
}

async fn start() -> (SocketAddr, Runtime) {
    start_at((own_loopback(), 0).into()).await
}

/// A node with this name and its running client.
fn node(service: SocketAddr, name: &str, key: u8) -> (Client, JoinHandle<()>) {
    let client = Client::new(Options {
        endpoint: Endpoint::new(service.ip().to_string(), service.port()),
        cluster_id: "cluster".into(),
        affiliate_id: name.into(),
        key: SealKey::new(&[key; 32]).unwrap(),
        version: "v0".into(),
        token: String::new(),
        dial: Arc::new(|endpoint| Channel::new(Dialer::tcp(endpoint.clone()))),
    });
    let endpoints = vec!["10.0.0.1:51820".parse().unwrap()];
    let affiliate =
        Affiliate { node_id: name.into(), nodename: name.into(), endpoints, ..Default::default() };
    client.set_local(Local { affiliate: Some(affiliate), ..Default::default() });
    let running = client.clone();
    (client, tokio::spawn(async move { running.run().await }))
}

async fn until(client: &Client, what: &str, holds: impl Fn(&Client) -> bool) {
    let wait = async {
        while !holds(client) {
            let _ = timeout(Duration::from_millis(100), client.changed()).await;
        }
    };
    timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("{what}: {:?} {:?}", client.affiliates(), client.error()));
}

fn sees(client: &Client, name: &str) -> bool {
    client.affiliates().iter().any(|node| node.nodename == name)
}

#[tokio::test]
async fn two_nodes_find_each_other_and_one_leaves() {
    let (service, _server) = start().await;
    let (one, _one) = node(service, "one", 1);
    let (two, _two) = node(service, "two", 1);
    until(&one, "one sees two", |client| sees(client, "two")).await;
    until(&two, "two sees one", |client| sees(client, "one")).await;
    assert_eq!(one.affiliates()[0].endpoints, ["10.0.0.1:51820".parse().unwrap()]);
    assert_eq!(one.public_ip(), Some("127.0.0.1".parse().unwrap()));

    one.set_local(Local {
        others: [("two".into(), vec!["192.0.2.7:1".parse().unwrap()])].into(),
        ..Default::default()
    });
    until(&one, "one sees what it told of two", |client| client.affiliates()[0].endpoints.len() == 2).await;

    two.delete_local().await.unwrap();
    until(&one, "two is gone", |client| client.affiliates().is_empty()).await;
}

#[tokio::test]
async fn nodes_with_another_key_stay_strangers() {
    let (service, _server) = start().await;
    let (one, _one) = node(service, "one", 1);
    let (_two, _task) = node(service, "two", 2);
    let (_three, _task) = node(service, "three", 1);
    until(&one, "one sees three", |client| sees(client, "three")).await;
    assert!(!sees(&one, "two"));
}

#[tokio::test]
async fn a_service_that_comes_back_empty_is_told_everything_again() {
    let (address, server) = start().await;
    let (one, _one) = node(address, "one", 1);
    let (two, _two) = node(address, "two", 1);
    until(&one, "one sees two", |client| sees(client, "two")).await;
    drop(server);
    until(&one, "one notices", |client| client.error().is_some()).await;
    assert!(sees(&one, "two"), "what was known stays known while the service is away");
    let _server = start_at(address).await;
    until(&two, "two is back", |client| client.error().is_none() && sees(client, "one")).await;
    until(&one, "one is back", |client| client.error().is_none() && sees(client, "two")).await;
}
