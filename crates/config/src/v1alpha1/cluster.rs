//! `cluster`: the part of the root document that is about the cluster.

use ichor_types::GoDuration;

use super::control_plane::{ApiServer, ControllerManager, Etcd, Proxy, Scheduler};
use crate::{
    model::{List, Map, Replace, section},
    values::{ManifestText, PemCert, PemKey, PemPair, Url},
};

section! {
    /// The cluster a machine belongs to.
    pub struct ClusterConfig {
        /// Identifier of the cluster: URL-safe base64 of 32 random bytes.
        "id" => id: String,
        /// Shared secret of the cluster: base64 of 32 random bytes. It protects what discovery publishes.
        "secret" => secret: String,
        /// How the control plane is reached.
        @always
        "controlPlane" => control_plane: Option<ControlPlane>,
        /// Name of the cluster.
        "clusterName" => cluster_name: String,
        /// Network of the cluster.
        "network" => network: Option<ClusterNetwork>,
        /// Bootstrap token with which kubelets join.
        @example("token: wlzjyw.bei2zfylhs2by0wd")
        "token" => token: String,
        /// Key that encrypts secrets at rest, older kind.
        "aescbcEncryptionSecret" => aescbc_encryption_secret: String,
        /// Key that encrypts secrets at rest; wins over the older kind.
        "secretboxEncryptionSecret" => secretbox_encryption_secret: String,
        /// Certificate authority of Kubernetes; workers carry the certificate without its key.
        "ca" => ca: Option<PemPair>,
        /// Further certificate authorities that Kubernetes trusts, for example while rotating.
        "acceptedCAs" => accepted_cas: List<PemCert>,
        /// Certificate authority of the aggregation layer.
        "aggregatorCA" => aggregator_ca: Option<PemPair>,
        /// Key that signs service account tokens.
        "serviceAccount" => service_account: Option<PemKey>,
        /// Settings of the API server.
        "apiServer" => api_server: Option<ApiServer>,
        /// Settings of the controller manager.
        "controllerManager" => controller_manager: Option<ControllerManager>,
        /// Settings of kube-proxy.
        "proxy" => proxy: Option<Proxy>,
        /// Settings of the scheduler.
        "scheduler" => scheduler: Option<Scheduler>,
        /// How members find each other.
        "discovery" => discovery: Option<Discovery>,
        /// Settings of etcd.
        "etcd" => etcd: Option<Etcd>,
        /// Settings of the cluster DNS.
        @example("coreDNS:\n    image: registry.k8s.io/coredns/coredns:v1.13.2")
        "coreDNS" => core_dns: Option<CoreDns>,
        /// An external cloud provider.
        @example("externalCloudProvider:\n    enabled: true\n    manifests:\n        - https://example.com/cloud-controller-manager.yaml")
        "externalCloudProvider" => external_cloud_provider: Option<ExternalCloudProvider>,
        /// URLs of manifests that are applied at bootstrap.
        @example("extraManifests:\n    - https://www.example.com/manifest1.yaml")
        "extraManifests" => extra_manifests: List<String>,
        /// HTTP headers sent when the manifests are fetched.
        @example("extraManifestHeaders:\n    Token: \"1234567\"")
        "extraManifestHeaders" => extra_manifest_headers: Map<String>,
        /// Manifests that are applied at bootstrap.
        @example("inlineManifests:\n    - name: namespace-ci\n      contents: |-\n        apiVersion: v1\n        kind: Namespace\n        metadata:\n          name: ci")
        "inlineManifests" => inline_manifests: List<InlineManifest>,
        /// The administrator's kubeconfig.
        @example("adminKubeconfig:\n    certLifetime: 1h")
        "adminKubeconfig" => admin_kubeconfig: Option<AdminKubeconfig>,
        /// Run workloads on control plane machines.
        @deprecated("use `allowSchedulingOnControlPlanes`")
        @default("false")
        "allowSchedulingOnMasters" => allow_scheduling_on_masters: Option<bool>,
        /// Run workloads on control plane machines.
        @default("false")
        @example("allowSchedulingOnControlPlanes: true")
        "allowSchedulingOnControlPlanes" => allow_scheduling_on_control_planes: Option<bool>,
    }
}

section! {
    /// How the control plane is reached.
    pub struct ControlPlane {
        /// Canonical URL of the Kubernetes API.
        @always
        @example("endpoint: https://1.2.3.4:6443")
        "endpoint" => endpoint: Option<Url>,
        /// Port the API server listens on.
        @default("6443")
        "localAPIServerPort" => local_api_server_port: i64,
    }
}

section! {
    /// Network of a cluster.
    pub struct ClusterNetwork {
        /// The network plugin.
        @example("cni:\n    name: custom\n    urls:\n        - https://example.com/cni.yaml")
        "cni" => cni: Option<Cni>,
        /// Domain of the cluster DNS.
        @always
        @default("cluster.local")
        "dnsDomain" => dns_domain: String,
        /// Networks of pods.
        @always
        @default("10.244.0.0/16")
        "podSubnets" => pod_subnets: Replace<List<String>>,
        /// Networks of services.
        @always
        @default("10.96.0.0/12")
        "serviceSubnets" => service_subnets: Replace<List<String>>,
    }
}

section! {
    /// The network plugin.
    pub struct Cni {
        /// `flannel`, `custom` or `none`.
        @default("flannel")
        "name" => name: String,
        /// URLs of manifests of a custom plugin.
        "urls" => urls: List<String>,
        /// Settings of flannel.
        "flannel" => flannel: Option<Flannel>,
    }
}

section! {
    /// Settings of flannel.
    pub struct Flannel {
        /// Additional command line arguments.
        "extraArgs" => extra_args: List<String>,
    }
}

section! {
    /// How members find each other.
    pub struct Discovery {
        /// Turn it on.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// Where members are published and looked up.
        @always
        "registries" => registries: DiscoveryRegistries,
    }
}

section! {
    /// Where members are published and looked up.
    pub struct DiscoveryRegistries {
        /// In the Kubernetes API.
        @always
        "kubernetes" => kubernetes: KubernetesRegistry,
        /// In the discovery service.
        @always
        "service" => service: ServiceRegistry,
    }
}

section! {
    /// Discovery through the Kubernetes API.
    pub struct KubernetesRegistry {
        /// Turn it off.
        "disabled" => disabled: Option<bool>,
    }
}

section! {
    /// Discovery through the discovery service.
    pub struct ServiceRegistry {
        /// Turn it off.
        "disabled" => disabled: Option<bool>,
        /// Where the service is.
        @default("https://discovery.talos.dev/")
        "endpoint" => endpoint: String,
    }
}

section! {
    /// Settings of the cluster DNS.
    pub struct CoreDns {
        /// Do not run it.
        @default("false")
        "disabled" => disabled: Option<bool>,
        /// The image.
        @example("image: registry.k8s.io/coredns/coredns:v1.13.2")
        "image" => image: String,
    }
}

section! {
    /// An external cloud provider.
    pub struct ExternalCloudProvider {
        /// Turn it on.
        @default("false")
        "enabled" => enabled: Option<bool>,
        /// URLs of its manifests.
        "manifests" => manifests: List<String>,
    }
}

section! {
    /// A manifest that is applied at bootstrap.
    pub struct InlineManifest {
        /// Its name, unique.
        @always
        "name" => name: String,
        /// Its text.
        @always
        "contents" => contents: ManifestText,
    }
}

section! {
    /// The administrator's kubeconfig.
    pub struct AdminKubeconfig {
        /// Lifetime of its certificate.
        @default("8760h")
        "certLifetime" => cert_lifetime: GoDuration,
    }
}
