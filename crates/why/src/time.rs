//! Why the clock is not known to be right.

use ichor_resource::network::TimeServerStatus;
use ichor_resource::runtime::DevicesStatus;
use ichor_resource::time::TimeStatus;

use crate::finding::{Cause, listed};
use crate::network;
use crate::snapshot::Snapshot;

/// The one that asks time servers.
const CONTROLLER: &str = "time.SyncController";

/// Why time is not in sync, or known to be wrong; `None` when all is well.
pub(crate) fn cause(snapshot: &Snapshot) -> Option<Cause> {
    let status = snapshot.get::<TimeStatus>("node");
    let synced = status.is_some_and(|status| status.synced);
    let controller = snapshot.controller(CONTROLLER);
    let trouble = controller.and_then(|controller| controller.complaint());
    if synced && trouble.is_none() {
        return None;
    }
    let servers =
        snapshot.get::<TimeServerStatus>("timeservers").map(|status| status.time_servers.as_slice());
    let servers = servers.unwrap_or_default();
    let cause = match trouble {
        Some(trouble) => asked(snapshot, servers, trouble),
        None if !snapshot.get::<DevicesStatus>("devices").is_some_and(|devices| devices.ready) => {
            Cause::new("time", "devices", "wait for the device manager, then look again").step(
                "the clock is not asked for before devices are known",
                "DevicesStatuses/devices: ready=false",
            )
        }
        None if servers.is_empty() => {
            Cause::new("time", "no time servers", "name some in `machine.time.servers`")
                .step("there is no time server to ask", "TimeServerStatuses/timeservers: none")
        }
        None => Cause::new("time", "time", "wait a few seconds and look again")
            .step(format!("{} has not answered yet", listed(servers)), "TimeServerStatuses/timeservers"),
    };
    Some(match (synced, status.is_some_and(|status| status.sync_disabled)) {
        (false, _) => cause.behind("time is not in sync", "TimeStatuses/node: synced=false"),
        (true, true) => cause,
        (true, false) => {
            cause.behind("time was in sync and is not kept so", "TimeStatuses/node: synced=true")
        }
    })
}

/// What is wrong with the time, in one line.
pub(crate) fn symptom(snapshot: &Snapshot) -> &'static str {
    let complaint =
        snapshot.controller(CONTROLLER).and_then(|controller| controller.complaint()).unwrap_or_default();
    if complaint.contains("resolve") {
        "the time server's name does not resolve"
    } else if complaint.contains("clock") {
        "the clock is wrong, or the time server is"
    } else {
        "the clock is not known to be right"
    }
}

fn asked(snapshot: &Snapshot, servers: &[String], trouble: &str) -> Cause {
    if trouble.contains("resolve") {
        let cause = network::dns(snapshot).unwrap_or_else(|| {
            Cause::new(
                "dns",
                "time server name",
                "correct the name in `machine.time.servers`, or its resolvers",
            )
        });
        return cause.behind(trouble, CONTROLLER);
    }
    if trouble.contains("clock") {
        let advice = "find out who is right: compare with another server (`ichorctl time --check SERVER`); set the clock \
                      of the host, or name a server you trust in `machine.time.servers`";
        return Cause::new("time", "clock", advice).step(trouble, CONTROLLER);
    }
    let advice = format!(
        "let UDP port 123 through to {}, or name servers that can be reached in `machine.time.servers`; \
         `ichorctl time --check SERVER` tries one",
        listed(servers)
    );
    let mut cause = Cause::new("time", "time servers", advice).step(trouble, CONTROLLER);
    for server in servers {
        if let Some(address) = server.parse().ok()
            && let Some(reason) = network::unreachable(snapshot, address)
        {
            cause = cause.step(reason.text, reason.evidence);
            break;
        }
    }
    cause
}
