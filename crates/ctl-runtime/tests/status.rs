//! Status controllers against fixtures: hardware, counters, modules, watchdog, diagnostics, extensions, META.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_runtime::{
    AdjtimeStatusController, Armed, DiagnosticsController, DropUpgradeFallbackController,
    EncryptionSaltController, ExtensionServiceConfigFilesController, HostFiles, IQNController,
    KernelModuleSpecController, LoadedKernelModuleController, LogPersistenceController, Meta, NQNController,
    PCIDevicesController, PCIDriverRebindConfigController, PCIDriverRebindController,
    SiderolinkConfigController, StatsController, SwapStatusController, SystemInfoController, WatchdogPort,
    WatchdogTimerController, ZswapConfigController, ZswapStatusController,
};
use ichor_resource::TypedSpec;
use ichor_resource::block::{SwapStatus, VolumeLifecycle, ZswapStatus};
use ichor_resource::cluster::Identity;
use ichor_resource::config::MachineConfig;
use ichor_resource::files::EtcFileSpec;
use ichor_resource::hardware::{
    MemoryModule, PCIDevice, PCIDriverRebindStatus, Processor, SystemInformation,
};
use ichor_resource::network::NodeAddress;
use ichor_resource::perf::{CPUStats, MemoryStats};
use ichor_resource::runtime::{
    DevicesStatus, Diagnostic, ExtensionServiceConfig, ExtensionServiceConfigFile,
    ExtensionServiceConfigStatus, KernelModuleSpec, KernelParamSpec, LoadedKernelModule, MachineStage,
    MachineStatus, MetaKey, MetaLoad, WatchdogTimerConfig, WatchdogTimerStatus,
};
use ichor_resource::secrets::EncryptionSalt;
use ichor_resource::siderolink::SiderolinkConfig;
use ichor_resource::time::AdjtimeStatus;
use ichor_resource::v1alpha1::Service;
use ichor_testkit::Harness;
use ichor_types::{Cmdline, GoDuration};

fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
    let namespace = T::definition().default_namespace;
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

fn configure(state: &State, yaml: &'static str) {
    put(state, MachineConfig::ACTIVE, MachineConfig::new(yaml));
}

fn write(root: &Path, path: &str, contents: impl AsRef<[u8]>) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, contents).unwrap();
}

/// One structure of the firmware's tables: numbers of strings at offsets, then the strings.
fn structure(kind: u8, len: u8, bytes: &[(usize, u8)], strings: &[&str]) -> Vec<u8> {
    let mut out = vec![0; usize::from(len)];
    (out[0], out[1]) = (kind, len);
    for (at, byte) in bytes {
        out[*at] = *byte;
    }
    for text in strings {
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    }
    out.push(0);
    out
}

#[tokio::test]
async fn the_firmware_describes_the_machine_once_meta_is_read() {
    let root = tempfile::tempdir().unwrap();
    let system = structure(1, 27, &[(4, 1), (8, 0xaa), (0x18, 6)], &["Maker"]);
    let cpu = structure(4, 40, &[(4, 1), (0x18, 0x41), (0x23, 4), (0x25, 8)], &["CPU 0"]);
    let empty = structure(4, 40, &[(4, 1)], &["CPU 1"]);
    let ram = structure(17, 40, &[(0x0d, 0x10), (0x10, 1)], &["DIMM 0"]);
    write(root.path(), "sys/firmware/dmi/tables/DMI", [system, cpu, empty, ram].concat());
    write(root.path(), "sys/firmware/dmi/tables/smbios_entry_point", b"_SM3_\x00\x18\x03\x00");

    let (state, _) = ichor_testkit::state();
    let mut harness = Harness::new(&state, SystemInfoController::new(root.path())).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.list::<SystemInformation>("hardware").is_empty(), "META may hold another UUID");

    put(&state, "meta-loaded", MetaLoad { done: true });
    harness.reconcile().await.unwrap();
    let system = state.get::<SystemInformation>("hardware", "systeminformation").unwrap();
    assert_eq!((system.manufacturer.as_str(), system.wake_up_type.as_str()), ("Maker", "Power Switch"));
    assert_eq!(system.uuid, "000000aa-0000-0000-0000-000000000000");
    let cpu = state.get::<Processor>("hardware", "CPU-0").unwrap();
    assert_eq!((cpu.socket.as_str(), cpu.core_count, cpu.thread_count, cpu.status), ("CPU 0", 4, 8, 0x41));
    assert_eq!(*state.get::<Processor>("hardware", "CPU-1").unwrap(), Processor::default());
    assert_eq!(state.get::<MemoryModule>("hardware", "DIMM-0").unwrap().size_mib, 4096);

    put(&state, "0x0f", MetaKey { value: "another-uuid".into() });
    harness.reconcile().await.unwrap();
    assert_eq!(state.get::<SystemInformation>("hardware", "systeminformation").unwrap().uuid, "another-uuid");
    state.destroy::<MetaKey>("runtime", "0x0f", "").unwrap();
    harness.reconcile().await.unwrap();
    let system = state.get::<SystemInformation>("hardware", "systeminformation").unwrap();
    assert_eq!(system.uuid, "000000aa-0000-0000-0000-000000000000");
}

#[tokio::test]
async fn a_machine_without_firmware_tables_has_no_hardware() {
    let root = tempfile::tempdir().unwrap();
    let (state, _) = ichor_testkit::state();
    put(&state, "meta-loaded", MetaLoad { done: true });
    Harness::new(&state, SystemInfoController::new(root.path())).unwrap().reconcile().await.unwrap();
    assert!(state.list::<Processor>("hardware").is_empty());
}

fn pci_fixture() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let folder = "sys/bus/pci/devices/0000:00:1f.2";
    for (name, text) in [("class", "0x010601\n"), ("vendor", "0x8086\n"), ("device", "0x2922\n")] {
        write(root.path(), &format!("{folder}/{name}"), text);
    }
    write(root.path(), &format!("{folder}/driver_override"), "(null)\n");
    write(root.path(), "sys/bus/pci/drivers_probe", "");
    write(root.path(), "sys/bus/pci/drivers/ahci/unbind", "");
    symlink("../../drivers/ahci", root.path().join(folder).join("driver")).unwrap();
    root
}

#[tokio::test]
async fn pci_devices_are_shown_once_the_device_manager_has_settled() {
    let root = pci_fixture();
    let (state, _) = ichor_testkit::state();
    let mut harness = Harness::new(&state, PCIDevicesController::new(root.path(), true)).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.list::<PCIDevice>("hardware").is_empty());
    put(&state, "udevd", Service { running: true, healthy: true, unknown: false });
    harness.reconcile().await.unwrap();
    let device = state.get::<PCIDevice>("hardware", "0000:00:1f.2").unwrap();
    let ids = [&device.class_id, &device.subclass_id, &device.vendor_id, &device.product_id];
    assert_eq!(ids, ["0x01", "0x06", "0x8086", "0x2922"]);
    let names = [&device.class, &device.subclass, &device.vendor, &device.driver];
    assert_eq!(names, ["Mass storage controller", "SATA controller", "Intel Corporation", "ahci"]);
}

#[tokio::test]
async fn a_device_changes_its_driver_and_gets_the_old_one_back() {
    let root = pci_fixture();
    let read = |path: &str| std::fs::read_to_string(root.path().join(path)).unwrap();
    let over = "sys/bus/pci/devices/0000:00:1f.2/driver_override";
    let (state, _) = ichor_testkit::state();
    configure(
        &state,
        "apiVersion: v1alpha1\nkind: PCIDriverRebindConfig\nname: \"0000:00:1f.2\"\ntargetDriver: vfio-pci\n",
    );
    put(&state, "devices", DevicesStatus { ready: true });
    let mut config = Harness::new(&state, PCIDriverRebindConfigController).unwrap();
    let files = HostFiles::new(root.path(), root.path());
    let mut harness = Harness::new(&state, PCIDriverRebindController::new(files)).unwrap();
    config.reconcile().await.unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(read(over), "vfio-pci");
    assert_eq!(read("sys/bus/pci/drivers_probe"), "0000:00:1f.2");
    assert_eq!(state.list::<PCIDriverRebindStatus>("hardware").len(), 1);

    state.destroy::<MachineConfig>("config", MachineConfig::ACTIVE, "").unwrap();
    config.reconcile().await.unwrap();
    harness.reconcile().await.unwrap();
    assert_eq!(read(over), "\n");
    assert!(state.list::<PCIDriverRebindStatus>("hardware").is_empty());
}

#[tokio::test]
async fn counters_are_taken_twice_a_minute() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/stat", "cpu  100 0 50 800\ncpu0 100 0 50 800\nctxt 5\nprocs_running 1\n");
    write(root.path(), "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nDirectMap2M: 7 kB\n");
    let (state, _) = ichor_testkit::state();
    let files = HostFiles::new(root.path(), root.path());
    let mut harness = Harness::new(&state, StatsController { files }).unwrap();
    harness.reconcile().await.unwrap();
    let cpu = state.get::<CPUStats>("perf", "latest").unwrap();
    assert_eq!((cpu.cpu_total.user, cpu.cpu.len(), cpu.context_switches), (1.0, 1, 5));
    let memory = state.get::<MemoryStats>("perf", "latest").unwrap();
    assert_eq!((memory.total, memory.used, memory.direct_map_2m), (1000, 600, 7));
    assert_eq!(harness.requeue(), Some(Duration::from_secs(30)));

    let mut harness = Harness::new(&state, AdjtimeStatusController).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.get::<AdjtimeStatus>("runtime", "node").unwrap().state.starts_with("TIME_"));
}

#[tokio::test]
async fn swap_is_shown_while_it_is_there() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/swaps", "Filename Type Size Used Priority\n/dev/vda2 partition 4089440 0 -2\n");
    write(root.path(), "sys/module/zswap/parameters/enabled", "Y\n");
    write(root.path(), "sys/kernel/debug/zswap/pool_total_size", "1048576\n");
    write(root.path(), "sys/kernel/debug/zswap/stored_pages", "12\n");
    let (state, _) = ichor_testkit::state();
    let files = HostFiles::new(root.path(), root.path());
    let mut swap = Harness::new(&state, SwapStatusController { files: files.clone() }).unwrap();
    let mut zswap = Harness::new(&state, ZswapStatusController { files }).unwrap();
    swap.reconcile().await.unwrap();
    zswap.reconcile().await.unwrap();
    let found = state.get::<SwapStatus>("runtime", "/dev/vda2").unwrap();
    assert_eq!((found.size_human.as_str(), found.used_human.as_str()), ("3.9 GiB", "0 B"));
    let found = state.get::<ZswapStatus>("runtime", "zswap").unwrap();
    assert_eq!((found.stored_pages, found.total_size_human.as_str()), (12, "1.0 MiB"));

    write(root.path(), "proc/swaps", "Filename Type Size Used Priority\n");
    write(root.path(), "sys/module/zswap/parameters/enabled", "N\n");
    swap.reconcile().await.unwrap();
    zswap.reconcile().await.unwrap();
    assert!(
        state.list::<SwapStatus>("runtime").is_empty() && state.list::<ZswapStatus>("runtime").is_empty()
    );
    assert_eq!(zswap.requeue(), None, "nobody looks at what is off");
}

#[tokio::test]
async fn modules_are_shown_and_wanted_ones_loaded_or_named() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/modules", "vfat 24576 1 - Live 0x0\nfat 94208 1 vfat, Live 0x0\n");
    write(root.path(), "sys/module/br_netfilter/refcnt", "0\n");
    let (state, _) = ichor_testkit::state();
    let files = HostFiles::new(root.path(), root.path());
    Harness::new(&state, LoadedKernelModuleController::new(files)).unwrap().reconcile().await.unwrap();
    assert_eq!(state.get::<LoadedKernelModule>("runtime", "fat").unwrap().dependencies, ["vfat"]);

    let spec = |name: &str| KernelModuleSpec { name: name.into(), parameters: Vec::new() };
    put(&state, "br-netfilter", spec("br-netfilter"));
    let mut harness = Harness::new(&state, KernelModuleSpecController::new(root.path())).unwrap();
    harness.reconcile().await.unwrap();
    put(&state, "missing", spec("missing"));
    let error = harness.reconcile().await.unwrap_err();
    assert_eq!(error.to_string(), "load kernel module missing: this kernel has no module missing");
}

/// What was done to a watchdog.
#[derive(Clone, Default)]
struct Dog(Arc<Mutex<Vec<String>>>);

impl Dog {
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn tell(&self, text: String) -> io::Result<()> {
        self.0.lock().unwrap().push(text);
        Ok(())
    }
}

impl WatchdogPort for Dog {
    type Armed = Dog;

    async fn arm(&self, device: &str, timeout: Duration) -> io::Result<Dog> {
        if device == "/dev/none" {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.tell(format!("arm {device} {timeout:?}"))?;
        Ok(self.clone())
    }
}

impl Armed for Dog {
    fn feed(&self) -> io::Result<()> {
        self.tell("feed".into())
    }

    fn disarm(self) -> io::Result<()> {
        self.tell("disarm".into())
    }
}

#[tokio::test]
async fn a_watchdog_is_fed_changed_and_switched_off() {
    let (state, _) = ichor_testkit::state();
    let dog = Dog::default();
    let mut harness = Harness::new(&state, WatchdogTimerController::new(dog.clone())).unwrap();
    let config =
        |device: &str| WatchdogTimerConfig { device: device.into(), timeout: GoDuration::from_secs(60) };
    harness.reconcile().await.unwrap();
    assert_eq!(dog.told(), [] as [&str; 0]);

    put(&state, "timer", config("/dev/watchdog0"));
    harness.reconcile().await.unwrap();
    assert_eq!(dog.told(), ["arm /dev/watchdog0 60s", "feed"]);
    assert_eq!(harness.requeue(), Some(Duration::from_secs(20)));
    let status = state.get::<WatchdogTimerStatus>("runtime", "timer").unwrap();
    assert_eq!(status.feed_interval, GoDuration::from_secs(20));
    harness.reconcile().await.unwrap();
    assert_eq!(dog.told(), ["feed"]);

    put(&state, "timer", config("/dev/none"));
    let error = harness.reconcile().await.unwrap_err();
    assert!(error.to_string().starts_with("arm watchdog /dev/none: "), "{error}");
    assert_eq!(dog.told(), ["disarm"]);
    assert!(state.list::<WatchdogTimerStatus>("runtime").is_empty());
}

#[tokio::test]
async fn overlapping_addresses_are_told_once_they_last() {
    let (state, clock) = ichor_testkit::state();
    configure(
        &state,
        "version: v1alpha1\nmachine:\n  type: worker\ncluster:\n  controlPlane:\n    endpoint: https://a:6443\n  \
         network:\n    podSubnets: [10.244.0.0/16]\n    serviceSubnets: [10.96.0.0/12]\n",
    );
    put(
        &state,
        "routed",
        NodeAddress { addresses: vec!["10.244.0.5/24".parse().unwrap()], ..Default::default() },
    );
    put(&state, "routed-no-k8s", NodeAddress::default());
    let mut harness = Harness::new(&state, diagnostics(meta(&state, "/no/meta"))).unwrap();
    harness.reconcile().await.unwrap();
    assert!(state.list::<Diagnostic>("runtime").is_empty());
    assert_eq!(harness.requeue(), Some(Duration::from_secs(30)));
    clock.advance(Duration::from_secs(31));
    harness.reconcile().await.unwrap();
    let told = state.get::<Diagnostic>("runtime", "address-overlap").unwrap();
    assert_eq!(told.details[0], "host routed addresses: [10.244.0.5/24]");
    assert_eq!(told.details[2], "Kubernetes service CIDRs: [10.96.0.0/12]");

    let good = NodeAddress { addresses: vec!["10.0.0.5/24".parse().unwrap()], ..Default::default() };
    put(&state, "routed-no-k8s", good);
    harness.reconcile().await.unwrap();
    assert!(state.list::<Diagnostic>("runtime").is_empty());
}

fn meta(state: &State, path: impl Into<std::path::PathBuf>) -> Meta {
    Meta::new(state.clone(), path, tokio::runtime::Handle::current())
}

fn diagnostics(meta: Meta) -> DiagnosticsController {
    DiagnosticsController::new(meta, "sandbox", ichor_config::Mode::CLOUD, &Default::default())
}

#[tokio::test]
async fn two_bad_meta_copies_are_a_diagnostic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta");
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    let (state, clock) = ichor_testkit::state();
    let meta = meta(&state, &path);
    meta.load().await.unwrap();
    let mut harness = Harness::new(&state, diagnostics(meta)).unwrap();
    harness.reconcile().await.unwrap();
    clock.advance(Duration::from_secs(31));
    harness.reconcile().await.unwrap();
    let told = state.get::<Diagnostic>("runtime", "meta-damaged").unwrap();
    assert_eq!(told.details[0], format!("kept unchanged at {}", path.display()));
}

#[tokio::test]
async fn ignored_fields_and_arguments_are_reported_at_once() {
    let (state, _) = ichor_testkit::state();
    let cmdline = Cmdline::parse("talos.platform=aws talos.config=guestinfo.hidden");
    let controller =
        DiagnosticsController::new(meta(&state, "/no/meta"), "aws", ichor_config::Mode::CLOUD, &cmdline);
    let mut harness = Harness::new(&state, controller).unwrap();
    harness.reconcile().await.unwrap();
    // A machine that waits for its configuration already says why none came.
    let found = state.get::<Diagnostic>("runtime", "cmdline-not-applied").unwrap();
    assert_eq!(found.details.len(), 2, "{:?}", found.details);
    assert_eq!(found.details[0], "talos.config=guestinfo…: VMware guest information is not read yet");
    assert!(found.details[1].starts_with("talos.platform=aws: "), "{}", found.details[1]);

    configure(&state, "version: v1alpha1\nmachine:\n  type: worker\n  features: {rbac: false}\n");
    harness.reconcile().await.unwrap();
    let found = state.get::<Diagnostic>("runtime", "config-not-applied").unwrap();
    assert_eq!(found.details, ["machine.features.rbac: authorization by role cannot be turned off"]);

    configure(&state, "version: v1alpha1\nmachine:\n  type: worker\n");
    harness.reconcile().await.unwrap();
    assert!(state.get::<Diagnostic>("runtime", "config-not-applied").is_err());
}

#[tokio::test]
async fn files_of_extension_services_come_and_go_with_their_configuration() {
    let root = tempfile::tempdir().unwrap();
    let (state, _) = ichor_testkit::state();
    let file = ExtensionServiceConfigFile { content: "hi".into(), mount_path: "/etc/hello/conf".into() };
    put(&state, "hello", ExtensionServiceConfig { files: vec![file], environment: Vec::new() });
    let controller = ExtensionServiceConfigFilesController { root: root.path().to_owned() };
    let mut harness = Harness::new(&state, controller).unwrap();
    harness.reconcile().await.unwrap();
    let folder = root.path().join("system/overlays/extensions/hello");
    assert_eq!(std::fs::read_to_string(folder.join("-etc-hello-conf")).unwrap(), "hi");
    let status = state.get::<ExtensionServiceConfigStatus>("runtime", "hello").unwrap();
    assert_eq!(status.spec_version, "1");
    state.destroy::<ExtensionServiceConfig>("runtime", "hello", "").unwrap();
    harness.reconcile().await.unwrap();
    assert!(!folder.exists());
    assert!(state.list::<ExtensionServiceConfigStatus>("runtime").is_empty());
}

#[tokio::test]
async fn the_way_back_is_given_up_once_the_machine_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let (state, _) = ichor_testkit::state();
    let meta = meta(&state, folder.path().join("meta"));
    meta.set(0x06, b"A".to_vec()).await.unwrap();
    let mut harness = Harness::new(&state, DropUpgradeFallbackController::new(meta.clone())).unwrap();
    let mut status = MachineStatus { stage: MachineStage::Running, ..MachineStatus::default() };
    put(&state, "machine", status.clone());
    harness.reconcile().await.unwrap();
    assert!(meta.get(0x06).is_some(), "not ready yet");
    status.status.ready = true;
    put(&state, "machine", status);
    harness.reconcile().await.unwrap();
    assert!(meta.get(0x06).is_none());
}

#[tokio::test]
async fn volumes_go_only_when_the_last_line_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (state, _) = ichor_testkit::state();
    put(&state, "volumes", VolumeLifecycle {});
    let logs = ichor_observe::LogManager::new();
    let controller = LogPersistenceController::new(logs.clone(), folder.path().join("log"));
    let mut harness = Harness::new(&state, controller).unwrap();
    harness.reconcile().await.unwrap();
    logs.ring("apid").write_line("the last words");
    assert!(!state.teardown::<VolumeLifecycle>("runtime", "volumes", "").unwrap(), "held");
    harness.reconcile().await.unwrap();
    assert!(state.teardown::<VolumeLifecycle>("runtime", "volumes", "").unwrap(), "let go");
    let text = std::fs::read_to_string(folder.path().join("log/apid.log")).unwrap();
    assert_eq!(text, "the last words\n");
}

#[tokio::test]
async fn a_salt_is_made_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let files = HostFiles::new("/", folder.path());
    let mut salts = Vec::new();
    for _ in 0..2 {
        let (state, _) = ichor_testkit::state();
        let controller = EncryptionSaltController::new(files.clone());
        Harness::new(&state, controller).unwrap().reconcile().await.unwrap();
        salts.push(state.get::<EncryptionSalt>("secrets", "salt").unwrap().disk_salt.clone());
    }
    assert_eq!(salts[0], salts[1]);
    std::fs::write(folder.path().join("encryption-salt.yaml"), "diskSalt: [1]\n").unwrap();
    let (state, _) = ichor_testkit::state();
    let controller = EncryptionSaltController::new(files);
    let error = Harness::new(&state, controller).unwrap().reconcile().await.unwrap_err();
    assert!(error.to_string().contains("encryption-salt.yaml"), "{error}");
}

#[tokio::test]
async fn storage_protocols_know_the_machine_by_its_identity() {
    let (state, _) = ichor_testkit::state();
    put(&state, "local", Identity { node_id: "sou7yy34ykX3n373Zw1DXKb8zD7UnyKT6HT3QDsGH6L".into() });
    Harness::new(&state, IQNController).unwrap().reconcile().await.unwrap();
    Harness::new(&state, NQNController).unwrap().reconcile().await.unwrap();
    let text = |id: &str| {
        let file = state.get::<EtcFileSpec>("files", id).unwrap();
        String::from_utf8(file.contents.as_slice().to_vec()).unwrap()
    };
    assert_eq!(
        text("iscsi/initiatorname.iscsi"),
        "InitiatorName=iqn.2017-11.dev.talos:be871ac0d0dd31fa4caca753b0f3f1b2\n"
    );
    assert_eq!(text("nvme/hostnqn"), format!("nqn.2017-11.dev.talos:uuid:{}", text("nvme/hostid")));
}

#[tokio::test]
async fn documents_become_settings_of_swap_and_of_the_management_link() {
    let (state, _) = ichor_testkit::state();
    configure(
        &state,
        "apiVersion: v1alpha1\nkind: ZswapConfig\nmaxPoolPercent: 25\n---\napiVersion: v1alpha1\n\
         kind: SideroLinkConfig\napiUrl: https://join.example/?jointoken=secret&grpc_tunnel=true\n",
    );
    Harness::new(&state, ZswapConfigController::default()).unwrap().reconcile().await.unwrap();
    let value = |name: &str| {
        let id = format!("sys.module.zswap.parameters.{name}");
        state.get::<KernelParamSpec>("runtime", &id).unwrap().value.clone()
    };
    assert_eq!([value("enabled"), value("max_pool_percent"), value("shrinker_enabled")], ["Y", "25", "N"]);
    Harness::new(&state, SiderolinkConfigController::default()).unwrap().reconcile().await.unwrap();
    let link = state.get::<SiderolinkConfig>("config", "siderolink").unwrap();
    assert_eq!((link.api_endpoint.as_str(), link.host.as_str()), ("join.example:443", "join.example"));
    assert!(link.tunnel && !link.insecure && link.join_token == "secret");
}
