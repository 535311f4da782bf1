//! Starts the kubelet: one reading of its specification becomes a plan of files and of a service to run, and a changed
//! plan a restart.

mod client;
mod files;
mod plan;
mod request;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_ctl::volumes::{self, EPHEMERAL, Readiness};
use ichor_resource::config::MachineType as MachineTypeSpec;
use ichor_resource::files::EtcFileStatus;
use ichor_resource::k8s::{KubeletLifecycle, KubeletSpec, StaticPod, StaticPodStatus};
use ichor_resource::secrets::{KubeletSecret, KubernetesRootSecret};
use ichor_resource::time::TimeStatus;
use serde_json::Value as Json;
use tracing::info;

use self::client::Issuer;
use self::files::Files;
pub use self::plan::KubeletRun;
use self::plan::Plan;
use self::request::Pending;
use crate::api::{Connect, Way};
use crate::static_pods::CONTROL_PLANE;

const KUBELET: &str = "kubelet";

/// The owner of `KubeletLifecycles`: who asks for its teardown has to say it.
pub const OWNER: &str = "k8s.KubeletServiceController";

/// What changes the kubelet may change static pods of the control plane as well; after this it is known whether.
const PODS_KNOWN: Duration = Duration::from_secs(2);
/// Static pods of the control plane delay a kubelet no longer than this.
const PODS_MAX: Duration = Duration::from_secs(45);

/// The service that runs the kubelet.
pub trait KubeletPort: Send + Sync + 'static {
    /// Whether one runs that an earlier manager of this machine started.
    fn is_inherited(&self) -> bool;

    /// Starts it with this, or takes over the one that runs.
    fn start(&self, run: &KubeletRun) -> Result<(), String>;

    /// Stops it and waits for its end.
    fn stop(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Keeps the kubelet running with what `KubeletSpecs` and `KubeletSecrets` say.
pub struct KubeletServiceController<P> {
    port: P,
    files: Files,
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
    /// Whether EPHEMERAL may be a disk that has to be mounted first.
    waits: bool,
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

impl<P: KubeletPort> KubeletServiceController<P> {
    /// A controller whose files lie below `root`. The file `mark` says what the running kubelet was started with and
    /// must not survive a reboot.
    pub fn new(port: P, root: impl Into<PathBuf>, mark: impl Into<PathBuf>) -> Self {
        Self {
            port,
            files: Files::new(root.into(), mark.into()),
            applied: None,
            pods: Vec::new(),
            due: None,
            epoch: 0,
            ended: false,
            connect: None,
            request: None,
            wake: None,
            waits: false,
        }
    }

    /// The same on a machine whose EPHEMERAL may be a disk: its files are written once that is mounted.
    #[must_use]
    pub fn on_volume(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
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
        let needed = self.applied.is_none()
            && !self.port.is_inherited()
            && plan.lacks_certificate(&self.files.find(), now);
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
        let known = self.applied.is_none()
            && self.port.is_inherited()
            && self.files.mark().is_some_and(|text| text == plan.mark.as_bytes());
        if !known {
            self.files.apply(&plan.prepare())?;
            self.port.stop().await.map_err(service)?;
            self.clean(&plan, first, now)?;
            self.files.set_mark(&plan.mark)?;
        }
        self.port.start(&plan.run).map_err(service)?;
        self.applied = Some(plan.mark);
        self.ended = false;
        Ok(())
    }

    /// Removes what the next kubelet must not find, and gives it what it needs.
    fn clean(
        &self,
        plan: &Plan,
        first: FirstCertificate,
        now: jiff::Timestamp,
    ) -> Result<(), KubeletServiceError> {
        let found = self.files.find();
        if let Some(reason) = plan.refused(&found, now) {
            info!("kubelet client certificate {reason}, removing");
        }
        if let Some(old) = plan.replaced_cpu_policy(&found) {
            info!(old, new = plan.cpu_policy, "cpuManagerPolicy changed");
        }
        let issued = match first {
            _ if !plan.lacks_certificate(&found, now) => None,
            FirstCertificate::Signed(issuer) => issuer.issue(&plan.nodename, now),
            FirstCertificate::Requested(pem) => Some(pem),
            FirstCertificate::ByKubelet => None,
        };
        self.files.apply(&plan.clean(&found, issued.as_deref(), now))
    }

    /// A kubelet renews its client certificate in time. Where a clock that jumped left it no time, its requests are
    /// rejected for five minutes before it exits; it is restarted at once instead.
    fn check_after_clock_jump(&mut self, ctx: &Context, plan: &Plan) -> Result<(), ControllerError> {
        let epoch = ctx.get::<TimeStatus>("node")?.map_or(0, |status| status.epoch);
        if std::mem::replace(&mut self.epoch, epoch) != epoch && self.applied.is_some() {
            self.ended = plan.refused(&self.files.find(), ctx.now()).is_some();
        }
        Ok(())
    }
}

impl<P: KubeletPort> Controller for KubeletServiceController<P> {
    const NAME: &'static str = OWNER;

    fn inputs(&self) -> Vec<Input> {
        let mut all = vec![
            weak::<EtcFileStatus>().id("machine-id"),
            weak::<KubeletSpec>().id(KUBELET),
            weak::<KubeletSecret>().id(KUBELET),
            weak::<KubernetesRootSecret>().id("k8s"),
            weak::<MachineTypeSpec>().id("machine-type"),
            weak::<StaticPod>(),
            weak::<StaticPodStatus>(),
            weak::<TimeStatus>().id("node"),
        ];
        if self.waits {
            all.extend(volumes::inputs(EPHEMERAL));
        }
        all
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubeletLifecycle>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let lifecycle = ctx.get::<KubeletLifecycle>(KUBELET)?;
        if lifecycle.as_ref().is_some_and(|found| !found.meta().is_running()) {
            // A machine that stops its pods does not start the kubelet again.
            return Ok(());
        }
        if self.waits && self.applied.is_none() && volumes::of(ctx, EPHEMERAL)? != Readiness::Usable {
            return Ok(());
        }
        let spec = ctx.get::<KubeletSpec>(KUBELET)?;
        let secret = ctx.get::<KubeletSecret>(KUBELET)?;
        let named = ctx.get::<EtcFileStatus>("machine-id")?;
        let (Some(spec), Some(secret), Some(_)) = (spec, secret, named) else { return Ok(()) };
        let plan = Plan::of(&spec, &secret);
        self.check_after_clock_jump(ctx, &plan)?;
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
        if lifecycle.is_none() {
            ctx.modify::<KubeletLifecycle>(KUBELET, |_| {})?;
        }
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

#[cfg(test)]
mod tests;
