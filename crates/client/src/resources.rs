//! Reads resources of one machine: one, all of a kind, or every change.

use ichor_wire::cosi::resource::{
    self as wire, Event, EventType, GetRequest, ListRequest, Resource, WatchOptions, WatchRequest,
};
use tonic::{Code, Status, Streaming};

use crate::client::Client;
use crate::definitions::{DEFINITION_NAMESPACE, DEFINITION_TYPE, Definitions};

/// The version of the watch protocol this client speaks.
const WATCH_API_VERSION: i32 = 1;
/// The most resources a list may hold before the client gives up.
const LIST_MAX: usize = 1_000_000;

/// What to read: a kind, or one resource of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The namespace.
    pub namespace: String,
    /// The full type.
    pub resource_type: String,
    /// One resource, or all of the kind.
    pub id: Option<String>,
}

impl Client {
    /// Lists the resource types the target knows, as resources and decoded.
    pub async fn definitions(&self) -> Result<(Vec<Resource>, Definitions), Status> {
        let query = Query {
            namespace: DEFINITION_NAMESPACE.to_owned(),
            resource_type: DEFINITION_TYPE.to_owned(),
            id: None,
        };
        let resources = self.list(&query).await?;
        let specs = resources.iter().map(proto_of);
        let definitions = Definitions::decode(specs)
            .map_err(|error| Status::internal(format!("decode a resource definition: {error}")))?;
        Ok((resources, definitions))
    }

    /// One resource.
    pub async fn get(&self, query: &Query) -> Result<Resource, Status> {
        let request = GetRequest {
            namespace: query.namespace.clone(),
            r#type: query.resource_type.clone(),
            id: query.id.clone().unwrap_or_default(),
            options: None,
        };
        let reply = self.state().get(request).await?.into_inner();
        reply.resource.ok_or_else(|| Status::internal("the reply holds no resource"))
    }

    /// All resources of a kind, or the one the query names.
    pub async fn list(&self, query: &Query) -> Result<Vec<Resource>, Status> {
        if query.id.is_some() {
            return Ok(vec![self.get(query).await?]);
        }
        let request = ListRequest {
            namespace: query.namespace.clone(),
            r#type: query.resource_type.clone(),
            options: None,
        };
        let mut stream = self.state().list(request).await?.into_inner();
        let mut resources = Vec::new();
        while let Some(message) = stream.message().await? {
            if resources.len() == LIST_MAX {
                return Err(Status::resource_exhausted(format!("more than {LIST_MAX} resources")));
            }
            resources.extend(message.resource);
        }
        Ok(resources)
    }

    /// Every change from now on, after what is there already.
    pub async fn watch(&self, query: &Query) -> Result<Watch, Status> {
        let options =
            query.id.is_none().then(|| WatchOptions { bootstrap_contents: true, ..WatchOptions::default() });
        let request = WatchRequest {
            namespace: query.namespace.clone(),
            r#type: query.resource_type.clone(),
            id: query.id.clone(),
            options,
            api_version: WATCH_API_VERSION,
        };
        let mut stream = self.state().watch(request).await?.into_inner();
        // The first message is empty: it says that the watch is set up.
        match stream.message().await? {
            Some(first) => Ok(Watch { stream, queued: first.event.into() }),
            None => Err(Status::new(Code::Unavailable, "the watch ended before it began")),
        }
    }
}

/// A running watch.
pub struct Watch {
    stream: Streaming<wire::WatchResponse>,
    queued: std::collections::VecDeque<Event>,
}

impl Watch {
    /// The next change, or nothing when the watch ended.
    pub async fn next(&mut self) -> Result<Option<Event>, Status> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                if event.event_type() == EventType::Errored {
                    return Err(Status::aborted(event.error.unwrap_or_default()));
                }
                return Ok(Some(event));
            }
            match self.stream.message().await? {
                Some(message) => self.queued.extend(message.event),
                None => return Ok(None),
            }
        }
    }
}

/// The protobuf half of a resource's spec.
pub fn proto_of(resource: &Resource) -> &[u8] {
    resource.spec.as_ref().map(|spec| spec.proto_spec.as_ref()).unwrap_or_default()
}

/// The YAML half of a resource's spec.
pub fn yaml_of(resource: &Resource) -> &str {
    resource.spec.as_ref().map(|spec| spec.yaml_spec.as_str()).unwrap_or_default()
}
