//! The family against a state: stages, identity, facts and the clock.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::{Runtime, State};
use ichor_ctl_runtime::{
    Adjustment, DevicesStatusController, EventsSinkConfigController, HostFiles, IDENTITY_FILE,
    InfoController, KernelParamConfigController, KernelParamDefaultsController, KernelParamSpecController,
    KmsgLogConfigController, Leap, MachineStatusController, Measurement, Moment, NodeIdentityController,
    Ports, SecurityStateController, Stages, StatusSink, SyncController, TimePort,
    UniqueMachineTokenController, WatchdogTimerConfigController,
};
use ichor_resource::TypedSpec;
use ichor_resource::cluster::{Identity, Info};
use ichor_resource::config::MachineConfig;
use ichor_resource::files::EtcFileSpec;
use ichor_resource::network::TimeServerStatus;
use ichor_resource::runtime::{
    DevicesStatus, EventSinkConfig, KernelCmdline, KernelParamDefaultSpec, KernelParamStatus, KmsgLogConfig,
    MachineStage, MachineStatus, MetaKey, MetaLoad, SELinuxState, SecurityState, UniqueMachineToken, Version,
    WatchdogTimerConfig,
};
use ichor_resource::time::TimeStatus;
use ichor_resource::v1alpha1::Service;
use ichor_testkit::{Harness, wait_for};
use ichor_types::Cmdline;

fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
    let namespace = T::definition().default_namespace;
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

#[tokio::test]
async fn an_identity_is_made_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let files = HostFiles::new("/", folder.path());
    let node_id = |state: &State| state.get::<Identity>("cluster", "local").unwrap().node_id.clone();

    let (state, _) = ichor_testkit::state();
    Harness::new(&state, NodeIdentityController::new(files.clone())).unwrap().reconcile().await.unwrap();
    let first = node_id(&state);
    assert!((43..=45).contains(&first.len()), "{first}");
    let text = std::fs::read_to_string(folder.path().join(IDENTITY_FILE)).unwrap();
    assert_eq!(text, format!("nodeId: {first}\n"));
    let machine_id = state.get::<EtcFileSpec>("files", "machine-id").unwrap();
    assert_eq!((machine_id.contents.as_slice().len(), machine_id.mode), (32, 0o444));

    let (state, _) = ichor_testkit::state();
    Harness::new(&state, NodeIdentityController::new(files.clone())).unwrap().reconcile().await.unwrap();
    assert_eq!(node_id(&state), first, "the same after a restart");

    std::fs::write(folder.path().join(IDENTITY_FILE), "nodeId: \"\"\n").unwrap();
    let (state, _) = ichor_testkit::state();
    let error =
        Harness::new(&state, NodeIdentityController::new(files)).unwrap().reconcile().await.unwrap_err();
    assert_eq!(error.to_string(), "node-identity.yaml holds no node id; remove it to get a new identity");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no drafts are left behind");
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl StatusSink for Heard {
    fn machine_status(&self, status: &MachineStatus) {
        let text = format!("{} {}", status.stage, if status.status.ready { "ready" } else { "waiting" });
        self.0.lock().unwrap().push(text);
    }
}

/// A clock that is off until somebody sets it, and what was done to it.
#[derive(Clone, Default)]
struct FakeClock {
    owned: bool,
    answers: Arc<Mutex<Vec<io::Result<Measurement>>>>,
    done: Arc<Mutex<Vec<Adjustment>>>,
    written: Arc<Mutex<usize>>,
}

impl FakeClock {
    fn answering(answers: Vec<io::Result<Measurement>>) -> Self {
        Self {
            owned: true,
            answers: Arc::new(Mutex::new(answers)),
            done: Arc::default(),
            written: Arc::default(),
        }
    }
}

impl TimePort for FakeClock {
    fn owns_clock(&self) -> bool {
        self.owned
    }

    async fn query(&self, _: &[String]) -> io::Result<Measurement> {
        let mut answers = self.answers.lock().unwrap();
        if answers.is_empty() { Err(io::Error::other("silence")) } else { answers.remove(0) }
    }

    fn adjust(&self, adjustment: Adjustment, _: Leap) -> io::Result<()> {
        self.done.lock().unwrap().push(adjustment);
        Ok(())
    }

    fn write_hardware_clock(&self) -> io::Result<()> {
        *self.written.lock().unwrap() += 1;
        Ok(())
    }
}

fn measured(offset: Duration) -> io::Result<Measurement> {
    let offset_ns = offset.as_nanos() as i64;
    Ok(Measurement { offset_ns, round_trip: Duration::from_millis(5), leap: Leap::None })
}

#[tokio::test]
async fn the_whole_family_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (state, _) = ichor_testkit::state();
    let runtime = Runtime::new(state.clone());
    let (stages, heard) = (Stages::default(), Heard::default());
    let ports = Ports {
        files: HostFiles::new(folder.path(), folder.path()),
        root: folder.path().to_owned(),
        meta: ichor_ctl_runtime::Meta::new(
            state.clone(),
            folder.path().join("meta"),
            tokio::runtime::Handle::current(),
        ),
        sink: heard.clone(),
        time: FakeClock::default(),
        stages: stages.clone(),
        version: "v1.12.1".to_owned(),
        cmdline: "talos.platform=sandbox panic=0\n".to_owned(),
        platform: "sandbox".to_owned(),
        mode: ichor_config::Mode::CLOUD,
        device_manager: false,
        disks: false,
        kubernetes: true,
    };
    ichor_ctl_runtime::register(&runtime, ports).unwrap();
    let running = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.run(std::future::pending()).await }
    });

    wait_for::<Version>(&state, "runtime", "version", |found| found.version == "v1.12.1").await;
    let cmdline = wait_for::<KernelCmdline>(&state, "runtime", "cmdline", |_| true).await;
    assert_eq!(cmdline.cmdline, "talos.platform=sandbox panic=0");
    wait_for::<DevicesStatus>(&state, "runtime", "devices", |found| found.ready).await;
    wait_for::<Identity>(&state, "cluster", "local", |_| true).await;
    wait_for::<SecurityState>(&state, "runtime", "securitystate", |_| true).await;
    // A clock of somebody else's counts as right.
    let time = wait_for::<TimeStatus>(&state, "runtime", "node", |found| found.synced).await;
    assert!(time.sync_disabled);

    stages.observe(Moment::SequenceStart("boot"));
    wait_for::<MachineStatus>(&state, "runtime", "machine", |found| {
        found.stage == MachineStage::Booting && !found.status.ready
    })
    .await;
    stages.observe(Moment::TaskStart("runningMaintenance"));
    wait_for::<MachineStatus>(&state, "runtime", "machine", |found| {
        found.stage == MachineStage::Maintenance && found.status.ready
    })
    .await;
    ichor_testkit::eventually("the sink to hear of it", || {
        heard.0.lock().unwrap().last().is_some_and(|last| last == "maintenance ready")
    })
    .await;
    running.abort();
}

#[tokio::test]
async fn a_status_that_did_not_change_is_not_written_again() {
    let (state, _) = ichor_testkit::state();
    let mut harness = Harness::new(&state, MachineStatusController::new(Stages::default(), true)).unwrap();
    harness.reconcile().await.unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(state.get::<MachineStatus>("runtime", "machine").unwrap().meta().version().number(), 1);
}

#[tokio::test]
async fn devices_wait_for_their_manager() {
    let (state, _) = ichor_testkit::state();
    let mut harness = Harness::new(&state, DevicesStatusController { device_manager: true }).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.get::<DevicesStatus>("runtime", "devices").is_err());
    put(&state, "udevd", Service { running: true, healthy: true, unknown: false });
    harness.reconcile().await.unwrap();
    assert!(state.get::<DevicesStatus>("runtime", "devices").unwrap().ready);
}

#[tokio::test]
async fn guards_are_read_from_the_kernel() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, contents: &[u8]| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    };
    let vars = "sys/firmware/efi/efivars";
    write("sys/fs/selinux/enforce", b"1");
    write(&format!("{vars}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"), &[6, 0, 0, 0, 1]);
    write(&format!("{vars}/SetupMode-8be4df61-93ca-11d2-aa0d-00e098032b8c"), &[6, 0, 0, 0, 0]);
    let entry: Vec<u8> = "Talos-v1.12.1.efi\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    write(
        &format!("{vars}/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"),
        &[&[6, 0, 0, 0], entry.as_slice()].concat(),
    );
    let (state, _) = ichor_testkit::state();
    let files = HostFiles::new(root.path(), root.path());
    let controller = SecurityStateController::new(files, "quiet module.sig_enforce=1");
    Harness::new(&state, controller).unwrap().reconcile().await.unwrap();
    let seen = state.get::<SecurityState>("runtime", "securitystate").unwrap();
    assert!(seen.secure_boot && seen.booted_with_uki && seen.module_signature_enforced);
    assert_eq!(seen.selinux_state, SELinuxState::Enforcing);
}

#[tokio::test]
async fn the_token_of_meta_wins_over_the_configuration() {
    let (state, _) = ichor_testkit::state();
    let config = "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://sidero.example/\nuniqueToken: written\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(config));
    let mut harness = Harness::new(&state, UniqueMachineTokenController).unwrap();
    harness.reconcile().await.unwrap();
    assert!(
        state.get::<UniqueMachineToken>("runtime", "unique-machine-token").is_err(),
        "META is not read yet"
    );

    put(&state, "meta-loaded", MetaLoad { done: true });
    harness.reconcile().await.unwrap();
    let token = || state.get::<UniqueMachineToken>("runtime", "unique-machine-token").unwrap().token.clone();
    assert_eq!(token(), "written");

    put(&state, "0x10", MetaKey { value: "kept".into() });
    harness.reconcile().await.unwrap();
    assert_eq!(token(), "kept");
}

#[tokio::test]
async fn the_cluster_is_named_by_the_configuration() {
    let (state, _) = ichor_testkit::state();
    let config =
        "version: v1alpha1\nmachine:\n  type: worker\ncluster:\n  id: cluster-id\n  clusterName: lab\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(config));
    Harness::new(&state, InfoController::default()).unwrap().reconcile().await.unwrap();
    let info = state.get::<Info>("cluster", "current").unwrap();
    assert_eq!((info.cluster_id.as_str(), info.cluster_name.as_str()), ("cluster-id", "lab"));
}

fn with_servers(state: &State) {
    put(state, "devices", DevicesStatus { ready: true });
    put(state, "timeservers", TimeServerStatus { time_servers: vec!["10.5.0.1".into()] });
}

#[tokio::test(start_paused = true)]
async fn the_clock_is_set_and_then_watched() {
    let (state, _) = ichor_testkit::state();
    let clock = FakeClock::answering(vec![
        Err(io::Error::other("not yet")),
        measured(Duration::from_secs(3600)),
        measured(Duration::from_millis(1)),
    ]);
    let mut harness = Harness::new(&state, SyncController::new(clock.clone())).unwrap();
    harness.reconcile().await.unwrap();
    let status = || (*state.get::<TimeStatus>("runtime", "node").unwrap()).clone();
    assert!(!status().synced, "nobody to ask");

    with_servers(&state);
    harness.reconcile().await.unwrap();
    assert_eq!(harness.requeue(), Some(Duration::from_secs(1)), "no answer is asked for again soon");

    tokio::time::advance(Duration::from_secs(1)).await;
    harness.reconcile().await.unwrap();
    assert_eq!(status(), TimeStatus { synced: true, epoch: 1, sync_disabled: false });
    assert_eq!(harness.requeue(), Some(Duration::from_secs(32)));

    harness.reconcile().await.unwrap();
    assert_eq!(clock.done.lock().unwrap().len(), 1, "a pass before its time asks nobody");

    tokio::time::advance(Duration::from_secs(32)).await;
    harness.reconcile().await.unwrap();
    let done = clock.done.lock().unwrap();
    assert_eq!(done[0], Adjustment::Step { offset_ns: 3_600_000_000_000 });
    assert!(matches!(done[1], Adjustment::Slew { offset_ns: 1_000_000, .. }));
    assert_eq!(
        *clock.written.lock().unwrap(),
        1,
        "the hardware clock is set when the time was wrong, not for a slew"
    );
}

#[tokio::test(start_paused = true)]
async fn booting_waits_for_the_time_only_so_long() {
    let (state, _) = ichor_testkit::state();
    with_servers(&state);
    let config = "version: v1alpha1\nmachine:\n  type: worker\n  time:\n    bootTimeout: 2m\ncluster: {}\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(config));
    let mut harness = Harness::new(&state, SyncController::new(FakeClock::answering(Vec::new()))).unwrap();
    harness.reconcile().await.unwrap();
    assert!(!state.get::<TimeStatus>("runtime", "node").unwrap().synced);
    tokio::time::advance(Duration::from_secs(121)).await;
    harness.reconcile().await.unwrap();
    assert!(state.get::<TimeStatus>("runtime", "node").unwrap().synced);
}

#[tokio::test]
async fn time_sync_can_be_turned_off() {
    let (state, _) = ichor_testkit::state();
    let config = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(config));
    let mut harness = Harness::new(&state, SyncController::new(FakeClock::answering(Vec::new()))).unwrap();
    harness.reconcile().await.unwrap();
    let status = state.get::<TimeStatus>("runtime", "node").unwrap();
    assert!(status.synced && status.sync_disabled);
}

/// On a kernel that does not stop at an oops by itself, no kubelet came up.
#[tokio::test]
async fn a_kernel_of_its_own_gets_what_kubelet_insists_on() {
    let (state, _) = ichor_testkit::state();
    let defaults = KernelParamDefaultsController { own_kernel: true };
    Harness::new(&state, defaults).unwrap().reconcile().await.unwrap();
    for (key, value) in [
        ("vm.overcommit_memory", "1"),
        ("vm.panic_on_oom", "0"),
        ("kernel.panic", "10"),
        ("kernel.panic_on_oops", "1"),
        ("kernel.keys.root_maxkeys", "1000000"),
        ("kernel.keys.root_maxbytes", "25000000"),
    ] {
        let wanted = state.get::<KernelParamDefaultSpec>("runtime", &format!("proc.sys.{key}")).unwrap();
        assert_eq!(wanted.value, value, "{key}");
    }
}

#[tokio::test]
async fn kernel_parameters_are_set_and_put_back() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join("proc/sys/net/ipv4").join(name);
    std::fs::create_dir_all(at("")).unwrap();
    std::fs::write(at("ip_forward"), "0\n").unwrap();
    std::fs::write(at("tcp_keepalive_time"), "7200\n").unwrap();
    let read = |name: &str| std::fs::read_to_string(at(name)).unwrap().trim().to_owned();
    let (state, _) = ichor_testkit::state();
    let files = HostFiles::new(root.path(), root.path());
    let mut config = Harness::new(&state, KernelParamConfigController).unwrap();
    let mut harness = Harness::new(&state, KernelParamSpecController::new(files)).unwrap();
    let status = |key: &str| (*state.get::<KernelParamStatus>("runtime", key).unwrap()).clone();

    let defaults = KernelParamDefaultsController { own_kernel: false };
    Harness::new(&state, defaults).unwrap().reconcile().await.unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!((read("ip_forward"), read("tcp_keepalive_time")), ("1".to_owned(), "600".to_owned()));
    let forward = status("proc.sys.net.ipv4.ip_forward");
    assert_eq!((forward.current.as_str(), forward.default.as_str()), ("1", "0"));
    assert!(status("proc.sys.net.ipv4.ip_local_reserved_ports").unsupported, "there is no such file");
    assert!(state.get::<KernelParamStatus>("runtime", "proc.sys.kernel.panic").is_err(), "not ours to set");

    let text = "version: v1alpha1\nmachine:\n  type: worker\n  sysctls:\n    net.ipv4.ip_forward: \"0\"\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(text));
    config.reconcile().await.unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(read("ip_forward"), "0", "the configuration wins");

    let text = "version: v1alpha1\nmachine:\n  type: worker\n  sysctls:\n    net.ipv4.nonsense: \"1\"\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(text));
    config.reconcile().await.unwrap();
    let error = harness.reconcile().await.unwrap_err().to_string();
    assert!(error.starts_with("set kernel parameter proc.sys.net.ipv4.nonsense:"), "{error}");
    assert_eq!(read("ip_forward"), "1", "the default is back");
}

#[tokio::test]
async fn documents_become_resources_and_go_with_them() {
    let (state, _) = ichor_testkit::state();
    let cmdline = Cmdline::parse("talos.logging.kernel=tcp://10.5.0.1:5555/ talos.events.sink=10.5.0.1:8080");
    let mut sink = Harness::new(&state, EventsSinkConfigController { cmdline: cmdline.clone() }).unwrap();
    let mut log = Harness::new(&state, KmsgLogConfigController { cmdline }).unwrap();
    sink.reconcile().await.unwrap();
    assert_eq!(state.get::<EventSinkConfig>("runtime", "event-sink").unwrap().endpoint, "10.5.0.1:8080");

    let text = "apiVersion: v1alpha1\nkind: EventSinkConfig\nendpoint: 10.5.0.9:1\n---\n\
                apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: far\nurl: udp://10.5.0.9:2/\n---\n\
                apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: same\nurl: tcp://10.5.0.1:5555/\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(text));
    sink.reconcile().await.unwrap();
    log.reconcile().await.unwrap();
    assert_eq!(state.get::<EventSinkConfig>("runtime", "event-sink").unwrap().endpoint, "10.5.0.9:1");
    let urls: Vec<_> = state.get::<KmsgLogConfig>("runtime", "kmsg-log").unwrap().destinations.clone();
    assert_eq!(
        urls.iter().map(|url| url.0.as_str()).collect::<Vec<_>>(),
        ["tcp://10.5.0.1:5555/", "udp://10.5.0.9:2/"]
    );

    let mut watchdog = Harness::new(&state, WatchdogTimerConfigController::default()).unwrap();
    let text = "apiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog0\n";
    put(&state, MachineConfig::ACTIVE, MachineConfig::new(text));
    watchdog.reconcile().await.unwrap();
    assert_eq!(state.get::<WatchdogTimerConfig>("runtime", "timer").unwrap().timeout.to_string(), "1m0s");
    put(&state, MachineConfig::ACTIVE, MachineConfig::new("apiVersion: v1alpha1\nkind: TimeSyncConfig\n"));
    watchdog.reconcile().await.unwrap();
    assert!(state.get::<WatchdogTimerConfig>("runtime", "timer").is_err());
}
