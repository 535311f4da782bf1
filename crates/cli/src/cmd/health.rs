//! `health`: is the cluster well, asked from here or from one of its machines.

use std::time::Duration;

use ichor_health::{Report, Verdict};
use ichor_ops::fleet::Members;
use ichor_ops::health;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::fleet::{self, MEMBER_FLAGS};
use crate::parse::Call;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Command, Flag, Group};
use crate::term;

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
    shared_flags: MEMBER_FLAGS,
    run: Some(run),
    ..Command::EMPTY
};

/// The command line, resolved.
struct HealthFlags {
    connection: Connection,
    members: Members,
    endpoint: String,
    on_machine: bool,
    run_e2e: bool,
    limit: Duration,
}

impl HealthFlags {
    fn of(call: &Call) -> Self {
        Self {
            connection: call.connection(),
            members: fleet::members(call),
            endpoint: call.text("k8s-endpoint").to_owned(),
            on_machine: call.on("server"),
            run_e2e: call.on("run-e2e"),
            limit: call.duration("wait-timeout"),
        }
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = HealthFlags::of(call);
    block_on(async {
        if flags.on_machine {
            on_machine(&flags).await?;
        } else {
            from_here(&flags).await?;
        }
        if flags.run_e2e {
            return super::conformance::run_e2e(&flags.connection, &flags.members, &flags.endpoint).await;
        }
        Ok(())
    })
}

async fn from_here(flags: &HealthFlags) -> Result<(), Failure> {
    let route = fleet::route(&flags.connection, &flags.endpoint)?;
    let session = fleet::connect(&flags.connection).await?;
    let cluster = fleet::open(&session, &flags.members, &route).await?;
    let addresses: Vec<&str> =
        cluster.topology.all().iter().map(|machine| machine.address.as_str()).collect();
    eprintln!("discovered nodes: {addresses:?}");
    let result = health::from_here(&cluster, flags.limit, &|report: Report| tell(&report)).await;
    result.map_err(|unhealthy| Failure::new(unhealthy.to_string()).whole())
}

fn tell(report: &Report) {
    match &report.verdict {
        Some(Verdict::Fail(_)) => term::red(&report.to_string()),
        _ => eprintln!("{report}"),
    }
}

async fn on_machine(flags: &HealthFlags) -> Result<(), Failure> {
    let session = Session::open(&flags.connection).await?;
    session.only()?;
    let told = |line: String| eprintln!("{line}");
    let (client, label, endpoint) = (session.all(), &session.label, &flags.endpoint);
    let failed = health::on_machine(&client, label, &flags.members, endpoint, flags.limit, &told).await?;
    let mut errors = StreamErrors::default();
    failed.into_iter().for_each(|error| errors.push(error));
    errors.finish()
}
