//! Calls that look at the machine, and the answers to bad ones.

use std::time::Duration;

use futures_util::StreamExt;
use ichor_resource::network::{LinkStatus, LinkType};
use ichor_wire::common::{ContainerDriver, ContainerdNamespace};
use ichor_wire::machine::netstat_request::{Feature, L4proto, NetNs};
use ichor_wire::{machine, storage, time};
use tonic::Code;

use crate::bench::{Bench, WAIT, WORKER};

#[tokio::test]
async fn meta_values_are_written_shown_and_taken_away() {
    let bench = Bench::start().await;
    let write = |key, value: &[u8]| machine::MetaWriteRequest { key, value: value.to_vec() };
    bench.machine().meta_write(bench.as_admin(write(0x0a, b"hello"))).await.unwrap();
    let shown = bench.node.store.state.find::<ichor_resource::runtime::MetaKey>("runtime", "0x0a").unwrap();
    assert_eq!(shown.value, "hello");
    let code = |result: Result<_, tonic::Status>| result.map(drop::<tonic::Response<_>>).unwrap_err().code();
    assert_eq!(
        code(bench.machine().meta_write(bench.as_admin(write(256, b""))).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(bench.machine().meta_write(bench.as_admin(write(1, &[0; 300_000]))).await),
        Code::ResourceExhausted
    );
    assert_eq!(
        code(bench.machine().meta_write(bench.as_reader(write(1, b"x"))).await),
        Code::PermissionDenied
    );
    let delete = |key| machine::MetaDeleteRequest { key };
    bench.machine().meta_delete(bench.as_admin(delete(0x0a))).await.unwrap();
    let missing = bench.machine().meta_delete(bench.as_admin(delete(0x0a))).await.unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, "meta key not found"));
}

#[tokio::test]
async fn without_containerd_the_node_shows_its_own_and_says_so_for_the_rest() {
    let bench = Bench::start().await;
    let system = machine::ContainersRequest { namespace: "system".into(), driver: 0 };
    let found = bench.machine().containers(bench.as_reader(system)).await.unwrap().into_inner();
    assert_eq!(found.messages.len(), 1);
    let kubernetes =
        machine::ContainersRequest { namespace: "k8s.io".into(), driver: ContainerDriver::Cri.into() };
    let found = bench.machine().containers(bench.as_reader(kubernetes.clone())).await.unwrap().into_inner();
    assert!(found.messages[0].containers.is_empty());
    let restart = machine::RestartRequest { namespace: "system".into(), id: "nope".into(), driver: 0 };
    let error = bench.machine().restart(bench.as_admin(restart)).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "container \"nope\" not found"));
    let wrong =
        machine::ContainersRequest { namespace: "system".into(), driver: ContainerDriver::Cri.into() };
    let error = bench.machine().containers(bench.as_reader(wrong)).await.unwrap_err();
    assert_eq!(error.message(), "CRI inspector is supported only for K8s namespace");
    let logs = machine::LogsRequest { namespace: "k8s.io".into(), id: "a/b:c".into(), ..Default::default() };
    assert_eq!(bench.machine().logs(bench.as_reader(logs)).await.unwrap_err().code(), Code::Unavailable);

    // A socket with nobody behind it.
    drop(std::os::unix::net::UnixListener::bind(&bench.node.host.paths.containerd).unwrap());
    let error = bench.machine().containers(bench.as_reader(kubernetes)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains("dial unix"), "{error}");
    let stats = machine::StatsRequest { namespace: "k8s.io".into(), driver: 0 };
    assert_eq!(bench.machine().stats(bench.as_reader(stats)).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn images_need_a_namespace_a_reference_and_containerd() {
    let bench = Bench::start().await;
    let list = |namespace: ContainerdNamespace| machine::ImageListRequest { namespace: namespace.into() };
    let bad = bench.machine().image_list(bench.as_reader(list(ContainerdNamespace::NsUnknown))).await;
    assert_eq!(bad.unwrap_err().code(), Code::InvalidArgument);
    let absent = bench.machine().image_list(bench.as_reader(list(ContainerdNamespace::NsCri))).await;
    assert_eq!(absent.unwrap_err().code(), Code::Unavailable);
    let pull = |reference: &str| machine::ImagePullRequest {
        namespace: ContainerdNamespace::NsSystem.into(),
        reference: reference.into(),
    };
    let bad = bench.machine().image_pull(bench.as_admin(pull("Not An Image"))).await.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    let absent = bench.machine().image_pull(bench.as_admin(pull("nginx"))).await.unwrap_err();
    assert_eq!(absent.code(), Code::Unavailable);
}

#[tokio::test]
async fn the_socket_table_is_served_over_the_wire() {
    let bench = Bench::start().await;
    let request = machine::NetstatRequest {
        filter: 0,
        feature: Some(Feature { pid: true }),
        l4proto: Some(L4proto {
            tcp: true,
            tcp6: true,
            udp: true,
            udp6: true,
            udplite: true,
            udplite6: true,
            raw: true,
            raw6: true,
        }),
        netns: Some(NetNs { hostnetwork: true, netns: Vec::new(), allnetns: true }),
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u32::from(listener.local_addr().unwrap().port());
    let reply = bench.machine().netstat(bench.as_reader(request)).await.unwrap().into_inner();
    let mine = reply.messages[0].connectrecord.iter().find(|record| record.localport == port).unwrap();
    assert_eq!((mine.l4proto.as_str(), mine.localip.as_str()), ("tcp", "127.0.0.1"));
    assert_eq!(mine.process.as_ref().unwrap().pid, std::process::id());
    let error =
        bench.machine().netstat(bench.as_reader(machine::NetstatRequest::default())).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn captures_are_refused_for_what_they_are() {
    let bench = Bench::start().await;
    let add = |name: &str, kind: LinkType| {
        let link = LinkStatus { index: 1, r#type: kind, ..LinkStatus::default() };
        bench.node.store.state.create("network", name, link, "").unwrap();
    };
    add("lo", LinkType::LOOPBCK);
    add("can0", LinkType::CAN);
    let ask = |interface: &str, bpf_filter| machine::PacketCaptureRequest {
        interface: interface.into(),
        bpf_filter,
        ..machine::PacketCaptureRequest::default()
    };
    let wild = vec![machine::BpfInstruction { op: 0x15, jt: 9, jf: 9, k: 0 }];
    for (request, code, text) in [
        (ask("eth9", Vec::new()), Code::NotFound, "interface \"eth9\" not found"),
        (ask("can0", Vec::new()), Code::InvalidArgument, "unsupported link type can"),
        (
            ask("lo", wild),
            Code::InvalidArgument,
            "error setting BPF filter: invalid argument: instruction 0: jumps out of the program",
        ),
    ] {
        let error = bench.machine().packet_capture(bench.as_admin(request)).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (code, text));
    }
    let reader = bench.machine().packet_capture(bench.as_reader(ask("lo", Vec::new()))).await;
    assert_eq!(reader.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_capture_is_a_file_and_its_place_is_free_when_the_caller_goes() {
    let bench = Bench::start().await;
    let link = LinkStatus { index: 1, r#type: LinkType::LOOPBCK, ..LinkStatus::default() };
    bench.node.store.state.create("network", "lo", link, "").unwrap();
    let ask = || machine::PacketCaptureRequest { interface: "lo".into(), snap_len: 64, ..Default::default() };
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = bench.machine().packet_capture(bench.as_admin(ask())).await.unwrap().into_inner();
        let header = stream.next().await.unwrap().unwrap().bytes;
        assert_eq!((&header[..4], header.len()), (&[0x4d, 0x3c, 0xb2, 0xa1][..], 24));
        open.push(stream);
    }
    let full = bench.machine().packet_capture(bench.as_admin(ask())).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    drop(open);
    let again = async {
        while bench.machine().packet_capture(bench.as_admin(ask())).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(WAIT, again).await.unwrap();
}

fn generate_request() -> machine::GenerateConfigurationRequest {
    machine::GenerateConfigurationRequest {
        config_version: "v1alpha1".into(),
        cluster_config: Some(machine::ClusterConfig {
            name: "made".into(),
            control_plane: Some(machine::ControlPlaneConfig { endpoint: "https://10.1.2.3:6443".into() }),
            ..machine::ClusterConfig::default()
        }),
        machine_config: Some(machine::MachineConfig {
            r#type: machine::machine_config::MachineType::TypeControlPlane.into(),
            install_config: Some(machine::InstallConfig {
                install_disk: "/dev/vdz".into(),
                install_image: String::new(),
            }),
            kubernetes_version: "v1.35.0".into(),
            ..machine::MachineConfig::default()
        }),
        override_time: None,
    }
}

#[tokio::test]
#[allow(deprecated, reason = "deprecated for clients; the node still answers")]
async fn strangers_cannot_have_keys_made_in_a_loop() {
    let bench = Bench::start().await;
    let maintenance = bench.maintenance().await;
    let call = || {
        let mut client = maintenance.machine();
        async move { client.generate_configuration(generate_request()).await.map(drop) }
    };
    let all = futures_util::future::join_all((0..6).map(|_| call())).await;
    let (made, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (1, 5));
    for status in refused.into_iter().map(Result::unwrap_err) {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().starts_with("generating keys is under way"), "{}", status.message());
    }
}

#[tokio::test]
#[allow(deprecated, reason = "deprecated for clients; the node still answers")]
async fn configurations_are_generated_on_the_node_but_not_on_workers() {
    let bench = Bench::start().await;
    let request = generate_request();
    let reply =
        bench.machine().generate_configuration(bench.as_admin(request.clone())).await.unwrap().into_inner();
    let config = String::from_utf8(reply.messages[0].data[0].clone()).unwrap();
    let documents = ichor_config::Documents::load(config.as_bytes()).unwrap();
    assert_eq!(documents.machine_type(), ichor_types::MachineType::ControlPlane);
    assert!(config.contains("/dev/vdz") && config.contains("clusterName: made"));
    let talosconfig = String::from_utf8(reply.messages[0].talosconfig.clone()).unwrap();
    assert!(talosconfig.contains("10.1.2.3"), "{talosconfig}");

    for (bad, text) in [
        (machine::GenerateConfigurationRequest::default(), "invalid generate request"),
        (
            machine::GenerateConfigurationRequest { config_version: "v2".into(), ..request.clone() },
            "unsupported config version v2",
        ),
    ] {
        let error = bench.machine().generate_configuration(bench.as_admin(bad)).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Unknown, text));
    }
    bench.configure(WORKER).await;
    let error = bench.machine().generate_configuration(bench.as_admin(request)).await.unwrap_err();
    assert_eq!(error.message(), "config can't be generated on worker nodes");
}

#[tokio::test]
async fn what_needs_an_installation_says_so() {
    let bench = Bench::start().await;
    let error = bench.machine().rollback(bench.as_admin(machine::RollbackRequest {})).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::FailedPrecondition, "system disk not found"));
    let upgrade = |image: &str| machine::UpgradeRequest { image: image.into(), ..Default::default() };
    let error = bench.machine().upgrade(bench.as_admin(upgrade("ghcr.io/x/installer:v1"))).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let error = bench.machine().upgrade(bench.as_admin(upgrade(""))).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let reset = machine::ResetRequest {
        mode: machine::reset_request::WipeMode::SystemDisk.into(),
        user_disks_to_wipe: vec!["/dev/sda".into()],
        ..machine::ResetRequest::default()
    };
    let error = bench.machine().reset(bench.as_admin(reset)).await.unwrap_err();
    assert!(error.message().contains("wipe mode SYSTEM_DISK doesn't support"), "{error}");
    let wipe = storage::BlockDeviceWipeRequest {
        devices: vec![storage::BlockDeviceWipeDescriptor { device: "sdx".into(), ..Default::default() }],
    };
    let error = bench.storage().block_device_wipe(bench.as_admin(wipe)).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "blockdevice \"sdx\" not found"));
}

#[tokio::test]
async fn a_service_that_is_not_there_and_paths_that_climb_are_refused() {
    let bench = Bench::start().await;
    let error = bench
        .machine()
        .service_start(bench.as_admin(machine::ServiceStartRequest { id: "nope".into() }))
        .await
        .unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "service \"nope\" not defined"));
    let logs = machine::LogsRequest { namespace: "system".into(), id: "nope".into(), ..Default::default() };
    let error = bench.machine().logs(bench.as_reader(logs)).await.unwrap_err();
    assert_eq!(error.message(), "log \"nope\" was not registered");
    let read = machine::ReadRequest { path: "/../../../no/../such".into() };
    let error = bench.machine().read(bench.as_admin(read)).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "stat /such: no such file or directory"));
}

#[tokio::test]
async fn a_time_server_that_is_none_is_an_error_that_names_it() {
    let bench = Bench::start().await;
    let check = |server: &str| time::TimeRequest { server: server.into() };
    let error = bench.time().time_check(bench.as_reader(check("/dev/null"))).await.unwrap_err();
    assert!(error.message().starts_with("error querying PTP device \"/dev/null\""), "{error}");
    let error = bench.time().time_check(bench.as_reader(check("127.0.0.1"))).await.unwrap_err();
    assert_eq!(error.code(), Code::Unknown);
    assert!(error.message().starts_with("error querying NTP server \"127.0.0.1\""), "{error}");
}
