//! Following one resource over the State service, through restarts of the server.

use std::time::Duration;

use bytes::Bytes;
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::cosi::resource::{Event, EventType, WatchRequest};
use tokio::time::sleep;
use tonic::Status;
use tracing::debug;

use crate::channel::Channel;

/// The first wait after a lost watch; it doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_millis(250);

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
    let mut wait = RETRY_FIRST;
    loop {
        let mut heard = false;
        let lost = watch(&channel, watched, |spec| {
            heard = true;
            changed(spec);
        })
        .await;
        if heard {
            wait = RETRY_FIRST;
        }
        debug!(kind = watched.kind, id = watched.id, status = %lost, "watch lost");
        sleep(wait).await;
        wait = (wait * 2).min(RETRY_LAST);
    }
}

/// One watch until it ends.
async fn watch(channel: &Channel, watched: Watched, mut changed: impl FnMut(Bytes)) -> Status {
    let request = WatchRequest {
        namespace: watched.namespace.to_owned(),
        r#type: watched.kind.to_owned(),
        id: Some(watched.id.to_owned()),
        options: None,
        api_version: 1,
    };
    let mut stream = match StateClient::new(channel.clone()).watch(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    loop {
        match stream.message().await {
            Ok(Some(message)) => message.event.into_iter().filter_map(spec).for_each(&mut changed),
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
