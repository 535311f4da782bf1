//! `machine.kubelet`.

use crate::model::{Free, List, Map, section};

section! {
    /// Settings of the kubelet.
    pub struct KubeletConfig {
        /// The image.
        @example("image: ghcr.io/siderolabs/kubelet:v1.35.0")
        "image" => image: String,
        /// Addresses of the cluster DNS; the tenth address of each service network when left out.
        @example("clusterDNS:\n    - 10.96.0.10")
        "clusterDNS" => cluster_dns: List<String>,
        /// Additional command line arguments.
        @example("extraArgs:\n    feature-gates: ServerSideApply=true")
        "extraArgs" => extra_args: Map<String>,
        /// Additional mounts of the kubelet container.
        @example("extraMounts:\n    - destination: /var/lib/example\n      type: bind\n      source: /var/lib/example\n      options:\n        - bind\n        - rshared\n        - rw")
        "extraMounts" => extra_mounts: List<ExtraMount>,
        /// Overrides of the kubelet configuration file.
        @example("extraConfig:\n    serverTLSBootstrap: true")
        "extraConfig" => extra_config: Free,
        /// Configuration of image credential providers.
        "credentialProviderConfig" => credential_provider_config: Free,
        /// Run containers with the default seccomp profile of the runtime.
        @default("false")
        "defaultRuntimeSeccompProfileEnabled" => default_runtime_seccomp_profile_enabled: Option<bool>,
        /// Register with the fully qualified host name.
        @default("false")
        "registerWithFQDN" => register_with_fqdn: Option<bool>,
        /// Which addresses become the node address.
        @example("nodeIP:\n    validSubnets:\n        - 10.0.0.0/8")
        "nodeIP" => node_ip: Option<KubeletNodeIp>,
        /// Run without registering the node: only static pods.
        @default("false")
        "skipNodeRegistration" => skip_node_registration: Option<bool>,
        /// Do not read static pods from the manifests directory.
        @default("false")
        "disableManifestsDirectory" => disable_manifests_directory: Option<bool>,
    }
}

section! {
    /// Which addresses become the node address.
    pub struct KubeletNodeIp {
        /// Networks to take the address from; a leading `!` excludes.
        @example("validSubnets:\n    - 10.0.0.0/8\n    - '!10.0.0.3/32'")
        "validSubnets" => valid_subnets: List<String>,
    }
}

section! {
    /// An additional mount of the kubelet container.
    pub struct ExtraMount {
        /// Path in the container.
        @always
        "destination" => destination: String,
        /// Type of the mount, usually `bind`.
        "type" => mount_type: String,
        /// Path on the host.
        "source" => source: String,
        /// Mount options.
        "options" => options: List<String>,
        /// User id mappings.
        "uidMappings" => uid_mappings: List<IdMapping>,
        /// Group id mappings.
        "gidMappings" => gid_mappings: List<IdMapping>,
    }
}

section! {
    /// A range of ids that are mapped.
    pub struct IdMapping {
        /// First id in the container.
        @always
        "containerID" => container_id: u32,
        /// First id on the host.
        @always
        "hostID" => host_id: u32,
        /// How many.
        @always
        "size" => size: u32,
    }
}
