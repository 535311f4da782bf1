//! A state at the other end of a gRPC channel: typed reads and watches for programs that are not
//! the owner of the state, and all calls of a state for those that may write.

use std::sync::Arc;

use ichor_resource::{DecodeError, Kind, Phase, RawSpec, Resource, Spec, TypedSpec};
use ichor_wire::cosi::resource as wire;
use ichor_wire::cosi::resource::state_client::StateClient;
use tonic::client::GrpcService;
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::{Code, Status, Streaming};

use crate::core_state::{CoreState, EventSource};
use crate::decode;
use crate::error::{ErrorClass, StateError};
use crate::event::{Bookmark, Event, EventKind};
use crate::query::{LabelOp, Query};
use crate::typed::Typed;
use crate::watch::{WatchIdOptions, WatchOptions};

/// Clients of this version understand all events.
const API_VERSION: i32 = 1;

type Decode = fn(&wire::Spec) -> Result<Arc<dyn Spec>, DecodeError>;

fn raw(spec: &wire::Spec) -> Result<Arc<dyn Spec>, DecodeError> {
    Ok(Arc::new(RawSpec { proto: spec.proto_spec.clone(), yaml: spec.yaml_spec.clone() }))
}

fn typed<T: TypedSpec>(spec: &wire::Spec) -> Result<Arc<dyn Spec>, DecodeError> {
    Ok(Arc::new(T::decode_proto(&spec.proto_spec)?))
}

/// A state behind a channel. Cheap to clone when the channel is.
#[derive(Debug, Clone)]
pub struct RemoteState<S> {
    client: StateClient<S>,
}

impl<S> RemoteState<S>
where
    S: GrpcService<tonic::body::Body> + Clone + Send + Sync,
    S::Error: Into<StdError>,
    S::Future: Send,
    S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    /// A state behind this channel.
    pub fn new(channel: S) -> Self {
        Self { client: StateClient::new(channel) }
    }

    /// The resource, if it is there.
    pub async fn get_typed<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
    ) -> Result<Option<Typed<T>>, StateError> {
        let kind = kind_of::<T>(namespace);
        match self.get_as(&kind, id, typed::<T>).await {
            Ok(resource) => Ok(Typed::new(resource)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All resources of the kind, sorted by id.
    pub async fn list_typed<T: TypedSpec>(&self, namespace: &str) -> Result<Vec<Typed<T>>, StateError> {
        let kind = kind_of::<T>(namespace);
        let list = self.list_as(&kind, &Query::default(), typed::<T>).await?;
        Ok(list.into_iter().filter_map(Typed::new).collect())
    }

    /// Follows a kind. The resources of its events hold a `T`, tombstones aside.
    pub async fn watch_typed<T: TypedSpec>(
        &self,
        namespace: &str,
        options: WatchOptions,
    ) -> Result<RemoteWatch, StateError> {
        let kind = kind_of::<T>(namespace);
        self.watch_kind_as(&kind, options, typed::<T>).await
    }

    /// Follows one id; the first event tells what is there.
    pub async fn watch_id_typed<T: TypedSpec>(
        &self,
        namespace: &str,
        id: &str,
    ) -> Result<RemoteWatch, StateError> {
        let kind = kind_of::<T>(namespace);
        self.watch_id_as(&kind, id, &WatchIdOptions::default(), typed::<T>).await
    }

    async fn get_as(&self, kind: &Arc<Kind>, id: &str, spec: Decode) -> Result<Arc<Resource>, StateError> {
        let request = wire::GetRequest {
            namespace: kind.namespace().to_owned(),
            r#type: kind.type_name().to_owned(),
            id: id.to_owned(),
            options: None,
        };
        let reply = self.client.clone().get(request).await;
        let reply = reply.map_err(|status| failure(Call::Read, &status))?;
        read(reply.into_inner().resource, kind, spec)
    }

    async fn list_as(
        &self,
        kind: &Arc<Kind>,
        query: &Query,
        spec: Decode,
    ) -> Result<Vec<Arc<Resource>>, StateError> {
        let request = wire::ListRequest {
            namespace: kind.namespace().to_owned(),
            r#type: kind.type_name().to_owned(),
            options: Some(wire::ListOptions { label_query: label_queries(query), id_query: id_query(query) }),
        };
        let reply = self.client.clone().list(request).await;
        let mut stream = reply.map_err(|status| failure(Call::Read, &status))?.into_inner();
        let mut out = Vec::new();
        while let Some(message) = stream.message().await.map_err(|status| failure(Call::Read, &status))? {
            out.push(read(message.resource, kind, spec)?);
        }
        Ok(out)
    }

    async fn watch_kind_as(
        &self,
        kind: &Arc<Kind>,
        options: WatchOptions,
        spec: Decode,
    ) -> Result<RemoteWatch, StateError> {
        let wire_options = wire::WatchOptions {
            bootstrap_contents: options.bootstrap,
            tail_events: i32::try_from(options.tail_events).unwrap_or(i32::MAX),
            label_query: label_queries(&options.query),
            id_query: id_query(&options.query),
            aggregated: true,
            start_from_bookmark: options.bookmark.map(|mark| mark.to_bytes().to_vec()),
            bootstrap_bookmark: options.bootstrap_bookmark,
        };
        self.open(kind, None, wire_options, spec).await
    }

    async fn watch_id_as(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        options: &WatchIdOptions,
        spec: Decode,
    ) -> Result<RemoteWatch, StateError> {
        let wire_options = wire::WatchOptions {
            tail_events: i32::try_from(options.tail_events).unwrap_or(i32::MAX),
            start_from_bookmark: options.bookmark.map(|mark| mark.to_bytes().to_vec()),
            ..wire::WatchOptions::default()
        };
        self.open(kind, Some(id.to_owned()), wire_options, spec).await
    }

    async fn open(
        &self,
        kind: &Arc<Kind>,
        id: Option<String>,
        options: wire::WatchOptions,
        spec: Decode,
    ) -> Result<RemoteWatch, StateError> {
        let request = wire::WatchRequest {
            namespace: kind.namespace().to_owned(),
            r#type: kind.type_name().to_owned(),
            id,
            options: Some(options),
            api_version: API_VERSION,
        };
        let reply = self.client.clone().watch(request).await;
        let mut stream = reply.map_err(|status| failure(Call::Watch, &status))?.into_inner();
        // The first message is empty and says that the watch is set up.
        let greeting = stream.message().await;
        greeting.map_err(|status| failure(Call::Watch, &status))?;
        Ok(RemoteWatch { stream, kind: kind.clone(), spec, ended: false })
    }
}

/// Events from the other end. Ends with an `Errored` event when the channel breaks.
#[derive(Debug)]
pub struct RemoteWatch {
    stream: Streaming<wire::WatchResponse>,
    kind: Arc<Kind>,
    spec: Decode,
    ended: bool,
}

impl RemoteWatch {
    /// The events of the next message; `None` after an `Errored` one.
    pub async fn next_batch(&mut self) -> Option<Vec<Event>> {
        while !self.ended {
            let batch = match self.stream.message().await {
                Ok(Some(message)) => {
                    message.event.iter().map(|event| self.event(event)).collect::<Result<Vec<_>, _>>()
                }
                Ok(None) => Err("the server ended the watch".to_owned()),
                Err(status) => Err(status.to_string()),
            };
            match batch {
                Ok(batch) => {
                    self.ended = batch.iter().any(|event| event.kind == EventKind::Errored);
                    if !batch.is_empty() {
                        return Some(batch);
                    }
                }
                Err(text) => {
                    self.ended = true;
                    let mut event = Event::tombstone(EventKind::Errored, &self.kind, "");
                    event.error = Some(text.into());
                    return Some(vec![event]);
                }
            }
        }
        None
    }

    fn event(&self, event: &wire::Event) -> Result<Event, String> {
        let kind = match event.event_type() {
            wire::EventType::Created => EventKind::Created,
            wire::EventType::Updated => EventKind::Updated,
            wire::EventType::Destroyed => EventKind::Destroyed,
            wire::EventType::Bootstrapped => EventKind::Bootstrapped,
            wire::EventType::Errored => EventKind::Errored,
            wire::EventType::Noop => EventKind::Noop,
        };
        let resource = match &event.resource {
            Some(resource) => self.resource(resource)?,
            None => Arc::new(Resource::tombstone(self.kind.clone(), "")),
        };
        let bookmark = event.bookmark.as_deref();
        Ok(Event {
            kind,
            resource,
            old: event.old.as_ref().map(|old| self.resource(old)).transpose()?,
            bookmark: bookmark.and_then(|bytes| Bookmark::from_bytes(bytes).ok()),
            error: event.error.as_deref().map(Box::from),
            encoded: None,
        })
    }

    fn resource(&self, resource: &wire::Resource) -> Result<Arc<Resource>, String> {
        // Tombstones have no contents to decode.
        let meta = resource.metadata.as_ref();
        let tombstone = meta.is_some_and(|meta| meta.version == "undefined");
        let spec = if tombstone { raw } else { self.spec };
        let resource = decode::resource(resource, &self.kind, spec);
        resource.map(Arc::new).map_err(|error| error.to_string())
    }
}

impl EventSource for RemoteWatch {
    fn next_batch(&mut self) -> impl Future<Output = Option<Vec<Event>>> + Send {
        Self::next_batch(self)
    }
}

impl<S> CoreState for RemoteState<S>
where
    S: GrpcService<tonic::body::Body> + Clone + Send + Sync,
    S::Error: Into<StdError>,
    S::Future: Send,
    S::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    type Watch = RemoteWatch;

    async fn get(&self, kind: &Arc<Kind>, id: &str) -> Result<Arc<Resource>, StateError> {
        self.get_as(kind, id, raw).await
    }

    async fn list(&self, kind: &Arc<Kind>, query: &Query) -> Result<Vec<Arc<Resource>>, StateError> {
        self.list_as(kind, query, raw).await
    }

    async fn create(&self, draft: Resource, owner: &str) -> Result<Arc<Resource>, StateError> {
        let kind = draft.meta().kind().clone();
        let request = wire::CreateRequest {
            resource: Some(write(&draft)),
            options: Some(wire::CreateOptions { owner: owner.to_owned() }),
        };
        let reply = self.client.clone().create(request).await;
        let reply = reply.map_err(|status| failure(Call::Create, &status))?;
        read(reply.into_inner().resource, &kind, raw)
    }

    async fn update(
        &self,
        draft: Resource,
        owner: &str,
        expected: Option<Phase>,
    ) -> Result<Arc<Resource>, StateError> {
        let kind = draft.meta().kind().clone();
        let request = wire::UpdateRequest {
            new_resource: Some(write(&draft)),
            options: Some(wire::UpdateOptions {
                owner: owner.to_owned(),
                expected_phase: expected.map(|phase| phase.as_str().to_owned()),
            }),
        };
        let reply = self.client.clone().update(request).await;
        let reply = reply.map_err(|status| failure(Call::Update, &status))?;
        read(reply.into_inner().resource, &kind, raw)
    }

    async fn destroy(&self, kind: &Arc<Kind>, id: &str, owner: &str) -> Result<(), StateError> {
        let request = wire::DestroyRequest {
            namespace: kind.namespace().to_owned(),
            r#type: kind.type_name().to_owned(),
            id: id.to_owned(),
            options: Some(wire::DestroyOptions { owner: owner.to_owned() }),
        };
        let reply = self.client.clone().destroy(request).await;
        reply.map(drop).map_err(|status| failure(Call::Destroy, &status))
    }

    async fn watch_kind(&self, kind: &Arc<Kind>, options: WatchOptions) -> Result<RemoteWatch, StateError> {
        self.watch_kind_as(kind, options, raw).await
    }

    async fn watch_id(
        &self,
        kind: &Arc<Kind>,
        id: &str,
        options: WatchIdOptions,
    ) -> Result<RemoteWatch, StateError> {
        self.watch_id_as(kind, id, &options, raw).await
    }
}

fn kind_of<T: TypedSpec>(namespace: &str) -> Arc<Kind> {
    Arc::new(Kind::new(namespace, T::definition().type_name))
}

fn read(
    resource: Option<wire::Resource>,
    kind: &Arc<Kind>,
    spec: Decode,
) -> Result<Arc<Resource>, StateError> {
    let resource = decode::resource(&resource.unwrap_or_default(), kind, spec);
    resource
        .map(Arc::new)
        .map_err(|error| StateError::Remote { class: ErrorClass::Other, text: error.to_string() })
}

fn write(draft: &Resource) -> wire::Resource {
    let meta = draft.meta();
    let (mut proto, mut yaml) = (Vec::new(), String::new());
    draft.spec().encode_proto(&mut proto);
    draft.spec().encode_yaml(&mut yaml);
    wire::Resource {
        metadata: Some(wire::Metadata {
            namespace: meta.namespace().to_owned(),
            r#type: meta.type_name().to_owned(),
            id: meta.id().to_string(),
            version: meta.version().to_string(),
            owner: meta.owner().to_owned(),
            phase: meta.phase().as_str().to_owned(),
            created: None,
            updated: None,
            finalizers: meta.finalizers().to_vec(),
            labels: meta.labels().clone().into_iter().collect(),
            annotations: meta.annotations().clone().into_iter().collect(),
        }),
        spec: Some(wire::Spec { proto_spec: proto.into(), yaml_spec: yaml }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Create,
    Update,
    Destroy,
    Watch,
}

/// The codes mean different things to different calls.
fn failure(call: Call, status: &Status) -> StateError {
    let class = match (call, status.code()) {
        (_, Code::NotFound) => ErrorClass::NotFound,
        (Call::Create, Code::AlreadyExists) => ErrorClass::AlreadyExists,
        (Call::Create | Call::Update | Call::Destroy, Code::PermissionDenied) => ErrorClass::OwnerConflict,
        (Call::Update, Code::InvalidArgument) => ErrorClass::PhaseConflict,
        (Call::Update, Code::FailedPrecondition) => ErrorClass::VersionConflict,
        (Call::Destroy, Code::FailedPrecondition) => ErrorClass::PendingFinalizers,
        (Call::Watch, Code::FailedPrecondition) => ErrorClass::InvalidBookmark,
        _ => ErrorClass::Other,
    };
    let text = match class {
        ErrorClass::Other => format!("{:?}: {}", status.code(), status.message()),
        _ => status.message().to_owned(),
    };
    StateError::Remote { class, text }
}

fn label_queries(query: &Query) -> Vec<wire::LabelQuery> {
    use wire::label_term::Operation;
    let number = |op| match op {
        LabelOp::Exists => Operation::Exists,
        LabelOp::Equal => Operation::Equal,
        LabelOp::In => Operation::In,
        LabelOp::Less => Operation::Lt,
        LabelOp::LessOrEqual => Operation::Lte,
        LabelOp::LessNumeric => Operation::LtNumeric,
        LabelOp::LessOrEqualNumeric => Operation::LteNumeric,
    };
    let term = |term: &crate::query::LabelTerm| wire::LabelTerm {
        key: term.key.clone(),
        op: number(term.op).into(),
        value: term.values.clone(),
        invert: term.invert,
    };
    query
        .labels
        .iter()
        .map(|query| wire::LabelQuery { terms: query.terms.iter().map(term).collect() })
        .collect()
}

fn id_query(query: &Query) -> Option<wire::IdQuery> {
    query.id.as_ref().map(|regex| wire::IdQuery { regexp: regex.as_str().to_owned() })
}
