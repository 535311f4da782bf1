//! Tasks about what survives a reboot: META and the system volumes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_block::meta::Place;
use ichor_cosi::{State, StateError, Typed};
use ichor_ctl_block::{META_HOLDER, META_LABEL};
use ichor_ctl_runtime::meta::STATE_ENCRYPTION;
use ichor_ctl_runtime::{Meta, MetaError};
use ichor_resource::block::{VolumeLifecycle, VolumePhase, VolumeStatus};
use tracing::warn;

use super::{failed, volumes};
use crate::node::Paths;
use crate::sequencer::TaskError;

/// The one id of the volume lifecycle.
pub(crate) const VOLUMES: &str = "volumes";

/// How long the disks are waited for; a disk that spins up takes a while, one that is broken takes for ever.
const DISKS_MAX: Duration = Duration::from_secs(240);

/// Finds the partition of META where the machine may have one, and reads META.
pub(super) async fn reload_meta(state: State, meta: Meta, has_disks: bool) -> Result<(), TaskError> {
    if has_disks {
        match tokio::time::timeout(DISKS_MAX, meta_partition(&state)).await {
            Ok(place) => place?.into_iter().for_each(|place| meta.move_to(place)),
            Err(_) => warn!(
                seconds = DISKS_MAX.as_secs(),
                "disks are not ready; META is looked for in no partition"
            ),
        }
    }
    meta.load().await.map_err(failed)
}

/// Where META is, once that is decided: `None` on a machine that is not installed.
async fn meta_partition(state: &State) -> Result<Option<Place>, TaskError> {
    let is_decided =
        |found: &Typed<VolumeStatus>| matches!(found.phase, VolumePhase::Ready | VolumePhase::Missing);
    let volume = state.wait_for::<VolumeStatus>("runtime", META_LABEL, is_decided).await.map_err(failed)?;
    if volume.phase != VolumePhase::Ready {
        return Ok(None);
    }
    // From here on the disk is this machine's: STATE and EPHEMERAL are on it, too.
    state.add_finalizer::<VolumeStatus>("runtime", META_LABEL, META_HOLDER).map_err(failed)?;
    Ok(Some(Place::Partition {
        partition: volume.mount_location.clone().into(),
        disk: volume.parent_location.clone().into(),
    }))
}

/// Clears the system volumes, META among them: where it is a file it is in one of the directories.
pub(super) async fn reset_all(paths: Paths, meta: Meta) -> Result<(), TaskError> {
    clear(vec![paths.state, paths.ephemeral]).await?;
    if meta.is_on_partition() {
        meta.clear().await.map_err(failed)?;
    }
    Ok(())
}

/// Clears the named system volumes.
pub(super) async fn reset_named(paths: Paths, meta: Meta, labels: &[String]) -> Result<(), TaskError> {
    let dirs = labels.iter().filter_map(|label| match label.as_str() {
        "STATE" => Some(paths.state.clone()),
        "EPHEMERAL" => Some(paths.ephemeral.clone()),
        _ => None,
    });
    clear(dirs.collect()).await?;
    keep_meta(&meta, labels).await
}

/// META lives in a file of STATE and outlives it, unless it was named itself. The encryption of a STATE that is
/// gone goes with it.
async fn keep_meta(meta: &Meta, cleared: &[String]) -> Result<(), TaskError> {
    let named = |label: &str| cleared.iter().any(|partition| partition == label);
    if named("META") {
        return meta.clear().await.map_err(failed);
    }
    if !named("STATE") {
        return Ok(());
    }
    match meta.delete(STATE_ENCRYPTION).await {
        Ok(()) => Ok(()),
        Err(MetaError::NotFound { .. }) => meta.flush().await.map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

/// Tears the lifecycle of the volumes down and waits for its finalizers: nothing is written after this.
///
/// A configuration that has no STATE yet, because the machine was just installed, gets there first.
pub(super) async fn teardown_lifecycle(state: State) -> Result<(), TaskError> {
    volumes::persist(&state).await;
    let ready = match state.teardown::<VolumeLifecycle>("runtime", VOLUMES, "") {
        Ok(ready) => ready,
        Err(StateError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !ready {
        state
            .wait_for::<VolumeLifecycle>("runtime", VOLUMES, |found| found.meta().finalizers().is_empty())
            .await
            .map_err(failed)?;
    }
    state.destroy::<VolumeLifecycle>("runtime", VOLUMES, "").map_err(failed)
}

/// Removes everything in these directories. Mount points inside stay, emptied.
async fn clear(dirs: Vec<PathBuf>) -> Result<(), TaskError> {
    let work = tokio::task::spawn_blocking(move || {
        let mut errors = Vec::new();
        for dir in dirs {
            unmount_below(&dir);
            errors.extend(ichor_sys::tree::clear(&dir).iter().map(ToString::to_string));
            // The emptiness has to survive the reboot that follows.
            if let Ok(open) = std::fs::File::open(&dir) {
                let _ = open.sync_all();
            }
        }
        errors
    });
    match work.await.map_err(failed)? {
        errors if errors.is_empty() => Ok(()),
        errors => Err(failed(errors.join("; "))),
    }
}

/// Detaches what is mounted below a directory, such as volumes of pods; clearing reports what is left.
fn unmount_below(dir: &Path) {
    let mounts = ichor_sys::mountinfo::mounts().unwrap_or_default();
    // The last mounted goes first: it may be on another.
    for mount in mounts.iter().rev() {
        let target = Path::new(&mount.target);
        if target.starts_with(dir) && target != dir {
            let _ = ichor_sys::mount::detach(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clearing_leaves_the_directory_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        clear(vec![dir.path().to_path_buf(), "/no/such/dir".into()]).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Path::new("/etc").exists());
    }

    #[tokio::test]
    async fn reset_clears_paths_over_4096_bytes() {
        let dir = tempfile::tempdir().unwrap();
        // Two halves that a path can name, one put below the other: their end is 6 000 bytes away.
        let half = |top: &str| {
            let names = std::iter::repeat_n("d".repeat(100), 30);
            names.fold(dir.path().join(top), |path, name| path.join(name))
        };
        let (upper, lower) = (half("upper"), half("lower"));
        std::fs::create_dir_all(&upper).unwrap();
        std::fs::create_dir_all(&lower).unwrap();
        std::fs::write(lower.join("file"), "x").unwrap();
        std::fs::rename(dir.path().join("lower"), upper.join("lower")).unwrap();
        clear(vec![dir.path().to_path_buf()]).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
