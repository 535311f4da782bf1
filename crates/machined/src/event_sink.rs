//! Sends events to the sink of the configuration, in order; only one whose answer got lost is sent twice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use prost_types::Any;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tracing::{info, warn};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, weak};
use ichor_observe::ship::Drain;
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::EventSinkConfig;
use ichor_rpc::{Channel, Dialer, Endpoint};
use ichor_wire::codec::Codec;

use crate::events::{Event, Events, Tail};

/// The one call of the sink.
const PUBLISH: PathAndQuery = PathAndQuery::from_static("/events.EventSinkService/Publish");

/// One event gets this long; then it is tried again.
const LIMIT: Duration = Duration::from_secs(5);

/// The pause after the first failure; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(16);

/// What a sink is sent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventRequest {
    /// The event itself.
    #[prost(message, optional, tag = "1")]
    pub data: Option<Any>,
    /// Its id.
    #[prost(string, tag = "2")]
    pub id: String,
    /// The call that caused it.
    #[prost(string, tag = "3")]
    pub actor_id: String,
}

/// What a sink answers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventResponse {}

impl From<&Event> for EventRequest {
    fn from(event: &Event) -> Self {
        let Any { type_url, value } = event.payload.encode();
        // Sinks know messages by the standard prefix, clients of the API by another.
        let name = type_url.rsplit('/').next().unwrap_or_default();
        let data = Any { type_url: format!("type.googleapis.com/{name}"), value };
        Self { data: Some(data), id: event.id.to_string(), actor_id: event.actor.to_string() }
    }
}

/// Sends events to the endpoint in `EventSinkConfigs`.
pub struct EventsSinkController {
    events: Events,
    drain: Drain,
    /// The id of the last event that a sink took; a new sink goes on from there.
    delivered: Arc<Mutex<Option<String>>>,
    running: Option<(String, JoinHandle<()>)>,
}

impl EventsSinkController {
    /// A controller that sends these events; `drain` knows what is on its way.
    pub fn new(events: Events, drain: Drain) -> Self {
        Self { events, drain, delivered: Arc::default(), running: None }
    }

    fn stop(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
        }
    }
}

impl Drop for EventsSinkController {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Controller for EventsSinkController {
    const NAME: &'static str = "v1alpha1.EventsSinkController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<EventSinkConfig>().id("event-sink"), weak::<NetworkStatus>().id("status")]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<EventSinkConfig>("event-sink")?;
        let wanted = config.as_ref().map(|config| config.endpoint.as_str());
        if self.running.as_ref().map(|(endpoint, _)| endpoint.as_str()) == wanted {
            return Ok(());
        }
        let up = ctx.get::<NetworkStatus>("status")?.is_some_and(|status| status.address_ready);
        if self.running.is_none() && !up {
            return Ok(());
        }
        self.stop();
        let Some(text) = wanted else { return Ok(()) };
        let endpoint = parse(text)
            .ok_or_else(|| ControllerError::new(format!("{text:?} is no event sink; write host:port")))?;
        let sink = Sink {
            endpoint,
            events: self.events.clone(),
            drain: self.drain.clone(),
            delivered: Arc::clone(&self.delivered),
        };
        self.running = Some((text.to_owned(), tokio::spawn(sink.run())));
        Ok(())
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Endpoint::new(host, port))
}

struct Sink {
    endpoint: Endpoint,
    events: Events,
    drain: Drain,
    delivered: Arc<Mutex<Option<String>>>,
}

impl Sink {
    async fn run(self) {
        let mut client = Grpc::new(Channel::new(Dialer::tcp(self.endpoint.clone())));
        loop {
            let last = self.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let mut watch = self.events.watch(&last.map_or(Tail::Count(None), Tail::After), None);
            // Ends when the sink was away for a whole ring of events; what is left of it follows.
            while let Some(event) = watch.next().await {
                self.deliver(&mut client, &event).await;
                let id = event.id.to_string();
                *self.delivered.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
            }
        }
    }

    /// Sends one event, however long that takes. Trouble is told once, and once that it is over.
    async fn deliver(&self, client: &mut Grpc<Channel>, event: &Event) {
        let request = EventRequest::from(event);
        // A sink that is away must not keep a machine from stopping.
        let mut underway = Some(self.drain.begin());
        let (mut pause, mut trouble) = (PAUSE_FIRST, false);
        loop {
            let sent = tokio::time::timeout(LIMIT, publish(client, request.clone()));
            let error = match sent.await {
                Ok(Ok(())) => break,
                Ok(Err(status)) => status.message().to_owned(),
                Err(_) => format!("no answer within {} s", LIMIT.as_secs()),
            };
            underway = None;
            if !trouble {
                warn!(sink = %self.endpoint, error, "events are not taken; trying again");
                trouble = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
        drop(underway);
        if trouble {
            info!(sink = %self.endpoint, "events are taken again");
        }
    }
}

async fn publish(client: &mut Grpc<Channel>, request: EventRequest) -> Result<(), tonic::Status> {
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = Codec::<EventRequest, EventResponse>::default();
    client.unary(tonic::Request::new(request), PUBLISH, codec).await.map(drop)
}

#[cfg(test)]
mod tests;
