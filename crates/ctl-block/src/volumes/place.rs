//! Where a new volume goes. Pure.

use ichor_resource::block::{DiscoveredVolume, Disk, VolumeType};
use ichor_types::size;

use super::decide::World;
use super::selector::{SelectorError, matches_disk};

/// What a partition table and the sector in front of it take of an empty disk, in sectors.
const TABLE_SECTORS: u64 = 67;
/// Partitions start at multiples of this.
const ALIGNMENT: u64 = 1 << 20;

/// A disk for a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The disk's node.
    pub disk: String,
    /// Whether it has a partition table already.
    pub has_table: bool,
    /// Bytes that a new partition can have at most.
    pub available: u64,
}

/// Why there is no disk for a new volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The expression.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// It selects none.
    #[error("no disks matched selector for volume: {selector:?}; there are {candidates}")]
    NoMatch {
        /// The expression.
        selector: String,
        /// What it could have selected.
        candidates: String,
    },
    /// It selects several, where only one will do.
    #[error("multiple disks matched selector for disk volume: {disks}; narrow the selector to one")]
    Several {
        /// Those.
        disks: String,
    },
    /// Each that it selects is unfit.
    #[error("no disk has room for the volume: {reasons}")]
    NoRoom {
        /// Disk by disk.
        reasons: String,
    },
}

/// The first selected disk that has room; of whole disks the only one.
///
/// # Errors
/// See [`PlacementError`]; disks are named with what is wrong with them.
pub fn choose_disk(
    world: &World<'_>,
    kind: VolumeType,
    selector: &str,
    minimum: u64,
) -> Result<Placement, PlacementError> {
    let mut selected = Vec::new();
    for (id, disk) in world.disks.iter().filter(|(_, disk)| !disk.readonly && !disk.cdrom) {
        let is_system = world.system_disk.map(|system| system == id);
        if matches_disk(selector, disk, is_system)? {
            selected.push(disk);
        }
    }
    if selected.is_empty() {
        let candidates = list(world.disks.iter().map(|(_, disk)| disk));
        return Err(PlacementError::NoMatch { selector: selector.to_owned(), candidates });
    }
    if kind == VolumeType::Disk && selected.len() > 1 {
        return Err(PlacementError::Several { disks: list(selected.into_iter()) });
    }
    let mut reasons = Vec::new();
    for disk in selected {
        match fitness(world, disk, kind, minimum) {
            Ok((has_table, available)) => {
                return Ok(Placement { disk: disk.dev_path.clone(), has_table, available });
            }
            Err(reason) => reasons.push(format!("{} {reason}", disk.dev_path)),
        }
    }
    Err(PlacementError::NoRoom { reasons: reasons.join(", ") })
}

/// Disks and their sizes.
fn list<'a>(disks: impl Iterator<Item = &'a Disk>) -> String {
    let texts: Vec<String> = disks.map(|disk| format!("{} ({})", disk.dev_path, disk.pretty_size)).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

/// Whether the disk has a table already and how much room, or why it does not do.
fn fitness(world: &World<'_>, disk: &Disk, kind: VolumeType, minimum: u64) -> Result<(bool, u64), String> {
    let whole =
        world.volumes.iter().find(|(_, volume)| volume.dev_path == disk.dev_path).map(|(_, volume)| volume);
    let Some(whole) = whole else { return Err("was not read yet".to_owned()) };
    let empty = disk.size.saturating_sub(TABLE_SECTORS * disk.sector_size);
    match (whole.name.as_str(), kind) {
        ("", VolumeType::Disk) => Ok((false, disk.size)),
        ("", _) if empty >= minimum => Ok((false, empty)),
        ("", _) => Err(format!("has only {}", disk.pretty_size)),
        (name, VolumeType::Disk) => Err(format!("is not empty: it holds {name}")),
        ("gpt", _) => {
            let free = largest_gap(world, disk);
            if free >= minimum {
                Ok((true, free))
            } else {
                Err(format!("has only {} free", size::decimal(free)))
            }
        }
        (name, _) => Err(format!("is not empty: it holds {name}")),
    }
}

/// Bytes of the largest aligned gap between the partitions of a disk. What is created is measured again, by the table.
fn largest_gap(world: &World<'_>, disk: &Disk) -> u64 {
    let align = if disk.io_size.is_power_of_two() { disk.io_size.max(ALIGNMENT) } else { ALIGNMENT };
    let is_part =
        |volume: &DiscoveredVolume| volume.parent_dev_path == disk.dev_path && volume.partition_index > 0;
    let parts = world.volumes.iter().map(|(_, volume)| volume).filter(|volume| is_part(volume));
    let mut taken: Vec<(u64, u64)> =
        parts.map(|part| (part.offset, part.offset.saturating_add(part.size))).collect();
    taken.sort_unstable();
    // The backup of the table is at the end.
    let end = disk.size.saturating_sub(33 * disk.sector_size.max(512));
    taken.push((end, end));
    let (mut from, mut largest) = (align, 0);
    for (start, stop) in taken {
        let first = from.checked_next_multiple_of(align).unwrap_or(u64::MAX);
        let last = start - start % align;
        largest = largest.max(last.saturating_sub(first));
        from = from.max(stop);
    }
    largest
}
