//! The control plane as `StaticPods`, for as long as there is an etcd to serve it.
//!
//! Controller manager and scheduler end when no API server answers them or when it refuses them, and kubelet lets what
//! ended twice wait: so they are started when there is one that knows their roles. The rest of it is ready before their
//! containers are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, Wake, shared, weak};
use ichor_kube::Client;
use ichor_resource::TypedSpec;
use ichor_resource::k8s::{
    APIServerConfig, ConfigStatus, ControllerManagerConfig, SchedulerConfig, SecretStatus, StaticPod,
};
use ichor_resource::secrets::KubernetesSecret;
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Object;
use serde_json::{Map, Value as Json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{Connect, Way};
use crate::args::Denied;
use crate::pods::{self, Versions};
use crate::render::STATUS;

/// The pods this controller makes.
pub const CONTROL_PLANE: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ETCD: &str = "etcd";

/// An API server is asked this often whether it is there.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// The check of an API server that passes once it has made the built-in roles.
const ROLES: &str = "poststarthook/rbac/bootstrap-roles";
/// An answer takes no longer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Nobody waits longer for an API server: what keeps it away may need the others.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// An etcd that was killed is back long before this, and its control plane can bridge that.
const ETCD_BACK: Duration = Duration::from_secs(30);

/// Writes `StaticPods` of the control plane.
pub struct ControlPlaneStaticPodController {
    connect: Connect,
    wake: Option<Wake>,
    /// An API server has answered, or was waited for long enough.
    answered: Arc<AtomicBool>,
    asking: Option<JoinHandle<()>>,
    /// Whether there are pods to stop, and since when there is no etcd for them.
    made: bool,
    gone: Option<Instant>,
}

impl ControlPlaneStaticPodController {
    /// A controller that asks API servers in this way.
    pub fn new(connect: Connect) -> Self {
        Self { connect, wake: None, answered: Arc::default(), asking: None, made: false, gone: None }
    }

    /// How long an etcd that was killed is still waited for; nothing once that is over, or when no pod needs it.
    fn waits(&mut self) -> Option<Duration> {
        let since = *self.gone.get_or_insert_with(Instant::now);
        let left = ETCD_BACK.saturating_sub(since.elapsed());
        (self.made && !left.is_zero()).then_some(left)
    }

    /// Whether the others have somebody to talk to; starts to find out.
    fn may_follow(&mut self, kubeconfig: Option<&str>) -> bool {
        if self.answered.load(Ordering::Acquire) {
            return true;
        }
        let Some(kubeconfig) = kubeconfig.filter(|_| self.asking.is_none()) else { return false };
        // What leads nowhere is nothing to wait for.
        let Ok(client) = (self.connect)(Way::Kubeconfig(kubeconfig)) else { return true };
        let (answered, wake) = (self.answered.clone(), self.wake.clone());
        self.asking = Some(tokio::spawn(async move {
            let end = Instant::now() + WAIT_MAX;
            while Instant::now() < end && !answers(&client).await {
                sleep(ASK_AGAIN).await;
            }
            answered.store(true, Ordering::Release);
            if let Some(wake) = wake {
                wake.wake();
            }
        }));
        false
    }
}

/// Whether an API server answers and allows what the built-in roles allow.
async fn answers(client: &Client) -> bool {
    let passes = async {
        match client.passes(ROLES).await {
            // Roles may be switched off.
            Err(error) if error.is_not_found() => client.ready().await,
            passes => passes,
        }
    };
    matches!(timeout(ANSWER_MAX, passes).await, Ok(Ok(())))
}

impl Drop for ControlPlaneStaticPodController {
    fn drop(&mut self) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
    }
}

impl Controller for ControlPlaneStaticPodController {
    const NAME: &'static str = "k8s.ControlPlaneStaticPodController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<APIServerConfig>(),
            weak::<ControllerManagerConfig>(),
            weak::<SchedulerConfig>(),
            weak::<SecretStatus>().id(STATUS),
            weak::<ConfigStatus>().id(STATUS),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<Service>().id(ETCD),
        ]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<StaticPod>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let etcd = ctx.get::<Service>(ETCD)?;
        if etcd.is_some() {
            self.gone = None;
        } else if let Some(wait) = self.waits() {
            ctx.requeue_after(wait);
            return Ok(());
        }
        let (Some(etcd), Some(secrets), Some(files)) =
            (etcd, ctx.get::<SecretStatus>(STATUS)?, ctx.get::<ConfigStatus>(STATUS)?)
        else {
            self.made = false;
            return Ok(ctx.publish::<StaticPod>([] as [(&str, StaticPod); 0])?);
        };
        // An etcd that is ill is no reason to stop what may survive it.
        if !etcd.healthy {
            return Ok(());
        }
        self.made = true;
        let mut made: Vec<(&str, StaticPod)> = Vec::new();
        let [api_server, controller_manager, scheduler] = CONTROL_PLANE;
        if let Some(config) = ctx.get::<APIServerConfig>(api_server)? {
            let pod = pods::api_server(&config, &versions(&config, &secrets, &files));
            made.push((api_server, static_pod(pod)?));
        }
        let kubeconfigs = ctx.get::<KubernetesSecret>("k8s-certs")?;
        if !self.may_follow(kubeconfigs.as_ref().map(|found| found.localhost_admin_kubeconfig.as_str())) {
            return Ok(ctx.publish(made)?);
        }
        if let Some(config) = ctx.get::<ControllerManagerConfig>(controller_manager)?
            && config.enabled
        {
            let pod = pods::controller_manager(&config, &versions(&config, &secrets, &files));
            made.push((controller_manager, static_pod(pod)?));
        }
        if let Some(config) = ctx.get::<SchedulerConfig>(scheduler)?
            && config.enabled
        {
            let pod = pods::scheduler(&config, &versions(&config, &secrets, &files));
            made.push((scheduler, static_pod(pod)?));
        }
        Ok(ctx.publish(made)?)
    }
}

fn versions<T: TypedSpec>(config: &Typed<T>, secrets: &SecretStatus, files: &ConfigStatus) -> Versions {
    Versions {
        secrets: secrets.version.clone(),
        config: config.meta().version().to_string(),
        files: files.version.clone(),
    }
}

fn static_pod(pod: Result<Map<String, Json>, Denied>) -> Result<StaticPod, Denied> {
    Ok(StaticPod { pod: Object(pod?) })
}
