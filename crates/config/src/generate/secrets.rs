//! The secrets of a cluster: keys, certificate authorities, tokens.

use std::time::Duration;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE},
};
use ichor_pki::{Authority, KeyAlgorithm, KeyPair, Leaf, PkiError, PrivateKey, random};
use ichor_types::VersionContract;
use ichor_yaml::Span;
use jiff::Timestamp;

use super::GenerateError;
use crate::{
    diagnostic::{Diagnostic, Diagnostics, Stage, error_list},
    documents::{Documents, parse, utf8},
    model::{Decoder, Field, section},
    values::{PemKey, PemPair},
};

/// Lifetime of client certificates.
pub const YEAR: Duration = Duration::from_secs(8760 * 60 * 60);

section! {
    /// The secrets of a cluster.
    pub struct Secrets {
        /// What names and protects the cluster.
        @always
        "cluster" => cluster: Option<ClusterSecrets>,
        /// Tokens and keys of Kubernetes.
        @always
        "secrets" => secrets: Option<KubernetesSecrets>,
        /// The trust service.
        @always
        "trustdinfo" => trustd_info: Option<TrustdInfo>,
        /// Certificate authorities and keys.
        @always
        "certs" => certs: Option<Certs>,
    }
}

section! {
    /// What names and protects a cluster.
    pub struct ClusterSecrets {
        /// Identifier: URL-safe base64 of 32 random bytes.
        @always
        "id" => id: String,
        /// Secret: base64 of 32 random bytes.
        @always
        "secret" => secret: String,
    }
}

section! {
    /// Tokens and keys of Kubernetes.
    pub struct KubernetesSecrets {
        /// Token with which kubelets join.
        @always
        "bootstraptoken" => bootstrap_token: String,
        /// Key that encrypts secrets at rest, older kind.
        "aescbcencryptionsecret" => aescbc_encryption_secret: String,
        /// Key that encrypts secrets at rest.
        "secretboxencryptionsecret" => secretbox_encryption_secret: String,
    }
}

section! {
    /// The trust service.
    pub struct TrustdInfo {
        /// Token with which machines join.
        @always
        "token" => token: String,
    }
}

section! {
    /// Certificate authorities and keys.
    pub struct Certs {
        /// Certificate authority of etcd.
        @always
        "etcd" => etcd: Option<PemPair>,
        /// Certificate authority of Kubernetes.
        @always
        "k8s" => k8s: Option<PemPair>,
        /// Certificate authority of the aggregation layer.
        @always
        "k8saggregator" => k8s_aggregator: Option<PemPair>,
        /// Key that signs service account tokens.
        @always
        "k8sserviceaccount" => k8s_service_account: Option<PemKey>,
        /// Certificate authority of the machine API.
        @always
        "os" => os: Option<PemPair>,
    }
}

/// Files of a Kubernetes PKI directory, to take over an existing cluster.
#[derive(Clone, Debug, Default)]
pub struct KubernetesPki {
    /// `ca.crt` and `ca.key`.
    pub ca: PemPair,
    /// `etcd/ca.crt` and `etcd/ca.key`.
    pub etcd: PemPair,
    /// `front-proxy-ca.crt` and `front-proxy-ca.key`.
    pub front_proxy: PemPair,
    /// `sa.key`.
    pub service_account: PemKey,
}

impl Secrets {
    /// Makes new secrets; all certificates start at `now`.
    pub fn generate(now: Timestamp, contract: VersionContract) -> Result<Self, PkiError> {
        let mut secrets = Self::default();
        secrets.complete(now, contract)?;
        Ok(secrets)
    }

    /// Takes over the certificates of a Kubernetes cluster and makes the rest.
    pub fn from_kubernetes_pki(
        pki: KubernetesPki,
        bootstrap_token: &str,
        now: Timestamp,
        contract: VersionContract,
    ) -> Result<Self, PkiError> {
        for pair in [&pki.ca, &pki.etcd, &pki.front_proxy] {
            check_pair(pair)?;
        }
        PrivateKey::from_pem(&pki.service_account.key.0)?;
        let mut secrets = Self {
            secrets: Some(KubernetesSecrets {
                bootstrap_token: bootstrap_token.to_owned(),
                ..Default::default()
            }),
            certs: Some(Certs {
                etcd: Some(pki.etcd),
                k8s: Some(pki.ca),
                k8s_aggregator: Some(pki.front_proxy),
                k8s_service_account: Some(pki.service_account),
                os: None,
            }),
            ..Default::default()
        };
        secrets.complete(now, contract)?;
        Ok(secrets)
    }

    /// Recovers the secrets from a control plane configuration.
    pub fn from_config(config: &Documents) -> Option<Self> {
        let root = config.root()?;
        let (machine, cluster) = (root.machine.as_deref()?, root.cluster.as_deref()?);
        Some(Self {
            cluster: Some(ClusterSecrets { id: cluster.id.clone(), secret: cluster.secret.clone() }),
            secrets: Some(KubernetesSecrets {
                bootstrap_token: cluster.token.clone(),
                aescbc_encryption_secret: cluster.aescbc_encryption_secret.clone(),
                secretbox_encryption_secret: cluster.secretbox_encryption_secret.clone(),
            }),
            trustd_info: Some(TrustdInfo { token: machine.token.clone() }),
            certs: Some(Certs {
                etcd: cluster.etcd.as_ref().and_then(|etcd| etcd.ca.clone()),
                k8s: cluster.ca.clone(),
                k8s_aggregator: cluster.aggregator_ca.clone(),
                k8s_service_account: cluster.service_account.clone(),
                os: machine.ca.clone(),
            }),
        })
    }

    /// Reads a bundle; keys it does not know are ignored.
    pub fn load(bytes: &[u8]) -> Result<Self, Diagnostics> {
        let trees = parse(utf8(bytes)?)?;
        let Some(tree) = trees.first() else {
            let empty = Diagnostic::error(Stage::Stream, "secrets bundle is empty");
            return Err(Diagnostics::single(Diagnostic { span: Span::START, ..empty }));
        };
        let mut decoder = Decoder::default();
        let secrets = Self::decode(tree, &mut decoder);
        let is_problem = |item: &Diagnostic| item.stage != Stage::UnknownKey;
        let items: Vec<_> = decoder.problems.into_iter().filter(is_problem).collect();
        if items.is_empty() { Ok(secrets) } else { Err(Diagnostics { items, ..Default::default() }) }
    }

    /// Writes the bundle.
    pub fn to_yaml(&self) -> String {
        ichor_yaml::emit(&self.encode())
    }

    /// Fills in whatever is missing.
    fn complete(&mut self, now: Timestamp, contract: VersionContract) -> Result<(), PkiError> {
        let certs = self.certs.get_or_insert_default();
        let authorities = [
            (&mut certs.etcd, KeyAlgorithm::EcdsaP256, "etcd"),
            (&mut certs.k8s, KeyAlgorithm::EcdsaP256, "kubernetes"),
            (&mut certs.k8s_aggregator, KeyAlgorithm::EcdsaP256, ""),
            (&mut certs.os, KeyAlgorithm::Ed25519, "talos"),
        ];
        for (slot, algorithm, organization) in authorities {
            if slot.is_none() {
                let authority = Authority::generate(algorithm, organization, now, Authority::TEN_YEARS)?;
                let (crt, key) = (authority.crt_pem().into(), authority.key_pem().into());
                *slot = Some(PemPair { crt, key });
            }
        }
        if certs.k8s_service_account.is_none() {
            let algorithm = if contract.since(7) { KeyAlgorithm::Rsa4096 } else { KeyAlgorithm::EcdsaP256 };
            let key = PrivateKey::generate(algorithm)?;
            certs.k8s_service_account = Some(PemKey { key: key.to_pem().into() });
        }
        let secrets = self.secrets.get_or_insert_default();
        if secrets.bootstrap_token.is_empty() {
            secrets.bootstrap_token = random::token(6, 16)?;
        }
        let slot = match contract.since(3) {
            true => &mut secrets.secretbox_encryption_secret,
            false => &mut secrets.aescbc_encryption_secret,
        };
        if slot.is_empty() {
            *slot = STANDARD.encode(random::bytes::<32>()?);
        }
        let trustd = self.trustd_info.get_or_insert_default();
        if trustd.token.is_empty() {
            trustd.token = random::token(6, 16)?;
        }
        let cluster = self.cluster.get_or_insert_default();
        if cluster.id.is_empty() {
            cluster.id = URL_SAFE.encode(random::bytes::<32>()?);
        }
        if cluster.secret.is_empty() {
            cluster.secret = STANDARD.encode(random::bytes::<32>()?);
        }
        Ok(())
    }

    /// Everything that is missing or unusable.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut need = |present: bool, what: &str| {
            if !present {
                problems.push(format!("{what} is required"));
            }
        };
        match &self.cluster {
            None => need(false, "cluster"),
            Some(cluster) => {
                need(!cluster.id.is_empty(), "cluster.id");
                need(!cluster.secret.is_empty(), "cluster.secret");
            }
        }
        match &self.secrets {
            None => need(false, "secrets"),
            Some(secrets) => {
                need(!secrets.bootstrap_token.is_empty(), "secrets.bootstraptoken");
                let both = "[secrets.secretboxencryptionsecret, secrets.aescbcencryptionsecret]";
                let old = !secrets.aescbc_encryption_secret.is_empty();
                match (old, !secrets.secretbox_encryption_secret.is_empty()) {
                    (false, false) => problems.push(format!("one of {both} is required")),
                    (true, true) => problems.push(format!("only one of {both} is allowed")),
                    _ => {}
                }
            }
        }
        match &self.trustd_info {
            None => problems.push("trustdinfo is required".to_owned()),
            Some(info) if info.token.is_empty() => problems.push("trustdinfo.token is required".to_owned()),
            Some(_) => {}
        }
        match &self.certs {
            None => problems.push("certs is required".to_owned()),
            Some(certs) => problems.extend(certs.problems()),
        }
        problems
    }

    /// Checks the bundle; the message lists everything that is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(error_list(problems.into_iter())) }
    }

    /// Issues a client certificate of the machine API: the authority's certificate and the pair.
    pub fn client_certificate(
        &self,
        roles: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<(String, KeyPair), GenerateError> {
        let pair = self.os_ca()?;
        let authority = Authority::from_pem(&pair.crt.0, &pair.key.0).map_err(GenerateError::Client)?;
        let mut roles = roles.to_vec();
        roles.sort();
        let leaf = Leaf::client("", roles).with_lifetime(lifetime);
        let issued = authority.issue(&leaf, now).map_err(GenerateError::Client)?;
        Ok((pair.crt.as_str().to_owned(), issued))
    }

    fn certs(&self) -> Option<&Certs> {
        self.certs.as_ref()
    }

    /// Certificate authority of the machine API.
    pub fn os_ca(&self) -> Result<&PemPair, GenerateError> {
        self.certs().and_then(|certs| certs.os.as_ref()).ok_or(GenerateError::Missing("certs.os"))
    }

    /// Certificate authority of Kubernetes.
    pub fn kubernetes_ca(&self) -> Result<&PemPair, GenerateError> {
        self.certs().and_then(|certs| certs.k8s.as_ref()).ok_or(GenerateError::Missing("certs.k8s"))
    }

    /// Certificate authority of the aggregation layer.
    pub fn aggregator_ca(&self) -> Result<&PemPair, GenerateError> {
        let pair = self.certs().and_then(|certs| certs.k8s_aggregator.as_ref());
        pair.ok_or(GenerateError::Missing("certs.k8saggregator"))
    }

    /// Certificate authority of etcd.
    pub fn etcd_ca(&self) -> Result<&PemPair, GenerateError> {
        self.certs().and_then(|certs| certs.etcd.as_ref()).ok_or(GenerateError::Missing("certs.etcd"))
    }

    /// Key that signs service account tokens.
    pub fn service_account(&self) -> Result<&PemKey, GenerateError> {
        let key = self.certs().and_then(|certs| certs.k8s_service_account.as_ref());
        key.ok_or(GenerateError::Missing("certs.k8sserviceaccount"))
    }

    /// Token with which machines join.
    pub fn trustd_token(&self) -> &str {
        self.trustd_info.as_ref().map_or("", |info| &info.token)
    }

    /// Token with which kubelets join.
    pub fn bootstrap_token(&self) -> &str {
        self.secrets.as_ref().map_or("", |secrets| &secrets.bootstrap_token)
    }

    /// Key that encrypts secrets at rest.
    pub fn secretbox_secret(&self) -> &str {
        self.secrets.as_ref().map_or("", |secrets| &secrets.secretbox_encryption_secret)
    }

    /// Key that encrypts secrets at rest, older kind.
    pub fn aescbc_secret(&self) -> &str {
        self.secrets.as_ref().map_or("", |secrets| &secrets.aescbc_encryption_secret)
    }

    /// Identifier of the cluster.
    pub fn cluster_id(&self) -> &str {
        self.cluster.as_ref().map_or("", |cluster| &cluster.id)
    }

    /// Secret of the cluster.
    pub fn cluster_secret(&self) -> &str {
        self.cluster.as_ref().map_or("", |cluster| &cluster.secret)
    }
}

impl Certs {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let pairs = [
            ("certs.etcd", &self.etcd),
            ("certs.k8s", &self.k8s),
            ("certs.k8saggregator", &self.k8s_aggregator),
            ("certs.os", &self.os),
        ];
        for (name, pair) in pairs {
            match pair.as_ref().map(check_pair) {
                None => problems.push(format!("{name} is required")),
                Some(Err(error)) => problems.push(format!("{name} is invalid: {error}")),
                Some(Ok(())) => {}
            }
        }
        match self.k8s_service_account.as_ref().map(|key| PrivateKey::from_pem(&key.key.0)) {
            None => problems.push("certs.k8sserviceaccount is required".to_owned()),
            Some(Err(error)) => problems.push(format!("certs.k8sserviceaccount.key is invalid: {error}")),
            Some(Ok(_)) => {}
        }
        problems
    }
}

/// Checks that a private key can be read and, if there is a certificate, that too.
fn check_pair(pair: &PemPair) -> Result<(), PkiError> {
    PrivateKey::from_pem(&pair.key.0)?;
    if !pair.crt.0.is_empty() {
        ichor_pki::CertInfo::parse(&pair.crt.0)?;
    }
    Ok(())
}
