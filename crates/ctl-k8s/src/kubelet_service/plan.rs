//! What a kubelet is started with, and what has to change on the machine for it. Pure: resources and what was found in,
//! steps out.

use std::path::PathBuf;

use ichor_pki::{CertInfo, check};
use ichor_resource::k8s::{ExtraMount, KubeletSpec};
use ichor_resource::secrets::KubeletSecret;
use ichor_resource::value::binary::base64;
use serde_json::{Value as Json, json};

use super::client;

/// Where its files are, below the root of the machine.
pub(super) const KUBERNETES: &str = "etc/kubernetes";
/// What it has for itself.
pub(super) const OWN: &str = "var/lib/kubelet";

/// What the service runs, from one reading of `KubeletSpecs`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KubeletRun {
    /// The image of the kubelet.
    pub image: String,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Mounts that the configuration adds.
    pub extra_mounts: Vec<ExtraMount>,
}

/// A change of one file. Paths are below the root of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A directory and its parents of this mode.
    Directory(PathBuf, u32),
    /// A file of this content, replaced in one step.
    Write(PathBuf, Vec<u8>, u32),
    /// A symbolic link; one that exists stays.
    Link(PathBuf, PathBuf),
    /// No such file.
    Remove(PathBuf),
    /// No such directory.
    RemoveTree(PathBuf),
}

/// What an earlier kubelet left on the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Its client certificate, where it can be read.
    pub(super) certificate: Option<Vec<u8>>,
    /// Whether there is a link to one, readable or not.
    pub(super) has_certificate_link: bool,
    /// What it remembers of its CPUs.
    pub(super) cpu_state: Option<Vec<u8>>,
    /// Whether it has a kubeconfig of its own.
    pub(super) has_kubeconfig: bool,
}

impl Found {
    fn cpu_policy(&self) -> Option<String> {
        policy_name(self.cpu_state.as_deref()?)
    }
}

/// What a kubelet is started with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    /// Two plans with the same mark are the same.
    pub(super) mark: String,
    pub(super) run: KubeletRun,
    pub(super) bootstrap: String,
    authorities: Vec<u8>,
    server: String,
    config: String,
    credentials: Option<String>,
    pub(super) nodename: String,
    pub(super) cpu_policy: String,
}

impl Plan {
    pub(super) fn of(spec: &KubeletSpec, secret: &KubeletSecret) -> Self {
        let mut authorities = Vec::new();
        for authority in &secret.accepted_cas {
            authorities.extend_from_slice(&authority.crt);
            if !authority.crt.ends_with(b"\n") {
                authorities.push(b'\n');
            }
        }
        let server = secret.endpoint.as_ref().map(|url| url.0.clone()).unwrap_or_default();
        let token = format!("{}.{}", secret.bootstrap_token_id, secret.bootstrap_token_secret);
        let bootstrap =
            kubeconfig("local", "kubelet@local", &server, &authorities, &json!({ "token": token }));
        let text = |object: &serde_json::Map<String, Json>| format!("{:#}\n", Json::Object(object.clone()));
        let credentials = &spec.credential_provider_config.0;
        let mut plan = Self {
            mark: String::new(),
            run: KubeletRun {
                image: spec.image.clone(),
                args: spec.args.clone(),
                extra_mounts: spec.extra_mounts.clone(),
            },
            bootstrap,
            authorities,
            server,
            config: text(&spec.config.0),
            credentials: (!credentials.is_empty()).then(|| text(credentials)),
            nodename: spec.expected_nodename.clone(),
            cpu_policy: spec
                .config
                .0
                .get("cpuManagerPolicy")
                .and_then(Json::as_str)
                .unwrap_or_default()
                .to_owned(),
        };
        plan.mark = ichor_pki::sha256(format!("{plan:?}").as_bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        plan
    }

    /// The files that a running kubelet does not mind.
    pub(super) fn prepare(&self) -> Vec<Step> {
        let dir = PathBuf::from(KUBERNETES);
        let write = |name: &str, content: &[u8], mode| Step::Write(dir.join(name), content.to_vec(), mode);
        let credentials = "kubelet-credentialproviderconfig.yaml";
        vec![
            Step::Directory(dir.join("pki"), 0o700),
            write("bootstrap-kubeconfig", self.bootstrap.as_bytes(), 0o600),
            write("pki/ca.crt", &self.authorities, 0o400),
            write("kubelet.yaml", self.config.as_bytes(), 0o600),
            match &self.credentials {
                Some(text) => write(credentials, text.as_bytes(), 0o600),
                None => Step::Remove(dir.join(credentials)),
            },
        ]
    }

    /// Whether a client certificate has to be issued before this kubelet starts.
    pub(super) fn lacks_certificate(&self, found: &Found, now: jiff::Timestamp) -> bool {
        let goes = self.refused(found, now).is_some();
        !self.nodename.is_empty() && (goes || !found.has_certificate_link)
    }

    /// What is removed or changed while no kubelet runs. `issued` is a client certificate with its key, signed here.
    pub(super) fn clean(&self, found: &Found, issued: Option<&str>, now: jiff::Timestamp) -> Vec<Step> {
        let own = PathBuf::from(OWN);
        let (pki, kubeconfig_path) = (own.join("pki"), PathBuf::from(KUBERNETES).join("kubeconfig-kubelet"));
        let mut steps = Vec::new();
        let goes = self.refused(found, now).is_some();
        if goes {
            steps.push(Step::RemoveTree(pki.clone()));
            steps.push(Step::Remove(kubeconfig_path.clone()));
        }
        if self.replaced_cpu_policy(found).is_some() {
            steps.push(Step::Remove(own.join("cpu_manager_state")));
        }
        // The names in it may have changed; the kubelet signs a new one.
        steps.extend(["kubelet.crt", "kubelet.key"].map(|name| Step::Remove(pki.join(name))));
        if let Some(pem) = issued {
            let file = pki.join(now.strftime("kubelet-client-%Y-%m-%d-%H-%M-%S.pem").to_string());
            // The kubelet sees the directory under the same path.
            let target = PathBuf::from("/").join(&file);
            steps.push(Step::Directory(pki.clone(), 0o755));
            steps.push(Step::Write(file, pem.as_bytes().to_vec(), 0o600));
            steps.push(Step::Link(pki.join(client::CURRENT), target));
        }
        if issued.is_some() || (found.has_kubeconfig && !goes) {
            let certificate = PathBuf::from("/").join(&pki).join(client::CURRENT);
            let user = json!({ "client-certificate": certificate, "client-key": certificate });
            let text =
                kubeconfig("default-cluster", "default-context", &self.server, &self.authorities, &user);
            steps.push(Step::Write(kubeconfig_path, text.into_bytes(), 0o600));
        }
        steps
    }

    /// The CPU policy that the kubelet had before, where it has another one now.
    pub(super) fn replaced_cpu_policy(&self, found: &Found) -> Option<String> {
        found.cpu_policy().filter(|policy| !same_policy(policy, &self.cpu_policy))
    }

    /// Why the kubelet's client certificate cannot be used any more; nothing when it can, or when there is none.
    pub(super) fn refused(&self, found: &Found, now: jiff::Timestamp) -> Option<String> {
        self.refuses(found.certificate.as_deref()?, now)
    }

    /// The same of a certificate that was read.
    pub(super) fn refuses(&self, pem: &[u8], now: jiff::Timestamp) -> Option<String> {
        // A file without a certificate is the kubelet's to mend.
        let leaf = CertInfo::parse(pem).ok().filter(|info| !info.is_ca)?;
        let expected = format!("system:node:{}", self.nodename);
        if !self.nodename.is_empty() && leaf.common_name != expected {
            return Some(format!("is for {:?} instead of {expected:?}", leaf.common_name));
        }
        match check::issued_by(pem, &self.authorities) {
            Ok(true) => leaf.check_time(now).err().map(|error| error.to_string()),
            Ok(false) => Some("is not of an accepted authority".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// A kubeconfig with one cluster, one user and one context. JSON, which is YAML.
fn kubeconfig(cluster: &str, context: &str, server: &str, authorities: &[u8], user: &Json) -> String {
    let name = match context {
        "default-context" => "default-auth",
        other => other,
    };
    let file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": cluster,
            "cluster": { "server": server, "certificate-authority-data": base64(authorities) },
        }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": context, "context": { "cluster": cluster, "user": name, "namespace": "default" } }],
        "current-context": context,
    });
    format!("{file:#}\n")
}

fn policy_name(text: &[u8]) -> Option<String> {
    let state: Json = serde_json::from_slice(text).ok()?;
    Some(state.get("policyName")?.as_str()?.to_owned())
}

fn same_policy(one: &str, other: &str) -> bool {
    let plain = |policy: &'_ str| policy.is_empty() || policy == "none";
    one == other || (plain(one) && plain(other))
}
