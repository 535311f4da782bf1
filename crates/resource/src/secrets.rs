//! Key material.

use ichor_resource_derive::ResourceSpec;

use crate::value::{IntBytes, Ip, PemCertificate, PemCertificateAndKey, PemKey, Url};

/// apid server and (control plane only) client certificates and the accepted CAs.
///
/// Id: `api`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ApiCertificates.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.APICertsSpec")]
#[resource(sensitive)]
pub struct ApiCertificate {
    #[spec(4, "acceptedCAs")]
    pub accepted_cas: Vec<PemCertificate>,
    #[spec(2, "client")]
    pub client: Option<PemCertificateAndKey>,
    #[spec(3, "server")]
    pub server: Option<PemCertificateAndKey>,
}

/// Names and addresses to put into certificates.
///
/// Id: `api`, `k8s`, `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "CertSANs.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.CertSANSpec")]
#[resource(sensitive)]
pub struct CertSAN {
    #[spec(1, "ips")]
    pub ips: Vec<Ip>,
    #[spec(2, "dnsNames")]
    pub dns_names: Vec<String>,
    #[spec(3, "fqdn")]
    pub fqdn: String,
}

/// Salt mixed into disk encryption keys.
///
/// Id: `salt`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EncryptionSalts.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.EncryptionSaltSpec")]
#[resource(sensitive)]
pub struct EncryptionSalt {
    #[spec(1, "diskSalt")]
    pub disk_salt: IntBytes,
}

/// etcd CA.
///
/// Id: `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcdRootSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.EtcdRootSpec")]
#[resource(sensitive)]
pub struct EtcdRootSecret {
    #[spec(1, "etcdCA")]
    pub etcd_ca: Option<PemCertificateAndKey>,
}

/// etcd leaf certificates.
///
/// Id: `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "EtcdSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.EtcdCertsSpec")]
#[resource(sensitive)]
pub struct EtcdSecret {
    #[spec(1, "etcd")]
    pub etcd: Option<PemCertificateAndKey>,
    #[spec(2, "etcdPeer")]
    pub etcd_peer: Option<PemCertificateAndKey>,
    #[spec(3, "etcdAdmin")]
    pub etcd_admin: Option<PemCertificateAndKey>,
    #[spec(4, "etcdAPIServer")]
    pub etcd_api_server: Option<PemCertificateAndKey>,
}

/// kubelet bootstrap token and CA.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubeletSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.KubeletSpec")]
#[resource(sensitive)]
pub struct KubeletSecret {
    #[spec(1, "endpoint")]
    pub endpoint: Option<Url>,
    #[spec(5, "acceptedCAs")]
    pub accepted_cas: Vec<PemCertificate>,
    #[spec(3, "bootstrapTokenID")]
    pub bootstrap_token_id: String,
    #[spec(4, "bootstrapTokenSecret")]
    pub bootstrap_token_secret: String,
}

/// kube-apiserver leaf certificates.
///
/// Id: `k8s-dynamic-certs`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubernetesDynamicCerts.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.KubernetesDynamicCertsSpec")]
#[resource(sensitive)]
pub struct KubernetesDynamicCert {
    #[spec(1, "apiServer")]
    pub api_server: Option<PemCertificateAndKey>,
    #[spec(2, "apiServerKubeletClient")]
    pub api_server_kubelet_client: Option<PemCertificateAndKey>,
    #[spec(3, "frontProxy")]
    pub front_proxy: Option<PemCertificateAndKey>,
}

/// Kubernetes CAs, keys and endpoint.
///
/// Id: `k8s`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubernetesRootSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.KubernetesRootSpec")]
#[resource(sensitive)]
pub struct KubernetesRootSecret {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "endpoint")]
    pub endpoint: Option<Url>,
    #[spec(3, "local_endpoint")]
    pub local_endpoint: Option<Url>,
    #[spec(4, "certSANs")]
    pub cert_sans: Vec<String>,
    #[spec(14, "apiServerIPs")]
    pub api_server_ips: Vec<Ip>,
    #[spec(6, "dnsDomain")]
    pub dns_domain: String,
    #[spec(7, "issuingCA")]
    pub issuing_ca: Option<PemCertificateAndKey>,
    #[spec(15, "acceptedCAs")]
    pub accepted_cas: Vec<PemCertificate>,
    #[spec(8, "serviceAccount")]
    pub service_account: Option<PemKey>,
    #[spec(9, "aggregatorCA")]
    pub aggregator_ca: Option<PemCertificateAndKey>,
    #[spec(10, "aesCBCEncryptionSecret")]
    pub aes_cbc_encryption_secret: String,
    #[spec(11, "bootstrapTokenID")]
    pub bootstrap_token_id: String,
    #[spec(12, "bootstrapTokenSecret")]
    pub bootstrap_token_secret: String,
    #[spec(13, "secretboxEncryptionSecret")]
    pub secretbox_encryption_secret: String,
}

/// Kubeconfigs of the control plane components and the admin.
///
/// Id: `k8s-certs`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubernetesSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.KubernetesCertsSpec")]
#[resource(sensitive)]
pub struct KubernetesSecret {
    #[spec(4, "schedulerKubeconfig")]
    pub scheduler_kubeconfig: String,
    #[spec(5, "controllerManagerKubeconfig")]
    pub controller_manager_kubeconfig: String,
    #[spec(6, "localhostAdminKubeconfig")]
    pub localhost_admin_kubeconfig: String,
    #[spec(7, "adminKubeconfig")]
    pub admin_kubeconfig: String,
}

/// Throw-away CA of the maintenance service.
///
/// Id: `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MaintenanceRootSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.MaintenanceRootSpec")]
#[resource(sensitive)]
pub struct MaintenanceRootSecret {
    #[spec(1, "ca")]
    pub ca: Option<PemCertificateAndKey>,
}

/// Certificates of the maintenance service.
///
/// Id: `maintenance`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "MaintenanceServiceCertificates.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.MaintenanceServiceCertsSpec")]
#[resource(sensitive)]
pub struct MaintenanceServiceCertificate {
    #[spec(1, "ca")]
    pub ca: Option<PemCertificateAndKey>,
    #[spec(2, "server")]
    pub server: Option<PemCertificateAndKey>,
}

/// Node API CA, accepted CAs, join token, extra SANs.
///
/// Id: `os`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "OSRootSecrets.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.OSRootSpec")]
#[resource(sensitive)]
pub struct OSRootSecret {
    #[spec(1, "issuingCA")]
    pub issuing_ca: Option<PemCertificateAndKey>,
    #[spec(5, "acceptedCAs")]
    pub accepted_cas: Vec<PemCertificate>,
    #[spec(2, "certSANIPs")]
    pub cert_san_ips: Vec<Ip>,
    #[spec(3, "certSANDNSNames")]
    pub cert_san_dns_names: Vec<String>,
    #[spec(4, "token")]
    pub token: String,
}

/// trustd server certificate.
///
/// Id: `trustd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "TrustdCertificates.secrets.talos.dev", namespace = "secrets")]
#[resource(proto = "talos.resource.definitions.secrets.TrustdCertsSpec")]
#[resource(sensitive)]
pub struct TrustdCertificate {
    #[spec(3, "acceptedCAs")]
    pub accepted_cas: Vec<PemCertificate>,
    #[spec(2, "server")]
    pub server: Option<PemCertificateAndKey>,
}
