//! Following resources over the State service, through restarts of the server: one of them, or all of a type.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::cosi::resource::{Event, EventType, WatchOptions, WatchRequest};
use tokio::time::sleep;
use tonic::{Status, Streaming};
use tracing::debug;

use crate::channel::Channel;

/// The first wait after a lost watch; it doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_millis(250);

/// Resources of one type that are kept; more than any cluster has of those that are followed.
const ALL_MAX: usize = 8192;

/// A resource by name.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// Namespace.
    pub namespace: &'static str,
    /// Type.
    pub kind: &'static str,
    /// Id.
    pub id: &'static str,
}

/// Calls `changed` with the protobuf form of the spec now and on every change, for ever.
///
/// When the server goes away the last value stands, and the watch is begun again with bounded waits.
/// A resource that is destroyed changes nothing either: what was known last is what there is.
pub async fn follow(channel: Channel, watched: Watched, mut changed: impl FnMut(Bytes)) {
    let request = WatchRequest {
        namespace: watched.namespace.to_owned(),
        r#type: watched.kind.to_owned(),
        id: Some(watched.id.to_owned()),
        options: None,
        api_version: 1,
    };
    let mut retry = Retry::default();
    loop {
        let lost = watch(&channel, request.clone(), |event| {
            if let Some(spec) = spec(event) {
                retry = Retry::default();
                changed(spec);
            }
            Ok(())
        })
        .await;
        debug!(kind = watched.kind, id = watched.id, status = %lost, "watch lost");
        retry.pause().await;
    }
}

/// Calls `changed` with the protobuf forms of all specs of a type, by id, now and on every change, for ever.
///
/// When the server goes away the last values stand until a new watch has shown all there are.
pub async fn follow_all(
    channel: Channel,
    namespace: &'static str,
    kind: &'static str,
    mut changed: impl FnMut(&BTreeMap<String, Bytes>),
) {
    let request = WatchRequest {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        id: None,
        options: Some(WatchOptions { bootstrap_contents: true, ..WatchOptions::default() }),
        api_version: 1,
    };
    let mut retry = Retry::default();
    loop {
        let mut all = Collection::default();
        let lost = watch(&channel, request.clone(), |event| {
            if all.take(event)? {
                retry = Retry::default();
                changed(&all.specs);
            }
            Ok(())
        })
        .await;
        debug!(kind, status = %lost, "watch lost");
        retry.pause().await;
    }
}

/// All resources of a type, as events tell of them.
#[derive(Default)]
struct Collection {
    specs: BTreeMap<String, Bytes>,
    /// All that were there when the watch began have been seen.
    is_whole: bool,
}

impl Collection {
    /// Takes an event; whether there is something new to tell.
    fn take(&mut self, event: Event) -> Result<bool, Status> {
        let kind = event.event_type();
        match kind {
            EventType::Bootstrapped => self.is_whole = true,
            EventType::Errored => return Err(Status::aborted("the server ended the watch")),
            EventType::Noop => return Ok(false),
            EventType::Created | EventType::Updated | EventType::Destroyed => {
                let Some(resource) = event.resource else { return Ok(false) };
                let id = resource.metadata.map(|metadata| metadata.id).unwrap_or_default();
                match resource.spec.filter(|_| kind != EventType::Destroyed) {
                    Some(spec) if self.specs.len() < ALL_MAX || self.specs.contains_key(&id) => {
                        self.specs.insert(id, spec.proto_spec);
                    }
                    Some(_) => {}
                    None => _ = self.specs.remove(&id),
                }
            }
        }
        Ok(self.is_whole)
    }
}

/// Waits between watches.
struct Retry(Duration);

impl Default for Retry {
    fn default() -> Self {
        Self(RETRY_FIRST)
    }
}

impl Retry {
    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_LAST);
    }
}

/// One watch until it ends.
async fn watch(
    channel: &Channel,
    request: WatchRequest,
    mut take: impl FnMut(Event) -> Result<(), Status>,
) -> Status {
    let mut stream: Streaming<_> = match StateClient::new(channel.clone()).watch(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    loop {
        match stream.message().await {
            Ok(Some(message)) => {
                if let Err(ended) = message.event.into_iter().try_for_each(&mut take) {
                    return ended;
                }
            }
            Ok(None) => return Status::unavailable("the watch ended"),
            Err(status) => return status,
        }
    }
}

/// The spec an event leaves behind.
fn spec(event: Event) -> Option<Bytes> {
    match event.event_type() {
        EventType::Created | EventType::Updated => Some(event.resource?.spec?.proto_spec),
        EventType::Destroyed | EventType::Bootstrapped | EventType::Errored | EventType::Noop => None,
    }
}

#[cfg(test)]
mod tests {
    use ichor_wire::cosi::resource::{Metadata, Resource, Spec};

    use super::*;

    fn event(kind: EventType, id: &str, spec: &'static str) -> Event {
        let metadata = Some(Metadata { id: id.to_owned(), ..Metadata::default() });
        let spec = Some(Spec { proto_spec: Bytes::from_static(spec.as_bytes()), yaml_spec: String::new() });
        let mut event = Event { resource: Some(Resource { metadata, spec }), ..Event::default() };
        event.set_event_type(kind);
        event
    }

    #[test]
    fn a_collection_is_told_once_it_is_whole_and_on_every_change() {
        let mut all = Collection::default();
        assert!(!all.take(event(EventType::Created, "a", "1")).unwrap(), "more may follow");
        assert!(!all.take(event(EventType::Created, "b", "2")).unwrap());
        assert!(all.take(event(EventType::Bootstrapped, "", "")).unwrap());
        assert!(all.take(event(EventType::Updated, "a", "3")).unwrap());
        assert!(all.take(event(EventType::Destroyed, "b", "2")).unwrap());
        assert!(!all.take(event(EventType::Noop, "", "")).unwrap());
        assert_eq!(all.specs, BTreeMap::from([("a".to_owned(), Bytes::from_static(b"3"))]));
        all.take(event(EventType::Errored, "", "")).expect_err("the watch is over");
    }

    #[test]
    fn a_collection_is_bounded() {
        let mut all = Collection::default();
        for number in 0..2 * ALL_MAX {
            all.take(event(EventType::Created, &number.to_string(), "")).unwrap();
        }
        assert_eq!(all.specs.len(), ALL_MAX);
    }
}
