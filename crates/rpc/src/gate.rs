//! A layer that admits a call or refuses it before the service behind it sees anything.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use tonic::Status;
use tower::Service;

/// Decides by the head of a request whether it may go on; the body is not read.
pub trait Admission {
    /// Admits the request, perhaps with more in its extensions, or says why not.
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status>;
}

/// Passes calls on to `S` that `A` admits and answers the others with the status of the refusal.
#[derive(Clone, Debug)]
pub struct Gate<S, A> {
    service: S,
    admission: A,
}

impl<S, A> Gate<S, A> {
    /// Guards `service`.
    pub fn new(service: S, admission: A) -> Self {
        Self { service, admission }
    }
}

impl<S, A, B, R> Service<Request<B>> for Gate<S, A>
where
    S: Service<Request<B>, Response = Response<R>>,
    A: Admission,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<R>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.admission.admit(&mut request) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(status) => Either::Right(ready(Ok(status.into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    struct OnlyRoot;

    impl Admission for OnlyRoot {
        fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
            request.extensions_mut().insert("admitted");
            match request.uri().path() {
                "/" => Ok(()),
                other => Err(Status::not_found(other.to_owned())),
            }
        }
    }

    #[tokio::test]
    async fn a_refused_call_is_answered_without_the_service() {
        let inner = tower::service_fn(|request: Request<()>| async move {
            assert_eq!(request.uri().path(), "/");
            assert_eq!(request.extensions().get::<&str>(), Some(&"admitted"));
            Ok::<_, Infallible>(Response::new(()))
        });
        let mut gate = Gate::new(inner, OnlyRoot);
        let reply = gate.call(Request::builder().uri("/").body(()).unwrap()).await.unwrap();
        assert!(reply.headers().get(Status::GRPC_STATUS).is_none());
        let reply = gate.call(Request::builder().uri("/a").body(()).unwrap()).await.unwrap();
        let status = Status::from_header_map(reply.headers()).unwrap();
        assert_eq!((status.code(), status.message()), (tonic::Code::NotFound, "/a"));
    }
}
