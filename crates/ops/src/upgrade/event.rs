//! What an upgrade reports, and what may stand in its way.

use std::fmt;

/// A step of an upgrade of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The lowest version among the components that run.
    VersionDetected(String),
    /// The control planes that will be upgraded, by address.
    ControlPlanes(Vec<String>),
    /// The workers that will be upgraded, by address.
    Workers(Vec<String>),
    /// An interrupted upgrade continues.
    Resumed {
        /// How many steps are done already.
        steps: usize,
    },
    /// A machine's system runs the new version.
    Compatible {
        /// The machine.
        node: String,
        /// Version of its system.
        system: String,
        /// Version of Kubernetes.
        to: String,
    },
    /// Flags and feature gates are compared with what the new version removed.
    CheckingFlags,
    /// Objects are compared with what the new version removed.
    CheckingResources,
    /// An image is pulled ahead of time.
    Pulling {
        /// The machine.
        node: String,
        /// The image.
        image: String,
    },
    /// A machine cannot pull images ahead of time.
    PullUnsupported {
        /// The machine.
        node: String,
    },
    /// A component is brought to the new version on all its machines.
    Component {
        /// Its name.
        name: &'static str,
        /// The new version.
        to: String,
    },
    /// A component is about to change on a machine.
    NodeStarted {
        /// The machine.
        node: String,
    },
    /// The version of a component changes.
    VersionChange {
        /// The component.
        name: &'static str,
        /// The present tag.
        from: String,
        /// The new version.
        to: String,
    },
    /// A change is left out: nothing is changed in a dry run.
    Skipped,
    /// A machine has its new configuration.
    Patched {
        /// The machine.
        node: String,
    },
    /// A pod is waited for.
    WaitingForPod {
        /// The machine.
        node: String,
        /// The component.
        name: &'static str,
    },
    /// A pod is not as wanted yet.
    PodBehind {
        /// The machine.
        node: String,
        /// The component.
        name: &'static str,
        /// What it lacks.
        reason: String,
    },
    /// The restart of a kubelet is waited for.
    WaitingForKubelet {
        /// The machine.
        node: String,
    },
    /// A node is waited for to report the new kubelet.
    WaitingForNode {
        /// The machine.
        node: String,
    },
    /// A component has its new version on a machine.
    NodeDone {
        /// The machine.
        node: String,
    },
    /// The manifests are applied.
    Manifests,
    /// An object of the manifests was compared with the cluster.
    Manifest {
        /// Version, kind, namespace and name.
        object: String,
        /// How it differs; nothing when it does not.
        difference: Option<String>,
        /// The cluster was changed accordingly.
        applied: bool,
    },
    /// Workloads that changed are waited for.
    WaitingForManifests,
    /// A workload is waited for.
    WaitingForRollout {
        /// Version, kind, namespace and name.
        object: String,
    },
}

/// Something in use that the new version does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obsolete {
    /// A command line flag.
    Flag {
        /// The machine.
        node: String,
        /// The component.
        component: &'static str,
        /// The flag, without dashes.
        flag: &'static str,
    },
    /// A feature gate.
    FeatureGate {
        /// The machine.
        node: String,
        /// The component.
        component: &'static str,
        /// The gate.
        gate: &'static str,
    },
    /// Objects of a kind.
    Objects {
        /// How many.
        count: usize,
        /// Plural, version and group.
        kind: String,
    },
}

impl fmt::Display for Obsolete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag { node, component, flag } => write!(f, "{node}: {component}: flag --{flag}"),
            Self::FeatureGate { node, component, gate } => {
                write!(f, "{node}: {component}: feature gate {gate}")
            }
            Self::Objects { count, kind } => write!(f, "{count} objects of {kind}"),
        }
    }
}
