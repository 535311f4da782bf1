//! Controllers of root secrets and API certificates.
//!
//! Root secrets come from the machine configuration; names and addresses for certificates from the network;
//! certificates are issued from both, renewed at half their life, and never without need: a certificate
//! whose inputs are the same and which is young enough stays.
//!
//! | controller | writes |
//! |---|---|
//! | [`RootOs`], [`RootEtcd`], [`RootKubernetes`], [`Kubelet`] | root secrets |
//! | [`ApiCertSans`], [`MaintenanceCertSans`], [`KubernetesCertSans`] | names for certificates |
//! | [`Api`], [`Trustd`] | certificates of the node API and of trustd |
//! | [`Etcd`], [`Kubernetes`], [`KubernetesDynamic`] | certificates of etcd and Kubernetes |
//! | [`MaintenanceRoot`], [`Maintenance`] | certificates of the maintenance service |
//! | [`TrustedRoots`] | the bundle of trusted authorities |
//! | [`StaticEndpoint`] | addresses of the control plane from its URL |

mod api;
mod endpoint;
mod etcd;
mod issue;
pub mod kubeconfig;
mod kubernetes;
mod maintenance;
mod roots;
mod sans;
mod trust;
mod trustd;
mod trusted_roots;

pub use api::Api;
pub use endpoint::{Resolve, StaticEndpoint};
pub use etcd::Etcd;
pub use kubernetes::{Kubernetes, KubernetesDynamic};
pub use maintenance::{Maintenance, MaintenanceRoot};
pub use roots::{Kubelet, RootEtcd, RootKubernetes, RootOs};
pub use sans::{ApiCertSans, KubernetesCertSans, MaintenanceCertSans};
pub use trust::{SignError, SignRequest, Signed, TrustService};
pub use trustd::Trustd;
pub use trusted_roots::{BUILT_IN_ROOTS, TrustedRoots};

use ichor_cosi::{RegisterError, Runtime};

/// Adds all controllers of the family to a runtime.
pub fn register<T: TrustService, R: Resolve>(
    runtime: &Runtime,
    trust: T,
    resolver: R,
) -> Result<(), RegisterError> {
    runtime.register(RootOs::default())?;
    runtime.register(RootEtcd::default())?;
    runtime.register(RootKubernetes::default())?;
    runtime.register(Kubelet::default())?;
    runtime.register(ApiCertSans)?;
    runtime.register(MaintenanceCertSans)?;
    runtime.register(KubernetesCertSans)?;
    runtime.register(Api::new(trust))?;
    runtime.register(Trustd::default())?;
    runtime.register(Etcd::default())?;
    runtime.register(Kubernetes::default())?;
    runtime.register(KubernetesDynamic::default())?;
    runtime.register(MaintenanceRoot)?;
    runtime.register(Maintenance::default())?;
    runtime.register(StaticEndpoint::new(resolver))?;
    runtime.register(TrustedRoots::new(BUILT_IN_ROOTS))
}

/// Ids of the resources these controllers write.
pub mod id {
    /// `OSRootSecrets`.
    pub const OS: &str = "os";
    /// `EtcdRootSecrets` and `EtcdSecrets`.
    pub const ETCD: &str = "etcd";
    /// `KubernetesRootSecrets` and `CertSANs` of Kubernetes.
    pub const KUBERNETES: &str = "k8s";
    /// `KubernetesSecrets`.
    pub const KUBERNETES_CERTS: &str = "k8s-certs";
    /// `KubernetesDynamicCerts`.
    pub const KUBERNETES_DYNAMIC: &str = "k8s-dynamic-certs";
    /// `KubeletSecrets`.
    pub const KUBELET: &str = "kubelet";
    /// `ApiCertificates` and `CertSANs` of the node API.
    pub const API: &str = "api";
    /// `TrustdCertificates`.
    pub const TRUSTD: &str = "trustd";
    /// `MaintenanceRootSecrets`, `MaintenanceServiceCertificates` and their `CertSANs`.
    pub const MAINTENANCE: &str = "maintenance";
}
