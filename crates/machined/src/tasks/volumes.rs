//! Tasks about the volumes of the system: where STATE and EPHEMERAL are, and their way in and out.

use std::path::Path;
use std::time::Duration;

use ichor_cosi::{State, StateError};
use ichor_ctl::volumes::{EPHEMERAL, Readiness, STATE, readiness};
use ichor_ctl_block::{META_HOLDER, META_LABEL};
use ichor_resource::block::{
    UserDiskConfigStatus, VolumeMountRequest, VolumeMountStatus, VolumeStatus, VolumeType,
};
use ichor_sys::{mount, mountinfo};
use tokio::time::Instant;
use tracing::{info, warn};

use super::failed;
use crate::sequencer::TaskError;

/// Between two looks at a volume that is waited for.
const PAUSE: Duration = Duration::from_millis(100);
/// A wait that lasts is told this often.
const REMINDER: Duration = Duration::from_secs(30);
/// Who asks for the mount of EPHEMERAL.
const REQUESTER: &str = "sequencer";
/// A configuration gets this long to reach STATE before the volumes are closed.
const PERSIST_MAX: Duration = Duration::from_secs(120);
/// Volumes that are in use are given up to be unmounted this late; init does it then.
const RELEASE_MAX: Duration = Duration::from_secs(300);

/// Whether this machine has its volumes on a disk: META is on one, and this machine uses it.
pub(crate) fn are_on_disk(state: &State) -> bool {
    let meta = state.find::<VolumeStatus>("runtime", META_LABEL);
    meta.is_some_and(|meta| meta.meta().has_finalizer(META_HOLDER))
}

/// How far a volume of the system is.
pub(crate) fn of(state: &State, id: &str) -> Readiness {
    let status = state.find::<VolumeStatus>("runtime", id);
    let mounted = state.find::<VolumeMountStatus>("runtime", id);
    let is_mounted = mounted.is_some_and(|mounted| mounted.meta().is_running());
    readiness(status.as_ref().map(|status| status.spec()), is_mounted)
}

/// Waits until a volume is as it should be, and tells every now and then what for.
async fn wait_until(state: &State, id: &str, is_done: impl Fn(&Readiness) -> bool) -> Readiness {
    let mut told = Instant::now();
    loop {
        let found = of(state, id);
        if is_done(&found) {
            return found;
        }
        if told.elapsed() >= REMINDER {
            let reason = match &found {
                Readiness::Failed(reason) => reason.clone(),
                Readiness::Pending | Readiness::Usable | Readiness::Absent => "not ready yet".to_owned(),
            };
            warn!(volume = id, reason, "still waiting for a volume");
            told = Instant::now();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until it is decided what becomes of STATE: the configuration may be on it. Not bounded: a machine that took a
/// slow disk for a missing one would take a configuration from anybody and write it over its own.
pub(super) async fn settle_state(state: &State) -> Readiness {
    wait_until(state, STATE, |found| *found != Readiness::Pending).await
}

/// Waits until the configuration is on STATE, where it is about to be.
pub(super) async fn persist(state: &State) {
    let has_config = super::config::active(state).is_some_and(|config| config.is_complete());
    if !has_config || !are_on_disk(state) {
        return;
    }
    match tokio::time::timeout(PERSIST_MAX, partition_of_state(state)).await {
        Ok(Readiness::Failed(reason)) => warn!(reason, "the configuration is not on STATE"),
        Ok(Readiness::Usable | Readiness::Pending | Readiness::Absent) => {}
        Err(_) => warn!(seconds = PERSIST_MAX.as_secs(), "STATE is not there in time for the configuration"),
    }
}

/// Waits for the partition of STATE. A machine that was just installed still shows the directory in memory that was STATE
/// until then.
async fn partition_of_state(state: &State) -> Readiness {
    let is_partition = || {
        let status = state.find::<VolumeStatus>("runtime", STATE);
        status.is_some_and(|status| status.r#type != VolumeType::Directory)
    };
    let is_done =
        |found: &Readiness| matches!(found, Readiness::Usable | Readiness::Failed(_)) && is_partition();
    wait_until(state, STATE, is_done).await
}

/// Has EPHEMERAL mounted, where it is a partition.
pub(super) async fn mount_ephemeral(state: State) -> Result<(), TaskError> {
    if !are_on_disk(&state) {
        return Ok(());
    }
    state
        .modify::<VolumeMountRequest>("runtime", EPHEMERAL, "", |request| {
            EPHEMERAL.clone_into(&mut request.volume_id);
            REQUESTER.clone_into(&mut request.requester);
        })
        .map_err(failed)?;
    wait_until(&state, EPHEMERAL, |found| *found == Readiness::Usable).await;
    Ok(())
}

/// Lets EPHEMERAL go. It is unmounted once nobody holds it, which is not waited for here.
pub(super) async fn unmount_ephemeral(state: State) -> Result<(), TaskError> {
    match state.teardown::<VolumeMountRequest>("runtime", EPHEMERAL, "") {
        Ok(_) => {}
        Err(StateError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    tokio::spawn(async move {
        let requests = state.kind_of::<VolumeMountRequest>("runtime");
        match tokio::time::timeout(RELEASE_MAX, requests.teardown_and_destroy(EPHEMERAL, "")).await {
            Ok(Ok(())) => info!("EPHEMERAL is unmounted"),
            Ok(Err(error)) => warn!(%error, "EPHEMERAL is not let go"),
            Err(_) => warn!(seconds = RELEASE_MAX.as_secs(), "EPHEMERAL is still in use"),
        }
    });
    Ok(())
}

/// Waits for the disks of the old section `machine.disks`.
pub(super) async fn mount_user_disks(state: State) -> Result<(), TaskError> {
    state
        .wait_for::<UserDiskConfigStatus>("runtime", "user-disks", |status| status.ready)
        .await
        .map(drop)
        .map_err(failed)
}

/// Unmounts what pods and others left below a directory.
pub(super) async fn unmount_below(dir: std::path::PathBuf) -> Result<(), TaskError> {
    let below = move |mounts: &[mountinfo::Mount]| -> Vec<String> {
        let is_below = |target: &Path| target.starts_with(&dir) && target != dir;
        mounts
            .iter()
            .filter(|mount| is_below(Path::new(&mount.target)))
            .map(|mount| mount.target.clone())
            .collect()
    };
    unmount_all(below).await
}

/// Unmounts what shows a part of EPHEMERAL elsewhere, such as files of the configuration.
pub(super) async fn unmount_binds(ephemeral: std::path::PathBuf) -> Result<(), TaskError> {
    unmount_all(move |mounts: &[mountinfo::Mount]| binds(mounts, &ephemeral)).await
}

/// Other mounts of the device that is mounted at `of`.
fn binds(mounts: &[mountinfo::Mount], of: &Path) -> Vec<String> {
    let Some(own) = mounts.iter().rfind(|mount| Path::new(&mount.target) == of) else { return Vec::new() };
    if !own.source.starts_with("/dev/") {
        return Vec::new();
    }
    let others = mounts.iter().filter(|mount| mount.device == own.device && mount.id != own.id);
    others.map(|mount| mount.target.clone()).collect()
}

/// Unmounts these, the last mounted first; what is in use is detached.
async fn unmount_all(
    select: impl FnOnce(&[mountinfo::Mount]) -> Vec<String> + Send + 'static,
) -> Result<(), TaskError> {
    let work = tokio::task::spawn_blocking(move || -> Result<(), String> {
        let mounts = mountinfo::mounts().map_err(|error| error.to_string())?;
        let mut errors = Vec::new();
        for target in select(&mounts).iter().rev().map(Path::new) {
            let done = mount::unmount(target).or_else(|_| mount::detach(target));
            errors.extend(done.err().map(|error| format!("{error}: {}", error.source)));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    });
    work.await.map_err(failed)?.map_err(failed)
}

#[cfg(test)]
mod tests {
    use ichor_resource::block::VolumePhase;

    use super::*;

    #[test]
    fn binds_are_other_mounts_of_the_same_device() {
        let table = "20 1 254:3 / /var rw shared:1 - xfs /dev/vda3 rw\n\
                     21 1 254:3 /etc/x /etc/x ro - xfs /dev/vda3 rw\n\
                     22 1 254:2 / /system/state rw - xfs /dev/vda2 rw\n";
        assert_eq!(binds(&mountinfo::parse(table), Path::new("/var")), ["/etc/x"]);
        let memory = "20 1 0:30 / /var rw - tmpfs tmpfs rw\n21 1 0:30 /a /etc/a rw - tmpfs tmpfs rw\n";
        assert!(binds(&mountinfo::parse(memory), Path::new("/var")).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_runs_from_memory_mounts_nothing() {
        let (state, _) = ichor_testkit::state();
        mount_ephemeral(state.clone()).await.unwrap();
        assert!(state.find::<VolumeMountRequest>("runtime", EPHEMERAL).is_none());
        unmount_ephemeral(state.clone()).await.unwrap();
        persist(&state).await;
    }

    #[tokio::test(start_paused = true)]
    async fn ephemeral_is_requested_and_waited_for() {
        let (state, _) = ichor_testkit::state();
        state.create("runtime", META_LABEL, VolumeStatus::default(), "").unwrap();
        state.add_finalizer::<VolumeStatus>("runtime", META_LABEL, META_HOLDER).unwrap();
        let waiting = tokio::spawn(mount_ephemeral(state.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        let request = state.get::<VolumeMountRequest>("runtime", EPHEMERAL).unwrap();
        assert_eq!(request.requester, "sequencer");
        let ready = VolumeStatus {
            phase: VolumePhase::Ready,
            r#type: VolumeType::Partition,
            ..VolumeStatus::default()
        };
        state.create("runtime", EPHEMERAL, ready, "").unwrap();
        state.create("runtime", EPHEMERAL, VolumeMountStatus::default(), "").unwrap();
        waiting.await.unwrap().unwrap();
        unmount_ephemeral(state.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(state.find::<VolumeMountRequest>("runtime", EPHEMERAL).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_directory_before_an_installation_is_not_taken_for_the_partition_of_state() {
        let (state, _) = ichor_testkit::state();
        let directory = VolumeStatus {
            phase: VolumePhase::Ready,
            r#type: VolumeType::Directory,
            ..VolumeStatus::default()
        };
        state.create("runtime", STATE, directory, "").unwrap();
        let waiting = tokio::spawn({
            let state = state.clone();
            async move { partition_of_state(&state).await }
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!waiting.is_finished());
        state
            .modify::<VolumeStatus>("runtime", STATE, "", |status| status.r#type = VolumeType::Partition)
            .unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!waiting.is_finished(), "made, not mounted");
        state.create("runtime", STATE, VolumeMountStatus::default(), "").unwrap();
        assert_eq!(waiting.await.unwrap(), Readiness::Usable);
    }
}
