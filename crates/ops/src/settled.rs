//! Waits until the static pods of a control plane are those that the machine wants.

use std::time::Duration;

use ichor_health::{Resource, objects};
use ichor_kube::{Kind, Select};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};
use crate::fleet::Fleet;
use crate::patience::patiently;

/// The component that every other one talks to.
pub(crate) const API_SERVER: &str = "kube-apiserver";
/// The static pods of a control plane.
const PODS: [&str; 3] = [API_SERVER, "kube-controller-manager", "kube-scheduler"];
/// How long a machine may take to make new pods out of a change; not every change needs new ones.
const NOTICE_MAX: Duration = Duration::from_secs(10);
/// How long the pods may take to run and be ready.
const READY_MAX: Duration = Duration::from_secs(5 * 60);
const PAUSE: Duration = Duration::from_millis(300);
/// The annotations that say what a pod was made from.
const PREFIX: &str = "talos.dev/";

/// The pods a machine wants.
pub(crate) async fn wanted(fleet: &Fleet, node: &str) -> Result<Vec<Resource>> {
    let list = fleet.access.list(node, "k8s", "StaticPods.kubernetes.talos.dev").await;
    let list = list.map_err(|status| Error::call(format!("{node}: read its static pods"), status))?;
    Ok(list.into_iter().filter(|pod| PODS.contains(&pod.id.as_str())).collect())
}

/// Waits until the pods that the machine wants after a change run and are ready; `before` are those it wanted
/// before. Where the API itself restarts, the wait goes on.
pub(crate) async fn settle(fleet: &Fleet, node: &str, before: &[Resource]) -> Result<()> {
    let started = Instant::now();
    let mut now = wanted(fleet, node).await?;
    while versions(&now) == versions(before) && started.elapsed() < NOTICE_MAX {
        sleep(PAUSE).await;
        now = wanted(fleet, node).await?;
    }
    let ready = patiently(fleet, READY_MAX, async |client| {
        let list = client.list(&Kind::PODS, ichor_health::kube::SYSTEM, Select::default()).await?;
        let now = match wanted(fleet, node).await {
            Ok(now) => now,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let missing = match behind(&now, &list.items, node) {
            None => silent(fleet, node, &list.items).await,
            missing => missing,
        };
        Ok(missing.map_or(Ok(()), Err))
    });
    let waited = || format!("waited {}s for the control plane", READY_MAX.as_secs());
    ready.await.map_err(|error| error.within(waited()))
}

/// Why the API server of a machine is not there for everybody yet. Kubernetes calls its pod ready the moment it runs; the
/// machine itself asks it.
pub(crate) async fn silent(fleet: &Fleet, node: &str, pods: &[Value]) -> Option<String> {
    let statuses = fleet.access.list(node, "k8s", "StaticPodStatuses.kubernetes.talos.dev").await;
    let statuses = match statuses {
        Ok(statuses) => statuses,
        Err(status) => return Some(format!("{node}: read the status of its pods: {}", status.message())),
    };
    let server = pods.iter().find(|pod| is_of(pod, API_SERVER, node))?;
    let id = format!("{}/{}", ichor_health::kube::SYSTEM, objects::name(server));
    let Some(status) = statuses.into_iter().find(|status| status.id == id) else {
        return Some(format!("{node} does not know {id}"));
    };
    unheard(server, &status.spec)
}

/// The same, from what Kubernetes and what the machine says of the pod.
fn unheard(pod: &Value, status: &Value) -> Option<String> {
    let status = if status["podStatus"].is_object() { &status["podStatus"] } else { status };
    let container = |status: &Value| status["containerStatuses"][0]["containerID"].clone();
    if container(&pod["status"]) != container(status) {
        return Some(format!("{} is another one to the machine", objects::name(pod)));
    }
    let machine = serde_json::json!({ "metadata": pod["metadata"], "status": status });
    (!objects::is_ready(&machine)).then(|| format!("{} does not answer yet", objects::name(pod)))
}

fn is_of(pod: &Value, app: &str, node: &str) -> bool {
    pod["metadata"]["labels"]["k8s-app"] == app && pod["status"]["hostIP"] == node
}

fn versions(pods: &[Resource]) -> Vec<(&str, &str)> {
    pods.iter().map(|pod| (pod.id.as_str(), pod.version.as_str())).collect()
}

/// The first pod that is not as wanted, and why.
fn behind(wanted: &[Resource], live: &[Value], node: &str) -> Option<String> {
    wanted.iter().find_map(|pod| {
        let running = live.iter().find(|live| is_of(live, &pod.id, node));
        let Some(running) = running else { return Some(format!("{} is not there", pod.id)) };
        if marks(&pod.spec) != marks(running) {
            return Some(format!("{} is still the old one", pod.id));
        }
        (!objects::is_ready(running)).then(|| objects::unready(running))
    })
}

/// What a pod was made from.
fn marks(pod: &Value) -> Vec<(&str, &Value)> {
    let annotations = pod["metadata"]["annotations"].as_object();
    let mut marks: Vec<(&str, &Value)> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(PREFIX))
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    marks.sort_by_key(|(key, _)| *key);
    marks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_behind_until_it_is_the_new_one_and_ready() {
        let pod =
            |secrets: &str| json!({"metadata": {"annotations": {"talos.dev/secrets-version": secrets}}});
        let wanted = [Resource { id: "kube-apiserver".into(), version: "2".into(), spec: pod("2") }];
        let live = |secrets: &str, ready: &str| {
            let mut live = pod(secrets);
            live["metadata"]["name"] = json!("kube-apiserver-a");
            live["metadata"]["annotations"]["kubernetes.io/config.source"] = json!("http");
            live["metadata"]["labels"] = json!({"k8s-app": "kube-apiserver"});
            live["status"] =
                json!({"hostIP": "10.5.0.2", "conditions": [{"type": "Ready", "status": ready}]});
            live
        };
        let judge = |live: &[Value]| behind(&wanted, live, "10.5.0.2");
        assert_eq!(judge(&[]).as_deref(), Some("kube-apiserver is not there"));
        assert_eq!(judge(&[live("1", "True")]).as_deref(), Some("kube-apiserver is still the old one"));
        assert_eq!(judge(&[live("2", "False")]).as_deref(), Some("kube-apiserver-a"));
        assert_eq!(judge(&[live("2", "True")]), None);
        assert_eq!(
            behind(&wanted, &[live("2", "True")], "10.5.0.3").as_deref(),
            Some("kube-apiserver is not there")
        );
    }

    #[test]
    fn an_api_server_is_there_when_the_machine_says_so_of_the_same_container() {
        let status = |container: &str, ready: &str| {
            json!({
                "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"containerID": container}],
            })
        };
        let pod = json!({"metadata": {"name": "kube-apiserver-a"}, "status": status("2", "True")});
        assert_eq!(unheard(&pod, &status("2", "True")), None);
        assert_eq!(unheard(&pod, &json!({"podStatus": status("2", "True")})), None);
        let text = |status: Value| unheard(&pod, &status).unwrap();
        assert_eq!(text(status("1", "True")), "kube-apiserver-a is another one to the machine");
        assert_eq!(text(status("2", "False")), "kube-apiserver-a does not answer yet");
    }
}
