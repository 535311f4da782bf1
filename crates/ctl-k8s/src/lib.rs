//! Controllers of what Kubernetes should know about the node.
//!
//! So far what the configuration asks for: settings of the control plane and its kubelets, labels, annotations and
//! taints. Who carries them out comes with Kubernetes itself.

pub mod accounts;
pub mod affiliates;
pub mod api;
pub mod args;
pub mod bootstrap;
pub mod coredns;
pub mod endpoints;
pub mod extra_manifests;
pub mod files;
pub mod flannel;
pub mod images;
pub mod inventory;
pub mod kube_access;
pub mod kubelet;
pub mod kubelet_service;
pub mod manifest_apply;
pub mod manifests;
pub mod names;
pub mod node_apply;
pub mod node_status;
pub mod pod_server;
pub mod pod_status;
pub mod pods;
pub mod prism;
pub mod render;
pub mod rendering;
pub mod settings;
pub mod static_pods;
pub mod user_pods;
pub mod wishes;

use ichor_cosi::{RegisterError, Runtime};

/// Adds the family to a runtime.
pub fn register(runtime: &Runtime, host: kubelet::Host) -> Result<(), RegisterError> {
    runtime.register(names::NodenameController)?;
    runtime.register(names::NodeIpConfigController)?;
    runtime.register(names::NodeIpController)?;
    runtime.register(kubelet::KubeletConfigController)?;
    runtime.register(kubelet::KubeletSpecController::new(host))?;
    runtime.register(wishes::NodeLabelSpecController)?;
    runtime.register(wishes::NodeAnnotationSpecController)?;
    runtime.register(wishes::NodeTaintSpecController)?;
    runtime.register(settings::ApiServerController)?;
    runtime.register(settings::AdmissionController)?;
    runtime.register(settings::AuditPolicyController)?;
    runtime.register(settings::AuthorizationController)?;
    runtime.register(settings::ControllerManagerController)?;
    runtime.register(settings::SchedulerController)?;
    runtime.register(settings::BootstrapManifestsController)?;
    runtime.register(settings::ExtraManifestsController)?;
    runtime.register(bootstrap::ManifestController)?;
    runtime.register(prism::EndpointsController)?;
    runtime.register(prism::ConfigController)?;
    runtime.register(user_pods::StaticPodConfigController)?;
    runtime.register(render::RenderSecretsStaticPodController::new(render::Disk::machine()))?;
    runtime.register(render::RenderConfigsStaticPodController::new(render::Disk::machine()))?;
    runtime.register(static_pods::ControlPlaneStaticPodController::new(std::sync::Arc::new(api::connect)))?;
    runtime.register(pod_server::StaticPodServerController::new(pod_server::MEMORY))?;
    Ok(())
}
