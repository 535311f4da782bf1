//! `machine.features`.

use crate::model::{List, section};

section! {
    /// Optional abilities of the system.
    pub struct Features {
        /// Role based access control; always on.
        @deprecated("leave it out, it is always on")
        "rbac" => rbac: Option<bool>,
        /// Derive the host name from the identity of the machine.
        @deprecated("use a `HostnameConfig` document with `auto: stable`")
        @default("false")
        "stableHostname" => stable_hostname: Option<bool>,
        /// Access to the machine API from inside Kubernetes.
        @example("kubernetesTalosAPIAccess:\n    enabled: true\n    allowedRoles:\n        - os:reader\n    allowedKubernetesNamespaces:\n        - kube-system")
        "kubernetesTalosAPIAccess" => kubernetes_talos_api_access: Option<KubernetesTalosApiAccess>,
        /// Check the usage of client certificates; always on.
        @deprecated("leave it out, it is always on")
        "apidCheckExtKeyUsage" => apid_check_ext_key_usage: Option<bool>,
        /// Project quota on the EPHEMERAL volume and on user disks.
        @default("false")
        "diskQuotaSupport" => disk_quota_support: Option<bool>,
        /// A load balancer on every machine for the Kubernetes API.
        "kubePrism" => kube_prism: Option<KubePrism>,
        /// A caching resolver on every machine.
        "hostDNS" => host_dns: Option<HostDns>,
        /// Images kept on a volume of the machine.
        "imageCache" => image_cache: Option<ImageCache>,
        /// Order in which addresses are preferred: `v1` or `v2`.
        @default("v1")
        "nodeAddressSortAlgorithm" => node_address_sort_algorithm: String,
    }
}

section! {
    /// A load balancer on every machine for the Kubernetes API.
    pub struct KubePrism {
        /// Turn it on.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// Port it listens on.
        @default("7445")
        "port" => port: i64,
    }
}

section! {
    /// Images kept on a volume of the machine.
    pub struct ImageCache {
        /// Turn it on.
        @default("false")
        "localEnabled" => local_enabled: Option<bool>,
    }
}

section! {
    /// Access to the machine API from inside Kubernetes.
    pub struct KubernetesTalosApiAccess {
        /// Turn it on.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// Roles that may be given.
        @example("allowedRoles:\n    - os:reader")
        "allowedRoles" => allowed_roles: List<String>,
        /// Namespaces that may ask.
        "allowedKubernetesNamespaces" => allowed_kubernetes_namespaces: List<String>,
    }
}

section! {
    /// A caching resolver on every machine.
    pub struct HostDns {
        /// Turn it on.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// Let the cluster DNS use it as upstream.
        @default("false")
        "forwardKubeDNSToHost" => forward_kube_dns_to_host: Option<bool>,
        /// Answer for the names of cluster members.
        @default("false")
        "resolveMemberNames" => resolve_member_names: Option<bool>,
    }
}
