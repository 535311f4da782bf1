//! The client: a channel, the machines its calls are for, and the typed services on top.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use http::header::HeaderValue;
use ichor_wire::cluster::cluster_service_client::ClusterServiceClient;
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::ichor::node::node_service_client::NodeServiceClient;
use ichor_wire::inspect::inspect_service_client::InspectServiceClient;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use ichor_wire::storage::storage_service_client::StorageServiceClient;
use ichor_wire::time::time_service_client::TimeServiceClient;
use tonic::body::Body;

use crate::channel::{Channel, Unreachable};
use crate::target::{Target, append};

/// The largest message that is accepted, as on the servers.
pub const MESSAGE_MAX: usize = 32 * 1024 * 1024;

/// What every call carries besides its target.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// The cluster's name for a multi-cluster proxy.
    pub cluster: Option<String>,
    /// The value of the `authorization` header, when the context has basic credentials.
    pub authorization: Option<String>,
}

/// A client of the node API.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    identity: Arc<Identity>,
    target: Arc<Target>,
}

impl Client {
    /// A client over `channel` whose calls go to the endpoint itself.
    pub fn new(channel: Channel, identity: Identity) -> Self {
        Self { channel, identity: Arc::new(identity), target: Arc::new(Target::Endpoint) }
    }

    /// The same client with calls for `target`; both share the connection.
    pub fn to(&self, target: Target) -> Self {
        Self { target: Arc::new(target), ..self.clone() }
    }

    /// The same client with calls for one machine.
    pub fn to_node(&self, node: impl Into<String>) -> Self {
        self.to(Target::Node(node.into()))
    }

    /// Opens the connection unless it is open, and tells the address at the other end.
    pub async fn connect(&self) -> Result<String, Unreachable> {
        self.channel.connect().await
    }

    /// Drops the connection; the next call opens a new one.
    pub async fn reset(&self) {
        self.channel.reset().await;
    }

    /// The machine API.
    pub fn machine(&self) -> MachineServiceClient<Routed> {
        MachineServiceClient::new(self.routed()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// The resource API.
    pub fn state(&self) -> StateClient<Routed> {
        StateClient::new(self.routed()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Clock and time servers.
    pub fn time(&self) -> TimeServiceClient<Routed> {
        TimeServiceClient::new(self.routed())
    }

    /// The controller graph.
    pub fn inspect(&self) -> InspectServiceClient<Routed> {
        InspectServiceClient::new(self.routed()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// What only this system answers.
    pub fn node(&self) -> NodeServiceClient<Routed> {
        NodeServiceClient::new(self.routed())
    }

    /// Health of the cluster.
    pub fn cluster(&self) -> ClusterServiceClient<Routed> {
        ClusterServiceClient::new(self.routed())
    }

    /// Disks and wiping.
    pub fn storage(&self) -> StorageServiceClient<Routed> {
        StorageServiceClient::new(self.routed())
    }

    /// The service below the typed ones.
    pub fn routed(&self) -> Routed {
        Routed {
            channel: self.channel.clone(),
            identity: Arc::clone(&self.identity),
            target: Arc::clone(&self.target),
        }
    }
}

/// A channel that writes the routing metadata into every call.
#[derive(Clone)]
pub struct Routed {
    channel: Channel,
    identity: Arc<Identity>,
    target: Arc<Target>,
}

impl tower::Service<Request<Body>> for Routed {
    type Response = <Channel as tower::Service<Request<Body>>>::Response;
    type Error = <Channel as tower::Service<Request<Body>>>::Error;
    type Future = <Channel as tower::Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let headers = request.headers_mut();
        headers.insert("runtime", HeaderValue::from_static("Talos"));
        self.target.write(headers);
        if let Some(cluster) = &self.identity.cluster {
            append(headers, "context", cluster);
        }
        if let Some(authorization) = &self.identity.authorization {
            append(headers, "authorization", authorization);
        }
        self.channel.call(request)
    }
}
