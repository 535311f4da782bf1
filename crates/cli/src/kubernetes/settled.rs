//! Waits until the control plane of a machine runs what the machine wants it to run.

use std::time::Duration;

use ichor_health::{Resource, objects};
use ichor_kube::{Kind, Select};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::fleet::Fleet;

/// The static pods of a control plane.
const PODS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// How long a machine may take to make new pods out of a change; not every change needs new ones.
const NOTICE_MAX: Duration = Duration::from_secs(10);
/// How long the pods may take to run and be ready.
const READY_MAX: Duration = Duration::from_secs(5 * 60);
const PAUSE: Duration = Duration::from_millis(300);
/// The annotations that say what a pod was made from.
const PREFIX: &str = "talos.dev/";

/// The pods a machine wants.
pub async fn wanted(fleet: &Fleet, node: &str) -> Result<Vec<Resource>, Failure> {
    let list = fleet.access.list(node, "k8s", "StaticPods.kubernetes.talos.dev").await;
    let list =
        list.map_err(|status| Failure::new(format!("{node}: read its static pods: {}", status.message())))?;
    Ok(list.into_iter().filter(|pod| PODS.contains(&pod.id.as_str())).collect())
}

/// Waits until the pods that the machine wants after a change run and are ready; `before` are those it wanted
/// before. Where the API itself restarts, the wait goes on.
pub async fn settle(fleet: &Fleet, node: &str, before: &[Resource]) -> Result<(), Failure> {
    let started = Instant::now();
    let mut now = wanted(fleet, node).await?;
    while versions(&now) == versions(before) && started.elapsed() < NOTICE_MAX {
        sleep(PAUSE).await;
        now = wanted(fleet, node).await?;
    }
    loop {
        let last = match fleet.kubernetes.client().await {
            Ok(client) => match client.list(&Kind::PODS, ichor_health::kube::SYSTEM, Select::default()).await
            {
                Ok(list) => match behind(&now, &list.items, node) {
                    None => return Ok(()),
                    Some(text) => text,
                },
                Err(error) => {
                    fleet.kubernetes.forget().await;
                    ichor_health::kube::text_of(&error)
                }
            },
            Err(error) => error,
        };
        if started.elapsed() > READY_MAX {
            return Err(Failure::new(format!(
                "waited {}s for the control plane: {last}",
                READY_MAX.as_secs()
            )));
        }
        sleep(PAUSE).await;
        now = wanted(fleet, node).await?;
    }
}

fn versions(pods: &[Resource]) -> Vec<(&str, &str)> {
    pods.iter().map(|pod| (pod.id.as_str(), pod.version.as_str())).collect()
}

/// The first pod that is not as wanted, and why.
fn behind(wanted: &[Resource], live: &[Value], node: &str) -> Option<String> {
    wanted.iter().find_map(|pod| {
        let running = live.iter().find(|live| {
            live["metadata"]["labels"]["k8s-app"] == pod.id.as_str() && live["status"]["hostIP"] == node
        });
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
}
