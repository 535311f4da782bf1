//! What can go wrong with the control groups of machines.

use ichor_provision_local::SetupError;

/// A host whose control groups cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    #[error("no cgroup hierarchy is in use on this host; mount one at /sys/fs/cgroup")]
    NoCgroups,
    #[error(
        "cgroup {group} has no controller {missing}: the groups above it do not hand it down; check cgroup_disable= \
         on the kernel command line, or, inside of a container, that its own root group holds no processes"
    )]
    NoControllers { group: String, missing: String },
}

impl From<CgroupError> for SetupError {
    fn from(error: CgroupError) -> Self {
        Self::Own(Box::new(error))
    }
}
