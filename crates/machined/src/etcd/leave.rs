//! Leaving the cluster, and leaving its lead to another.

use std::io;
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_etcd::client;
use ichor_ctl_etcd::member::{LOCAL, format_id};
use ichor_etcd::Client;
use ichor_resource::etcd::EtcdMember;
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::{debug, info};

use super::{ETCD, Intent, Member, control_planes};

/// How long the member may take to say who it is.
const KNOWN_MAX: Duration = Duration::from_secs(3 * 60);
/// How long a cluster that cannot spare a member may take to get better.
const REMOVE_MAX: Duration = Duration::from_secs(5 * 60);
/// How long handing over the lead may take.
const FORFEIT_MAX: Duration = Duration::from_secs(10);
/// Between attempts, at first and later.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// What becomes of a cluster whose only member leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// It stays: its data would be lost.
    Keep,
    /// It ends; the machine is being cleared anyway.
    End,
}

/// The member of this machine, by its resource.
pub async fn local_member(state: &State, limit: Duration) -> Result<u64, Status> {
    let waited = tokio::time::timeout(limit, state.wait_for::<EtcdMember>("etcd", LOCAL, |_| true)).await;
    let member = match waited {
        Ok(Ok(member)) => member,
        Ok(Err(error)) => return Err(Status::unknown(error.to_string())),
        Err(_) => {
            return Err(Status::failed_precondition("etcd does not run on this machine, or is not healthy"));
        }
    };
    u64::from_str_radix(&member.member_id, 16).map_err(|error| Status::internal(error.to_string()))
}

/// A client of the whole cluster.
pub fn cluster(state: &State) -> Result<Client, Status> {
    let found = client::cluster(control_planes(state));
    found.map_err(|error| Status::unknown(format!("failed to create etcd client: {error}")))
}

/// Takes the member of this machine out of the cluster, stops it and forgets its data.
pub async fn leave(member: &Member, last: Last) -> Result<(), Status> {
    let id = local_member(&member.state, KNOWN_MAX).await?;
    let began = Instant::now();
    let mut pause = AGAIN.0;
    loop {
        match remove(&member.state, id, last).await {
            Ok(()) => break,
            Err(error) if may_pass(&error) && began.elapsed() < REMOVE_MAX => {
                info!(reason = error.message(), "the cluster cannot spare this member yet");
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN.1);
    }
    info!(member = format_id(id), "left the etcd cluster");
    member.wanted.set(Intent::Join);
    member.services.stop(ETCD).await.map_err(|error| Status::unknown(error.to_string()))?;
    let dir = member.data.dir.clone();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
    match removed.map_err(|error| Status::internal(error.to_string()))? {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Status::unknown(format!("failed to remove the data of etcd: {error}")))
        }
        _ => Ok(()),
    }
}

/// Whether trying again may help.
fn may_pass(error: &Status) -> bool {
    ichor_etcd::is_unhealthy(error) || matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded)
}

async fn remove(state: &State, id: u64, last: Last) -> Result<(), Status> {
    let client = cluster(state)?;
    let members = client.members(true).await?;
    let voters = members.iter().filter(|member| !member.is_learner);
    match (voters.map(|member| member.id).collect::<Vec<_>>() == [id], last) {
        (false, _) => {}
        (true, Last::End) => return Ok(()),
        (true, Last::Keep) => {
            return Err(Status::failed_precondition(
                "this is the only voting member: leaving would destroy the data of the cluster; use `reset`",
            ));
        }
    }
    // A leader that is removed leaves the others without one until they notice; one that hands over does not.
    match tokio::time::timeout(FORFEIT_MAX, forfeit(state)).await {
        Ok(Ok(next)) if !next.is_empty() => info!(next, "another member leads the etcd cluster now"),
        Ok(Err(error)) => debug!(reason = error.message(), "the lead stays"),
        _ => {}
    }
    match client.remove(id).await {
        Err(error) if ichor_etcd::is_member_not_found(&error) => Ok(()),
        other => other,
    }
}

/// Hands the lead to another member; says which, or nothing when this one does not lead.
pub async fn forfeit(state: &State) -> Result<String, Status> {
    let members = cluster(state)?.members(true).await?;
    if members.len() == 1 {
        return Err(Status::unknown(
            "failed to forfeit leadership: cannot forfeit leadership, only one member",
        ));
    }
    let local = client::local().map_err(|error| Status::unknown(error.to_string()))?;
    let status = local.status().await?;
    let id = status.header.map(|header| header.member_id).unwrap_or_default();
    if status.leader != id {
        return Ok(String::new());
    }
    let able =
        |member: &&ichor_etcd::Member| member.id != id && !member.is_learner && !member.name.is_empty();
    let Some(next) = members.iter().find(able) else {
        return Err(Status::failed_precondition("no other member can lead"));
    };
    match local.move_leader(next.id).await {
        Ok(()) => Ok(next.name.clone()),
        Err(error) if error.message().contains("not leader") => Ok(String::new()),
        Err(error) => Err(error),
    }
}
