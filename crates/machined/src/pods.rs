//! The end of a machine's pods: its kubelet lets go of them, then the runtime stops them.

use std::time::Duration;

use ichor_containerd::Client;
use ichor_cosi::StateError;
use ichor_resource::k8s::KubeletLifecycle;
use tracing::{info, warn};

use crate::kubelet::KUBELET;
use crate::node::Node;

/// Those who hold the kubelet back, as one who has a shared address, get this long.
const HELD_MAX: Duration = Duration::from_secs(30);

/// All pods together may take this long.
const STOP_MAX: Duration = Duration::from_secs(3 * 60);

/// Stops kubelet and pods; removes the pods where asked.
///
/// # Errors
/// When pods are left.
pub async fn stop(node: &Node, remove: bool) -> Result<(), String> {
    if tokio::time::timeout(HELD_MAX, let_go(node)).await.is_err() {
        warn!("the kubelet is still held, and stops now");
    }
    if node.services.ids().iter().any(|id| id == KUBELET)
        && let Err(error) = node.services.stop(KUBELET).await
    {
        warn!(%error, "pods are stopped beside a kubelet that runs");
    }
    if !node.paths.containerd.exists() {
        return Ok(());
    }
    info!(remove, "stopping all pods");
    match tokio::time::timeout(STOP_MAX, Client::new(&node.paths.containerd).stop_pods(remove)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(status)) => Err(format!("stop pods: {}", status.message())),
        Err(_) => Err(format!("pods are left after {} s", STOP_MAX.as_secs())),
    }
}

/// Announces the end of the kubelet and waits until nobody minds. It is not started again after this.
async fn let_go(node: &Node) {
    let ended = match node.state.teardown::<KubeletLifecycle>("k8s", KUBELET, "") {
        Ok(true) | Err(StateError::NotFound(_)) => Ok(()),
        Ok(false) => {
            let free = node
                .state
                .wait_for::<KubeletLifecycle>("k8s", KUBELET, |found| found.meta().finalizers().is_empty());
            free.await.map(drop)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        warn!(%error, "the end of the kubelet is not announced");
    }
}
