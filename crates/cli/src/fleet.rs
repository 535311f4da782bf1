//! The whole cluster behind a command.

use ichor_ops::Fleet;
use ichor_ops::fleet::{self, Members, Route};

use crate::connection::Connection;
use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::profile;
use crate::session::Session;
use crate::table::Flag;

/// The flags that name the machines of a cluster.
pub static MEMBER_FLAGS: &[Flag] = &[
    Flag::list("control-plane-nodes", "control plane machines, when they are not to be discovered"),
    Flag::text("init-node", "the first control plane machine of old clusters"),
    Flag::text("k8s-endpoint", "address of the Kubernetes API"),
    Flag::list("worker-nodes", "worker machines, when they are not to be discovered"),
];

/// Reads [`MEMBER_FLAGS`], but for the endpoint.
pub fn members(call: &Call) -> Members {
    let mut control_planes = call.list("control-plane-nodes");
    control_planes.extend(call.some_text("init-node").map(str::to_owned));
    Members { control_planes, workers: call.list("worker-nodes") }
}

/// The way to Kubernetes: the endpoint that was named, else the kubeconfig and the hosts of the machine API.
pub fn route(connection: &Connection, endpoint: &str) -> Result<Route, Failure> {
    let endpoint = Some(endpoint).filter(|text| !text.is_empty()).map(fleet::parse_endpoint).transpose()?;
    Ok(Route { endpoint, hosts: profile::load(connection)?.hosts() })
}

/// Connects to an endpoint; machines need not be named.
pub async fn connect(connection: &Connection) -> Result<Session, Failure> {
    let loaded = profile::load(connection)?;
    let client = loaded.client()?;
    let connected = crate::term::patient("connecting", client.connect()).await;
    connected.map_err(|error| explain::unreachable(&error))?;
    Ok(Session::over_client(client, loaded.nodes, true))
}

/// The cluster of a session: the named members, else those that its first machine (or the endpoint) knows.
pub async fn open(session: &Session, members: &Members, route: &Route) -> Result<Fleet, Failure> {
    let asked = session.nodes.first().map(String::as_str).unwrap_or_default();
    Ok(fleet::open(&session.endpoint(), members, asked, route).await?)
}
