//! A sink on loopback that is away at first and comes back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::Poll;

use ichor_testkit::{Harness, listen_again};
use ichor_wire::machine;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::server::{Grpc as Server, NamedService, UnaryService};

use super::*;

#[derive(Clone)]
struct Receiver(mpsc::Sender<EventRequest>);

impl NamedService for Receiver {
    const NAME: &'static str = "events.EventSinkService";
}

impl UnaryService<EventRequest> for Receiver {
    type Response = EventResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<EventResponse>, tonic::Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<EventRequest>) -> Self::Future {
        let sender = self.0.clone();
        Box::pin(async move {
            sender.send(request.into_inner()).await.unwrap();
            Ok(tonic::Response::new(EventResponse {}))
        })
    }
}

impl tower::Service<http::Request<Body>> for Receiver {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let receiver = self.clone();
        Box::pin(async move {
            let mut server = Server::new(Codec::<EventResponse, EventRequest>::default());
            Ok(server.unary(receiver, request).await)
        })
    }
}

async fn next(received: &mut mpsc::Receiver<EventRequest>) -> i64 {
    let event = tokio::time::timeout(Duration::from_secs(20), received.recv()).await.unwrap().unwrap();
    let data = event.data.unwrap();
    assert_eq!(data.type_url, "type.googleapis.com/machine.RestartEvent");
    assert!(!event.id.is_empty());
    machine::RestartEvent::decode(&data.value[..]).unwrap().cmd
}

#[tokio::test]
async fn events_reach_a_sink_that_comes_late_in_order() {
    // A free port that nobody listens on yet.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (state, _) = ichor_testkit::state();
    let events = Events::default();
    for cmd in 1..=3 {
        events.publish(machine::RestartEvent { cmd });
    }
    state
        .modify::<EventSinkConfig>("runtime", "event-sink", "", |spec| spec.endpoint = address.to_string())
        .unwrap();
    let drain = Drain::default();
    let mut harness = Harness::new(&state, EventsSinkController::new(events.clone(), drain.clone())).unwrap();
    harness.reconcile().await.unwrap();
    assert!(harness.controller.running.is_none(), "not before there are addresses");
    state.modify::<NetworkStatus>("network", "status", "", |spec| spec.address_ready = true).unwrap();
    harness.reconcile().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Nobody is there, so nothing is worth waiting for.
    drain.settled(Duration::from_secs(1)).await;

    let listener = listen_again(address).await;
    let (sender, mut received) = mpsc::channel(16);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder().add_service(Receiver(sender));
    let serving = tokio::spawn(server.serve_with_incoming(incoming));
    for cmd in 1..=3 {
        assert_eq!(next(&mut received).await, cmd);
    }
    events.publish(machine::RestartEvent { cmd: 4 });
    assert_eq!(next(&mut received).await, 4);

    // Another sink goes on after what the first one is known to have taken.
    drain.settled(Duration::from_secs(10)).await;
    state
        .modify::<EventSinkConfig>("runtime", "event-sink", "", |spec| spec.endpoint = "nowhere".into())
        .unwrap();
    let error = harness.reconcile().await.unwrap_err();
    assert_eq!(error.to_string(), "\"nowhere\" is no event sink; write host:port");
    state
        .modify::<EventSinkConfig>("runtime", "event-sink", "", |spec| {
            spec.endpoint = format!("localhost:{}", address.port());
        })
        .unwrap();
    harness.reconcile().await.unwrap();
    events.publish(machine::RestartEvent { cmd: 5 });
    assert_eq!(next(&mut received).await, 5);
    serving.abort();
}

#[test]
fn endpoints_are_host_and_port() {
    assert_eq!(parse("[fd00::1]:443"), Some(Endpoint::new("fd00::1", 443)));
    assert_eq!(parse("sink.example:80"), Some(Endpoint::new("sink.example", 80)));
    for bad in ["", "a", "a:", ":1", "a:0", "a:99999"] {
        assert!(parse(bad).is_none(), "{bad}");
    }
}
