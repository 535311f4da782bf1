//! How the static pods of this machine fare, asked of the kubelet itself.

use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_kube::{Access, Client, Endpoint};
use ichor_resource::k8s::{APIServerConfig, Nodename, StaticPod, StaticPodStatus};
use ichor_resource::secrets::{KubernetesDynamicCert, KubernetesRootSecret, KubernetesSecret};
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Object;
use serde_json::Value;

use crate::api::{Pace, Ports, Way};

const LOCALHOST: &str = "127.0.0.1";
const API_SERVER: &str = "kube-apiserver";
/// An API server that is ready says so at once.
const ANSWER_MAX: Duration = Duration::from_secs(2);
const KUBELET_PORT: u16 = 10250;

/// Between two looks while pods are starting.
const STARTING: Duration = Duration::from_secs(1);
/// Looks in that rhythm before the slower one: whatever takes longer is broken, not starting.
const STARTING_LOOKS: u32 = 120;
/// Between two looks while pods are broken.
const BROKEN: Duration = Duration::from_secs(15);
/// Between two looks while all is well.
const QUIET: Duration = Duration::from_secs(30);

/// Writes `StaticPodStatuses/<namespace>/<name>`.
#[derive(Debug)]
pub struct KubeletStaticPodController {
    ports: Ports,
    client: Option<(Vec<u8>, Client)>,
    pace: Pace,
    looks: u32,
    /// The versions of the pods that are looked for.
    wanted: Vec<(String, String)>,
    /// The container of the API server that has said that it is ready.
    ready: String,
}

impl KubeletStaticPodController {
    /// A controller that reaches the kubelet like this.
    pub fn new(ports: Ports) -> Self {
        Self {
            ports,
            client: None,
            pace: Pace::default(),
            looks: 0,
            wanted: Vec::new(),
            ready: String::new(),
        }
    }

    /// The client that the API server would use; workers have none.
    fn client(&mut self, ctx: &Context) -> Result<Option<Client>, ControllerError> {
        let nodename = ctx.get::<Nodename>("nodename")?;
        let root = ctx.get::<KubernetesRootSecret>("k8s")?;
        let certificates = ctx.get::<KubernetesDynamicCert>("k8s-dynamic-certs")?;
        let (Some(nodename), Some(root), Some(certificates)) = (nodename, root, certificates) else {
            return Ok(None);
        };
        let Some(pair) = &certificates.api_server_kubelet_client else { return Ok(None) };
        let mut authorities = Vec::new();
        let issuing = root.issuing_ca.iter().map(|ca| &ca.crt);
        for pem in issuing.chain(root.accepted_cas.iter().map(|ca| &ca.crt)) {
            authorities.extend_from_slice(pem);
            authorities.push(b'\n');
        }
        authorities.extend(self.ports.kubelet_serving().unwrap_or_default());
        let mut key = authorities.clone();
        key.extend_from_slice(&pair.crt);
        key.extend_from_slice(nodename.nodename.as_bytes());
        if let Some((known, client)) = &self.client
            && *known == key
        {
            return Ok(Some(client.clone()));
        }
        let access = Access {
            endpoint: Endpoint::new(LOCALHOST, KUBELET_PORT),
            server_name: Some(nodename.nodename.clone()),
            authorities,
            identity: Some((pair.crt.to_vec(), pair.key.to_vec())),
            token: None,
        };
        let client = (self.ports.connect)(Way::Access(access))?;
        self.client = Some((key, client.clone()));
        Ok(Some(client))
    }

    /// Kubelet has no way to ask an API server whether it is ready, so that is done here. Until it is, its pod is not.
    async fn ask_api_server(&mut self, ctx: &Context, pods: &mut [Found]) -> Result<(), ControllerError> {
        let prefix = format!("kube-system/{API_SERVER}-");
        let Some(pod) = pods.iter_mut().find(|pod| pod.id.starts_with(&prefix)) else { return Ok(()) };
        let container = pod.container();
        if container == self.ready || !is_well(&pod.status) {
            return Ok(());
        }
        let secrets = ctx.get::<KubernetesSecret>("k8s-certs")?;
        let config = ctx.get::<APIServerConfig>(API_SERVER)?;
        let (Some(secrets), Some(config)) = (secrets, config) else { return Ok(()) };
        // What leads nowhere cannot be asked.
        let Ok(mut access) = Access::from_kubeconfig(&secrets.localhost_admin_kubeconfig) else {
            return Ok(());
        };
        let Ok(port) = u16::try_from(config.local_port) else { return Ok(()) };
        access.endpoint = Endpoint::new(LOCALHOST, port);
        let client = (self.ports.connect)(Way::Access(access))?;
        match tokio::time::timeout(ANSWER_MAX, client.ready()).await {
            Ok(Ok(())) => self.ready = container,
            Ok(Err(_)) | Err(_) => pod.hold(),
        }
        Ok(())
    }

    fn forget(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        self.client = None;
        self.looks = 0;
        ctx.publish::<StaticPodStatus>(std::iter::empty::<(String, _)>())?;
        Ok(())
    }
}

impl Controller for KubeletStaticPodController {
    const NAME: &'static str = "k8s.KubeletStaticPodController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<Service>().id("kubelet"),
            weak::<StaticPod>(),
            weak::<Nodename>().id("nodename"),
            weak::<KubernetesRootSecret>().id("k8s"),
            weak::<KubernetesDynamicCert>().id("k8s-dynamic-certs"),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<APIServerConfig>().id(API_SERVER),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<StaticPodStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !ctx.get::<Service>("kubelet")?.is_some_and(|kubelet| kubelet.running) {
            return self.forget(ctx);
        }
        let Some(client) = self.client(ctx)? else { return Ok(()) };
        let pods = ctx.list::<StaticPod>()?;
        let wanted =
            pods.iter().map(|pod| (pod.id().to_string(), pod.meta().version().to_string())).collect();
        if self.wanted != wanted {
            (self.wanted, self.looks) = (wanted, 0);
        }
        let answer = match client.read("/pods/").await {
            Ok(answer) => answer,
            Err(error) => {
                ctx.trouble(error.chain());
                ctx.requeue_after(self.pace.next(BROKEN));
                return Ok(());
            }
        };
        self.pace.reset();
        let wanted: Vec<&Map> = pods.iter().map(|pod| &pod.pod.0).collect();
        let mut found = found(&answer);
        self.ask_api_server(ctx, &mut found).await?;
        let well = wanted.iter().all(|pod| found.iter().any(|found| found.is(pod)))
            && found.iter().all(|pod| is_well(&pod.status));
        ctx.publish(found.into_iter().map(|pod| (pod.id, pod.status)))?;
        self.looks = if well { 0 } else { self.looks.saturating_add(1) };
        ctx.requeue_after(match well {
            true => QUIET,
            false if self.looks < STARTING_LOOKS => STARTING,
            false => BROKEN,
        });
        Ok(())
    }
}

type Map = serde_json::Map<String, Value>;

/// A pod that kubelet did not get from the API.
struct Found {
    /// Namespace and name.
    id: String,
    annotations: Map,
    status: StaticPodStatus,
}

impl Found {
    /// The first container.
    fn container(&self) -> String {
        let containers = self.status.pod_status.0.get("containerStatuses");
        let id = containers.and_then(|containers| containers[0]["containerID"].as_str());
        id.unwrap_or_default().to_owned()
    }

    /// Makes it not ready.
    fn hold(&mut self) {
        let status = &mut self.status.pod_status.0;
        let lists = ["conditions", "containerStatuses"];
        let [conditions, containers] =
            lists.map(|list| status.get(list).and_then(Value::as_array).cloned().unwrap_or_default());
        let hold = |mut condition: Value| {
            if matches!(condition["type"].as_str(), Some("Ready" | "ContainersReady")) {
                condition["status"] = "False".into();
                condition["reason"] = "NotAnswering".into();
            }
            condition
        };
        let wait = |mut container: Value| {
            container["ready"] = false.into();
            container
        };
        status.insert(lists[0].to_owned(), conditions.into_iter().map(hold).collect());
        status.insert(lists[1].to_owned(), containers.into_iter().map(wait).collect());
    }

    /// Whether it is this pod, as it is wanted now.
    fn is(&self, pod: &Map) -> bool {
        let none = Value::Null;
        let meta = pod.get("metadata").unwrap_or(&none);
        let namespace = meta["namespace"].as_str().unwrap_or("default");
        let marks = meta["annotations"].as_object().into_iter().flatten();
        self.id.starts_with(&format!("{namespace}/{}-", meta["name"].as_str().unwrap_or_default()))
            && marks.into_iter().all(|(key, value)| self.annotations.get(key) == Some(value))
    }
}

/// The pods that did not come from the API.
fn found(answer: &Value) -> Vec<Found> {
    let pods = answer["items"].as_array().into_iter().flatten();
    let own = pods.filter(|pod| {
        let source = pod["metadata"]["annotations"]["kubernetes.io/config.source"].as_str();
        matches!(source, Some("file" | "http"))
    });
    own.filter_map(|pod| {
        let meta = &pod["metadata"];
        let id = format!("{}/{}", meta["namespace"].as_str()?, meta["name"].as_str()?);
        let Value::Object(status) = &pod["status"] else { return None };
        let annotations = meta["annotations"].as_object().cloned().unwrap_or_default();
        Some(Found { id, annotations, status: StaticPodStatus { pod_status: Object(status.clone()) } })
    })
    .collect()
}

fn is_well(status: &StaticPodStatus) -> bool {
    let conditions = status.pod_status.0.get("conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_that_did_not_come_from_the_api_are_shown() {
        let pod = |name: &str, source: &str, ready: &str| {
            json!({
                "metadata": {
                    "name": name, "namespace": "kube-system",
                    "annotations": { "kubernetes.io/config.source": source },
                },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
            })
        };
        let answer = json!({ "items": [
            pod("kube-apiserver-a", "http", "True"), pod("web", "api", "True"), pod("mine", "file", "False"),
        ] });
        let found: Vec<_> =
            found(&answer).into_iter().map(|pod| (pod.id.clone(), is_well(&pod.status))).collect();
        let expected =
            [("kube-system/kube-apiserver-a".to_owned(), true), ("kube-system/mine".to_owned(), false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_counts_when_it_is_the_one_that_is_wanted_and_can_be_held_back() {
        let answer = json!({ "items": [{
            "metadata": {
                "name": "kube-apiserver-a", "namespace": "kube-system",
                "annotations": { "kubernetes.io/config.source": "http", "talos.dev/config-version": "2" },
            },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PodScheduled", "status": "True" }],
                "containerStatuses": [{ "containerID": "containerd://1", "ready": true }],
            },
        }] });
        let mut pod = found(&answer).pop().unwrap();
        let wanted = |name: &str, version: &str| {
            let meta = json!({ "name": name, "namespace": "kube-system", "annotations": { "talos.dev/config-version": version } });
            Map::from_iter([("metadata".to_owned(), meta)])
        };
        assert!(pod.is(&wanted("kube-apiserver", "2")));
        assert!(!pod.is(&wanted("kube-apiserver", "3")), "it is the one of before");
        assert!(!pod.is(&wanted("kube-scheduler", "2")));
        assert_eq!((pod.container().as_str(), is_well(&pod.status)), ("containerd://1", true));
        pod.hold();
        assert!(!is_well(&pod.status));
        assert_eq!(pod.status.pod_status.0["conditions"][1]["status"], "True");
        assert_eq!(pod.status.pod_status.0["containerStatuses"][0]["ready"], false);
    }
}
