//! Labels, annotations and taints that the configuration asks for.

use std::collections::BTreeMap;

use ichor_config::v1alpha1::Config;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::cluster::{Affiliate, DiscoveryConfig, Identity};
use ichor_resource::k8s::{NodeAnnotationSpec, NodeLabelSpec, NodeTaintSpec};
use ichor_types::MachineType;

/// The label, and the taint, of control planes.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The effect that keeps ordinary pods away.
const NO_SCHEDULE: &str = "NoSchedule";

fn is_control_plane(config: &Config) -> bool {
    let text = config.machine.as_ref().map_or("", |machine| machine.machine_type.as_str());
    matches!(text.parse(), Ok(MachineType::ControlPlane | MachineType::Init))
}

/// The labels a configuration asks for.
fn labels(config: &Config) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<_, _> = config
        .machine
        .iter()
        .flat_map(|machine| machine.node_labels.iter())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if is_control_plane(config) {
        labels.insert(CONTROL_PLANE.to_owned(), String::new());
    }
    labels
}

/// The taints a configuration asks for: key to effect and value.
fn taints(config: &Config) -> BTreeMap<String, (String, String)> {
    let mut taints = BTreeMap::new();
    let cluster = config.cluster.as_ref();
    let schedulable = cluster
        .and_then(|cluster| {
            cluster.allow_scheduling_on_control_planes.or(cluster.allow_scheduling_on_masters)
        })
        .unwrap_or(false);
    if is_control_plane(config) && !schedulable {
        taints.insert(CONTROL_PLANE.to_owned(), (NO_SCHEDULE.to_owned(), String::new()));
    }
    for (key, text) in config.machine.iter().flat_map(|machine| machine.node_taints.iter()) {
        let (value, effect) = text.rsplit_once(':').unwrap_or(("", text));
        taints.insert(key.clone(), (effect.to_owned(), value.to_owned()));
    }
    taints
}

/// Publishes the labels.
#[derive(Debug, Default)]
pub struct NodeLabelSpecController;

impl Controller for NodeLabelSpecController {
    const NAME: &'static str = "k8s.NodeLabelSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeLabelSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let wanted = config.as_deref().and_then(|config| config.root()).map(labels).unwrap_or_default();
        ctx.publish(wanted.into_iter().map(|(key, value)| (key.clone(), NodeLabelSpec { key, value })))?;
        Ok(())
    }
}

/// Publishes the annotations.
#[derive(Debug, Default)]
pub struct NodeAnnotationSpecController;

impl Controller for NodeAnnotationSpecController {
    const NAME: &'static str = "k8s.NodeAnnotationSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            active_input(),
            weak::<DiscoveryConfig>().id("cluster"),
            weak::<Identity>().id("local"),
            weak::<Affiliate>().in_ns("cluster"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeAnnotationSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let machine =
            config.as_deref().and_then(|config| config.root()).and_then(|root| root.machine.as_ref());
        let wanted = machine.into_iter().flat_map(|machine| machine.node_annotations.iter());
        let mut all: BTreeMap<String, String> =
            wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
        let told = ctx.get::<DiscoveryConfig>("cluster")?;
        if told.is_some_and(|config| config.discovery_enabled && config.registry_kubernetes_enabled)
            && let Some(identity) = ctx.get::<Identity>("local")?
            && let Some(this) = ctx.get_in::<Affiliate>("cluster", &identity.node_id)?
        {
            let told = crate::affiliates::annotations(&this);
            all.extend(told.into_iter().map(|(key, value)| (key.to_owned(), value)));
        }
        ctx.publish(all.into_iter().map(|(key, value)| (key.clone(), NodeAnnotationSpec { key, value })))?;
        Ok(())
    }
}

/// Publishes the taints.
#[derive(Debug, Default)]
pub struct NodeTaintSpecController;

impl Controller for NodeTaintSpecController {
    const NAME: &'static str = "k8s.NodeTaintSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeTaintSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let wanted = config.as_deref().and_then(|config| config.root()).map(taints).unwrap_or_default();
        ctx.publish(
            wanted
                .into_iter()
                .map(|(key, (effect, value))| (key.clone(), NodeTaintSpec { key, effect, value })),
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_config::Documents;
    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;

    use super::*;

    const CONFIG: &str = "version: v1alpha1
machine:
  type: controlplane
  nodeLabels: {zone: a}
  nodeAnnotations: {note: hi}
  nodeTaints: {gpu: 'yes:NoExecute', slow: NoSchedule}
";

    fn with_root<T>(text: &str, look: impl Fn(&Config) -> T) -> T {
        look(Documents::load(text.as_bytes()).unwrap().root().unwrap())
    }

    #[test]
    fn control_planes_have_their_role_as_a_label_and_a_taint() {
        assert_eq!(with_root(CONFIG, labels).into_keys().collect::<Vec<_>>(), [CONTROL_PLANE, "zone"]);
        let taints = with_root(CONFIG, taints);
        assert_eq!(taints[CONTROL_PLANE], (NO_SCHEDULE.to_owned(), String::new()));
        assert_eq!(taints["gpu"], ("NoExecute".to_owned(), "yes".to_owned()));
        assert_eq!(taints["slow"], ("NoSchedule".to_owned(), String::new()));
    }

    #[test]
    fn a_schedulable_control_plane_has_no_taint() {
        let text = format!("{CONFIG}cluster:\n  allowSchedulingOnControlPlanes: true\n");
        assert!(!with_root(&text, taints).contains_key(CONTROL_PLANE));
    }

    #[tokio::test]
    async fn an_annotation_that_leaves_the_configuration_leaves_the_state() {
        let (state, _clock) = ichor_testkit::state();
        state.create("config", MachineConfig::ACTIVE, MachineConfig::new(CONFIG), "").unwrap();
        let mut harness = Harness::new(&state, NodeAnnotationSpecController).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(state.get::<NodeAnnotationSpec>("k8s", "note").unwrap().value, "hi");

        let without = CONFIG.replace("  nodeAnnotations: {note: hi}\n", "");
        state
            .update_with::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec, _| {
                *spec = MachineConfig::new(without.clone());
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.get::<NodeAnnotationSpec>("k8s", "note").is_err());
    }
}
