//! Mounts: from somebody who needs a volume to the volume in its place, and back.
//!
//! `VolumeMountRequests`, one for each who needs a volume, are gathered into one `MountRequest` for a volume
//! ([`MountRequestController`]); that becomes a mount and its `MountStatus` ([`MountController`]), which is told to each who
//! asked in a `VolumeMountStatus` ([`VolumeMountStatusController`]). Who uses a mount holds that status by a finalizer. The way
//! back is the same in reverse: a volume is unmounted when nobody holds it, and a volume inside another goes first.

mod failures;
mod gather;
mod legacy;
mod mounter;
mod plan;
mod port;
mod share;
mod state_request;
mod system;

pub use failures::MountFailures;
pub use gather::MountRequestController;
pub use legacy::LegacyMountStatusController;
pub use mounter::MountController;
pub use plan::{MountPlan, MountSource, With, plan};
pub use port::{MountError, MountPort};
pub use share::VolumeMountStatusController;
pub use state_request::StateMountController;
pub use system::SystemMounts;
