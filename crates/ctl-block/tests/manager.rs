//! The volume manager: waves, waiting, failures, the end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_block::VolumeConfigController;
use ichor_ctl_block::volumes::{Action, ActionError, Created, Outcome, VolumeManagerController, VolumePort};
use ichor_resource::TypedSpec;
use ichor_resource::block::{
    DiscoveredVolume, DiscoveryRefreshRequest, DiscoveryRefreshStatus, Disk, Expression, FilesystemType,
    SystemDisk, VolumeConfig, VolumeLifecycle, VolumePhase, VolumeStatus, VolumeType,
};
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
}

impl Fake {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
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
            Action::Probe { device } => (format!("probe {device}"), Outcome::Found(String::new())),
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
    let manager = Harness::new(&state, VolumeManagerController::new(port.clone())).unwrap();
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
async fn what_a_machine_has_are_meta_and_directories() {
    let (state, port, mut manager) = machine();
    let directories = vec![("STATE", "/system/state".into(), 0o700), ("EPHEMERAL", "/var".into(), 0o755)];
    let mut configs = Harness::new(&state, VolumeConfigController::new(directories)).unwrap();
    configs.reconcile().await.unwrap();
    settle(&state);
    manager.reconcile().await.unwrap();
    assert_eq!(phase(&state, "META"), VolumePhase::Missing, "the machine is not installed");
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
}
