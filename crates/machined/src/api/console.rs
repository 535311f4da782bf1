//! What a person at the console may see and do, served to the dashboard on a socket of its own.
//!
//! It sees what a reader sees; of META, whose values are secrets otherwise, also the code of the configuration's
//! address. It may change that code and the network of a machine that waits for its configuration, nothing else.

use std::sync::Arc;

use http::Request;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use ichor_cosi::{AccessFilter, AccessRequest, ReadOnly, State, StateService};
use ichor_resource::TypedSpec as _;
use ichor_resource::runtime::MetaKey;
use ichor_rpc::gate::{Admission, Gate};
use ichor_rpc::server::{Boxed, Grpc, Make, serve_unix_boxed};
use ichor_rpc::services::Services;
use ichor_wire::machine::machine_service_server::MachineServiceServer;

use super::guard::CatchPanic;
use super::machine::{Api, ApiMode};
use super::server::runtime_limits;
use crate::audit::Audited;
use crate::node::Node;

/// What changes something, and is in the audit log for it.
const WRITES: &[&str] = &["/machine.MachineService/MetaDelete", "/machine.MachineService/MetaWrite"];

/// What only looks. The dashboard asks every few seconds, which nobody wants to read about.
const READS: &[&str] = &[
    "/cosi.resource.State/Watch",
    "/machine.MachineService/DiskStats",
    "/machine.MachineService/Dmesg",
    "/machine.MachineService/LoadAvg",
    "/machine.MachineService/Memory",
    "/machine.MachineService/NetworkDeviceStats",
    "/machine.MachineService/Processes",
    "/machine.MachineService/SystemStat",
    "/machine.MachineService/Version",
];

/// Keys of META: the network of metal machines, and the code of the configuration's address.
const NETWORK: u32 = 0x0a;
const CODE: u32 = 0x0b;
const CODE_ID: &str = "0x0b";

/// The mark of a call from the console.
#[derive(Debug, Clone, Copy)]
struct AtConsole;

/// Admits the calls of a console, and marks them.
#[derive(Debug, Clone, Copy)]
struct ConsoleCalls;

impl Admission for ConsoleCalls {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let path = request.uri().path();
        if !READS.contains(&path) && !is_write(path) {
            return Err(Status::permission_denied("not for the console"));
        }
        request.extensions_mut().insert(AtConsole);
        Ok(())
    }
}

fn is_write(path: &str) -> bool {
    WRITES.contains(&path)
}

/// Refuses a key of META that is not for the console, where the call comes from there.
pub(super) fn check_key(extensions: &http::Extensions, key: u32) -> Result<(), Status> {
    match extensions.get::<AtConsole>() {
        Some(AtConsole) if ![NETWORK, CODE].contains(&key) => {
            Err(Status::permission_denied(format!("META key {key:#04x} is not for the console")))
        }
        _ => Ok(()),
    }
}

fn readable(state: &State) -> impl AccessFilter + use<> {
    let rules = ReadOnly::new(state.clone(), |_| false);
    move |request: &AccessRequest<'_>| {
        let is_code = request.verb.is_read()
            && request.type_name == MetaKey::definition().type_name
            && request.namespace == "runtime"
            && request.id == Some(CODE_ID);
        if is_code { Ok(()) } else { rules.check(request) }
    }
}

/// Serves the console until `stop`.
pub async fn serve_console(node: Arc<Node>, listener: UnixListener, stop: CancellationToken) {
    let state = &node.store.state;
    let services = Services::new()
        .with(MachineServiceServer::new(Api::new(Arc::clone(&node), ApiMode::Configured)))
        .with(StateService::new(state.clone(), readable(state)));
    let audit = node.journal.audit.clone();
    let make: Make = Box::new(move |peer| {
        let guarded = Gate::new(CatchPanic(services.clone()), ConsoleCalls);
        Boxed::new(Grpc::new(Audited::new(guarded, audit.clone(), None).only(is_write), peer))
    });
    serve_unix_boxed(listener, runtime_limits(), stop, make).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(path: &str) -> Result<http::Extensions, Status> {
        let mut request = Request::builder().uri(path).body(()).unwrap();
        ConsoleCalls.admit(&mut request).map(|()| std::mem::take(request.extensions_mut()))
    }

    #[test]
    fn a_console_looks_and_changes_two_keys() {
        for path in READS {
            assert!(admit(path).is_ok() && ichor_rpc::authorize::known(path).is_some(), "{path}");
        }
        for path in ["Reboot", "Reset", "Upgrade", "Logs", "Read", "Kubeconfig", "ApplyConfiguration"] {
            assert!(admit(&format!("/machine.MachineService/{path}")).is_err(), "{path}");
        }
        for path in WRITES {
            let extensions = admit(path).unwrap();
            assert!(check_key(&extensions, NETWORK).is_ok() && check_key(&extensions, CODE).is_ok());
            let refused = check_key(&extensions, 0x09).unwrap_err();
            assert_eq!(refused.message(), "META key 0x09 is not for the console");
        }
        assert!(check_key(&http::Extensions::new(), 0x09).is_ok(), "others may, if their roles do");
    }
}
