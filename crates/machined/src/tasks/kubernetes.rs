//! Tasks that take the machine out of its cluster.

use ichor_cosi::State;
use ichor_resource::k8s::KubeletConfig;

use super::failed;
use crate::etcd::{ETCD, Member, leave};
use crate::node::Node;
use crate::sequencer::TaskError;
use crate::services::ServiceState;
use crate::{drain, pods};

/// Whether the kubelet registers this machine with Kubernetes.
pub(super) fn registers(state: &State) -> bool {
    let kubelet = state.find::<KubeletConfig>("k8s", "kubelet");
    kubelet.is_some_and(|kubelet| !kubelet.skip_node_registration)
}

/// Moves workloads to other machines.
pub(super) async fn cordon_and_drain(state: State) -> Result<(), TaskError> {
    drain::drain(&state).await.map_err(failed)
}

/// Stops the kubelet and all pods; removes the pods where asked.
pub(super) async fn stop_pods(node: &Node, remove: bool) -> Result<(), TaskError> {
    let Node { host, store, services, .. } = node;
    pods::stop(&store.state, services, &host.paths.containerd, remove).await.map_err(failed)
}

/// A control plane that is reset is no member any more; one that never was has nothing to leave.
pub(super) async fn leave_etcd(member: Member) -> Result<(), TaskError> {
    let runs = member.services.views().into_iter().any(|view| {
        let alive =
            matches!(view.state, ServiceState::Running | ServiceState::Stopping | ServiceState::Failed);
        view.id == ETCD && alive
    });
    if !runs || !member.data.dir.join("member").exists() {
        return Ok(());
    }
    leave::leave(&member, leave::Last::End).await.map_err(|error| failed(error.message()))
}
