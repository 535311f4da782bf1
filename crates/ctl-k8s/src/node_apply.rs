//! Brings labels, annotations, taints and the cordon of this machine onto its node in Kubernetes.
//!
//! Which of them are ours is written on the node itself, so that those of others are left alone and ours go when the
//! configuration drops them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_kube::{Client, Error, Kind, Target, Write};
use ichor_resource::config::MachineType;
use ichor_resource::k8s::{
    NodeAnnotationSpec, NodeCordonedSpec, NodeLabelSpec, NodeStatus, NodeTaintSpec, Nodename,
};
use ichor_resource::runtime::{MachineStage, MachineStatus};
use ichor_resource::secrets::KubernetesSecret;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use crate::api::{Ports, Way};

const OWNED_LABELS: &str = "talos.dev/owned-labels";
const OWNED_ANNOTATIONS: &str = "talos.dev/owned-annotations";
const OWNED_TAINTS: &str = "talos.dev/owned-taints";
/// Says that a cordon is ours.
const CORDONED: &str = "talos.dev/cordoned";

/// How long a write that somebody else got in the way of is tried again, and how often.
const TRY_MAX: Duration = Duration::from_secs(10);
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// After a failure: when to try anew, if nothing changes before.
const LATER: Duration = Duration::from_secs(30);
/// The same while the API may just be starting.
const SOON: Duration = Duration::from_secs(2);

/// Writes `NodeCordonedSpecs/cordoned` while the machine goes down.
#[derive(Debug, Default)]
pub struct NodeCordonedSpecController;

impl Controller for NodeCordonedSpecController {
    const NAME: &'static str = "k8s.NodeCordonedSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MachineStatus>().id("machine")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeCordonedSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(status) = ctx.get::<MachineStatus>("machine")? else { return Ok(()) };
        let cordoned = match status.stage {
            MachineStage::ShuttingDown | MachineStage::Upgrading | MachineStage::Resetting => true,
            MachineStage::Booting | MachineStage::Running => false,
            // A reboot keeps what was.
            MachineStage::Unknown
            | MachineStage::Installing
            | MachineStage::Maintenance
            | MachineStage::Rebooting => return Ok(()),
        };
        ctx.publish(cordoned.then_some(("cordoned", NodeCordonedSpec {})))?;
        Ok(())
    }
}

/// What a node should have.
#[derive(Debug, Clone, Default, PartialEq)]
struct Wishes {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// Key to effect and value.
    taints: BTreeMap<String, (String, String)>,
    cordoned: bool,
}

impl Wishes {
    fn gather(ctx: &Context) -> Result<Self, ControllerError> {
        let labels = ctx.list::<NodeLabelSpec>()?;
        let annotations = ctx.list::<NodeAnnotationSpec>()?;
        let taints = ctx.list::<NodeTaintSpec>()?;
        Ok(Self {
            labels: labels.iter().map(|wish| (wish.key.clone(), wish.value.clone())).collect(),
            annotations: annotations.iter().map(|wish| (wish.key.clone(), wish.value.clone())).collect(),
            taints: taints
                .iter()
                .map(|wish| (wish.key.clone(), (wish.effect.clone(), wish.value.clone())))
                .collect(),
            cordoned: !ctx.list::<NodeCordonedSpec>()?.is_empty(),
        })
    }

    /// Changes a node; false when there was nothing to change.
    fn apply(&self, node: &mut Value) -> bool {
        let before = node.clone();
        let owned = |node: &Value, annotation: &str| -> BTreeSet<String> {
            let text = node["metadata"]["annotations"][annotation].as_str().unwrap_or_default();
            // What makes no sense owns nothing: at worst something stays.
            serde_json::from_str(text).unwrap_or_default()
        };
        let mut labels = owned(node, OWNED_LABELS);
        let mut annotations = owned(node, OWNED_ANNOTATIONS);
        let mut taints = owned(node, OWNED_TAINTS);
        texts(mapping(node, "labels"), &mut labels, &self.labels);
        texts(mapping(node, "annotations"), &mut annotations, &self.annotations);
        self.apply_taints(node, &mut taints);
        self.apply_cordon(node);
        for (annotation, owned) in
            [(OWNED_LABELS, labels), (OWNED_ANNOTATIONS, annotations), (OWNED_TAINTS, taints)]
        {
            let map = mapping(node, "annotations");
            match owned.is_empty() {
                true => drop(map.remove(annotation)),
                false => drop(map.insert(annotation.to_owned(), json!(owned).to_string().into())),
            }
        }
        for key in ["labels", "annotations"] {
            if mapping(node, key).is_empty() && before["metadata"].get(key).is_none() {
                node["metadata"].as_object_mut().map(|meta| meta.remove(key));
            }
        }
        *node != before
    }

    fn apply_taints(&self, node: &mut Value, owned: &mut BTreeSet<String>) {
        let mut list = match &node["spec"]["taints"] {
            Value::Array(list) => list.clone(),
            _ => Vec::new(),
        };
        let before = list.clone();
        let has_key = |taint: &Value, key: &str| taint["key"] == key;
        for (key, (effect, value)) in &self.taints {
            let mut wanted = json!({ "key": key, "effect": effect });
            if !value.is_empty() {
                wanted["value"] = value.as_str().into();
            }
            let found = list.iter_mut().find(|taint| has_key(taint, key));
            match found {
                None => {
                    list.push(wanted);
                    owned.insert(key.clone());
                }
                Some(taint) => {
                    let text = |name: &str| taint[name].as_str().unwrap_or_default().to_owned();
                    if text("effect") == *effect && text("value") == *value {
                        owned.insert(key.clone());
                    } else if owned.contains(key) {
                        *taint = wanted;
                    }
                }
            }
        }
        list.retain(|taint| {
            let key = taint["key"].as_str().unwrap_or_default();
            self.taints.contains_key(key) || !owned.contains(key)
        });
        owned.retain(|key| self.taints.contains_key(key));
        if list != before {
            if !node["spec"].is_object() {
                node["spec"] = json!({});
            }
            node["spec"]["taints"] = list.into();
        }
    }

    fn apply_cordon(&self, node: &mut Value) {
        let is_cordoned = node["spec"]["unschedulable"] == true;
        let ours = node["metadata"]["annotations"].get(CORDONED).is_some();
        if self.cordoned && !is_cordoned {
            if !node["spec"].is_object() {
                node["spec"] = json!({});
            }
            node["spec"]["unschedulable"] = true.into();
            mapping(node, "annotations").insert(CORDONED.to_owned(), "true".into());
        } else if !self.cordoned && ours {
            mapping(node, "annotations").remove(CORDONED);
            if let Some(spec) = node["spec"].as_object_mut() {
                spec.remove("unschedulable");
            }
        }
    }
}

/// A mapping of the metadata, made if need be.
fn mapping<'a>(node: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !node["metadata"].is_object() {
        node["metadata"] = json!({});
    }
    let place = &mut node["metadata"][key];
    if !place.is_object() {
        *place = json!({});
    }
    match place {
        Value::Object(map) => map,
        // Just made.
        _ => unreachable!("an object"),
    }
}

/// Labels or annotations.
fn texts(map: &mut Map<String, Value>, owned: &mut BTreeSet<String>, wanted: &BTreeMap<String, String>) {
    for (key, value) in wanted {
        let current = map.get(key).map(|value| value.as_str().unwrap_or_default());
        match current {
            Some(current) if current == value => drop(owned.insert(key.clone())),
            Some(_) if !owned.contains(key) => {}
            _ => {
                owned.insert(key.clone());
                map.insert(key.clone(), value.as_str().into());
            }
        }
    }
    owned.retain(|key| {
        let keep = wanted.contains_key(key);
        if !keep {
            map.remove(key);
        }
        keep
    });
}

/// Brings the wishes onto the node.
#[derive(Debug)]
pub struct NodeApplyController {
    ports: Ports,
    /// What the client was made of, and the client.
    client: Option<(String, Client)>,
}

impl NodeApplyController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, client: None }
    }

    /// The client of the machine: an administrator's on control planes, else the kubelet's.
    fn client(&mut self, ctx: &Context) -> Result<Option<Client>, ControllerError> {
        let machine = ctx.get::<MachineType>(MachineType::ID)?;
        let kubeconfig = match machine.is_some_and(|machine| machine.machine_type.is_control_plane()) {
            true => ctx
                .get::<KubernetesSecret>("k8s-certs")?
                .map(|secrets| secrets.localhost_admin_kubeconfig.clone()),
            false => self.ports.kubelet_kubeconfig(),
        };
        let Some(kubeconfig) = kubeconfig else { return Ok(None) };
        if let Some((known, client)) = &self.client
            && *known == kubeconfig
        {
            return Ok(Some(client.clone()));
        }
        let client = (self.ports.connect)(Way::Kubeconfig(&kubeconfig))?;
        self.client = Some((kubeconfig, client.clone()));
        Ok(Some(client))
    }
}

impl Controller for NodeApplyController {
    const NAME: &'static str = "k8s.NodeApplyController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<NodeLabelSpec>(),
            weak::<NodeAnnotationSpec>(),
            weak::<NodeTaintSpec>(),
            weak::<NodeCordonedSpec>(),
            weak::<NodeStatus>(),
            weak::<Nodename>().id("nodename"),
            weak::<MachineType>().id(MachineType::ID),
            weak::<KubernetesSecret>().id("k8s-certs"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(nodename) = ctx.get::<Nodename>("nodename")? else { return Ok(()) };
        let name = &nodename.nodename;
        // The status comes with the node: before, there is nothing to change.
        if nodename.skip_node_registration || ctx.get::<NodeStatus>(name)?.is_none() {
            return Ok(());
        }
        let Some(client) = self.client(ctx)? else { return Ok(()) };
        let wishes = Wishes::gather(ctx)?;
        if let Err(error) = bring(&client, name, &wishes).await {
            // The kubelet's credentials may have been renewed.
            self.client = None;
            ctx.requeue_after(if error.is_of_object() { LATER } else { SOON });
            ctx.trouble(error.chain());
        }
        Ok(())
    }
}

async fn bring(client: &Client, name: &str, wishes: &Wishes) -> Result<(), Error> {
    let target = Target::new(Kind::NODES, "", name);
    let until = Instant::now() + TRY_MAX;
    loop {
        let mut node = client.get(&target).await?;
        if !wishes.apply(&mut node) {
            return Ok(());
        }
        match client.replace(&target, &node, Write::by("talos")).await {
            Ok(_) => return Ok(()),
            Err(error) if (error.is_conflict() || error.is_forbidden()) && Instant::now() < until => {
                sleep(TRY_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_testkit::Harness;
    use ichor_testkit::kube::Server;

    use super::*;

    fn pairs(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn taints(given: &[(&str, &str, &str)]) -> BTreeMap<String, (String, String)> {
        let entry = |(key, effect, value): &(&str, &str, &str)| {
            ((*key).to_owned(), ((*effect).to_owned(), (*value).to_owned()))
        };
        given.iter().map(entry).collect()
    }

    #[track_caller]
    fn check(wishes: &Wishes, mut node: Value, expect: Expect) {
        let changed = wishes.apply(&mut node);
        let again = wishes.apply(&mut node.clone());
        assert!(!again, "a second time changes nothing");
        expect.assert_eq(&format!("{changed} {node}"));
    }

    #[test]
    fn what_is_not_there_is_set_and_owned() {
        let wishes = Wishes {
            labels: pairs(&[("a", "1")]),
            annotations: pairs(&[("n", "2")]),
            taints: taints(&[("t", "NoSchedule", "")]),
            ..Wishes::default()
        };
        check(
            &wishes,
            json!({ "metadata": {}, "spec": {} }),
            expect![[
                r#"true {"metadata":{"labels":{"a":"1"},"annotations":{"n":"2","talos.dev/owned-labels":"[\"a\"]","talos.dev/owned-annotations":"[\"n\"]","talos.dev/owned-taints":"[\"t\"]"}},"spec":{"taints":[{"key":"t","effect":"NoSchedule"}]}}"#
            ]],
        );
        check(&Wishes::default(), json!({ "metadata": {} }), expect![[r#"false {"metadata":{}}"#]]);
    }

    #[test]
    fn what_others_set_is_left_alone_and_what_is_ours_follows() {
        let wishes = Wishes {
            labels: pairs(&[("mine", "new"), ("theirs", "new"), ("same", "x")]),
            taints: taints(&[("t", "NoExecute", "v"), ("u", "NoSchedule", "")]),
            ..Wishes::default()
        };
        check(
            &wishes,
            json!({
                "metadata": {
                    "labels": { "mine": "old", "theirs": "old", "same": "x", "dropped": "1", "other": "1" },
                    "annotations": { OWNED_LABELS: "[\"dropped\",\"mine\"]", OWNED_TAINTS: "[\"gone\",\"t\"]" },
                },
                "spec": { "taints": [
                    { "key": "t", "effect": "NoSchedule" }, { "key": "u", "effect": "NoExecute" },
                    { "key": "gone", "effect": "NoSchedule" }, { "key": "other", "effect": "NoSchedule" },
                ] },
            }),
            expect![[
                r#"true {"metadata":{"labels":{"mine":"new","theirs":"old","same":"x","other":"1"},"annotations":{"talos.dev/owned-labels":"[\"mine\",\"same\"]","talos.dev/owned-taints":"[\"t\"]"}},"spec":{"taints":[{"key":"t","effect":"NoExecute","value":"v"},{"key":"u","effect":"NoExecute"},{"key":"other","effect":"NoSchedule"}]}}"#
            ]],
        );
    }

    #[test]
    fn a_cordon_of_a_person_stays() {
        let cordoned = Wishes { cordoned: true, ..Wishes::default() };
        check(
            &cordoned,
            json!({ "metadata": {}, "spec": {} }),
            expect![[
                r#"true {"metadata":{"annotations":{"talos.dev/cordoned":"true"}},"spec":{"unschedulable":true}}"#
            ]],
        );
        check(
            &Wishes::default(),
            json!({ "metadata": { "annotations": { CORDONED: "true" } }, "spec": { "unschedulable": true } }),
            expect![[r#"true {"metadata":{"annotations":{}},"spec":{}}"#]],
        );
        check(
            &Wishes::default(),
            json!({ "metadata": { "annotations": {} }, "spec": { "unschedulable": true } }),
            expect![[r#"false {"metadata":{"annotations":{}},"spec":{"unschedulable":true}}"#]],
        );
    }

    #[tokio::test]
    async fn wishes_reach_the_node_once_it_is_there() {
        let server = Server::new();
        let (ports, _root) = crate::api::fake(&server);
        let (state, _clock) = ichor_testkit::state();
        let nodename = Nodename { nodename: "n".into(), ..Nodename::default() };
        state.create("k8s", "nodename", nodename, "").unwrap();
        let label = NodeLabelSpec { key: "a".into(), value: "1".into() };
        state.create("k8s", "a", label, "").unwrap();
        let mut harness = Harness::new(&state, NodeApplyController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(server.writes(), [""; 0]);

        state.create("k8s", "n", NodeStatus::default(), "").unwrap();
        server.put("/api/v1/nodes/n", json!({ "metadata": { "name": "n" }, "spec": {} }));
        harness.reconcile().await.unwrap();
        assert_eq!(server.writes(), ["PUT /api/v1/nodes/n"]);
        assert_eq!(server.object("/api/v1/nodes/n").unwrap()["metadata"]["labels"]["a"], "1");
        harness.reconcile().await.unwrap();
        assert_eq!(server.writes(), [""; 0]);

        server.set_down(true);
        harness.reconcile().await.unwrap();
        assert_eq!(harness.requeue(), Some(SOON));
        assert!(harness.context().take_trouble().is_some());
    }

    #[tokio::test]
    async fn a_machine_that_goes_down_is_cordoned() {
        let (state, _clock) = ichor_testkit::state();
        state.create("runtime", "machine", MachineStatus::default(), "").unwrap();
        let mut harness = Harness::new(&state, NodeCordonedSpecController).unwrap();
        for (stage, cordoned) in [
            (MachineStage::Running, false),
            (MachineStage::Upgrading, true),
            (MachineStage::Rebooting, true),
            (MachineStage::Booting, false),
        ] {
            state
                .update_with::<MachineStatus>("runtime", "machine", "", |spec, _| spec.stage = stage)
                .unwrap();
            harness.reconcile().await.unwrap();
            assert_eq!(state.get::<NodeCordonedSpec>("k8s", "cordoned").is_ok(), cordoned, "{stage:?}");
        }
    }
}
