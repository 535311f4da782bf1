//! Tasks that clear disks. On a machine that is installed the installer does it; elsewhere volumes are directories.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ichor_resource::block::DiscoveredVolume;

use super::{failed, storage};
use crate::node::Node;
use crate::sequencer::TaskError;

/// Discarding a large disk takes a while.
const WIPE_MAX: Duration = Duration::from_secs(9 * 60);

/// Wipes the system disk and those that hold STATE and EPHEMERAL; the machine does not start from them any more.
pub(super) async fn system_disk(node: &Node) -> Result<(), TaskError> {
    if let Some(disk) = node.slots.disk() {
        let others = disks_of(node, &["STATE", "EPHEMERAL"]).into_iter().filter(|other| *other != disk);
        let mut args = vec!["reset".to_owned(), format!("--disk={}", disk.display())];
        args.extend(others.map(|other| format!("--wipe-disk={}", other.display())));
        return run(node, args).await;
    }
    storage::reset_all(node.host.paths.clone(), node.store.meta.clone()).await
}

/// Clears the named volumes and takes their partitions out of the table.
pub(super) async fn partitions(node: &Node, labels: &[String]) -> Result<(), TaskError> {
    let Some(disk) = node.slots.disk() else {
        return storage::reset_named(node.host.paths.clone(), node.store.meta.clone(), labels).await;
    };
    let on_disk = labels_on(node, &disk);
    let (there, elsewhere): (Vec<String>, Vec<String>) =
        labels.iter().cloned().partition(|label| on_disk.contains(label));
    if !there.is_empty() {
        let mut args = vec!["reset".to_owned(), format!("--disk={}", disk.display())];
        args.extend(there.iter().map(|label| format!("--label={label}")));
        run(node, args).await?;
    }
    // Volumes that are no partitions of it are directories.
    match elsewhere.is_empty() {
        true => Ok(()),
        false => storage::reset_named(node.host.paths.clone(), node.store.meta.clone(), &elsewhere).await,
    }
}

/// Wipes other disks.
pub(super) async fn user_disks(node: &Node, disks: &[String]) -> Result<(), TaskError> {
    let mut args = vec!["reset".to_owned()];
    args.extend(disks.iter().map(|disk| format!("--wipe-disk={disk}")));
    run(node, args).await
}

async fn run(node: &Node, args: Vec<String>) -> Result<(), TaskError> {
    let installer = node.slots.installer();
    installer.run(&installer.own(args), WIPE_MAX).await.map(drop).map_err(failed)
}

/// The labels of a disk's partitions.
pub(crate) fn labels_on(node: &Node, disk: &std::path::Path) -> BTreeSet<String> {
    let volumes = node.store.state.list::<DiscoveredVolume>("runtime");
    let of_disk = volumes.iter().filter(|volume| std::path::Path::new(&volume.parent_dev_path) == disk);
    of_disk.map(|volume| volume.partition_label.clone()).filter(|label| !label.is_empty()).collect()
}

/// The disks that hold these partitions.
fn disks_of(node: &Node, labels: &[&str]) -> BTreeSet<PathBuf> {
    let volumes = node.store.state.list::<DiscoveredVolume>("runtime");
    let named = volumes.iter().filter(|volume| labels.contains(&volume.partition_label.as_str()));
    named
        .map(|volume| PathBuf::from(&volume.parent_dev_path))
        .filter(|path| !path.as_os_str().is_empty())
        .collect()
}
