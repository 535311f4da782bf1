//! The way of a mount from its requests to the disk and back, with all controllers in a runtime.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ichor_cosi::{Runtime, State};
use ichor_ctl_block::mounts::{
    LegacyMountStatusController, MountController, MountError, MountFailures, MountPlan, MountPort,
    MountRequestController, StateMountController, VolumeMountStatusController,
};
use ichor_resource::TypedSpec;
use ichor_resource::block::{
    FilesystemType, MountRequest, MountSpec, MountStatus, VolumeLifecycle, VolumeMountRequest,
    VolumeMountStatus, VolumePhase, VolumeStatus, VolumeType,
};
use ichor_testkit::eventually;

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    done: Vec<String>,
    refused: Option<String>,
    busy: bool,
}

impl Fake {
    fn done(&self) -> Vec<String> {
        self.0.lock().unwrap().done.clone()
    }
}

impl MountPort for Fake {
    async fn mount(&self, plan: &MountPlan) -> Result<(), MountError> {
        let mut inner = self.0.lock().unwrap();
        if let Some(reason) = &inner.refused {
            return Err(MountError::new(reason.clone()));
        }
        inner.done.push(format!("mount {} {}", plan.volume, plan.target.display()));
        Ok(())
    }

    async fn unmount(&self, plan: &MountPlan, _by_force: bool) -> Result<(), MountError> {
        let mut inner = self.0.lock().unwrap();
        if inner.busy {
            return Err(MountError::new("in use"));
        }
        inner.done.push(format!("unmount {} {}", plan.volume, plan.target.display()));
        Ok(())
    }
}

struct Bench {
    state: State,
    port: Fake,
    failures: MountFailures,
}

fn bench() -> Bench {
    let (state, _) = ichor_testkit::state();
    let (port, failures) = (Fake::default(), MountFailures::default());
    let runtime = Runtime::new(state.clone());
    runtime.register(StateMountController).unwrap();
    runtime.register(MountRequestController).unwrap();
    runtime.register(MountController::new(port.clone(), failures.clone())).unwrap();
    runtime.register(VolumeMountStatusController).unwrap();
    runtime.register(LegacyMountStatusController).unwrap();
    put(&state, "volumes", VolumeLifecycle {});
    tokio::spawn(async move { runtime.run(std::future::pending()).await });
    Bench { state, port, failures }
}

fn put<T: TypedSpec>(state: &State, id: &str, spec: T) {
    state.modify::<T>("runtime", id, "", |stored| stored.clone_from(&spec)).unwrap();
}

fn volume(r#type: VolumeType, target: &str, parent: &str) -> VolumeStatus {
    let is_disk = r#type == VolumeType::Partition;
    VolumeStatus {
        phase: VolumePhase::Ready,
        r#type,
        filesystem: if is_disk { FilesystemType::Xfs } else { FilesystemType::None },
        mount_location: if is_disk { "/dev/sda9".into() } else { String::new() },
        mount_spec: MountSpec {
            target_path: target.into(),
            parent_id: parent.into(),
            ..MountSpec::default()
        },
        ..VolumeStatus::default()
    }
}

fn request(state: &State, id: &str) {
    let spec = VolumeMountRequest {
        volume_id: id.into(),
        requester: "test".into(),
        ..VolumeMountRequest::default()
    };
    put(state, id, spec);
}

impl Bench {
    fn has<T: TypedSpec>(&self, id: &str) -> bool {
        self.state.find::<T>("runtime", id).is_some()
    }

    async fn mounted(&self, id: &str) {
        eventually("the mount is told", || self.has::<VolumeMountStatus>(id)).await;
    }

    async fn release(&self, id: &str) {
        let requests = self.state.kind_of::<VolumeMountRequest>("runtime");
        let released = tokio::time::timeout(Duration::from_secs(10), requests.teardown_and_destroy(id, ""));
        released.await.expect("the request is let go").unwrap();
    }
}

#[tokio::test]
async fn a_volume_is_mounted_told_and_unmounted_when_nobody_holds_it() {
    let bench = bench();
    request(&bench.state, "EPHEMERAL");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bench.port.done().is_empty(), "there is no such volume yet");
    put(&bench.state, "EPHEMERAL", volume(VolumeType::Partition, "/var", ""));
    bench.mounted("EPHEMERAL").await;
    let told = bench.state.get::<VolumeMountStatus>("runtime", "EPHEMERAL").unwrap();
    assert_eq!((told.target.as_str(), told.requester.as_str()), ("/var", "test"));
    let status = bench.state.get::<MountStatus>("runtime", "EPHEMERAL").unwrap();
    assert_eq!((status.source.as_str(), status.filesystem), ("/dev/sda9", FilesystemType::Xfs));
    eventually("older clients see it", || {
        let seen = bench.state.find::<ichor_resource::runtime::MountStatus>("runtime", "EPHEMERAL");
        seen.is_some_and(|seen| seen.filesystem_type == "xfs" && !seen.encrypted)
    })
    .await;
    let held = bench.state.get::<VolumeStatus>("runtime", "EPHEMERAL").unwrap();
    assert!(!held.meta().finalizers().is_empty(), "a mounted volume is not closed");

    // Somebody uses it.
    bench.state.add_finalizer::<VolumeMountStatus>("runtime", "EPHEMERAL", "user").unwrap();
    bench.state.teardown::<VolumeMountRequest>("runtime", "EPHEMERAL", "").unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.port.done(), ["mount EPHEMERAL /var"]);
    bench.state.remove_finalizer::<VolumeMountStatus>("runtime", "EPHEMERAL", "user").unwrap();
    bench.release("EPHEMERAL").await;
    assert_eq!(bench.port.done(), ["mount EPHEMERAL /var", "unmount EPHEMERAL /var"]);
    assert!(!bench.has::<MountStatus>("EPHEMERAL") && !bench.has::<MountRequest>("EPHEMERAL"));
    let free = bench.state.get::<VolumeStatus>("runtime", "EPHEMERAL").unwrap();
    assert!(free.meta().finalizers().is_empty());
}

#[tokio::test]
async fn a_volume_in_another_waits_for_it_and_goes_first() {
    let bench = bench();
    put(&bench.state, "u-data", volume(VolumeType::Partition, "data", "/var/mnt"));
    put(&bench.state, "/var/mnt", volume(VolumeType::Directory, "mnt", "EPHEMERAL"));
    put(&bench.state, "EPHEMERAL", volume(VolumeType::Partition, "/var", ""));
    request(&bench.state, "u-data");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(bench.port.done().is_empty(), "what it is in is not mounted");
    request(&bench.state, "EPHEMERAL");
    bench.mounted("u-data").await;
    assert_eq!(
        bench.port.done(),
        ["mount EPHEMERAL /var", "mount /var/mnt /var/mnt", "mount u-data /var/mnt/data"]
    );
    bench.state.teardown::<VolumeMountRequest>("runtime", "EPHEMERAL", "").unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.port.done().len(), 3, "it is in use by the one inside");
    bench.release("u-data").await;
    bench.release("EPHEMERAL").await;
    assert_eq!(
        bench.port.done()[3..],
        ["unmount u-data /var/mnt/data", "unmount /var/mnt /var/mnt", "unmount EPHEMERAL /var"]
    );
}

#[tokio::test]
async fn volumes_of_a_machine_in_memory_are_mounted_in_its_directories() {
    let bench = bench();
    put(&bench.state, "EPHEMERAL", volume(VolumeType::Directory, "/var", ""));
    put(&bench.state, "/var/mnt", volume(VolumeType::Directory, "mnt", "EPHEMERAL"));
    put(&bench.state, "u-data", volume(VolumeType::Partition, "data", "/var/mnt"));
    request(&bench.state, "u-data");
    bench.mounted("u-data").await;
    assert_eq!(bench.port.done(), ["mount /var/mnt /var/mnt", "mount u-data /var/mnt/data"]);
}

#[tokio::test]
async fn two_who_need_a_volume_share_a_mount_that_ends_with_the_last() {
    let bench = bench();
    put(&bench.state, "u-a", volume(VolumeType::Partition, "/mnt/a", ""));
    for id in ["one", "two"] {
        let spec = VolumeMountRequest { volume_id: "u-a".into(), requester: id.into(), ..Default::default() };
        put(&bench.state, id, spec);
    }
    bench.mounted("one").await;
    bench.mounted("two").await;
    bench.release("one").await;
    assert_eq!(bench.port.done(), ["mount u-a /mnt/a"]);
    let left = bench.state.get::<MountRequest>("runtime", "u-a").unwrap();
    assert_eq!(left.requester_ids, ["two"]);
    bench.release("two").await;
    assert_eq!(bench.port.done(), ["mount u-a /mnt/a", "unmount u-a /mnt/a"]);
}

#[tokio::test]
async fn state_is_mounted_until_the_volumes_close() {
    let bench = bench();
    put(&bench.state, "STATE", volume(VolumeType::Partition, "/system/state", ""));
    bench.mounted("STATE").await;
    bench.state.teardown::<VolumeLifecycle>("runtime", "volumes", "").unwrap();
    eventually("STATE is unmounted", || bench.port.done().len() == 2).await;
    assert_eq!(bench.port.done()[1], "unmount STATE /system/state");
    eventually("its request is gone", || !bench.has::<VolumeMountRequest>("STATE")).await;
}

#[tokio::test]
async fn a_mount_that_fails_is_reported_and_holds_nothing() {
    let bench = bench();
    bench.port.0.lock().unwrap().refused = Some("mount /dev/sda9 on /system/state: no".into());
    put(&bench.state, "STATE", volume(VolumeType::Partition, "/system/state", ""));
    let mut reason = None;
    eventually("the failure is reported", || {
        reason = bench.failures.take("STATE");
        reason.is_some()
    })
    .await;
    assert_eq!(reason.as_deref(), Some("mount /dev/sda9 on /system/state: no"));
    let volume = bench.state.get::<VolumeStatus>("runtime", "STATE").unwrap();
    assert!(volume.meta().finalizers().is_empty() && !bench.has::<MountStatus>("STATE"));
}

#[tokio::test]
async fn a_volume_in_use_is_tried_again_until_it_is_free() {
    let bench = bench();
    put(&bench.state, "u-a", volume(VolumeType::Partition, "/mnt/a", ""));
    request(&bench.state, "u-a");
    bench.mounted("u-a").await;
    bench.port.0.lock().unwrap().busy = true;
    bench.state.teardown::<VolumeMountRequest>("runtime", "u-a", "").unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(bench.has::<MountStatus>("u-a"));
    bench.port.0.lock().unwrap().busy = false;
    bench.release("u-a").await;
    assert_eq!(bench.port.done(), ["mount u-a /mnt/a", "unmount u-a /mnt/a"]);
}
