//! What carries mounts out.

use std::future::Future;

use super::plan::MountPlan;

/// Mounts and unmounts.
pub trait MountPort: Send + Sync + 'static {
    /// Makes a mount, or finds it made by a manager before this one.
    fn mount(&self, plan: &MountPlan) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Ends a mount; one that is not there is ended. `by_force` also while requests to its device are under way.
    fn unmount(
        &self,
        plan: &MountPlan,
        by_force: bool,
    ) -> impl Future<Output = Result<(), MountError>> + Send;
}

/// A mount that was not made, or not ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MountError {
    /// What failed, on what, and why.
    pub reason: String,
}

impl MountError {
    /// With this text.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}
