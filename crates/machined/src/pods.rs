//! Stops the pods of a machine: first its kubelet, then, through the container runtime, the pods.

use std::path::Path;
use std::time::Duration;

use ichor_containerd::Client;
use ichor_cosi::{State, StateError};
use ichor_ctl_k8s::kubelet_service::OWNER;
use ichor_resource::k8s::KubeletLifecycle;
use tracing::{info, warn};

use crate::kubelet::KUBELET;
use crate::services::ServiceManager;

/// Holders of finalizers, such as an operator of a virtual address, get this long.
const HELD_MAX: Duration = Duration::from_secs(30);

/// All pods together may take this long.
const STOP_MAX: Duration = Duration::from_secs(3 * 60);

/// Stops kubelet and pods; removes the pods where asked.
///
/// # Errors
/// When pods are left.
pub async fn stop(
    state: &State,
    services: &ServiceManager,
    containerd: &Path,
    remove: bool,
) -> Result<(), String> {
    if tokio::time::timeout(HELD_MAX, release(state)).await.is_err() {
        warn!("kubelet lifecycle still has finalizers; stopping the kubelet now");
    }
    if services.ids().iter().any(|id| id == KUBELET)
        && let Err(error) = services.stop(KUBELET).await
    {
        warn!(%error, "kubelet not stopped; stopping its pods nevertheless");
    }
    if !containerd.exists() {
        return Ok(());
    }
    info!(remove, "stopping all pods");
    match tokio::time::timeout(STOP_MAX, Client::new(containerd).stop_pods(remove)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(status)) => Err(format!("stop pods: {}", status.message())),
        Err(_) => Err(format!("pods are left after {} s", STOP_MAX.as_secs())),
    }
}

/// Tears the lifecycle of the kubelet down and waits for its finalizers. It is not started again after this.
async fn release(state: &State) {
    let ended = match state.teardown::<KubeletLifecycle>("k8s", KUBELET, OWNER) {
        Ok(true) | Err(StateError::NotFound(_)) => Ok(()),
        Ok(false) => {
            let free = state
                .wait_for::<KubeletLifecycle>("k8s", KUBELET, |found| found.meta().finalizers().is_empty());
            free.await.map(drop)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        warn!(%error, "kubelet lifecycle not torn down");
    }
}
