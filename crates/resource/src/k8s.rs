//! Kubernetes.

mod control_plane;
mod extra_mount;
mod kubelet;
mod manifest;
mod node;
mod prism;

pub use control_plane::{
    APIServerConfig, AdmissionControlConfig, AdmissionPluginSpec, AuditPolicyConfig,
    AuthorizationAuthorizersSpec, AuthorizationConfig, ConfigStatus, ControllerManagerConfig, Endpoint,
    ExtraVolume, Resources, SchedulerConfig, SecretStatus,
};
pub use extra_mount::{ExtraMount, IdMapping};
pub use kubelet::{KubeletConfig, KubeletLifecycle, KubeletSpec};
pub use manifest::{
    BootstrapManifestsConfig, ExtraManifest, ExtraManifestsConfig, Manifest, ManifestStatus, SingleManifest,
    StaticPod, StaticPodServerStatus, StaticPodStatus,
};
pub use node::{
    NodeAnnotationSpec, NodeCordonedSpec, NodeIP, NodeIPConfig, NodeLabelSpec, NodeStatus, NodeTaintSpec,
    Nodename,
};
pub use prism::{KubePrismConfig, KubePrismEndpoint, KubePrismEndpoints, KubePrismStatus};
