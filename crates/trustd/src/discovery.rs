//! Discovery for the nodes of this cluster, and of no other. The token is checked before, see [`crate::gate`].

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ichor_discovery::Discovery;
use ichor_wire::discovery::server::cluster_server::ClusterServer;
use tonic::Status;

/// The largest update of a node: 64 endpoints and 2 KiB of data, with room around it.
const REQUEST_MAX: usize = 16 * 1024;

/// A discovery service for the cluster with this id. Needs a running runtime.
pub(crate) fn service(cluster_id: Arc<ArcSwapOption<String>>) -> ClusterServer<Discovery> {
    let check = move |asked: &str| match cluster_id.load_full() {
        None => Err(Status::unavailable("the id of the cluster is not known yet")),
        Some(own) if *own == asked => Ok(()),
        Some(_) => Err(Status::permission_denied("only the control plane's own cluster is served here")),
    };
    Discovery::start_for(Arc::new(check)).server().max_decoding_message_size(REQUEST_MAX)
}
