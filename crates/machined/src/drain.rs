//! Empties the node before it goes: its pods move to others, as far as others may have them.

use std::path::Path;
use std::time::Duration;

use ichor_cosi::State;
use ichor_kube::{Client, Limits};
use ichor_resource::k8s::{NodeStatus, Nodename};
use tracing::{info, warn};

/// What the kubelet proves itself with; a machine without never joined.
const CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";

/// The kubelet's way to the API.
const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig-kubelet";

/// Between the wish to be cordoned and being so.
const CORDONED_MAX: Duration = Duration::from_secs(60);

/// Waits until the node is cordoned, which a controller does, and evicts its pods. Pods that stay are told.
///
/// # Errors
/// When Kubernetes cannot be asked.
pub async fn drain(state: &State) -> Result<(), String> {
    if !Path::new(CERTIFICATE).exists() {
        return Ok(());
    }
    let Some(nodename) = state.find::<Nodename>("k8s", "nodename") else { return Ok(()) };
    let name = nodename.nodename.as_str();
    let cordoned = state.wait_for::<NodeStatus>("k8s", name, |found| found.unschedulable);
    match tokio::time::timeout(CORDONED_MAX, cordoned).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("node {name:?} was not cordoned within {} s", CORDONED_MAX.as_secs())),
    }
    let kubeconfig =
        std::fs::read_to_string(KUBECONFIG).map_err(|error| format!("read {KUBECONFIG}: {error}"))?;
    let client = Client::from_kubeconfig(&kubeconfig).map_err(|error| error.to_string())?;
    let drained = ichor_kube::drain(&client, name, Limits::default()).await;
    let drained = drained.map_err(|error| format!("{error}: {}", error.source.chain()))?;
    info!(pods = drained.gone.len(), "drained");
    for (pod, reason) in drained.stayed {
        warn!(pod, reason, "a pod stays");
    }
    Ok(())
}
