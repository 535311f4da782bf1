//! The machine API over its Unix socket, and maintenance mode over TLS, in one process.

mod audit;
mod bench;
mod console;
mod crowd;
mod rpcs;
mod why;

use std::time::Duration;

use futures_util::StreamExt;
use ichor_wire::cosi::resource as cosi;
use ichor_wire::machine::apply_configuration_request::Mode;
use ichor_wire::{inspect, machine, storage};
use tonic::Code;

use bench::{Bench, WAIT, WORKER};

fn config(text: &str, mode: Mode) -> machine::ApplyConfigurationRequest {
    machine::ApplyConfigurationRequest {
        data: text.as_bytes().to_vec(),
        mode: mode.into(),
        ..machine::ApplyConfigurationRequest::default()
    }
}

#[tokio::test]
async fn version_names_platform_and_a_semver_tag() {
    let bench = Bench::start().await;
    let reply = bench.machine().version(bench.as_reader(())).await.unwrap().into_inner();
    let version = &reply.messages[0];
    assert_eq!(version.version.as_ref().unwrap().tag, "v1.12.1");
    let platform = version.platform.as_ref().unwrap();
    assert_eq!((platform.name.as_str(), platform.mode.as_str()), ("sandbox", "cloud"));
    assert!(version.features.as_ref().unwrap().rbac);
}

#[tokio::test]
async fn roles_decide_and_nobody_without_one_gets_in() {
    let bench = Bench::start().await;
    let refused = bench.machine().version(tonic::Request::new(())).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, "not authorized"));
    let read = machine::ReadRequest { path: "/etc/hostname".into() };
    let refused = bench.machine().read(bench.as_reader(read)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let reboot = machine::RebootRequest::default();
    assert_eq!(
        bench.machine().reboot(bench.as_reader(reboot)).await.unwrap_err().code(),
        Code::PermissionDenied
    );
}

#[tokio::test]
async fn what_is_missing_says_so() {
    let bench = Bench::start().await;
    let bootstrap = machine::BootstrapRequest::default();
    let status = bench.machine().bootstrap(bench.as_admin(bootstrap)).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, "bootstrap is not available yet")
    );
    let status = bench.machine().kubeconfig(bench.as_admin(())).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unimplemented, "kubeconfig is only available on control plane nodes")
    );
}

#[tokio::test]
async fn services_logs_and_counters_answer() {
    let bench = Bench::start().await;
    bench.node.journal.logs.ring("apid").write(b"hello\n");
    let logs = machine::LogsRequest {
        namespace: "system".into(),
        id: "apid".into(),
        tail_lines: -1,
        ..machine::LogsRequest::default()
    };
    let mut stream = bench.machine().logs(bench.as_reader(logs)).await.unwrap().into_inner();
    assert_eq!(&stream.next().await.unwrap().unwrap().bytes[..], b"hello\n");
    assert!(stream.next().await.is_none());

    let ids = bench.machine().logs_containers(bench.as_reader(())).await.unwrap().into_inner();
    assert!(ids.messages[0].ids.iter().any(|id| id == "apid"));
    let services = bench.machine().service_list(bench.as_reader(())).await.unwrap().into_inner();
    assert_eq!(services.messages.len(), 1, "one element, even when it is empty");
    let restart = machine::ServiceRestartRequest { id: "apid".into() };
    let error = bench.machine().service_restart(bench.as_admin(restart)).await.unwrap_err();
    assert_eq!(error.message(), "service \"apid\" not defined");
    assert_eq!(bench.machine().memory(bench.as_reader(())).await.unwrap().into_inner().messages.len(), 1);
}

#[tokio::test]
async fn followed_events_carry_the_actor_of_the_call() {
    let bench = Bench::start().await;
    let request = machine::EventsRequest { tail_events: -1, ..machine::EventsRequest::default() };
    let mut stream = bench.machine().events(bench.as_reader(request)).await.unwrap().into_inner();
    let hello = stream.next().await.unwrap().unwrap();
    assert_eq!(hello.data.unwrap().type_url, "");

    let reply = bench.machine().shutdown(bench.as_admin(machine::ShutdownRequest::default())).await.unwrap();
    let actor = reply.into_inner().messages[0].actor_id.clone();
    let first = tokio::time::timeout(WAIT, stream.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.actor_id, actor);
    assert_eq!(first.data.unwrap().type_url, "talos/runtime/machine.SequenceEvent");
}

#[tokio::test]
async fn two_tails_are_refused() {
    let bench = Bench::start().await;
    let request =
        machine::EventsRequest { tail_events: 1, tail_seconds: 1, ..machine::EventsRequest::default() };
    assert_eq!(
        bench.machine().events(bench.as_reader(request)).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_configuration_is_on_disk_before_it_is_active() {
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    let changed = WORKER.replace("clusterName: test", "clusterName: other");
    let reply = bench
        .machine()
        .apply_configuration(bench.as_admin(config(&changed, Mode::Auto)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(reply.messages[0].mode(), Mode::NoReboot);
    assert_eq!(reply.messages[0].mode_details, "Applied configuration without a reboot");
    assert_eq!(bench.on_disk(), changed);
    assert_eq!(bench.active(), changed);
}

#[tokio::test]
async fn a_bad_configuration_changes_nothing() {
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    for (bad, part) in [
        ("machine: [", "failed to parse config"),
        ("version: v1alpha1\nmachine:\n  type: moon\n", "configuration validation failed"),
        ("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n", "doesn't contain v1alpha1 config"),
        ("version: v1alpha1\nmachine:\n  tpye: worker\n", "tpye"),
    ] {
        let status =
            bench.machine().apply_configuration(bench.as_admin(config(bad, Mode::Auto))).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{bad}");
        assert!(status.message().contains(part), "{bad}: {}", status.message());
    }
    assert_eq!((bench.active(), bench.on_disk()), (WORKER.to_owned(), WORKER.to_owned()));
}

#[tokio::test]
async fn a_trial_is_not_persisted_and_ends() {
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    let changed = WORKER.replace("clusterName: test", "clusterName: tried");
    let mut request = config(&changed, Mode::Try);
    request.try_mode_timeout = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let reply = bench.machine().apply_configuration(bench.as_admin(request)).await.unwrap().into_inner();
    assert!(reply.messages[0].mode_details.ends_with("reverted back in 200ms"), "{reply:?}");
    assert_eq!((bench.active(), bench.on_disk()), (changed, WORKER.to_owned()));
    ichor_testkit::eventually("the end of the trial", || bench.active() == WORKER).await;
}

#[tokio::test]
async fn a_dry_run_shows_the_difference_and_does_nothing() {
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    let changed = WORKER.replace("clusterName: test", "clusterName: other");
    let mut request = config(&changed, Mode::Auto);
    request.dry_run = true;
    let reply = bench.machine().apply_configuration(bench.as_admin(request)).await.unwrap().into_inner();
    let details = &reply.messages[0].mode_details;
    assert!(
        details.starts_with("Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).")
    );
    assert!(details.contains("-    clusterName: test\n+    clusterName: other\n"), "{details}");
    assert_eq!(bench.active(), WORKER);
}

#[tokio::test]
async fn resources_are_read_and_never_written() {
    let bench = Bench::start().await;
    bench.configure(WORKER).await;
    let list = |namespace: &str, kind: &str| cosi::ListRequest {
        namespace: namespace.into(),
        r#type: kind.into(),
        options: None,
    };
    let definitions = list("meta", "ResourceDefinitions.meta.cosi.dev");
    let mut stream = bench.state().list(bench.as_reader(definitions)).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(reply) = stream.next().await {
        assert!(reply.unwrap().resource.unwrap().spec.is_some());
        count += 1;
    }
    assert!(count > 150, "{count}");

    let secret = list("config", "MachineConfigs.config.talos.dev");
    let refused = bench.state().list(bench.as_reader(secret.clone())).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, "not authorized"));
    bench.state().list(bench.as_admin(secret)).await.unwrap();

    let unknown =
        bench.state().list(bench.as_admin(list("network", "Moons.net.talos.dev"))).await.unwrap_err();
    assert_eq!(unknown.message(), "resource type \"Moons.net.talos.dev\" is not supported");
    let destroy = cosi::DestroyRequest {
        namespace: "config".into(),
        r#type: "MachineConfigs.config.talos.dev".into(),
        id: "v1alpha1".into(),
        options: None,
    };
    let refused = bench.state().destroy(bench.as_admin(destroy)).await.unwrap_err();
    assert_eq!(refused.message(), "write access is not allowed");
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_stop_another() {
    let bench = Bench::start().await;
    let dir = tempfile::tempdir().unwrap();
    // Does not compress, so it fills every window on the way.
    let noise: Vec<u8> =
        (0..8_000_000u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect();
    std::fs::write(dir.path().join("big"), noise).unwrap();
    let path = dir.path().to_string_lossy().into_owned();
    let mut stalled = Vec::new();
    for _ in 0..4 {
        let copy = machine::CopyRequest { root_path: path.clone() };
        stalled.push(bench.machine().copy(bench.as_admin(copy)).await.unwrap());
    }
    for _ in 0..20 {
        let call = bench.machine().version(bench.as_reader(())).await;
        assert_eq!(call.unwrap().into_inner().messages.len(), 1);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(stalled);
}

#[tokio::test]
async fn the_controller_graph_and_disks_are_one_element() {
    let bench = Bench::start().await;
    let mut inspect = inspect::inspect_service_client::InspectServiceClient::new(bench.channel());
    let reply = inspect.controller_runtime_dependencies(bench.as_reader(())).await.unwrap().into_inner();
    assert_eq!(reply.messages.len(), 1);
    let mut storage = storage::storage_service_client::StorageServiceClient::new(bench.channel());
    assert_eq!(storage.disks(bench.as_reader(())).await.unwrap().into_inner().messages.len(), 1);
}

#[tokio::test]
async fn maintenance_mode_takes_a_configuration_and_little_else() {
    let bench = Bench::start().await;
    let maintenance = bench.maintenance().await;
    let mut client = maintenance.machine();
    let refused = client.version(()).await.unwrap_err();
    assert_eq!(refused.message(), "API is not implemented in maintenance mode");
    assert_eq!(
        client.reboot(machine::RebootRequest::default()).await.unwrap_err().code(),
        Code::Unimplemented
    );
    let staged = client.apply_configuration(config(WORKER, Mode::Staged)).await.unwrap_err();
    assert_eq!(staged.message(), "apply configuration --mode='staged' is not supported in maintenance mode");
    let bad = client.apply_configuration(config("machine: [", Mode::Auto)).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert!(bench.submitted().is_none());
    client.apply_configuration(config(WORKER, Mode::Auto)).await.unwrap();
    assert_eq!(bench.submitted().as_deref(), Some(WORKER));
}
