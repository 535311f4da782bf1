//! Layers around the services: a panic becomes an error reply; maintenance mode serves few methods.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::CatchUnwind;
use http::{Request, Response};
use ichor_pki::{Role, RoleSet};
use ichor_rpc::gate::Admission;
use ichor_rpc::roles;
use tonic::Status;
use tower::Service;

/// Turns a panic in a handler into `Internal` with the panic's text.
#[derive(Debug, Clone)]
pub struct CatchPanic<S>(pub S);

impl<S, B, R> Service<Request<B>> for CatchPanic<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Caught<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Caught(Box::pin(AssertUnwindSafe(self.0.call(request)).catch_unwind()))
    }
}

/// A handler whose panic is caught.
pub struct Caught<F>(Pin<Box<CatchUnwind<AssertUnwindSafe<F>>>>);

impl<F, R, E> Future for Caught<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Default,
{
    type Output = Result<Response<R>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(|result| match result {
            Ok(reply) => reply,
            Err(panic) => {
                let text = panic_text(&*panic);
                tracing::error!(panic = text, "a call panicked");
                Ok(Status::internal(format!("panic: {text}")).into_http())
            }
        })
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of unknown kind")
}

/// What any peer may call in maintenance mode.
const OPEN: &[&str] = &[
    "/cosi.resource.State/Get",
    "/cosi.resource.State/List",
    "/cosi.resource.State/Watch",
    "/ichor.node.NodeService/Why",
    "/machine.MachineService/ApplyConfiguration",
    "/machine.MachineService/GenerateConfiguration",
    "/storage.StorageService/Disks",
    "/storage.StorageService/BlockDeviceWipe",
];

/// What an administrator (a peer over SideroLink) may call besides.
const ADMIN: &[&str] = &[
    "/machine.MachineService/Version",
    "/machine.MachineService/Reset",
    "/machine.MachineService/Upgrade",
    "/machine.MachineService/MetaWrite",
    "/machine.MachineService/MetaDelete",
];

/// Admits only the calls of maintenance mode.
#[derive(Debug, Clone, Copy)]
pub struct MaintenanceCalls;

impl Admission for MaintenanceCalls {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let roles = roles::of_extensions(request.extensions());
        match open_in_maintenance(request.uri().path(), &roles) {
            true => Ok(()),
            false => Err(Status::unimplemented("API is not implemented in maintenance mode")),
        }
    }
}

/// Whether a call is answered in maintenance mode.
fn open_in_maintenance(path: &str, roles: &RoleSet) -> bool {
    OPEN.contains(&path) || (ADMIN.contains(&path) && roles.intersects(&RoleSet::of(&[Role::Admin])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maintenance_mode_answers_little() {
        let reader = RoleSet::of(&[Role::Reader]);
        let admin = RoleSet::of(&[Role::Admin]);
        assert!(open_in_maintenance("/machine.MachineService/ApplyConfiguration", &reader));
        assert!(!open_in_maintenance("/machine.MachineService/Version", &reader));
        assert!(open_in_maintenance("/machine.MachineService/Version", &admin));
        assert!(!open_in_maintenance("/machine.MachineService/Reboot", &admin));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let broken = tower::service_fn(|_request: Request<()>| async move {
            if true {
                panic!("oh no");
            }
            Ok::<_, std::convert::Infallible>(Response::new(String::new()))
        });
        let reply = CatchPanic(broken).call(Request::new(())).await.unwrap();
        let status = Status::from_header_map(reply.headers()).unwrap();
        assert_eq!((status.code(), status.message()), (tonic::Code::Internal, "panic: oh no"));
    }
}
