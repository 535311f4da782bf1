//! One call to fifty nodes through one gateway. The nodes are servers of this program on the bridge of a live machine.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use ichor_live::{Fleet, processes};
use ichor_pki::Leaf;
use ichor_rpc::server::{Limits, serve_tls};
use ichor_rpc::{Channel, Dialer, ServerTls};
use ichor_wire::machine as api;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{LARGE_KIB_MAX, PORT, SOON, admin, endpoint, inside, inside_of};

const OCTET: u8 = 87;
const NODES: u8 = 50;
/// All answers are there within this.
const FANOUT_MAX: Duration = Duration::from_millis(200);

/// Answers every call as a node answers `Version`.
async fn answer<B>(
    _: Request<B>,
) -> Result<Response<impl http_body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let version = api::VersionInfo { tag: "v1.12.1".into(), ..Default::default() };
    let message = api::Version { version: Some(version), ..Default::default() };
    let message = api::VersionResponse { messages: vec![message] }.encode_to_vec();
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    body.extend(message);
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(trailers))));
    Ok(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
}

#[test]
fn fifty_nodes_answer_through_one_small_gateway() {
    let fleet = Fleet::create("fanout", OCTET, 1, 0, &[]).unwrap();
    let apid = fleet.daemon("apid").unwrap().pid;
    let (endpoint, tls, authority) = (endpoint(&fleet), admin(&fleet), fleet.authority());
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let bridge = processes::with_argument(fleet.name())
        .into_iter()
        .map(|process| process.pid)
        .find(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|net| net != own));
    let bridge = bridge.expect("the supervisor with the bridge");
    // All addresses of the upper half are the bridge's own.
    let mut addresses = Command::new("nsenter");
    addresses.arg(format!("--net=/proc/{bridge}/ns/net")).args(["ip", "route", "add", "local"]);
    let done = addresses.args([&format!("10.{OCTET}.0.128/25"), "dev", "lo"]).status().unwrap();
    assert!(done.success());

    let targets: Vec<Ipv4Addr> = (0..NODES).map(|number| Ipv4Addr::new(10, OCTET, 0, 150 + number)).collect();
    let (listening, heard) = tokio::sync::oneshot::channel();
    let stop = CancellationToken::new();
    let before = processes::peak(apid).unwrap();
    let times = std::thread::scope(|scope| {
        let servers = scope.spawn(|| {
            inside_of(bridge, || async {
                for address in &targets {
                    let leaf = Leaf::server("node").with_names([""; 0], [IpAddr::from(*address)]);
                    let pair = authority.issue(&leaf, jiff::Timestamp::now()).unwrap();
                    let tls = ServerTls::new();
                    tls.set_certificate(&pair.crt, &pair.key).unwrap();
                    tls.set_accepted(authority.crt_pem()).unwrap();
                    let listener = TcpListener::bind((*address, PORT)).await.unwrap();
                    let config = tls.mutual().unwrap();
                    tokio::spawn(serve_tls(listener, config, Limits::default(), stop.clone(), |_| {
                        service_fn(answer)
                    }));
                }
                listening.send(()).unwrap();
                stop.cancelled().await;
            });
        });
        let times = inside(&fleet, || async {
            timeout(SOON, heard).await.expect("in time").expect("the nodes listen");
            let mut times = Vec::new();
            let mut client = MachineServiceClient::new(Channel::new(Dialer::tls([endpoint.clone()], tls)));
            // The first makes fifty connections. Nodes, gateway and caller share the host: the best one counts.
            for _ in 0..30 {
                if times.len() > 5 && times.iter().any(|time| *time <= FANOUT_MAX) {
                    break;
                }
                let mut request = tonic::Request::new(());
                for target in &targets {
                    request.metadata_mut().append("nodes", target.to_string().parse().unwrap());
                }
                let start = Instant::now();
                let reply = timeout(SOON, client.version(request)).await.expect("in time");
                times.push(start.elapsed());
                let messages = reply.expect("an answer").into_inner().messages;
                assert_eq!(messages.len(), usize::from(NODES));
                for message in messages {
                    assert!(message.version.is_some(), "{message:?}");
                }
            }
            times
        });
        stop.cancel();
        servers.join().unwrap();
        times
    });
    let peak = processes::peak(apid).unwrap();
    let best = times.iter().min().unwrap();
    println!(
        "{NODES} nodes through one gateway: {:?} with their connections, then {best:?} at best; apid had {peak} KiB at \
         most ({before} before)",
        times[0]
    );
    assert!(*best <= FANOUT_MAX, "{times:?}");
    assert!(peak <= LARGE_KIB_MAX, "apid: {peak} KiB, {LARGE_KIB_MAX} at most");
    assert_eq!(fleet.daemon("apid").unwrap().pid, apid, "the gateway was restarted");
    fleet.destroy().unwrap();
}
