//! `conformance`: the tests of Kubernetes itself.

use crate::failure::Failure;
use crate::parse::Call;
use crate::table::{Command, Complete, Flag, Group};

/// `conformance`.
pub static CONFORMANCE: Command = Command {
    name: "conformance",
    group: Group::Machines,
    about: "Run conformance tests",
    subcommands: &[&Command {
        name: "kubernetes",
        aliases: &["k8s"],
        about: "Run the conformance tests of Kubernetes",
        flags: &[Flag::text("mode", "fast or certified")
            .default("fast")
            .complete(Complete::Words(&["fast", "certified"]))],
        run: Some(conformance),
        ..Command::EMPTY
    }],
    ..Command::EMPTY
};

fn conformance(call: &Call) -> Result<(), Failure> {
    let mode = call.text("mode");
    if !["fast", "certified"].contains(&mode) {
        return Err(
            Failure::new(format!("unsupported conformance mode {mode}")).hint("use fast or certified")
        );
    }
    super::kubernetes::needs_kubernetes(call, "running the conformance tests")
}

/// The tests that `health --run-e2e` runs.
pub async fn run_e2e(_call: &Call) -> Result<(), Failure> {
    Err(Failure::new("running the tests of Kubernetes is not there yet").whole())
}
