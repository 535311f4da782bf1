//! Several gRPC services behind one door, found by the first half of the path.
//!
//! tonic's own router brings a whole web framework along and a few microseconds for every call; the names
//! of services need a handful of comparisons.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

/// The future of a call: what generated services return anyway.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

trait Door: Send + Sync {
    fn call(&self, request: Request<Incoming>) -> Answer;
}

impl<S> Door for S
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future = Answer>
        + Clone
        + Send
        + Sync,
{
    fn call(&self, request: Request<Incoming>) -> Answer {
        // Generated services are always ready; a clone is a reference count.
        Service::call(&mut self.clone(), request)
    }
}

/// A set of services. Cheap to clone once built.
#[derive(Clone, Default)]
pub struct Services {
    by_name: Arc<Vec<(&'static str, Box<dyn Door>)>>,
}

impl Services {
    /// No services.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with `service`; a later one of the same name is never reached.
    ///
    /// To be called before the set is shared: a shared set stays as it is.
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future = Answer>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        if let Some(by_name) = Arc::get_mut(&mut self.by_name) {
            by_name.push((S::NAME, Box::new(service)));
        }
        self
    }
}

impl Service<Request<Incoming>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let name = path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')).map_or("", |(name, _)| name);
        match self.by_name.iter().find(|(known, _)| *known == name) {
            Some((_, door)) => door.call(request),
            None => {
                let status = Status::unimplemented(format!("unknown service {name}"));
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}
