//! `health`: is the cluster well, asked from here or from one of its machines.

use std::time::Duration;

use ichor_health::{Check, Report, Verdict};
use ichor_wire::cluster::{ClusterInfo, HealthCheckProgress, HealthCheckRequest};

use crate::failure::Failure;
use crate::fleet;
use crate::parse::Call;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Command, Flag, Group};
use crate::term;

/// The longest pause between two attempts at a check.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The flags that name the machines of a cluster.
static NODE_FLAGS: &[Flag] = &[
    Flag::list("control-plane-nodes", "control plane machines, when they are not to be discovered"),
    Flag::text("init-node", "the first control plane machine of old clusters"),
    Flag::text("k8s-endpoint", "address of the Kubernetes API"),
    Flag::list("worker-nodes", "worker machines, when they are not to be discovered"),
];

/// `health`.
pub static HEALTH: Command = Command {
    name: "health",
    group: Group::Machines,
    about: "Check the health of the cluster",
    long: "Checks etcd, the machines and Kubernetes, one after the other, until all is well or the time is over.\n\
           A check that fails says why and which machines it is about. One machine does the checks; with\n\
           --server=false they are done from here.",
    examples: &["health", "health --server=false", "health --wait-timeout 30s"],
    flags: &[
        Flag::switch("run-e2e", "run the tests of Kubernetes afterwards"),
        Flag::switch("server", "let a machine do the checks").default("true"),
        Flag::duration("wait-timeout", "20m0s", "give up after this time"),
    ],
    shared_flags: NODE_FLAGS,
    run: Some(health),
    ..Command::EMPTY
};

fn health(call: &Call) -> Result<(), Failure> {
    block_on(async {
        if call.on("server") {
            on_server(call).await?;
        } else {
            on_client(call).await?;
        }
        if call.on("run-e2e") {
            return super::conformance::run_e2e(call).await;
        }
        Ok(())
    })
}

async fn on_client(call: &Call) -> Result<(), Failure> {
    let (session, hosts) = fleet::connect(call).await?;
    let cluster = fleet::open(call, &session, &hosts, call.text("k8s-endpoint")).await?;
    let addresses: Vec<&str> =
        cluster.topology.all().iter().map(|machine| machine.address.as_str()).collect();
    eprintln!("discovered nodes: {addresses:?}");
    let attempt = |check: Check| cluster.attempt(check);
    let limit = call.duration("wait-timeout");
    let result = ichor_health::run(&Check::ALL, limit, PAUSE_MAX, attempt, |report| {
        tell(report);
        true
    });
    result.await.map_err(|unhealthy| Failure::new(unhealthy.to_string()).whole())
}

fn tell(report: &Report) {
    match &report.verdict {
        Some(Verdict::Fail(_)) => term::red(&report.to_string()),
        _ => eprintln!("{report}"),
    }
}

async fn on_server(call: &Call) -> Result<(), Failure> {
    let mut control_plane_nodes = call.list("control-plane-nodes");
    control_plane_nodes.extend(call.some_text("init-node").map(str::to_owned));
    let timeout = call.duration("wait-timeout");
    let request = HealthCheckRequest {
        wait_timeout: Some(prost_types::Duration {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(timeout.subsec_nanos()).unwrap_or_default(),
        }),
        cluster_info: Some(ClusterInfo {
            control_plane_nodes,
            worker_nodes: call.list("worker-nodes"),
            force_endpoint: call.text("k8s-endpoint").to_owned(),
        }),
    };
    let session = Session::open(call).await?;
    session.only(call)?;
    let stream = session.all().cluster().health_check(request).await;
    let mut errors = StreamErrors::default();
    let take = |_: String, progress: HealthCheckProgress| {
        eprintln!("{}", progress.message);
        Ok(())
    };
    session.read("healthcheck error", stream, take, &mut errors).await?;
    errors.finish()
}
