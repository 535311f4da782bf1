//! The volume manager: waves, waiting, failures, the end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_block::mounts::MountFailures;
use ichor_ctl_block::volumes::{Action, ActionError, Created, Outcome, VolumeManagerController, VolumePort};
use ichor_ctl_block::{META_HOLDER, VolumeConfigController};
use ichor_resource::TypedSpec;
use ichor_resource::block::{
    DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus, Disk, Expression, FilesystemType,
    SystemDisk, VolumeConfig, VolumeLifecycle, VolumePhase, VolumeStatus, VolumeType,
};
use ichor_resource::config::MachineConfig;
use ichor_resource::runtime::DevicesStatus;
use ichor_testkit::Harness;

const GIB: u64 = 1 << 30;

/// Notes what it is asked for, and makes empty partitions.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    asked: Vec<String>,
    next: u32,
    failure: Option<ActionError>,
    /// What is on every device.
    held: String,
}

impl Fake {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }

    fn hold(&self, name: &str) {
        name.clone_into(&mut self.0.lock().unwrap().held);
    }

    fn fail(&self, failure: Option<ActionError>) {
        self.0.lock().unwrap().failure = failure;
    }
}

impl VolumePort for Fake {
    async fn perform(&self, action: Action) -> Result<Outcome, ActionError> {
        let mut inner = self.0.lock().unwrap();
        if let Some(failure) = &inner.failure {
            return Err(failure.clone());
        }
        let (text, outcome) = match action {
            Action::CreatePartition { disk, label, maximum, .. } => {
                inner.next += 1;
                let number = 1 + inner.next;
                let size = maximum.unwrap_or(8 * GIB);
                let created = Created {
                    device: format!("{disk}{number}"),
                    disk,
                    number,
                    guid: format!("guid-{number}"),
                    size,
                };
                (format!("create {label}"), Outcome::Created(created))
            }
            Action::GrowPartition { number, .. } => (format!("grow {number}"), Outcome::Grown(0)),
            Action::Probe { device } => (format!("probe {device}"), Outcome::Found(inner.held.clone())),
            Action::Format { device, filesystem, .. } => {
                (format!("format {device} {filesystem}"), Outcome::Done)
            }
            Action::GrowFilesystem { device, .. } => (format!("resize {device}"), Outcome::Done),
        };
        inner.asked.push(text);
        Ok(outcome)
    }
}

fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
    let namespace = T::definition().default_namespace;
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

fn volume(label: &str, wave: i64, maximum: u64) -> VolumeConfig {
    let expression = |text: String| Expression { text, ..Expression::default() };
    let mut config = VolumeConfig::default();
    config.locator.r#match = expression(format!("volume.partition_label == '{label}'"));
    config.provisioning.wave = wave;
    config.provisioning.disk_selector.r#match = expression("system_disk".into());
    config.provisioning.partition_spec.min_size = maximum.max(1 << 20);
    config.provisioning.partition_spec.max_size = maximum;
    config.provisioning.partition_spec.grow = maximum == 0;
    config.provisioning.partition_spec.label = label.into();
    config.provisioning.filesystem_spec.r#type = FilesystemType::Xfs;
    config
}

/// A machine with an installed disk, and its manager.
fn machine() -> (State, Fake, Harness<VolumeManagerController<Fake>>) {
    let (state, _) = ichor_testkit::state();
    let port = Fake::default();
    let manager =
        Harness::new(&state, VolumeManagerController::new(port.clone(), MountFailures::default())).unwrap();
    put(&state, "volumes", VolumeLifecycle {});
    let disk = Disk { dev_path: "/dev/sda".into(), size: 16 * GIB, sector_size: 512, ..Disk::default() };
    put(&state, "sda", disk);
    put(&state, "system-disk", SystemDisk { disk_id: "sda".into(), dev_path: "/dev/sda".into() });
    let table =
        DiscoveredVolume { dev_path: "/dev/sda".into(), name: "gpt".into(), ..DiscoveredVolume::default() };
    put(&state, "sda", table);
    (state, port, manager)
}

fn settle(state: &State) {
    put(state, "devices", DevicesStatus { ready: true });
    put(state, "refresh", DiscoveryRefreshStatus { request: 1 });
}

fn phase(state: &State, id: &str) -> VolumePhase {
    state.get::<VolumeStatus>("runtime", id).unwrap().phase
}

#[tokio::test]
async fn volumes_are_made_after_the_devices_were_read_again_the_small_ones_first_and_by_wave() {
    let (state, port, mut manager) = machine();
    put(&state, "EPHEMERAL", volume("EPHEMERAL", -1, 0));
    put(&state, "STATE", volume("STATE", -1, 100 << 20));
    put(&state, "u-data", volume("u-data", 0, GIB));
    manager.reconcile().await.unwrap();
    assert_eq!((port.asked().len(), phase(&state, "STATE")), (0, VolumePhase::Waiting));
    put(&state, "devices", DevicesStatus { ready: true });
    manager.reconcile().await.unwrap();
    let request = state.get::<DiscoveryRefreshRequest>("runtime", "refresh").unwrap().request;
    assert_eq!((port.asked().len(), request), (0, 1), "first everything is read again");
    settle(&state);
    manager.reconcile().await.unwrap();
    assert_eq!(
        port.asked(),
        [
            "create STATE",
            "probe /dev/sda2",
            "format /dev/sda2 xfs",
            "create EPHEMERAL",
            "probe /dev/sda3",
            "format /dev/sda3 xfs",
            "create u-data",
            "probe /dev/sda4",
            "format /dev/sda4 xfs",
        ]
    );
    for id in ["STATE", "EPHEMERAL", "u-data"] {
        assert_eq!(phase(&state, id), VolumePhase::Ready);
    }
    manager.reconcile().await.unwrap();
    assert!(port.asked().is_empty(), "a ready volume is left alone");
}

#[tokio::test]
async fn a_failed_volume_holds_up_later_waves_and_is_tried_again() {
    let (state, port, mut manager) = machine();
    put(&state, "STATE", volume("STATE", -1, 100 << 20));
    put(&state, "u-data", volume("u-data", 0, GIB));
    settle(&state);
    port.fail(Some(ActionError { reason: "lock /dev/sda: busy".into(), is_retryable: true }));
    manager.reconcile().await.unwrap();
    let status = state.get::<VolumeStatus>("runtime", "STATE").unwrap();
    assert_eq!((status.phase, status.error_message.as_str()), (VolumePhase::Failed, "lock /dev/sda: busy"));
    assert_eq!(
        (phase(&state, "u-data"), manager.requeue()),
        (VolumePhase::Waiting, Some(Duration::from_secs(30)))
    );
    port.fail(None);
    manager.reconcile().await.unwrap();
    assert_eq!((phase(&state, "STATE"), phase(&state, "u-data")), (VolumePhase::Ready, VolumePhase::Ready));
    assert_eq!(state.get::<VolumeStatus>("runtime", "STATE").unwrap().error_message, "");
    port.asked();
    // What does not get better by itself is not tried again by itself.
    put(&state, "u-late", volume("u-late", 0, GIB));
    port.fail(Some(ActionError { reason: "no room".into(), is_retryable: false }));
    manager.reconcile().await.unwrap();
    assert_eq!((phase(&state, "u-late"), manager.requeue()), (VolumePhase::Failed, None));
}

#[tokio::test]
async fn volumes_close_when_nobody_uses_them_and_only_then_the_lifecycle_ends() {
    let (state, _port, mut manager) = machine();
    put(&state, "STATE", volume("STATE", -1, 100 << 20));
    settle(&state);
    manager.reconcile().await.unwrap();
    state.add_finalizer::<VolumeStatus>("runtime", "STATE", "somebody").unwrap();
    assert!(!state.teardown::<VolumeLifecycle>("runtime", "volumes", "").unwrap(), "the manager holds it");
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "STATE"), VolumePhase::Ready);
    state.remove_finalizer::<VolumeStatus>("runtime", "STATE", "somebody").unwrap();
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "STATE"), VolumePhase::Closed);
    state.destroy::<VolumeLifecycle>("runtime", "volumes", "").unwrap();
}

#[tokio::test]
async fn a_volume_that_is_not_wanted_any_more_goes_when_it_is_free() {
    let (state, _port, mut manager) = machine();
    put(&state, "u-data", volume("u-data", 0, GIB));
    settle(&state);
    manager.reconcile().await.unwrap();
    state.add_finalizer::<VolumeStatus>("runtime", "u-data", "mount").unwrap();
    assert!(!state.teardown::<VolumeConfig>("runtime", "u-data", "").unwrap());
    manager.reconcile().await.unwrap();
    assert!(state.get::<VolumeStatus>("runtime", "u-data").is_ok());
    state.remove_finalizer::<VolumeStatus>("runtime", "u-data", "mount").unwrap();
    manager.reconcile().await.unwrap();
    assert!(state.get::<VolumeStatus>("runtime", "u-data").is_err());
    state.destroy::<VolumeConfig>("runtime", "u-data", "").unwrap();
}

#[tokio::test]
async fn a_machine_without_meta_has_directories_and_one_with_it_partitions() {
    let (state, port, mut manager) = machine();
    let controller = VolumeConfigController::new("/system/state".into(), "/var".into());
    let mut configs = Harness::new(&state, controller).unwrap();
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    assert!(state.find::<VolumeConfig>("runtime", "STATE").is_none(), "nothing is known of META yet");
    settle(&state);
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "META"), VolumePhase::Missing, "the machine is not installed");
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    let var = state.get::<VolumeStatus>("runtime", "EPHEMERAL").unwrap();
    assert_eq!(
        (var.phase, var.r#type, var.mount_spec.target_path.as_str()),
        (VolumePhase::Ready, VolumeType::Directory, "/var")
    );

    // A partition of that name that is too large is somebody else's.
    let mut meta = DiscoveredVolume {
        dev_path: "/dev/sda1".into(),
        parent_dev_path: "/dev/sda".into(),
        partition_label: "META".into(),
        partition_index: 1,
        size: 2 << 20,
        ..DiscoveredVolume::default()
    };
    put(&state, "sda1", meta.clone());
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "META"), VolumePhase::Missing);
    meta.size = 1 << 20;
    put(&state, "sda1", meta);
    manager.reconcile().await.unwrap();
    let meta = state.get::<VolumeStatus>("runtime", "META").unwrap();
    assert_eq!((meta.phase, meta.mount_location.as_str()), (VolumePhase::Ready, "/dev/sda1"));
    assert_eq!(port.asked(), ["probe /dev/sda1"], "nothing is made or formatted");

    // A disk with META that somebody put in is not taken for the machine's own.
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    assert_eq!(state.get::<VolumeStatus>("runtime", "STATE").unwrap().r#type, VolumeType::Directory);
    // It is when META is used: without a configuration STATE is looked for, with one both are made.
    state.add_finalizer::<VolumeStatus>("runtime", "META", META_HOLDER).unwrap();
    configure(&state);
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    for id in ["STATE", "EPHEMERAL"] {
        let status = state.get::<VolumeStatus>("runtime", id).unwrap();
        assert_eq!((status.phase, status.r#type), (VolumePhase::Ready, VolumeType::Partition), "{id}");
    }
    let asked = port.asked();
    assert_eq!((asked[0].as_str(), asked[3].as_str()), ("create STATE", "create EPHEMERAL"), "{asked:?}");
}

fn configure(state: &State) {
    let yaml = "version: v1alpha1\nmachine: {type: worker}\ncluster: {}\n";
    state
        .modify::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec| *spec = MachineConfig::new(yaml))
        .unwrap();
}

#[tokio::test]
async fn state_that_is_on_the_disk_is_found_before_there_is_a_configuration() {
    let (state, port, mut manager) = machine();
    let controller = VolumeConfigController::new("/system/state".into(), "/var".into());
    let mut configs = Harness::new(&state, controller).unwrap();
    for (id, label, name, size) in [("sda1", "META", "", 1 << 20), ("sda2", "STATE", "xfs", 100 << 20)] {
        let volume = DiscoveredVolume {
            dev_path: format!("/dev/{id}"),
            parent_dev_path: "/dev/sda".into(),
            partition_label: label.into(),
            partition_index: 1,
            name: name.into(),
            size,
            ..DiscoveredVolume::default()
        };
        put(&state, id, volume);
    }
    settle(&state);
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    state.add_finalizer::<VolumeStatus>("runtime", "META", META_HOLDER).unwrap();
    port.hold("xfs");
    configs.reconcile().await.unwrap();
    manager.reconcile().await.unwrap();
    let found = state.get::<VolumeStatus>("runtime", "STATE").unwrap();
    assert_eq!(
        (found.phase, found.location.as_str(), found.filesystem),
        (VolumePhase::Ready, "/dev/sda2", FilesystemType::Xfs)
    );
    assert!(state.find::<VolumeStatus>("runtime", "EPHEMERAL").is_none());
    assert!(!port.asked().iter().any(|asked| asked.starts_with("format")), "what is there is kept");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_does_not_mount_says_so_and_is_tried_again_later() {
    let (state, _) = ichor_testkit::state();
    let failures = MountFailures::default();
    let controller = VolumeManagerController::new(Fake::default(), failures.clone());
    let mut manager = Harness::new(&state, controller).unwrap();
    put(&state, "volumes", VolumeLifecycle {});
    settle(&state);
    let mut config = volume("STATE", -1, 100 << 20);
    config.r#type = VolumeType::Directory;
    put(&state, "STATE", config);
    manager.reconcile().await.unwrap();
    failures.report("STATE", "mount /dev/sda2 on /system/state: Structure needs cleaning".into());
    assert!(manager.was_woken().await);
    for _ in 0..3 {
        manager.reconcile().await.unwrap();
        let status = state.get::<VolumeStatus>("runtime", "STATE").unwrap();
        assert_eq!(status.phase, VolumePhase::Failed);
        assert!(status.error_message.contains("needs cleaning"), "{}", status.error_message);
    }
    assert!(manager.requeue().is_some());
    tokio::time::advance(Duration::from_secs(31)).await;
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "STATE"), VolumePhase::Ready, "it may mount now");
}
