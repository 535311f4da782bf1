//! The State service over gRPC: a tonic service over a [`State`].
//!
//! Written by hand instead of generated, because replies go out as bytes that are made once and
//! shared by all watches, through buffers much smaller than the default.

mod codec;
mod filter;
mod watch;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;

use bytes::Bytes;
use ichor_resource::{Phase, RawSpec, Resource, Spec};
use ichor_wire::cosi::resource as wire;
use prost::Message;
use tonic::codegen::{Body, BoxFuture, Context, Poll, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Code, Request, Response, Status};

use crate::decode;
use crate::encode;
use crate::error::StateError;
use crate::handle::KindHandle;
use crate::list_cache::{self, Listing};
use crate::query::{LabelOp, LabelQuery, LabelTerm, Query};
use crate::state::State;
use codec::{Frame, FrameCodec};
pub use filter::{AccessFilter, AccessRequest, AllowAll, ReadOnly, Verb};
use watch::WatchStream;

/// The State service. Add it to a tonic router as it is.
pub struct StateService<F> {
    state: State,
    filter: Arc<F>,
}

impl<F> Clone for StateService<F> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), filter: self.filter.clone() }
    }
}

impl<F: AccessFilter> StateService<F> {
    /// Serves `state` to those whom `filter` lets through.
    pub fn new(state: State, filter: F) -> Self {
        Self { state, filter: Arc::new(filter) }
    }

    fn check<T>(
        &self,
        request: &Request<T>,
        verb: Verb,
        namespace: &str,
        type_name: &str,
        id: Option<&str>,
    ) -> Result<(), Status> {
        self.filter.check(&AccessRequest {
            verb,
            namespace,
            type_name,
            id,
            extensions: request.extensions(),
            metadata: request.metadata(),
        })
    }

    fn get(&self, request: Request<wire::GetRequest>) -> Result<Frame, Status> {
        let get = request.get_ref();
        self.check(&request, Verb::Get, &get.namespace, &get.r#type, Some(&get.id))?;
        let kind = self.kind(&get.namespace, &get.r#type)?;
        let resource = kind.get(&get.id).map_err(|error| status(&error))?;
        Ok(Frame::from(encode::reply(&resource)))
    }

    fn list(&self, request: Request<wire::ListRequest>) -> Result<Frames, Status> {
        let list = request.get_ref();
        self.check(&request, Verb::List, &list.namespace, &list.r#type, None)?;
        let query = match &list.options {
            Some(options) => query(&options.label_query, options.id_query.as_ref())?,
            None => Query::default(),
        };
        // A kind nobody used yet has no resources; no need to make it.
        let Some(kind) = self.state.find_kind(&list.namespace, &list.r#type) else {
            return Ok(Frames::Plain(Vec::new().into_iter()));
        };
        if !query.is_all() {
            return Ok(Frames::Plain(kind.query(&query).into_iter()));
        }
        Ok(match list_cache::list(&kind.0, encode::reply) {
            Listing::Encoded(encoded) => Frames::Encoded(encoded, 0),
            Listing::Plain(list) => Frames::Plain(list.into_iter()),
        })
    }

    fn create(&self, request: Request<wire::CreateRequest>) -> Result<Frame, Status> {
        let create = request.get_ref();
        let (kind, draft) = self.draft(&request, Verb::Create, create.resource.as_ref())?;
        let options = create.options.clone().unwrap_or_default();
        let stored = kind.create(draft, &options.owner).map_err(|error| status(&error))?;
        Ok(Frame::from(encode::reply(&stored)))
    }

    fn update(&self, request: Request<wire::UpdateRequest>) -> Result<Frame, Status> {
        let update = request.get_ref();
        let (kind, draft) = self.draft(&request, Verb::Update, update.new_resource.as_ref())?;
        let options = update.options.clone().unwrap_or_default();
        let expected = options
            .expected_phase
            .as_deref()
            .map(Phase::parse)
            .transpose()
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let stored = kind.update(draft, &options.owner, expected).map_err(|error| status(&error))?;
        Ok(Frame::from(encode::reply(&stored)))
    }

    fn destroy(&self, request: Request<wire::DestroyRequest>) -> Result<Frame, Status> {
        let destroy = request.get_ref();
        let (namespace, type_name) = (&destroy.namespace, &destroy.r#type);
        self.check(&request, Verb::Destroy, namespace, type_name, Some(&destroy.id))?;
        let kind = self.kind(namespace, type_name)?;
        let options = destroy.options.clone().unwrap_or_default();
        kind.destroy(&destroy.id, &options.owner).map_err(|error| status(&error))?;
        Ok(Frame::default())
    }

    fn watch(&self, request: Request<wire::WatchRequest>) -> Result<WatchStream, Status> {
        let watch = request.get_ref();
        let id = watch.id.as_deref();
        self.check(&request, Verb::Watch, &watch.namespace, &watch.r#type, id)?;
        let kind = self.kind(&watch.namespace, &watch.r#type)?;
        WatchStream::open(&kind, watch)
    }

    fn draft<T>(
        &self,
        request: &Request<T>,
        verb: Verb,
        resource: Option<&wire::Resource>,
    ) -> Result<(KindHandle, Resource), Status> {
        let empty = wire::Resource::default();
        let resource = resource.unwrap_or(&empty);
        let Some(meta) = &resource.metadata else {
            let error = decode::BadResource::NoMetadata;
            return Err(Status::invalid_argument(error.to_string()));
        };
        self.check(request, verb, &meta.namespace, &meta.r#type, Some(&meta.id))?;
        let kind = self.kind(&meta.namespace, &meta.r#type)?;
        let known = self.state.type_entry(&meta.r#type);
        let draft = decode::resource(resource, kind.kind(), |spec| match known {
            Some(entry) => (entry.decode)(&spec.proto_spec),
            None => Ok(Arc::new(RawSpec { proto: spec.proto_spec.clone(), yaml: spec.yaml_spec.clone() })
                as Arc<dyn Spec>),
        });
        let draft = draft.map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok((kind, draft))
    }

    fn kind(&self, namespace: &str, type_name: &str) -> Result<KindHandle, Status> {
        let kind = self.state.kind_for_request(namespace, type_name);
        kind.map_err(|error| status(&error))
    }
}

/// The messages of a list, encoded as they are sent unless they are already.
enum Frames {
    Encoded(Arc<[Bytes]>, usize),
    Plain(std::vec::IntoIter<Arc<Resource>>),
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let bytes = match self {
            Self::Encoded(list, at) => {
                *at += 1;
                list.get(*at - 1)?.clone()
            }
            Self::Plain(list) => encode::reply(list.next()?.as_ref()),
        };
        Some(Frame::from(bytes))
    }
}

/// The code the original answers with.
pub(crate) fn status(error: &StateError) -> Status {
    let code = match error {
        StateError::NotFound(_) | StateError::UnknownType(_) => Code::NotFound,
        StateError::AlreadyExists(_) => Code::AlreadyExists,
        StateError::OwnerConflict { .. } | StateError::Access(_) => Code::PermissionDenied,
        StateError::PhaseConflict { .. } | StateError::WatchOptions(_) | StateError::SpecType(_) => {
            Code::InvalidArgument
        }
        StateError::VersionConflict { .. }
        | StateError::PendingFinalizers { .. }
        | StateError::InvalidBookmark => Code::FailedPrecondition,
        StateError::TooManyKinds(_) => Code::ResourceExhausted,
        StateError::WatchEnded(_) | StateError::Edit(_) | StateError::Remote { .. } => Code::Unknown,
    };
    Status::new(code, error.to_string())
}

/// Reads the filters of a list or watch.
fn query(labels: &[wire::LabelQuery], id: Option<&wire::IdQuery>) -> Result<Query, Status> {
    let id = match id {
        Some(id) => Some(
            regex::Regex::new(&id.regexp)
                .map_err(|error| Status::invalid_argument(format!("failed to compile regexp: {error}")))?,
        ),
        None => None,
    };
    let labels = labels
        .iter()
        .map(|query| {
            let terms = query.terms.iter().map(term).collect::<Result<_, _>>()?;
            Ok(LabelQuery { terms })
        })
        .collect::<Result<_, Status>>()?;
    Ok(Query { labels, id })
}

fn term(term: &wire::LabelTerm) -> Result<LabelTerm, Status> {
    use wire::label_term::Operation;
    let unknown = || {
        let text = format!("unsupported label query operator: {}", term.op);
        Status::unimplemented(text)
    };
    let operation = Operation::try_from(term.op).map_err(|_| unknown())?;
    let (op, invert) = match operation {
        Operation::Exists => (LabelOp::Exists, term.invert),
        Operation::Equal => (LabelOp::Equal, term.invert),
        // The old form of an inverted EXISTS.
        Operation::NotExists => (LabelOp::Exists, true),
        Operation::In => (LabelOp::In, term.invert),
        Operation::Lt => (LabelOp::Less, term.invert),
        Operation::Lte => (LabelOp::LessOrEqual, term.invert),
        Operation::LtNumeric => (LabelOp::LessNumeric, term.invert),
        Operation::LteNumeric => (LabelOp::LessOrEqualNumeric, term.invert),
    };
    Ok(LabelTerm { key: term.key.clone(), op, values: term.value.clone(), invert })
}

impl<F> NamedService for StateService<F> {
    const NAME: &'static str = "cosi.resource.State";
}

type Reply = http::Response<tonic::body::Body>;

impl<F, B> Service<http::Request<B>> for StateService<F>
where
    F: AccessFilter,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = BoxFuture<Reply, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        match request.uri().path() {
            "/cosi.resource.State/Get" => unary(move |request| service.get(request), request),
            "/cosi.resource.State/Create" => unary(move |request| service.create(request), request),
            "/cosi.resource.State/Update" => unary(move |request| service.update(request), request),
            "/cosi.resource.State/Destroy" => unary(move |request| service.destroy(request), request),
            "/cosi.resource.State/List" => stream(
                move |request| {
                    let frames = service.list(request)?;
                    Ok(tokio_stream::iter(frames.map(Ok)))
                },
                request,
            ),
            "/cosi.resource.State/Watch" => stream(move |request| service.watch(request), request),
            path => {
                let method = path.rsplit('/').next().unwrap_or_default();
                let name = <Self as NamedService>::NAME;
                let text = format!("unknown method {method} for service {name}");
                Box::pin(ready(Ok(Status::unimplemented(text).into_http())))
            }
        }
    }
}

fn unary<M, B, H>(handler: H, request: http::Request<B>) -> BoxFuture<Reply, Infallible>
where
    M: Message + Default + 'static,
    H: FnMut(Request<M>) -> Result<Frame, Status> + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    Box::pin(async move {
        let mut grpc = Grpc::new(FrameCodec::<M>::default());
        Ok(grpc.unary(Handler(handler), request).await)
    })
}

fn stream<M, S, B, H>(handler: H, request: http::Request<B>) -> BoxFuture<Reply, Infallible>
where
    M: Message + Default + 'static,
    S: tokio_stream::Stream<Item = Result<Frame, Status>> + Send + 'static,
    H: FnMut(Request<M>) -> Result<S, Status> + Send + 'static,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    Box::pin(async move {
        let mut grpc = Grpc::new(FrameCodec::<M>::default());
        Ok(grpc.server_streaming(Handler(handler), request).await)
    })
}

/// A plain function as a tonic service: the store never waits.
struct Handler<H>(H);

impl<M, H> UnaryService<M> for Handler<H>
where
    H: FnMut(Request<M>) -> Result<Frame, Status>,
{
    type Response = Frame;
    type Future = Ready<Result<Response<Frame>, Status>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        ready((self.0)(request).map(Response::new))
    }
}

impl<M, S, H> ServerStreamingService<M> for Handler<H>
where
    S: tokio_stream::Stream<Item = Result<Frame, Status>>,
    H: FnMut(Request<M>) -> Result<S, Status>,
{
    type Response = Frame;
    type ResponseStream = S;
    type Future = Ready<Result<Response<S>, Status>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        ready((self.0)(request).map(Response::new))
    }
}
