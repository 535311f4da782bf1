//! Empties a node: every pod that something will make anew elsewhere is asked to go, as its disruption budget allows.

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, info};

use crate::client::{Client, Select};
use crate::error::Error;
use crate::kind::{Kind, Target};

/// Pods that are asked at once.
const PARALLEL: usize = 16;
/// The first look whether a pod is gone; each further one waits twice as long, up to the limit.
const LOOK_FIRST: Duration = Duration::from_millis(250);

/// Bounds of a drain.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For everything.
    pub overall: Duration,
    /// For a pod to end by itself.
    pub grace: Duration,
    /// Between two questions while a budget says no.
    pub budget_retry: Duration,
    /// For a pod that was told to go to be gone.
    pub gone: Duration,
    /// Longest time between two looks whether it is.
    pub look: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            overall: Duration::from_secs(5 * 60),
            grace: Duration::from_secs(60),
            budget_retry: Duration::from_secs(5),
            gone: Duration::from_secs(60),
            look: Duration::from_secs(3),
        }
    }
}

/// A drain that could not begin.
#[derive(Debug, thiserror::Error)]
#[error("list the pods of node {node}")]
pub struct DrainError {
    /// The node.
    pub node: String,
    /// Why not.
    #[source]
    pub source: Error,
}

/// What became of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// It is gone.
    Gone,
    /// It is still there, for this reason.
    Stays(String),
}

/// What a drain did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drained {
    /// Pods that are gone, as `namespace/name`.
    pub gone: Vec<String>,
    /// Pods that were asked and are still there, with the reason.
    pub stayed: Vec<(String, String)>,
}

/// Evicts the pods of a node. Pods that nothing would make anew, that belong to every node or that the kubelet
/// itself brought are left alone. Single failures are in the answer.
///
/// # Errors
/// When the pods cannot be listed.
pub async fn drain(client: &Client, node: &str, limits: Limits) -> Result<Drained, DrainError> {
    let deadline = Instant::now() + limits.overall;
    let fields = format!("spec.nodeName={node}");
    let list = client.list(&Kind::PODS, "", Select { fields: &fields, ..Select::default() }).await;
    let list = list.map_err(|source| DrainError { node: node.to_owned(), source })?;
    let pods: Vec<Pod> = list.items.iter().filter_map(Pod::to_evict).collect();
    info!(node, pods = pods.len(), "draining");
    let attempts: Vec<_> = pods.iter().map(|pod| attempt(client, pod, limits, deadline)).collect();
    let mut results = stream::iter(attempts).buffer_unordered(PARALLEL);
    let mut drained = Drained::default();
    while let Some((pod, result)) = results.next().await {
        match result {
            Drain::Gone => drained.gone.push(pod),
            Drain::Stays(reason) => drained.stayed.push((pod, reason)),
        }
    }
    drained.gone.sort_unstable();
    drained.stayed.sort_unstable();
    Ok(drained)
}

struct Pod {
    namespace: String,
    name: String,
    uid: String,
}

impl Pod {
    /// The pod, if it is to be evicted.
    fn to_evict(pod: &Value) -> Option<Self> {
        let meta = &pod["metadata"];
        let mirror = meta["annotations"].get("kubernetes.io/config.mirror").is_some();
        let finished = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let owners = meta["ownerReferences"].as_array()?;
        let owner = owners.iter().find(|owner| owner["controller"] == true)?;
        if mirror || finished || owner["kind"] == "DaemonSet" {
            return None;
        }
        let text = |key: &str| meta[key].as_str().unwrap_or_default().to_owned();
        Some(Self { namespace: text("namespace"), name: text("name"), uid: text("uid") })
    }

    fn display(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Boxed: a stream of closures that borrow is not `Send` for all the compiler knows.
fn attempt<'a>(
    client: &'a Client,
    pod: &'a Pod,
    limits: Limits,
    deadline: Instant,
) -> BoxFuture<'a, (String, Drain)> {
    Box::pin(async move {
        let result = timeout_at(deadline, remove(client, pod, limits)).await;
        (pod.display(), result.unwrap_or_else(|_| Drain::Stays("the time for draining is over".to_owned())))
    })
}

async fn remove(client: &Client, pod: &Pod, limits: Limits) -> Drain {
    let grace = u32::try_from(limits.grace.as_secs()).unwrap_or(u32::MAX);
    // Ends with the deadline of the drain at the latest.
    loop {
        match client.evict(&pod.namespace, &pod.name, &pod.uid, grace).await {
            Ok(()) => break,
            Err(error) if error.is_not_found() => return Drain::Gone,
            // The uid is another's: the one we meant is gone.
            Err(error) if error.is_conflict() => return Drain::Gone,
            Err(error) if error.is_too_many() => {
                debug!(pod = pod.display(), error = error.chain(), "eviction has to wait");
                sleep(limits.budget_retry).await;
            }
            Err(error) => return Drain::Stays(error.chain()),
        }
    }
    let target = Target::new(Kind::PODS, &pod.namespace, &pod.name);
    let until = Instant::now() + limits.gone;
    let mut wait = LOOK_FIRST.min(limits.look);
    while Instant::now() < until {
        match client.get(&target).await {
            Ok(found) if found["metadata"]["uid"] != pod.uid.as_str() => return Drain::Gone,
            // A node may only see pods of its own: one it may not see is gone.
            Err(error) if error.is_not_found() || error.is_forbidden() => return Drain::Gone,
            Ok(_) | Err(_) => {}
        }
        sleep(wait).await;
        wait = (wait * 2).min(limits.look);
    }
    Drain::Stays(format!("not gone after {} s", limits.gone.as_secs()))
}
