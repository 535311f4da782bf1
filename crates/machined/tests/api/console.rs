//! What the dashboard on the console is served.

use std::sync::Arc;

use ichor_machined::api::console::serve_console;
use ichor_machined::audit::LOG;
use ichor_observe::Start;
use ichor_resource::runtime::MetaKey;
use ichor_rpc::unix::{self, Access};
use ichor_rpc::{Channel, Dialer};
use ichor_wire::cosi::resource as cosi;
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::machine;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

use crate::bench::{Bench, WAIT};

/// A channel to the socket of the console, and what ends it.
fn open(bench: &Bench) -> (Channel, DropGuard) {
    let path = bench.node.host.paths.console_socket();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = unix::bind(&path, Access::PRIVATE).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serve_console(Arc::clone(&bench.node), listener, stop.clone()));
    (Channel::new(Dialer::unix(&path)), stop.drop_guard())
}

fn watch(kind: &str, id: Option<&str>) -> cosi::WatchRequest {
    cosi::WatchRequest {
        namespace: "runtime".into(),
        r#type: kind.into(),
        id: id.map(str::to_owned),
        options: Some(cosi::WatchOptions {
            bootstrap_contents: id.is_none(),
            ..cosi::WatchOptions::default()
        }),
        ..cosi::WatchRequest::default()
    }
}

#[tokio::test]
async fn of_meta_it_sees_the_code_and_nothing_else() {
    const META: &str = "MetaKeys.runtime.talos.dev";
    let bench = Bench::start().await;
    for (id, value) in [("0x09", "secret"), ("0x0b", "abc")] {
        let key = MetaKey { value: value.into() };
        bench.node.store.state.create("runtime", id, key, "").unwrap();
    }
    let (channel, _stop) = open(&bench);
    let mut state = StateClient::new(channel);
    let mut code = state.watch(watch(META, Some("0x0b"))).await.unwrap().into_inner();
    let resource = loop {
        // The first message may be empty: it says that the watch is set up.
        let message = tokio::time::timeout(WAIT, code.message()).await.unwrap().unwrap().unwrap();
        if let Some(resource) = message.event.into_iter().find_map(|event| event.resource) {
            break resource;
        }
    };
    assert_eq!(resource.metadata.unwrap().id, "0x0b");
    assert!(resource.spec.unwrap().yaml_spec.contains("abc"));
    for id in [None, Some("0x09")] {
        let refused = match state.watch(watch(META, id)).await {
            Err(status) => status,
            Ok(stream) => stream.into_inner().message().await.unwrap_err(),
        };
        assert_eq!(refused.code(), Code::PermissionDenied, "{id:?}");
    }
}

#[tokio::test]
async fn it_looks_without_a_role_and_changes_little() {
    let bench = Bench::start().await;
    let (channel, _stop) = open(&bench);
    let mut console = MachineServiceClient::new(channel);
    console.version(()).await.unwrap();
    console.memory(()).await.unwrap();
    let refused = console.reboot(machine::RebootRequest::default()).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, "not for the console"));
    let token = machine::MetaWriteRequest { key: 0x09, value: b"x".to_vec() };
    let refused = console.meta_write(token).await.unwrap_err();
    assert_eq!(refused.message(), "META key 0x09 is not for the console");
    let code = machine::MetaWriteRequest { key: 0x0b, value: b"abc".to_vec() };
    console.meta_write(code).await.unwrap();
    assert_eq!(bench.node.store.meta.get(0x0b).as_deref(), Some(&b"abc"[..]));

    let mut log = bench.node.journal.logs.ring(LOG).reader(Start::Oldest);
    let text = log.next(64 * 1024).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(text.matches("/machine.MachineService/MetaWrite").count(), 2, "{text}");
    assert!(!text.contains("Version") && !text.contains("Memory"), "looks are not written down: {text}");
}
