//! Control plane components: API server, controller manager, scheduler, proxy, etcd.

use crate::{
    model::{Free, Keyed, KeyedList, List, Map, Replace, section},
    values::PemPair,
};

section! {
    /// Switches for control plane components of this machine.
    pub struct MachineControlPlane {
        /// The controller manager.
        "controllerManager" => controller_manager: Option<ComponentSwitch>,
        /// The scheduler.
        "scheduler" => scheduler: Option<ComponentSwitch>,
    }
}

section! {
    /// Turns a component off.
    pub struct ComponentSwitch {
        /// Do not run it here.
        @default("false")
        "disabled" => disabled: Option<bool>,
    }
}

section! {
    /// Settings of the API server.
    pub struct ApiServer {
        /// The image.
        @example("image: registry.k8s.io/kube-apiserver:v1.35.0")
        "image" => image: String,
        /// Additional command line arguments.
        @example("extraArgs:\n    feature-gates: ServerSideApply=true")
        "extraArgs" => extra_args: Map<String>,
        /// Additional volumes of the pod.
        "extraVolumes" => extra_volumes: List<VolumeMount>,
        /// Environment variables of the pod.
        "env" => env: Map<String>,
        /// Additional names and addresses in its certificate.
        @example("certSANs:\n    - 1.2.3.4\n    - api.example.com")
        "certSANs" => cert_sans: List<String>,
        /// Has no effect.
        @deprecated("leave it out")
        "disablePodSecurityPolicy" => disable_pod_security_policy: Option<bool>,
        /// Admission plugins with their configuration.
        "admissionControl" => admission_control: KeyedList<AdmissionPlugin>,
        /// Audit policy.
        "auditPolicy" => audit_policy: Replace<Free>,
        /// Resources of the pod.
        "resources" => resources: Option<Resources>,
        /// Authorizers in order.
        "authorizationConfig" => authorization_config: List<Authorizer>,
    }
}

section! {
    /// A volume of a control plane pod.
    pub struct VolumeMount {
        /// Path on the host.
        @always
        "hostPath" => host_path: String,
        /// Path in the pod.
        @always
        "mountPath" => mount_path: String,
        /// Mount it read-only.
        @default("false")
        "readonly" => read_only: bool,
    }
}

section! {
    /// An admission plugin.
    pub struct AdmissionPlugin {
        /// Its name.
        @always
        "name" => name: String,
        /// Its configuration.
        @always
        "configuration" => configuration: Free,
    }
}

impl Keyed for AdmissionPlugin {
    const KEY: &'static str = "name";

    fn same_item(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

section! {
    /// An authorizer of the API server.
    pub struct Authorizer {
        /// `Node`, `RBAC` or `Webhook`.
        @always
        "type" => authorizer_type: String,
        /// Its name.
        @always
        "name" => name: String,
        /// Settings of a webhook.
        "webhook" => webhook: Free,
    }
}

section! {
    /// Resources of a control plane pod.
    pub struct Resources {
        /// What is set aside: `cpu`, `memory`.
        "requests" => requests: Free,
        /// What it may use at most: `cpu`, `memory`.
        "limits" => limits: Free,
    }
}

section! {
    /// Settings of the controller manager.
    pub struct ControllerManager {
        /// The image.
        @example("image: registry.k8s.io/kube-controller-manager:v1.35.0")
        "image" => image: String,
        /// Additional command line arguments.
        "extraArgs" => extra_args: Map<String>,
        /// Additional volumes of the pod.
        "extraVolumes" => extra_volumes: List<VolumeMount>,
        /// Environment variables of the pod.
        "env" => env: Map<String>,
        /// Resources of the pod.
        "resources" => resources: Option<Resources>,
    }
}

section! {
    /// Settings of kube-proxy.
    pub struct Proxy {
        /// Do not run it.
        @default("false")
        "disabled" => disabled: Option<bool>,
        /// The image.
        @example("image: registry.k8s.io/kube-proxy:v1.35.0")
        "image" => image: String,
        /// How services are served; the choice of kube-proxy when left out.
        "mode" => mode: String,
        /// Additional command line arguments.
        "extraArgs" => extra_args: Map<String>,
    }
}

section! {
    /// Settings of the scheduler.
    pub struct Scheduler {
        /// The image.
        @example("image: registry.k8s.io/kube-scheduler:v1.35.0")
        "image" => image: String,
        /// Additional command line arguments.
        "extraArgs" => extra_args: Map<String>,
        /// Additional volumes of the pod.
        "extraVolumes" => extra_volumes: List<VolumeMount>,
        /// Environment variables of the pod.
        "env" => env: Map<String>,
        /// Resources of the pod.
        "resources" => resources: Option<Resources>,
        /// Configuration file of the scheduler.
        "config" => config: Free,
    }
}

section! {
    /// Settings of etcd.
    pub struct Etcd {
        /// The image.
        @example("image: registry.k8s.io/etcd:v3.6.7")
        "image" => image: String,
        /// Certificate authority of etcd.
        @always
        "ca" => ca: Option<PemPair>,
        /// Additional command line arguments.
        "extraArgs" => extra_args: Map<String>,
        /// Network of the advertised address.
        @deprecated("use `advertisedSubnets`")
        "subnet" => subnet: String,
        /// Networks of the advertised addresses; a leading `!` excludes.
        @example("advertisedSubnets:\n    - 10.0.0.0/8")
        "advertisedSubnets" => advertised_subnets: List<String>,
        /// Networks of the addresses it listens on.
        "listenSubnets" => listen_subnets: List<String>,
    }
}
