//! The node as Kubernetes sees it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_kube::Kind;
use ichor_resource::k8s::{NodeStatus, Nodename};
use ichor_resource::v1alpha1::Service;
use serde_json::Value;

use crate::api::{Pace, Ports, Wanted, Watcher, Way};

/// Longest wait between two looks for the kubelet's kubeconfig while the kubelet runs.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Writes `NodeStatuses/<nodename>`.
#[derive(Debug)]
pub struct NodeStatusController {
    ports: Ports,
    wake: Option<Wake>,
    watcher: Option<Watcher>,
    pace: Pace,
}

impl NodeStatusController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, wake: None, watcher: None, pace: Pace::default() }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl Controller for NodeStatusController {
    const NAME: &'static str = "k8s.NodeStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Nodename>().id("nodename"), weak::<Service>().id("kubelet")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let nodename = ctx.get::<Nodename>("nodename")?.filter(|nodename| !nodename.skip_node_registration);
        let Some(nodename) = nodename else {
            self.watcher = None;
            ctx.publish::<NodeStatus>(std::iter::empty::<(String, _)>())?;
            return Ok(());
        };
        let name = &nodename.nodename;
        let Some(kubeconfig) = self.ports.kubelet_kubeconfig() else {
            // It appears when the kubelet has joined; nobody tells.
            if ctx.get::<Service>("kubelet")?.is_some_and(|kubelet| kubelet.running) {
                ctx.requeue_after(self.pace.next(LOOK_MAX));
            }
            return Ok(());
        };
        self.pace.reset();
        let key = format!("{name}\n{kubeconfig}");
        if self.watcher.as_ref().is_none_or(|watcher| watcher.key != key) {
            let Some(wake) = &self.wake else { return Ok(()) };
            let wanted = Wanted { kind: Kind::NODES, namespace: "", fields: format!("metadata.name={name}") };
            let connect = self.ports.connect.clone();
            let client = move || connect(Way::Kubeconfig(&kubeconfig));
            self.watcher = Some(Watcher::start(key, client, wanted, wake.clone()));
            return Ok(());
        }
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let statuses: Option<Vec<_>> = {
            let seen = watcher.seen();
            if let Some(error) = &seen.error {
                ctx.trouble(error.clone());
            }
            let boot = boot_id(&self.ports.root);
            let node = |objects: &BTreeMap<(String, String), Value>| {
                let found = objects.get(&(String::new(), name.clone()));
                found.map(|node| (name.clone(), status(name, node, &boot)))
            };
            seen.objects.as_ref().map(|objects| node(objects).into_iter().collect())
        };
        if let Some(statuses) = statuses {
            ctx.publish(statuses)?;
        }
        Ok(())
    }
}

/// What tells this boot of the machine from others; empty where nothing does.
fn boot_id(root: &Path) -> String {
    let id = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
    id.trim().to_owned()
}

/// What matters of a node. Kubernetes calls a node ready for a while after it is gone; what was said of another boot
/// than this one is over.
fn status(nodename: &str, node: &Value, boot: &str) -> NodeStatus {
    let texts = |value: &Value| -> BTreeMap<String, String> {
        let entries = value.as_object().into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    };
    let conditions = node["status"]["conditions"].as_array();
    let told_at = node["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default();
    let stale = !boot.is_empty() && !told_at.is_empty() && boot != told_at;
    NodeStatus {
        nodename: nodename.to_owned(),
        node_ready: conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True" && !stale),
        unschedulable: node["spec"]["unschedulable"].as_bool().unwrap_or_default(),
        labels: texts(&node["metadata"]["labels"]),
        annotations: texts(&node["metadata"]["annotations"]),
    }
}

#[cfg(test)]
mod tests {
    use ichor_testkit::Harness;
    use ichor_testkit::kube::Server;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_node_is_followed() {
        let server = Server::new();
        let (ports, root) = crate::api::fake(&server);
        let (state, _clock) = ichor_testkit::state();
        let nodename = Nodename { nodename: "n".into(), ..Nodename::default() };
        state.create("k8s", "nodename", nodename, "").unwrap();
        let mut harness = Harness::new(&state, NodeStatusController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        crate::api::woken(harness.context()).await;
        harness.reconcile().await.unwrap();
        assert!(state.get::<NodeStatus>("k8s", "n").is_err());

        server.put(
            "/api/v1/nodes/n",
            json!({
                "metadata": { "name": "n", "labels": { "a": "b" } },
                "spec": { "unschedulable": true },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
        );
        server.put("/api/v1/nodes/other", json!({ "metadata": { "name": "other" } }));
        crate::api::woken(harness.context()).await;
        harness.reconcile().await.unwrap();
        let status = state.get::<NodeStatus>("k8s", "n").unwrap();
        assert!(status.node_ready && status.unschedulable);
        assert_eq!(status.labels["a"], "b");
        drop(root);
    }

    #[test]
    fn what_was_said_of_another_boot_is_over() {
        let node = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": { "bootID": "one" },
        }});
        for (boot, ready) in [("one", true), ("two", false), ("", true)] {
            assert_eq!(status("n", &node, boot).node_ready, ready, "{boot:?}");
        }
    }

    #[tokio::test]
    async fn a_kubelet_that_has_not_joined_is_looked_for_while_it_runs() {
        let server = Server::new();
        let (mut ports, _root) = crate::api::fake(&server);
        ports.root = "/nonexistent".into();
        let (state, _clock) = ichor_testkit::state();
        let nodename = Nodename { nodename: "n".into(), ..Nodename::default() };
        state.create("k8s", "nodename", nodename, "").unwrap();
        let mut harness = Harness::new(&state, NodeStatusController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(harness.requeue(), None);
        state.create("runtime", "kubelet", Service { running: true, ..Service::default() }, "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(harness.requeue(), Some(Duration::from_millis(200)));
    }
}
