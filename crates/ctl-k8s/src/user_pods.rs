//! Static pods the configuration brings along (`machine.pods`).

use ichor_config::model::Free;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::k8s::StaticPod;
use ichor_resource::value::Object;
use serde_json::{Map, Value as Json};

use crate::settings::object;

/// Writes `StaticPods/<namespace>-<name>`.
#[derive(Debug, Default)]
pub struct StaticPodConfigController;

impl Controller for StaticPodConfigController {
    const NAME: &'static str = "k8s.StaticPodConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<StaticPod>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let given =
            config.as_deref().and_then(|config| config.machine()).into_iter().flat_map(|m| m.pods.iter());
        let pods = given.map(pod).collect::<Result<Vec<_>, _>>()?;
        ctx.publish(pods)?;
        Ok(())
    }
}

/// A pod that cannot be named.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("machine.pods: a pod has no metadata.name")]
pub struct Nameless;

/// The pod, by namespace and name.
pub(crate) fn pod(free: &Free) -> Result<(String, StaticPod), Nameless> {
    let Object(pod) = object(free);
    let text = |pod: &Map<String, Json>, key: &str| {
        pod.get("metadata")
            .and_then(|metadata| metadata[key].as_str())
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let name = text(&pod, "name").ok_or(Nameless)?;
    let namespace = text(&pod, "namespace").unwrap_or_else(|| "default".to_owned());
    Ok((format!("{namespace}-{name}"), StaticPod { pod: Object(pod) }))
}

#[cfg(test)]
mod tests {
    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;

    use super::*;

    const CONFIG: &str = "version: v1alpha1
machine:
  type: worker
  pods:
    - {apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}}
    - {apiVersion: v1, kind: Pod, metadata: {name: web}}
";

    #[tokio::test]
    async fn pods_are_known_by_namespace_and_name() {
        let (state, _clock) = ichor_testkit::state();
        state.create("config", MachineConfig::ACTIVE, MachineConfig::new(CONFIG), "").unwrap();
        let mut harness = Harness::new(&state, StaticPodConfigController).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(state.get::<StaticPod>("k8s", "shop-web").unwrap().pod.0["kind"], "Pod");
        assert!(state.get::<StaticPod>("k8s", "default-web").is_ok());
    }
}
