//! How the static pods of this machine fare, asked of the kubelet itself.

use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_kube::{Access, Client, Endpoint};
use ichor_resource::k8s::{Nodename, StaticPod, StaticPodStatus};
use ichor_resource::secrets::{KubernetesDynamicCert, KubernetesRootSecret};
use ichor_resource::v1alpha1::Service;
use ichor_resource::value::Object;
use serde_json::Value;

use crate::api::{Pace, Ports, Way};

const KUBELET_HOST: &str = "127.0.0.1";
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
    wanted: usize,
}

impl KubeletStaticPodController {
    /// A controller that reaches the kubelet like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, client: None, pace: Pace::default(), looks: 0, wanted: 0 }
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
            endpoint: Endpoint::new(KUBELET_HOST, KUBELET_PORT),
            server_name: Some(nodename.nodename.clone()),
            authorities,
            identity: Some((pair.crt.to_vec(), pair.key.to_vec())),
            token: None,
        };
        let client = (self.ports.connect)(Way::Access(access))?;
        self.client = Some((key, client.clone()));
        Ok(Some(client))
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
        let wanted = ctx.list::<StaticPod>()?.len();
        if wanted != self.wanted {
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
        let pods = statuses(&answer);
        let well = pods.len() >= wanted && pods.iter().all(|(_, status)| is_well(status));
        ctx.publish(pods)?;
        self.looks = if well { 0 } else { self.looks.saturating_add(1) };
        ctx.requeue_after(match well {
            true => QUIET,
            false if self.looks < STARTING_LOOKS => STARTING,
            false => BROKEN,
        });
        Ok(())
    }
}

/// The pods that did not come from the API, by namespace and name.
fn statuses(answer: &Value) -> Vec<(String, StaticPodStatus)> {
    let pods = answer["items"].as_array().into_iter().flatten();
    let own = pods.filter(|pod| {
        let source = pod["metadata"]["annotations"]["kubernetes.io/config.source"].as_str();
        matches!(source, Some("file" | "http"))
    });
    own.filter_map(|pod| {
        let meta = &pod["metadata"];
        let id = format!("{}/{}", meta["namespace"].as_str()?, meta["name"].as_str()?);
        let Value::Object(status) = &pod["status"] else { return None };
        Some((id, StaticPodStatus { pod_status: Object(status.clone()) }))
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
            statuses(&answer).into_iter().map(|(id, status)| (id, is_well(&status))).collect();
        let expected =
            [("kube-system/kube-apiserver-a".to_owned(), true), ("kube-system/mine".to_owned(), false)];
        assert_eq!(found, expected);
    }
}
