//! The smaller services: time, inspection.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tonic::{Request, Response, Status};

use ichor_net::sntp;
use ichor_resource::network::TimeServerStatus;
use ichor_wire::inspect::inspect_service_server::InspectService;
use ichor_wire::time::time_service_server::TimeService;
use ichor_wire::{inspect, time};

use super::machine::Api;
use super::reply::chain;
use crate::lanes::TIME;

/// A time server that does not answer within this is not there.
const QUERY_MAX: Duration = Duration::from_secs(5);

/// Id of the one time server status.
const TIME_SERVERS: &str = "timeservers";

#[tonic::async_trait]
impl TimeService for Api {
    async fn time(&self, _request: Request<()>) -> Result<Response<time::TimeResponse>, Status> {
        let found = self.node.store.state.find::<TimeServerStatus>("network", TIME_SERVERS);
        let server = found.and_then(|status| status.time_servers.first().cloned());
        match server {
            Some(server) => query(&server).await,
            None => Err(Status::unknown("no time servers configured")),
        }
    }

    async fn time_check(
        &self,
        request: Request<time::TimeRequest>,
    ) -> Result<Response<time::TimeResponse>, Status> {
        query(&request.into_inner().server).await
    }
}

async fn query(server: &str) -> Result<Response<time::TimeResponse>, Status> {
    let (localtime, remotetime) = match server.starts_with("/dev/") {
        true => ask_device(server).await?,
        false => ask_server(server).await?,
    };
    let message = time::Time {
        metadata: None,
        server: server.to_owned(),
        localtime: Some(timestamp(localtime)),
        remotetime: Some(timestamp(remotetime)),
    };
    Ok(Response::new(time::TimeResponse { messages: vec![message] }))
}

async fn ask_server(server: &str) -> Result<(SystemTime, SystemTime), Status> {
    let failed = |reason: String| Status::unknown(format!("error querying NTP server {server:?}: {reason}"));
    let name = server.to_owned();
    let query = async {
        // A name server that does not answer holds a thread for longer than the caller waits.
        let addresses = TIME
            .run(move || sntp::resolve_blocking(&name))
            .await
            .map_err(|status| failed(status.message().to_owned()))?;
        let addresses = addresses.map_err(|error| failed(chain(&error)))?;
        sntp::query_any(server, addresses, QUERY_MAX).await.map_err(|error| failed(chain(&error)))
    };
    let sample =
        tokio::time::timeout(QUERY_MAX, query).await.map_err(|_| failed("i/o timeout".to_owned()))??;
    Ok((sample.local, sample.remote))
}

/// A clock that is a device of this machine.
async fn ask_device(path: &str) -> Result<(SystemTime, SystemTime), Status> {
    let device = PathBuf::from(path);
    TIME.run(move || ichor_sys::ptp::read(&device).map(|at| (SystemTime::now(), at)))
        .await?
        .map_err(|error| Status::unknown(format!("error querying PTP device {path:?}: {error}")))
}

fn timestamp(at: SystemTime) -> prost_types::Timestamp {
    prost_types::Timestamp::from(at)
}

#[tonic::async_trait]
impl InspectService for Api {
    async fn controller_runtime_dependencies(
        &self,
        _request: Request<()>,
    ) -> Result<Response<inspect::ControllerRuntimeDependenciesResponse>, Status> {
        let edges = self
            .node
            .store
            .controllers
            .dependencies()
            .into_iter()
            .filter_map(|edge| {
                Some(inspect::ControllerDependencyEdge {
                    controller_name: edge.controller.to_owned(),
                    edge_type: edge.kind.number()?,
                    resource_namespace: edge.namespace,
                    resource_type: edge.type_name.to_owned(),
                    resource_id: edge.id.map(|id| id.to_string()).unwrap_or_default(),
                })
            })
            .collect();
        let message = inspect::ControllerRuntimeDependency { metadata: None, edges };
        Ok(Response::new(inspect::ControllerRuntimeDependenciesResponse { messages: vec![message] }))
    }
}
