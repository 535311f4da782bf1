//! The control plane as `StaticPods`, for as long as there is an etcd to serve it.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, shared, weak};
use ichor_resource::TypedSpec;
use ichor_resource::k8s::{
    APIServerConfig, ConfigStatus, ControllerManagerConfig, SchedulerConfig, SecretStatus, StaticPod,
};
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Object;
use serde_json::{Map, Value as Json};

use crate::args::Denied;
use crate::pods::{self, Versions};
use crate::render::STATUS;

/// The pods this controller makes.
pub const CONTROL_PLANE: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
const ETCD: &str = "etcd";

/// Writes `StaticPods` of the control plane.
#[derive(Debug, Default)]
pub struct ControlPlaneStaticPodController;

impl Controller for ControlPlaneStaticPodController {
    const NAME: &'static str = "k8s.ControlPlaneStaticPodController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<APIServerConfig>(),
            weak::<ControllerManagerConfig>(),
            weak::<SchedulerConfig>(),
            weak::<SecretStatus>().id(STATUS),
            weak::<ConfigStatus>().id(STATUS),
            weak::<Service>().id(ETCD),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<StaticPod>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let (Some(etcd), Some(secrets), Some(files)) =
            (ctx.get::<Service>(ETCD)?, ctx.get::<SecretStatus>(STATUS)?, ctx.get::<ConfigStatus>(STATUS)?)
        else {
            return Ok(ctx.publish::<StaticPod>([] as [(&str, StaticPod); 0])?);
        };
        // An etcd that is ill is no reason to stop what may survive it.
        if !etcd.healthy {
            return Ok(());
        }
        let mut made: Vec<(&str, StaticPod)> = Vec::new();
        let [api_server, controller_manager, scheduler] = CONTROL_PLANE;
        if let Some(config) = ctx.get::<APIServerConfig>(api_server)? {
            let pod = pods::api_server(&config, &versions(&config, &secrets, &files));
            made.push((api_server, static_pod(pod)?));
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
