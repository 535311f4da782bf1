//! Kubernetes as a registry of who is in the cluster: every node tells of itself in annotations of its `Node`, and
//! reads those of the others.
//!
//! What a node tells becomes `NodeAnnotationSpecs` (see [`wishes`](crate::wishes)). Reading all nodes is more than a
//! kubelet may do since Kubernetes v1.32, so control planes read as administrators; a worker says why it cannot.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, shared, weak};
use ichor_kube::Kind;
use ichor_resource::cluster::{Affiliate, ControlPlane, DiscoveryConfig, KubeSpanAffiliateSpec};
use ichor_resource::k8s::{NodeStatus, Nodename};
use ichor_resource::secrets::KubernetesSecret;
use ichor_types::MachineType;
use serde_json::Value;

use crate::api::{Pace, Ports, Wanted, Watcher, Way};

const NODE_ID: &str = "cluster.talos.dev/node-id";
const SELF_IPS: &str = "networking.talos.dev/self-ips";
const API_PORT: &str = "networking.talos.dev/api-server-port";
const SPAN_IP: &str = "networking.talos.dev/kubespan-ip";
const SPAN_KEY: &str = "networking.talos.dev/kubespan-public-key";
const SPAN_PREFIXES: &str = "networking.talos.dev/assigned-prefixes";
const SPAN_ENDPOINTS: &str = "networking.talos.dev/kubespan-endpoints";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Longest wait between two looks for a way to the API.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// What a node tells of itself; what is empty is not told.
pub(crate) fn annotations(affiliate: &Affiliate) -> Vec<(&'static str, String)> {
    fn list<T: ToString>(items: &[T]) -> String {
        items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    }
    let span = &affiliate.kubespan;
    let told = [
        (NODE_ID, affiliate.node_id.clone()),
        (SELF_IPS, list(&affiliate.addresses)),
        (API_PORT, affiliate.control_plane.as_ref().map(|plane| plane.port.to_string()).unwrap_or_default()),
        (SPAN_IP, span.address.get().map(|address| address.to_string()).unwrap_or_default()),
        (SPAN_KEY, span.public_key.clone()),
        (SPAN_PREFIXES, list(&span.additional_addresses)),
        (SPAN_ENDPOINTS, list(&span.endpoints)),
    ];
    told.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// What another node tells of itself, if it does.
fn affiliate(node: &Value) -> Option<Affiliate> {
    let note = |key: &str| node["metadata"]["annotations"][key].as_str().unwrap_or_default();
    fn list<T: FromStr>(text: &str) -> Vec<T> {
        text.split(',').filter_map(|item| item.parse().ok()).collect()
    }
    let node_id = note(NODE_ID).to_owned();
    if node_id.is_empty() {
        return None;
    }
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let hostname = addresses.filter(|one| one["type"] == "Hostname").find_map(|one| one["address"].as_str());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(Affiliate {
        node_id,
        addresses: list(note(SELF_IPS)),
        hostname: hostname.unwrap_or_default().to_owned(),
        nodename: text(&node["metadata"]["name"]),
        operating_system: text(&node["status"]["nodeInfo"]["osImage"]),
        machine_type: match node["metadata"]["labels"][CONTROL_PLANE].is_string() {
            true => MachineType::ControlPlane,
            false => MachineType::Worker,
        },
        kubespan: KubeSpanAffiliateSpec {
            public_key: note(SPAN_KEY).to_owned(),
            address: note(SPAN_IP).parse().unwrap_or_default(),
            additional_addresses: list(note(SPAN_PREFIXES)),
            endpoints: list(note(SPAN_ENDPOINTS)),
        },
        control_plane: note(API_PORT).parse().ok().map(|port| ControlPlane { port }),
    })
}

/// Writes `Affiliates/k8s/*` in `cluster-raw`.
#[derive(Debug)]
pub struct KubernetesPullController {
    ports: Ports,
    wake: Option<Wake>,
    watcher: Option<Watcher>,
    pace: Pace,
}

impl KubernetesPullController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, wake: None, watcher: None, pace: Pace::default() }
    }
}

impl Controller for KubernetesPullController {
    const NAME: &'static str = "cluster.KubernetesPullController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<DiscoveryConfig>().id("cluster"),
            weak::<Nodename>().id("nodename"),
            weak::<NodeStatus>(),
            weak::<KubernetesSecret>().id("k8s-certs"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Affiliate>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let on = ctx
            .get::<DiscoveryConfig>("cluster")?
            .is_some_and(|config| config.discovery_enabled && config.registry_kubernetes_enabled);
        let nodename = ctx.get::<Nodename>("nodename")?.filter(|_| on);
        let Some(nodename) = nodename else {
            self.watcher = None;
            ctx.publish_in::<Affiliate>("cluster-raw", std::iter::empty::<(String, _)>())?;
            return Ok(());
        };
        // The status comes when the node has joined: before, nobody answers.
        if ctx.get::<NodeStatus>(&nodename.nodename)?.is_none() && self.watcher.is_none() {
            return Ok(());
        }
        let own = ctx.get::<KubernetesSecret>("k8s-certs")?;
        let own = own.map(|secrets| secrets.localhost_admin_kubeconfig.clone());
        let Some(kubeconfig) = own.or_else(|| self.ports.kubelet_kubeconfig()) else {
            ctx.requeue_after(self.pace.next(LOOK_MAX));
            return Ok(());
        };
        self.pace.reset();
        if self.watcher.as_ref().is_none_or(|watcher| watcher.key != kubeconfig) {
            let Some(wake) = &self.wake else { return Ok(()) };
            let wanted = Wanted { kind: Kind::NODES, namespace: "", fields: String::new() };
            let (connect, key) = (self.ports.connect.clone(), kubeconfig.clone());
            let client = move || connect(Way::Kubeconfig(&kubeconfig));
            self.watcher = Some(Watcher::start(key, client, wanted, wake.clone()));
            return Ok(());
        }
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let found: Option<BTreeMap<String, Affiliate>> = {
            let seen = watcher.seen();
            if let Some(error) = &seen.error {
                ctx.trouble(error.clone());
            }
            seen.objects.as_ref().map(|objects| {
                let others = objects.iter().filter(|((_, name), _)| *name != nodename.nodename);
                let others = others.filter_map(|(_, node)| affiliate(node));
                others.map(|one| (format!("k8s/{}", one.node_id), one)).collect()
            })
        };
        if let Some(found) = found {
            ctx.publish_in("cluster-raw", found)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_testkit::Harness;
    use ichor_testkit::kube::Server;
    use serde_json::json;

    use super::*;

    fn told() -> Affiliate {
        Affiliate {
            node_id: "id2".into(),
            addresses: vec!["10.5.0.3".parse().unwrap(), "fd00::3".parse().unwrap()],
            hostname: "n2".into(),
            nodename: "n2".into(),
            operating_system: "Talos (v1.12.1)".into(),
            machine_type: MachineType::ControlPlane,
            kubespan: KubeSpanAffiliateSpec {
                public_key: "key".into(),
                address: "fd01::1".parse().unwrap(),
                additional_addresses: vec!["10.244.1.0/24".parse().unwrap()],
                endpoints: vec!["10.5.0.3:51820".parse().unwrap()],
            },
            control_plane: Some(ControlPlane { port: 6443 }),
        }
    }

    fn node(name: &str, affiliate: &Affiliate) -> Value {
        let notes: serde_json::Map<String, Value> =
            annotations(affiliate).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        json!({
            "metadata": { "name": name, "annotations": notes, "labels": { CONTROL_PLANE: "" } },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "10.5.0.3" }, { "type": "Hostname", "address": name }],
                "nodeInfo": { "osImage": "Talos (v1.12.1)" },
            },
        })
    }

    #[test]
    fn what_is_told_is_what_is_heard() {
        assert_eq!(affiliate(&node("n2", &told())), Some(told()));
        assert_eq!(affiliate(&json!({ "metadata": { "name": "x" } })), None);
        let bare = Affiliate { node_id: "id".into(), ..Affiliate::default() };
        assert_eq!(annotations(&bare), [(NODE_ID, "id".to_owned())]);
    }

    #[tokio::test]
    async fn other_nodes_become_affiliates_while_it_is_on() {
        let server = Server::new();
        let (ports, _root) = crate::api::fake(&server);
        server.put("/api/v1/nodes/n1", node("n1", &Affiliate { node_id: "id1".into(), ..told() }));
        server.put("/api/v1/nodes/n2", node("n2", &told()));
        server.put("/api/v1/nodes/n3", json!({ "metadata": { "name": "n3" } }));
        let (state, _clock) = ichor_testkit::state();
        let nodename = Nodename { nodename: "n1".into(), ..Nodename::default() };
        state.create("k8s", "nodename", nodename, "").unwrap();
        state.create("k8s", "n1", NodeStatus { nodename: "n1".into(), ..NodeStatus::default() }, "").unwrap();
        let mut harness = Harness::new(&state, KubernetesPullController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        let on = DiscoveryConfig {
            discovery_enabled: true,
            registry_kubernetes_enabled: true,
            ..DiscoveryConfig::default()
        };
        state.create("config", "cluster", on, "").unwrap();
        harness.reconcile().await.unwrap();
        while state.list::<Affiliate>("cluster-raw").is_empty() {
            crate::api::woken(harness.context()).await;
            harness.reconcile().await.unwrap();
        }
        let found = state.list::<Affiliate>("cluster-raw");
        assert_eq!(found.iter().map(|one| one.id().to_string()).collect::<Vec<_>>(), ["k8s/id2"]);
        assert_eq!(**found.first().unwrap(), told());

        state
            .modify::<DiscoveryConfig>("config", "cluster", "", |config| {
                config.registry_kubernetes_enabled = false;
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(state.list::<Affiliate>("cluster-raw").len(), 0);
    }
}
