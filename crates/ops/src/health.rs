//! Checks the health of a cluster, from here or from one of its machines.

use std::time::Duration;

use ichor_client::{Client, NodeError, status_text};
use ichor_health::{Check, Report, Unhealthy};
use ichor_wire::cluster::{ClusterInfo, HealthCheckRequest};

use crate::error::{Error, Result};
use crate::event::Sink;
use crate::fleet::{Fleet, Members};

/// The longest pause between two attempts at a check.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Runs all checks from here, in all no longer than `limit`.
pub async fn from_here(
    fleet: &Fleet,
    limit: Duration,
    events: &dyn Sink<Report>,
) -> std::result::Result<(), Unhealthy> {
    let attempt = |check: Check| fleet.attempt(check);
    ichor_health::run(&Check::ALL, limit, PAUSE_MAX, attempt, |report| {
        events.emit(report.clone());
        true
    })
    .await
}

/// Lets a machine run all checks; every line of its progress is an event. The machine's own errors are returned, the
/// error of the call is a failure.
pub async fn on_machine(
    client: &Client,
    label: &str,
    members: &Members,
    endpoint: &str,
    limit: Duration,
    events: &dyn Sink<String>,
) -> Result<Vec<NodeError>> {
    let request = HealthCheckRequest {
        wait_timeout: Some(prost_types::Duration {
            seconds: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(limit.subsec_nanos()).unwrap_or_default(),
        }),
        cluster_info: Some(ClusterInfo {
            control_plane_nodes: members.control_planes.clone(),
            worker_nodes: members.workers.clone(),
            force_endpoint: endpoint.to_owned(),
        }),
    };
    let stream = client.cluster().health_check(request).await;
    let mut stream = stream.map_err(|status| Error::call("healthcheck error", status))?.into_inner();
    let mut errors = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(message)) => match ichor_client::sort(message, label) {
                Ok((_, progress)) => events.emit(progress.message),
                Err(error) => errors.push(error),
            },
            Ok(None) => return Ok(errors),
            Err(status) => {
                let (text, code) = (status_text(&status), Some(status.code()));
                errors.push(NodeError { node: label.to_owned(), text, code });
                return Ok(errors);
            }
        }
    }
}
