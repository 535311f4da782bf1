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

use crate::budget::{BudgetedBody, CallBudget};

/// Methods whose requests are many messages.
const CLIENT_STREAMING: &[&str] = &["/machine.MachineService/EtcdRecover"];

/// The future of a call: what generated services return anyway.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

trait Door: Send + Sync {
    fn call(&self, request: Request<BudgetedBody>) -> Answer;
}

impl<S> Door for S
where
    S: Service<Request<BudgetedBody>, Response = Response<Body>, Error = Infallible, Future = Answer>
        + Clone
        + Send
        + Sync,
{
    fn call(&self, request: Request<BudgetedBody>) -> Answer {
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
        S: Service<Request<BudgetedBody>, Response = Response<Body>, Error = Infallible, Future = Answer>
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
            Some((_, door)) => door.call(within_budget(request)),
            None => {
                let status = Status::unimplemented(format!("unknown service {name}"));
                Box::pin(ready(Ok(status.into_http())))
            }
        }
    }
}

/// Puts the body of a request under the budget that its server gave the call.
fn within_budget(mut request: Request<Incoming>) -> Request<BudgetedBody> {
    let call = request.extensions_mut().remove::<Arc<CallBudget>>();
    let takes_many = CLIENT_STREAMING.contains(&request.uri().path());
    request.map(|body| BudgetedBody::new(body, call, takes_many))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_that_takes_many_messages_is_listed() {
        let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/proto");
        let mut found = Vec::new();
        visit(proto.as_ref(), &mut found);
        found.sort();
        assert_eq!(found, CLIENT_STREAMING);
    }

    fn visit(directory: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).expect("directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("file");
            let word = |line: &str, before: &str| {
                let rest = line.trim_start().strip_prefix(before)?;
                rest.split([' ', '(', ';', '{']).next().map(str::to_owned)
            };
            let package = text.lines().find_map(|line| word(line, "package ")).unwrap_or_default();
            let mut service = String::new();
            for line in text.lines() {
                if let Some(name) = word(line, "service ") {
                    service = name;
                }
                if let Some(method) = word(line, "rpc ").filter(|_| line.contains("(stream ")) {
                    let takes_many = line.find("(stream ") < line.find("returns");
                    found.extend(takes_many.then(|| format!("/{package}.{service}/{method}")));
                }
            }
        }
    }
}
