//! Discovery for the cluster's own nodes: whoever knows the machine token may tell and hear.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ichor_discovery::Discovery;
use ichor_wire::discovery::server::cluster_server::ClusterServer;
use tonic::Status;

use crate::signer::Signer;

/// The largest word of a node: 64 endpoints and 2 KiB of data, with room around it.
const REQUEST_MAX: usize = 16 * 1024;

/// A discovery service behind the token. Needs a running runtime.
pub(crate) fn members_only(signer: Arc<ArcSwapOption<Signer>>) -> ClusterServer<Discovery> {
    let gate = move |metadata: &tonic::metadata::MetadataMap| {
        // Read for every call: a new token counts at once.
        let signer = signer.load_full().ok_or_else(|| Status::unavailable("no root secrets yet"))?;
        signer.admits(metadata.get("token").map(|value| value.as_bytes()))
    };
    Discovery::start_behind(Arc::new(gate)).server().max_decoding_message_size(REQUEST_MAX)
}
