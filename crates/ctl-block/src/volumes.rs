//! Volumes: from what is wanted to what is ready to be mounted.
//!
//! [`decide`] is pure: a volume's configuration and status and what is known of the machine's disks give the next status,
//! or one action whose outcome is told with [`Outcome`]. Whoever carries actions out asks again until nothing is left to
//! do.

mod decide;
mod manager;
mod place;
mod selector;
mod system;

pub use decide::{Action, Created, Decision, Outcome, World, conclude, decide};
pub(crate) use manager::LIFECYCLE;
pub use manager::{ActionError, VolumeManagerController, VolumePort};
pub use place::{Placement, PlacementError, choose_disk};
pub use selector::{SelectorError, matches_disk, matches_volume};
pub use system::{ProgramPort, SystemVolumes};
