//! Cluster health: the same checks as a client's, done by this node through its own gateway.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream;
use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Request, Response, Status};

use ichor_cosi::State;
use ichor_health::{Access, Check, Cluster, Kind, Kubernetes, Lazy, Machine, Objects, Topology};
use ichor_resource::cluster::Member;
use ichor_rpc::{Channel, Dialer, Endpoint, roles};
use ichor_wire::cluster::{self, HealthCheckProgress, HealthCheckRequest};

use super::reply::{Replies, Slots, holding, streaming};

/// Checks at a time; each asks every machine of the cluster.
const CHECKS_MAX: usize = 8;
/// Lines on their way to a client; one that reads none misses some.
const LINES_MAX: usize = 64;
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time to find out which machines there are.
const DISCOVER_MAX: Duration = Duration::from_secs(30);
/// The longest a check may be asked to take; then the client asks again.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The service of cluster health.
pub struct ClusterApi {
    state: State,
    gateway: PathBuf,
    slots: Slots,
}

impl ClusterApi {
    /// Over the members that `state` knows, reached through the socket `gateway`.
    pub fn new(state: State, gateway: PathBuf) -> Self {
        Self { state, gateway, slots: Slots::new(CHECKS_MAX, "health checks") }
    }
}

type Fleet = Cluster<Channel<Body>, Lazy<Channel<Body>>>;

#[tonic::async_trait]
impl cluster::cluster_service_server::ClusterService for ClusterApi {
    type HealthCheckStream = Replies<HealthCheckProgress>;

    async fn health_check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::HealthCheckStream>, Status> {
        let slot = self.slots.take()?;
        // What the caller may not see, its health check does not see either.
        let values = roles::header_values(&roles::of_request(&request));
        let request = request.into_inner();
        let limit = request.wait_timeout.and_then(|limit| Duration::try_from(limit).ok());
        let limit = limit.unwrap_or_default().min(WAIT_MAX);
        let fleet = self.fleet(request.cluster_info.unwrap_or_default(), values).await?;
        let (sender, receiver) = mpsc::channel(LINES_MAX);
        tokio::spawn(async move {
            tokio::select! {
                () = sender.closed() => {}
                () = check(&fleet, limit, &sender) => {}
            }
        });
        let lines =
            stream::unfold(receiver, |mut lines| async { lines.recv().await.map(|line| (line, lines)) });
        Ok(holding(slot, streaming(lines)))
    }
}

impl ClusterApi {
    async fn fleet(&self, info: cluster::ClusterInfo, values: Vec<HeaderValue>) -> Result<Fleet, Status> {
        let gateway = Channel::new(Dialer::unix(&self.gateway));
        let role = HeaderName::from_static(roles::ROLE_KEY);
        let headers = values.into_iter().map(|value| (role.clone(), value)).collect();
        let access = Access::new(gateway, headers);
        let forced = match info.force_endpoint.as_str() {
            "" => None,
            text => Some(endpoint(text).ok_or_else(|| {
                Status::invalid_argument(format!("{text:?} is no address of the Kubernetes API"))
            })?),
        };
        let kubernetes = |topology: &Topology| {
            let nodes = topology.control_planes().iter().map(|machine| machine.address.clone()).collect();
            Lazy::new(access.clone(), nodes, forced.clone(), Vec::new())
        };
        let mut topology = if info.control_plane_nodes.is_empty() && info.worker_nodes.is_empty() {
            self.members()
        } else {
            Topology::named(&info.control_plane_nodes, &info.worker_nodes)
        };
        if topology.all().is_empty() {
            // Nobody told and nobody was discovered: Kubernetes knows its nodes, if this is a control plane.
            let own = Topology::new(vec![Machine::at("", Kind::ControlPlane)]);
            let own = kubernetes(&own);
            let nodes = timeout(DISCOVER_MAX, own.list(Objects::Nodes, "")).await;
            let nodes = nodes.map_err(|_| Status::deadline_exceeded("Kubernetes does not list its nodes"))?;
            let nodes = nodes.map_err(|error| {
                Status::failed_precondition(format!("no members were discovered, and Kubernetes: {error}"))
            })?;
            topology = Topology::of_nodes(&nodes);
        }
        let kubernetes = kubernetes(&topology);
        Ok(Cluster { topology, access, kubernetes })
    }

    fn members(&self) -> Topology {
        let machine = |member: &Member| {
            let addresses: Vec<String> = member.addresses.iter().map(ToString::to_string).collect();
            let kind = match member.machine_type.is_control_plane() {
                true => Kind::ControlPlane,
                false => Kind::Worker,
            };
            Some(Machine { address: addresses.first()?.clone(), addresses, kind })
        };
        let members = self.state.list::<Member>("cluster");
        Topology::new(members.iter().filter_map(|member| machine(member)).collect())
    }
}

/// `https://host:port`; the port may be left out.
fn endpoint(text: &str) -> Option<Endpoint> {
    let uri: http::Uri =
        if text.contains("://") { text.parse() } else { format!("https://{text}").parse() }.ok()?;
    let host = uri.host().filter(|host| !host.is_empty())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(Endpoint::new(host, uri.port_u16().unwrap_or(6443)))
}

async fn check(fleet: &Fleet, limit: Duration, sender: &mpsc::Sender<Result<HealthCheckProgress, Status>>) {
    let tell = |message: String| {
        let line = HealthCheckProgress { metadata: None, message };
        !matches!(sender.try_send(Ok(line)), Err(mpsc::error::TrySendError::Closed(_)))
    };
    let nodes: Vec<&str> = fleet.topology.all().iter().map(|machine| machine.address.as_str()).collect();
    let quoted: Vec<String> = nodes.iter().map(|node| format!("{node:?}")).collect();
    tell(format!("discovered nodes: [{}]", quoted.join(" ")));
    let attempt = |check: Check| fleet.attempt(check);
    let result = ichor_health::run(&Check::ALL, limit, PAUSE_MAX, attempt, |report| tell(report.to_string()));
    if let Err(unhealthy) = result.await {
        let _ = sender.send(Err(Status::deadline_exceeded(unhealthy.to_string()))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::endpoint;

    #[test]
    fn an_endpoint_may_leave_out_scheme_and_port() {
        let text = |text: &str| endpoint(text).map(|endpoint| endpoint.to_string());
        assert_eq!(text("https://10.5.0.2:443").as_deref(), Some("10.5.0.2:443"));
        assert_eq!(text("10.5.0.2").as_deref(), Some("10.5.0.2:6443"));
        assert_eq!(text("https://[fd00::1]").as_deref(), Some("[fd00::1]:6443"));
        assert_eq!(text("::"), None);
    }
}
