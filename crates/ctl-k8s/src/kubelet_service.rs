//! Starts the kubelet: its files, which of its certificates are kept, and when it has to restart.

mod client;
mod request;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, weak};
use ichor_pki::{CertInfo, check};
use ichor_resource::config::MachineType as MachineTypeSpec;
use ichor_resource::files::EtcFileStatus;
use ichor_resource::k8s::{KubeletSpec, StaticPod, StaticPodStatus};
use ichor_resource::secrets::{KubeletSecret, KubernetesRootSecret};
use ichor_resource::time::TimeStatus;
use ichor_resource::value::binary::base64;
use serde_json::{Value as Json, json};
use tracing::info;

use self::client::Issuer;
use self::request::Pending;
use crate::api::{Connect, Way};
use crate::static_pods::CONTROL_PLANE;

const KUBELET: &str = "kubelet";
/// Where its files are.
const KUBERNETES: &str = "etc/kubernetes";
/// What it has for itself.
const OWN: &str = "var/lib/kubelet";
/// Longest certificate or state file that is read.
const FILE_MAX: u64 = 1 << 20;

/// What changes the kubelet may change pods of the control plane as well; it is known by then.
const PODS_KNOWN: Duration = Duration::from_secs(2);
/// Pods of the control plane hold up a kubelet no longer.
const PODS_MAX: Duration = Duration::from_secs(45);

/// The service that runs the kubelet.
pub trait KubeletPort: Send + Sync + 'static {
    /// Whether one runs that an earlier manager of this machine started.
    fn is_inherited(&self) -> bool;

    /// Starts it, or takes over the one that runs.
    fn start(&self) -> Result<(), String>;

    /// Stops it and waits for its end.
    fn stop(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Keeps the kubelet running with what `KubeletSpecs` and `KubeletSecrets` say.
pub struct KubeletServiceController<P> {
    port: P,
    root: PathBuf,
    /// What the kubelet that runs was started with, in memory so that it is gone after a reboot.
    memory: PathBuf,
    applied: Option<String>,
    /// The pods of the control plane that it was last seen with, and since when it is to start anew.
    pods: Vec<(String, String)>,
    due: Option<jiff::Timestamp>,
    /// How often the clock had jumped when the client certificate was looked at, and whether it had ended by then.
    epoch: i64,
    ended: bool,
    /// How the API is reached for the first client certificate, and the request for it.
    connect: Option<Connect>,
    request: Option<Pending>,
    wake: Option<Wake>,
}

/// Why the kubelet could not be started.
#[derive(Debug, thiserror::Error)]
pub enum KubeletServiceError {
    /// A file could not be written, read or removed.
    #[error("{what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The service did not do as it was told.
    #[error("{0}")]
    Service(String),
}

fn at<T>(what: &'static str, path: &Path, done: io::Result<T>) -> Result<T, KubeletServiceError> {
    done.map_err(|source| KubeletServiceError::File { what, path: path.to_owned(), source })
}

impl<P: KubeletPort> KubeletServiceController<P> {
    /// A controller whose files lie below `root` and that remembers in the file `memory`, which must not survive a
    /// reboot.
    pub fn new(port: P, root: impl Into<PathBuf>, memory: impl Into<PathBuf>) -> Self {
        Self {
            port,
            root: root.into(),
            memory: memory.into(),
            applied: None,
            pods: Vec::new(),
            due: None,
            epoch: 0,
            ended: false,
            connect: None,
            request: None,
            wake: None,
        }
    }

    /// The same, where a worker requests the first client certificate of its kubelet before it starts it.
    #[must_use]
    pub fn requesting(mut self, connect: Connect) -> Self {
        self.connect = Some(connect);
        self
    }

    /// Requests the first client certificate of a worker's kubelet. `None` while it is on its way; otherwise what came
    /// of it.
    fn first_certificate(&mut self, plan: &Plan, now: jiff::Timestamp) -> Option<Option<String>> {
        let needed =
            self.applied.is_none() && !self.port.is_inherited() && plan.needs_certificate(&self.root, now);
        let Some(connect) = self.connect.as_ref().filter(|_| needed) else {
            self.request = None;
            return Some(None);
        };
        if self.request.as_ref().is_none_or(|request| request.mark != plan.mark) {
            // What leads nowhere is the kubelet's to report.
            let Ok(client) = connect(Way::Kubeconfig(&plan.bootstrap)) else { return Some(None) };
            let (mark, nodename) = (plan.mark.clone(), plan.nodename.clone());
            self.request = Some(Pending::start(mark, client, nodename, self.wake.clone()));
        }
        let outcome = self.request.as_ref()?.outcome()?;
        self.request = None;
        // One that is refused is as good as none.
        Some(outcome.filter(|pem| plan.refuses(pem.as_bytes(), now).is_none()))
    }

    /// How long to wait for pods of the control plane, which the kubelet that runs replaces best: one that starts anew
    /// lets those of before stand in the way of the new ones until it has reached the API.
    fn waits_for_pods(
        &mut self,
        ctx: &Context,
        pods: &[(String, String)],
    ) -> Result<Option<Duration>, ControllerError> {
        if self.applied.is_none() || pods.is_empty() {
            return Ok(None);
        }
        let due = *self.due.get_or_insert(ctx.now());
        let age = Duration::try_from(ctx.now().duration_since(due)).unwrap_or(PODS_MAX);
        if age < PODS_KNOWN {
            return Ok(Some(PODS_KNOWN - age));
        }
        let statuses = ctx.list::<StaticPodStatus>()?;
        let is_new = |(name, _): &(String, String)| {
            let prefix = format!("kube-system/{name}-");
            let found = statuses.iter().find(|status| status.id().starts_with(&prefix));
            found.is_some_and(|status| runs_since(&status.pod_status.0, due))
        };
        let replaced = self.pods == pods || pods.iter().all(is_new);
        // Statuses come by themselves; this is for the end.
        Ok((!replaced).then(|| PODS_MAX.saturating_sub(age)).filter(|rest| !rest.is_zero()))
    }

    async fn apply(
        &mut self,
        plan: Plan,
        first: FirstCertificate,
        now: jiff::Timestamp,
    ) -> Result<(), ControllerError> {
        let service = |error: String| KubeletServiceError::Service(error);
        let memory = self.memory.clone();
        let known = self.applied.is_none()
            && self.port.is_inherited()
            && read(&memory).is_some_and(|text| text == plan.mark.as_bytes());
        if !known {
            let root = self.root.clone();
            plan.write(&root)?;
            self.port.stop().await.map_err(service)?;
            plan.clean(&root, &first, now)?;
            let parent = memory.parent().unwrap_or(Path::new("/"));
            at("make", parent, fs::create_dir_all(parent))?;
            put(&memory, plan.mark.as_bytes(), 0o600)?;
        }
        self.port.start().map_err(service)?;
        self.applied = Some(plan.mark);
        self.ended = false;
        Ok(())
    }

    /// A kubelet renews its client certificate in time. Where a clock that jumped left it no time, it goes on refused for
    /// five minutes and ends; there is no reason to wait for that.
    fn look_after_a_jump(&mut self, ctx: &Context, plan: &Plan) -> Result<(), ControllerError> {
        let epoch = ctx.get::<TimeStatus>("node")?.map_or(0, |status| status.epoch);
        if std::mem::replace(&mut self.epoch, epoch) != epoch && self.applied.is_some() {
            self.ended = plan.refused(&self.root, ctx.now()).is_some();
        }
        Ok(())
    }
}

impl<P: KubeletPort> Controller for KubeletServiceController<P> {
    const NAME: &'static str = "k8s.KubeletServiceController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<EtcFileStatus>().id("machine-id"),
            weak::<KubeletSpec>().id(KUBELET),
            weak::<KubeletSecret>().id(KUBELET),
            weak::<KubernetesRootSecret>().id("k8s"),
            weak::<MachineTypeSpec>().id("machine-type"),
            weak::<StaticPod>(),
            weak::<StaticPodStatus>(),
            weak::<TimeStatus>().id("node"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let spec = ctx.get::<KubeletSpec>(KUBELET)?;
        let secret = ctx.get::<KubeletSecret>(KUBELET)?;
        let named = ctx.get::<EtcFileStatus>("machine-id")?;
        let (Some(spec), Some(secret), Some(_)) = (spec, secret, named) else { return Ok(()) };
        let plan = Plan::of(&spec, &secret);
        self.look_after_a_jump(ctx, &plan)?;
        let ours = |id: &str| CONTROL_PLANE.contains(&id);
        let all = ctx.list::<StaticPod>()?;
        let pods = all.iter().filter(|pod| ours(pod.id()));
        let pods: Vec<_> = pods.map(|pod| (pod.id().to_string(), pod.meta().version().to_string())).collect();
        if self.applied.as_ref() == Some(&plan.mark) && !self.ended {
            (self.pods, self.due) = (pods, None);
            return Ok(());
        }
        if let Some(rest) = self.waits_for_pods(ctx, &pods)? {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let root = ctx.get::<KubernetesRootSecret>("k8s")?;
        let kind = ctx.get::<MachineTypeSpec>("machine-type")?;
        if self.applied.is_none()
            && root.is_none()
            && kind.is_some_and(|kind| kind.machine_type.is_control_plane())
        {
            // The CA's key comes from the same configuration, a moment later.
            return Ok(());
        }
        let first = match Issuer::of(root.as_deref()) {
            Some(issuer) => FirstCertificate::Signed(issuer),
            // Static pods of a worker need no API and wait for nothing.
            None if !all.is_empty() => FirstCertificate::ByKubelet,
            None => match self.first_certificate(&plan, ctx.now()) {
                None => return Ok(()),
                Some(pem) => pem.map_or(FirstCertificate::ByKubelet, FirstCertificate::Requested),
            },
        };
        self.apply(plan, first, ctx.now()).await?;
        (self.pods, self.due) = (pods, None);
        Ok(())
    }
}

/// Whether the container of a pod is ready and not older than this.
fn runs_since(status: &serde_json::Map<String, Json>, since: jiff::Timestamp) -> bool {
    let container = status.get("containerStatuses").and_then(|all| all.get(0));
    container.is_some_and(|found| found["ready"] == true) && started_since(status, since)
}

/// Whether the container of a pod runs and is not older than this.
pub(crate) fn started_since(status: &serde_json::Map<String, Json>, since: jiff::Timestamp) -> bool {
    let container = status.get("containerStatuses").and_then(|all| all.get(0));
    let started = container.and_then(|found| found["state"]["running"]["startedAt"].as_str());
    let started = started.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    // Kubernetes tells seconds only.
    started.is_some_and(|started| started.as_second() >= since.as_second())
}

/// Where the first client certificate of a kubelet comes from.
enum FirstCertificate {
    /// A control plane signs it.
    Signed(Issuer),
    /// A worker was given it: certificate and key.
    Requested(String),
    /// The kubelet requests it, or has one.
    ByKubelet,
}

/// What a kubelet is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// Two plans with the same mark are the same.
    mark: String,
    bootstrap: String,
    authorities: Vec<u8>,
    server: String,
    config: String,
    credentials: Option<String>,
    nodename: String,
    cpu_policy: String,
}

impl Plan {
    fn of(spec: &KubeletSpec, secret: &KubeletSecret) -> Self {
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
        let all = format!("{plan:?}{:?}{:?}{:?}", spec.image, spec.args, spec.extra_mounts);
        plan.mark = ichor_pki::sha256(all.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        plan
    }

    /// The files that a running kubelet does not mind.
    fn write(&self, root: &Path) -> Result<(), KubeletServiceError> {
        let dir = root.join(KUBERNETES);
        let pki = dir.join("pki");
        at("make", &pki, fs::DirBuilder::new().recursive(true).mode(0o700).create(&pki))?;
        put(&dir.join("bootstrap-kubeconfig"), self.bootstrap.as_bytes(), 0o600)?;
        put(&pki.join("ca.crt"), &self.authorities, 0o400)?;
        put(&dir.join("kubelet.yaml"), self.config.as_bytes(), 0o600)?;
        let credentials = dir.join("kubelet-credentialproviderconfig.yaml");
        match &self.credentials {
            Some(text) => put(&credentials, text.as_bytes(), 0o600),
            None => remove(&credentials),
        }
    }

    /// What is removed or changed while no kubelet runs.
    fn clean(
        &self,
        root: &Path,
        first: &FirstCertificate,
        now: jiff::Timestamp,
    ) -> Result<(), KubeletServiceError> {
        let (dir, own) = (root.join(KUBERNETES), root.join(OWN));
        let (pki, kubeconfig_path) = (own.join("pki"), dir.join("kubeconfig-kubelet"));
        if let Some(reason) = self.refused(root, now) {
            info!("kubelet client certificate {reason}, removing");
            match fs::remove_dir_all(&pki) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => at("remove", &pki, done)?,
            }
            remove(&kubeconfig_path)?;
        }
        let state = own.join("cpu_manager_state");
        if let Some(policy) = read(&state).and_then(|text| policy_name(&text))
            && !same_policy(&policy, &self.cpu_policy)
        {
            info!(old = policy, new = self.cpu_policy, "cpuManagerPolicy changed");
            remove(&state)?;
        }
        // The names in it may have changed; the kubelet signs a new one.
        for name in ["kubelet.crt", "kubelet.key"] {
            remove(&pki.join(name))?;
        }
        let provided = match first {
            FirstCertificate::Signed(issuer) => issuer.provide(&pki, &self.nodename, now)?,
            FirstCertificate::Requested(pem) => client::install(&pki, pem, now).map(|()| true)?,
            FirstCertificate::ByKubelet => false,
        };
        if provided || kubeconfig_path.exists() {
            let certificate = "/var/lib/kubelet/pki/kubelet-client-current.pem";
            let user = json!({ "client-certificate": certificate, "client-key": certificate });
            let text =
                kubeconfig("default-cluster", "default-context", &self.server, &self.authorities, &user);
            put(&kubeconfig_path, text.as_bytes(), 0o600)?;
        }
        Ok(())
    }

    /// Whether the kubelet has no client certificate that it could use.
    fn needs_certificate(&self, root: &Path, now: jiff::Timestamp) -> bool {
        let current = root.join(OWN).join("pki").join(client::CURRENT);
        !self.nodename.is_empty() && read(&current).is_none_or(|pem| self.refuses(&pem, now).is_some())
    }

    /// Why the kubelet's client certificate cannot be used any more; nothing when it can, or when there is none.
    fn refused(&self, root: &Path, now: jiff::Timestamp) -> Option<String> {
        let pem = read(&root.join(OWN).join("pki").join(client::CURRENT))?;
        self.refuses(&pem, now)
    }

    /// The same of a certificate that was read.
    fn refuses(&self, pem: &[u8], now: jiff::Timestamp) -> Option<String> {
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

fn read(path: &Path) -> Option<Vec<u8>> {
    let fits = fs::metadata(path).is_ok_and(|found| found.len() <= FILE_MAX);
    fits.then(|| fs::read(path).ok())?
}

/// Replaces a file in one step; one that says the same stays.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), KubeletServiceError> {
    if read(path).is_some_and(|old| old == content) {
        return Ok(());
    }
    let mut fresh = path.to_owned().into_os_string();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    remove(&fresh)?;
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(content)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        fs::rename(&fresh, path)
    };
    at("write", path, write())
}

fn remove(path: &Path) -> Result<(), KubeletServiceError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => at("remove", path, done),
    }
}

#[cfg(test)]
mod tests;
