//! Files of the control plane: what its pods read, each for the user that reads it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::PrivateKey;
use ichor_resource::k8s::{
    AdmissionControlConfig, AuditPolicyConfig, AuthorizationConfig, ConfigStatus, SchedulerConfig,
    SecretStatus,
};
use ichor_resource::secrets::{
    EtcdRootSecret, EtcdSecret, KubernetesDynamicCert, KubernetesRootSecret, KubernetesSecret,
};
use ichor_resource::value::{PemCertificate, PemCertificateAndKey};
use ichor_sys::file::replace_if_changed;

use crate::files;
use crate::pods::{CONFIGS, SECRETS};

/// `SecretStatuses` and `ConfigStatuses`.
pub const STATUS: &str = "static-pods";
/// Only the owner reads, and nobody writes.
const FILE_MODE: u32 = 0o400;
const DIRECTORY_MODE: u32 = 0o755;

/// Who reads the files of a component.
pub const USERS: [(&str, u32); 3] =
    [("kube-apiserver", 65534), ("kube-controller-manager", 65535), ("kube-scheduler", 65536)];

/// A file could not be put in place.
#[derive(Debug, thiserror::Error)]
#[error("write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A file of a component: its name and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// The component that reads it.
    pub component: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What is in it.
    pub content: Vec<u8>,
}

/// Where files are written.
#[derive(Debug, Clone)]
pub struct Disk {
    root: PathBuf,
    owners: bool,
}

impl Disk {
    /// The machine's own.
    pub fn machine() -> Self {
        Self { root: "/".into(), owners: true }
    }

    /// Below a directory, with everything owned by whoever runs this.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), owners: false }
    }

    /// Puts a file in place in one step; one that says the same already stays untouched.
    fn write(&self, base: &str, component: &str, name: &str, content: &[u8]) -> Result<(), WriteError> {
        let directory = self.root.join(base.trim_start_matches('/')).join(component);
        let path = directory.join(name);
        let owner = USERS.iter().find(|(known, _)| *known == component).map(|(_, id)| *id);
        let failed = |source| WriteError { path: path.clone(), source };
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&directory).map_err(failed)?;
        let owner = owner.filter(|_| self.owners);
        replace_if_changed(&path, content, FILE_MODE, owner).map(drop).map_err(failed)
    }
}

/// What the secrets are made from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// Authorities and keys of the cluster.
    pub root: &'a KubernetesRootSecret,
    /// The authority of etcd.
    pub etcd_root: &'a EtcdRootSecret,
    /// Certificates of etcd.
    pub etcd: &'a EtcdSecret,
    /// Kubeconfigs.
    pub kubernetes: &'a KubernetesSecret,
    /// Certificates of the API server.
    pub dynamic: &'a KubernetesDynamicCert,
}

/// Something the files are made from is not there.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It is not configured, or not issued.
    #[error("the control plane needs {0}")]
    Missing(&'static str),
    /// The key of service accounts is none.
    #[error("read `cluster.serviceAccount.key`")]
    ServiceAccount(#[source] ichor_pki::PkiError),
}

/// All files with secrets.
pub fn secrets(from: &Sources<'_>) -> Result<Vec<Secret>, SecretError> {
    const API: &str = "kube-apiserver";
    const MANAGER: &str = "kube-controller-manager";
    let pair = |pair: &'_ Option<PemCertificateAndKey>, what| {
        pair.as_ref().map(|pair| (pair.crt.to_vec(), pair.key.to_vec())).ok_or(SecretError::Missing(what))
    };
    let (etcd_ca, _) = pair(&from.etcd_root.etcd_ca, "`cluster.etcd.ca`")?;
    let (etcd_crt, etcd_key) = pair(&from.etcd.etcd_api_server, "a certificate for etcd")?;
    let (server_crt, server_key) = pair(&from.dynamic.api_server, "a certificate of the API server")?;
    let (kubelet_crt, kubelet_key) =
        pair(&from.dynamic.api_server_kubelet_client, "a certificate for kubelets")?;
    let (proxy_crt, proxy_key) = pair(&from.dynamic.front_proxy, "a certificate of the front proxy")?;
    let (aggregator_ca, _) = pair(&from.root.aggregator_ca, "`cluster.aggregatorCA`")?;
    let (ca_crt, ca_key) = pair(&from.root.issuing_ca, "`cluster.ca` with its key")?;
    let account =
        from.root.service_account.as_ref().ok_or(SecretError::Missing("`cluster.serviceAccount`"))?;
    let account = PrivateKey::from_pem(&account.key).map_err(SecretError::ServiceAccount)?;
    let account_key = account.to_pem().into_bytes();
    let encryption =
        files::encryption(&from.root.secretbox_encryption_secret, &from.root.aes_cbc_encryption_secret);
    let files: [(&'static str, &'static str, Vec<u8>); 20] = [
        (API, "etcd-client-ca.crt", etcd_ca),
        (API, "etcd-client.crt", etcd_crt),
        (API, "etcd-client.key", etcd_key),
        (API, "ca.crt", bundle(&from.root.accepted_cas)),
        (API, "apiserver.crt", server_crt),
        (API, "apiserver.key", server_key),
        (API, "apiserver-kubelet-client.crt", kubelet_crt),
        (API, "apiserver-kubelet-client.key", kubelet_key),
        (API, "service-account.pub", account.public_pem().into_bytes()),
        (API, "service-account.key", account_key.clone()),
        (API, "aggregator-ca.crt", aggregator_ca),
        (API, "front-proxy-client.crt", proxy_crt),
        (API, "front-proxy-client.key", proxy_key),
        (API, "encryptionconfig.yaml", encryption.into_bytes()),
        (MANAGER, "ca.crt", ca_crt),
        (MANAGER, "ca.key", ca_key),
        // Pods accept all that is accepted; only one signs.
        (MANAGER, "root-ca.crt", bundle(&from.root.accepted_cas)),
        (MANAGER, "service-account.key", account_key),
        (MANAGER, "kubeconfig", from.kubernetes.controller_manager_kubeconfig.clone().into_bytes()),
        ("kube-scheduler", "kubeconfig", from.kubernetes.scheduler_kubeconfig.clone().into_bytes()),
    ];
    Ok(files.into_iter().map(|(component, name, content)| Secret { component, name, content }).collect())
}

/// All accepted authorities in one file.
fn bundle(authorities: &[PemCertificate]) -> Vec<u8> {
    let mut all = Vec::new();
    for authority in authorities {
        all.extend_from_slice(&authority.crt);
        if !authority.crt.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    all
}

/// Writes the secrets of the control plane, and `SecretStatuses` when they are there.
#[derive(Debug)]
pub struct RenderSecretsStaticPodController {
    disk: Disk,
}

impl RenderSecretsStaticPodController {
    /// A controller that writes here.
    pub fn new(disk: Disk) -> Self {
        Self { disk }
    }
}

impl Controller for RenderSecretsStaticPodController {
    const NAME: &'static str = "k8s.RenderSecretsStaticPodController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<KubernetesRootSecret>().id("k8s"),
            weak::<EtcdRootSecret>().id("etcd"),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<KubernetesDynamicCert>().id("k8s-dynamic-certs"),
            weak::<EtcdSecret>().id("etcd"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SecretStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let (Some(root), Some(etcd_root), Some(kubernetes), Some(dynamic), Some(etcd)) = (
            ctx.get::<KubernetesRootSecret>("k8s")?,
            ctx.get::<EtcdRootSecret>("etcd")?,
            ctx.get::<KubernetesSecret>("k8s-certs")?,
            ctx.get::<KubernetesDynamicCert>("k8s-dynamic-certs")?,
            ctx.get::<EtcdSecret>("etcd")?,
        ) else {
            return Ok(());
        };
        let sources = Sources {
            root: &root,
            etcd_root: &etcd_root,
            etcd: &etcd,
            kubernetes: &kubernetes,
            dynamic: &dynamic,
        };
        for file in secrets(&sources)? {
            self.disk.write(SECRETS, file.component, file.name, &file.content)?;
        }
        let version = kubernetes.meta().version().to_string();
        ctx.modify::<SecretStatus>(STATUS, |spec| {
            *spec = SecretStatus { ready: true, version: version.clone() };
        })?;
        Ok(())
    }
}

/// Writes the configuration files of the control plane, and `ConfigStatuses` when they are there.
#[derive(Debug)]
pub struct RenderConfigsStaticPodController {
    disk: Disk,
}

impl RenderConfigsStaticPodController {
    /// A controller that writes here.
    pub fn new(disk: Disk) -> Self {
        Self { disk }
    }
}

impl Controller for RenderConfigsStaticPodController {
    const NAME: &'static str = "k8s.RenderConfigsStaticPodController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<AdmissionControlConfig>().id("admission-control"),
            weak::<AuditPolicyConfig>().id("audit-policy"),
            weak::<AuthorizationConfig>().id("authorization"),
            weak::<SchedulerConfig>().id("kube-scheduler"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ConfigStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let (Some(admission), Some(audit), Some(authorization), Some(scheduler)) = (
            ctx.get::<AdmissionControlConfig>("admission-control")?,
            ctx.get::<AuditPolicyConfig>("audit-policy")?,
            ctx.get::<AuthorizationConfig>("authorization")?,
            ctx.get::<SchedulerConfig>("kube-scheduler")?,
        ) else {
            return Ok(());
        };
        let files = files::render(&admission, &audit, &authorization, &scheduler);
        for file in &files {
            self.disk.write(CONFIGS, file.component, file.name, file.text.as_bytes())?;
        }
        let version = files::version(&files);
        ctx.modify::<ConfigStatus>(STATUS, |spec| {
            *spec = ConfigStatus { ready: true, version: version.clone() };
        })?;
        Ok(())
    }
}
