//! The etcd member of this machine and its cluster; bootstrap.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tonic::{Code, Response, Status};
use tracing::info;

use ichor_ctl_etcd::client;
use ichor_etcd::{Alarm, AlarmKind, Client, Downgrade, Snapshot};
use ichor_resource::config::MachineType;
use ichor_resource::time::TimeStatus;
use ichor_sys::file::Draft;
use ichor_types::MachineType as Role;
use ichor_wire::ichor::node::{EtcdRebuild, EtcdRebuildRequest, EtcdRebuildResponse};
use ichor_wire::machine::etcd_member_alarm::AlarmType;
use ichor_wire::{common, machine};

use super::reply::{Replies, data, io_status, streaming};
use crate::etcd::leave::{self, Last};
use crate::etcd::{ETCD, Intent, Member};
use crate::services::ServiceError;

/// How long Bootstrap waits for what it needs.
const RUNTIME_MAX: Duration = Duration::from_secs(1);
const TIME_MAX: Duration = Duration::from_secs(5);
/// How long the member may take to be known.
const MEMBER_MAX: Duration = Duration::from_secs(15);
/// How long a quorum may take to show.
const QUORUM_MAX: Duration = Duration::from_secs(3);
/// How long a rebuilt cluster may take to answer.
const REBUILD_MAX: Duration = Duration::from_secs(60);
/// A larger snapshot is none: etcd warns beyond 8 GiB.
const SNAPSHOT_MAX: u64 = 16 << 30;

fn role(etcd: &Member) -> Role {
    let found = etcd.state.find::<MachineType>("config", MachineType::ID);
    found.map(|found| found.machine_type).unwrap_or_default()
}

fn control_plane(etcd: &Member, what: &str) -> Result<(), Status> {
    match role(etcd) {
        Role::Init | Role::ControlPlane => Ok(()),
        Role::Worker | Role::Unknown => {
            Err(Status::unimplemented(format!("{what} is only available on control plane nodes")))
        }
    }
}

fn local() -> Result<Client, Status> {
    client::local().map_err(|error| Status::unknown(format!("failed to create etcd client: {error}")))
}

/// An answer of etcd in the words and with the code clients know.
fn failed(what: &'static str) -> impl FnOnce(Status) -> Status {
    move |error| Status::unknown(format!("{what}: {}", error.message()))
}

/// Starts a new cluster on this machine, of a snapshot that was uploaded if so asked.
pub async fn bootstrap(
    etcd: &Member,
    request: machine::BootstrapRequest,
) -> Result<Response<machine::BootstrapResponse>, Status> {
    info!("bootstrap request received");
    if role(etcd) == Role::Worker {
        return Err(Status::failed_precondition("bootstrap can only be performed on a control plane node"));
    }
    let data = &etcd.data;
    if !data.is_empty() || etcd.wanted.get() == Intent::Bootstrap {
        return Err(Status::already_exists("etcd data directory is not empty"));
    }
    let early = |_: ServiceError| Status::failed_precondition("bootstrap is not available yet");
    etcd.services.wait_up(&["cri"], RUNTIME_MAX).await.map_err(early)?;
    let synced = etcd.state.wait_for::<TimeStatus>("runtime", "node", |status| status.synced);
    if !matches!(tokio::time::timeout(TIME_MAX, synced).await, Ok(Ok(_))) {
        return Err(Status::failed_precondition("time is not in sync yet"));
    }
    if request.recover_etcd && !data.upload.exists() {
        return Err(Status::failed_precondition("upload a snapshot first"));
    }
    no_other_cluster(etcd, request.recover_etcd).await?;
    etcd.wanted.set(match request.recover_etcd {
        true => Intent::Recover { skip_hash_check: request.recover_skip_hash_check },
        false => Intent::Bootstrap,
    });
    restart(etcd).await?;
    let message = machine::Bootstrap { metadata: None };
    Ok(Response::new(machine::BootstrapResponse { messages: vec![message] }))
}

/// Carries on when the caller goes away: half of a change is worse than none.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    tokio::spawn(work).await.map_err(|error| Status::internal(error.to_string()))?
}

async fn restart(etcd: &Member) -> Result<(), Status> {
    let services = etcd.services.clone();
    whole(async move {
        match services.restart(ETCD).await {
            // It starts with the rest of the machine, and finds what is wanted.
            Ok(()) | Err(ServiceError::NotDefined { .. }) => Ok(()),
            Err(error) => Err(Status::unknown(error.to_string())),
        }
    })
    .await
}

/// A second cluster beside a first one would split the control plane. Members without a leader may only be given up for a
/// snapshot.
async fn no_other_cluster(etcd: &Member, recovering: bool) -> Result<(), Status> {
    match crate::etcd::other_cluster(&etcd.state, recovering).await {
        Some(endpoint) => Err(Status::already_exists(format!(
            "etcd runs already at {endpoint}; this machine joins by itself"
        ))),
        None => Ok(()),
    }
}

/// Lists the members, as the local one or as the cluster knows them.
pub async fn member_list(
    etcd: &Member,
    request: machine::EtcdMemberListRequest,
) -> Result<Response<machine::EtcdMemberListResponse>, Status> {
    control_plane(etcd, "member list")?;
    let client = match request.query_local {
        true => local()?.require_leader(),
        false => leave::cluster(&etcd.state)?,
    };
    let members = client.members(true).await?;
    let message = machine::EtcdMembers {
        metadata: None,
        legacy_members: members.iter().map(|member| member.name.clone()).collect(),
        members: members
            .into_iter()
            .map(|member| machine::EtcdMember {
                id: member.id,
                hostname: member.name,
                peer_urls: member.peer_urls,
                client_urls: member.client_urls,
                is_learner: member.is_learner,
            })
            .collect(),
    };
    Ok(Response::new(machine::EtcdMemberListResponse { messages: vec![message] }))
}

/// Takes a member out of the cluster.
pub async fn remove_member(
    etcd: &Member,
    request: machine::EtcdRemoveMemberByIdRequest,
) -> Result<Response<machine::EtcdRemoveMemberByIdResponse>, Status> {
    control_plane(etcd, "etcd remove member")?;
    match leave::cluster(&etcd.state)?.remove(request.member_id).await {
        Ok(()) => {}
        Err(error) if ichor_etcd::is_member_not_found(&error) => {
            return Err(Status::not_found(error.message()));
        }
        Err(error) => return Err(failed("failed to remove member")(error)),
    }
    let message = machine::EtcdRemoveMemberById { metadata: None };
    Ok(Response::new(machine::EtcdRemoveMemberByIdResponse { messages: vec![message] }))
}

/// Takes this machine's member out of the cluster.
pub async fn leave_cluster(etcd: &Member) -> Result<Response<machine::EtcdLeaveClusterResponse>, Status> {
    control_plane(etcd, "etcd leave")?;
    let own = etcd.clone();
    whole(async move { leave::leave(&own, Last::Keep).await }).await.map_err(|error| match error.code() {
        Code::FailedPrecondition => error,
        _ => failed("failed to leave cluster")(error),
    })?;
    let message = machine::EtcdLeaveCluster { metadata: None };
    Ok(Response::new(machine::EtcdLeaveClusterResponse { messages: vec![message] }))
}

/// Hands the lead to another member.
pub async fn forfeit_leadership(
    etcd: &Member,
) -> Result<Response<machine::EtcdForfeitLeadershipResponse>, Status> {
    control_plane(etcd, "etcd forfeit leadership")?;
    leave::local_member(&etcd.state, MEMBER_MAX).await?;
    let member = leave::forfeit(&etcd.state).await?;
    let message = machine::EtcdForfeitLeadership { metadata: None, member };
    Ok(Response::new(machine::EtcdForfeitLeadershipResponse { messages: vec![message] }))
}

/// Streams a copy of the local member's database; no quorum is needed.
pub async fn snapshot(etcd: &Member) -> Result<Response<Replies<common::Data>>, Status> {
    control_plane(etcd, "etcd snapshot")?;
    let snapshot = local()?.snapshot().await.map_err(failed("failed reading etcd snapshot"))?;
    Ok(streaming(futures_util::stream::try_unfold(snapshot, |mut snapshot: Snapshot| async move {
        Ok(snapshot.next().await?.map(|part: Bytes| (data(part), snapshot)))
    })))
}

/// Takes a snapshot for a later bootstrap; a broken upload leaves nothing behind.
pub async fn recover(
    etcd: &Member,
    mut upload: tonic::Streaming<common::Data>,
) -> Result<Response<machine::EtcdRecoverResponse>, Status> {
    let path = etcd.data.upload.clone();
    if !path.parent().is_some_and(std::path::Path::exists) {
        return Err(Status::failed_precondition("etcd service is not ready for recovery yet"));
    }
    control_plane(etcd, "etcd recover")?;
    let refused = |error: io::Error| io_status("write", &path, &error);
    let draft = Draft::create(&path, 0o600).map_err(refused)?;
    let mut file = tokio::fs::File::from_std(draft.file().try_clone().map_err(refused)?);
    let mut total = 0u64;
    while let Some(message) = upload.message().await? {
        total += message.bytes.len() as u64;
        if total > SNAPSHOT_MAX {
            return Err(Status::resource_exhausted("the snapshot is too large"));
        }
        file.write_all(&message.bytes).await.map_err(refused)?;
    }
    if total == 0 {
        return Err(Status::invalid_argument("the snapshot is empty"));
    }
    file.flush().await.map_err(refused)?;
    let placed = tokio::task::spawn_blocking(move || draft.commit()).await;
    placed.map_err(io::Error::other).and_then(|placed| placed).map_err(refused)?;
    let message = machine::EtcdRecover { metadata: None };
    Ok(Response::new(machine::EtcdRecoverResponse { messages: vec![message] }))
}

/// Makes a cluster of the local member alone, with its data, where the others are gone for good.
pub async fn rebuild(
    etcd: &Member,
    request: EtcdRebuildRequest,
) -> Result<Response<EtcdRebuildResponse>, Status> {
    control_plane(etcd, "etcd recover")?;
    if !etcd.data.has_log() {
        return Err(Status::failed_precondition(
            "this machine has no data of etcd to rebuild a cluster from",
        ));
    }
    let client = local()?;
    let before = tokio::time::timeout(QUORUM_MAX, client.members(false)).await;
    let before = before.ok().and_then(Result::ok).unwrap_or_default();
    let quorum = matches!(tokio::time::timeout(QUORUM_MAX, client.get("health")).await, Ok(Ok(_)));
    if quorum && !request.force {
        return Err(Status::failed_precondition(
            "etcd has a quorum, so there is nothing to rebuild; `etcd remove-member` removes members that are gone",
        ));
    }
    etcd.wanted.set(Intent::Alone);
    restart(etcd).await?;
    let client = tokio::time::timeout(REBUILD_MAX, answering()).await;
    let client = client.map_err(|_| Status::deadline_exceeded("the rebuilt etcd does not answer"))?;
    let after = client.members(true).await?;
    let gone = before.iter().filter(|member| after.iter().all(|left| left.id != member.id));
    let message = EtcdRebuild {
        metadata: None,
        forgotten: gone.map(|member| member.name.clone()).collect(),
        revision: client.status().await?.header.map(|header| header.revision).unwrap_or_default(),
    };
    Ok(Response::new(EtcdRebuildResponse { messages: vec![message] }))
}

/// A client of the local member, once that reads what its cluster agrees on.
async fn answering() -> Client {
    loop {
        if let Ok(client) = local()
            && client.get("health").await.is_ok()
        {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn alarms(found: Vec<Alarm>) -> Vec<machine::EtcdMemberAlarm> {
    let alarm = |alarm: Alarm| machine::EtcdMemberAlarm {
        member_id: alarm.member,
        alarm: match alarm.kind {
            AlarmKind::None => AlarmType::None,
            AlarmKind::NoSpace => AlarmType::Nospace,
            AlarmKind::Corrupt => AlarmType::Corrupt,
        }
        .into(),
    };
    found.into_iter().map(alarm).collect()
}

/// What is wrong with members.
pub async fn alarm_list(etcd: &Member) -> Result<Response<machine::EtcdAlarmListResponse>, Status> {
    control_plane(etcd, "etcd alarm list")?;
    let (_, found) = local()?.alarms().await.map_err(failed("failed to list etcd alarms"))?;
    let message = machine::EtcdAlarm { metadata: None, member_alarms: alarms(found) };
    Ok(Response::new(machine::EtcdAlarmListResponse { messages: vec![message] }))
}

/// Ends all alarms.
pub async fn alarm_disarm(etcd: &Member) -> Result<Response<machine::EtcdAlarmDisarmResponse>, Status> {
    control_plane(etcd, "etcd alarm list")?;
    let found = local()?.disarm().await.map_err(failed("failed to disarm etcd alarm"))?;
    let message = machine::EtcdAlarmDisarm { metadata: None, member_alarms: alarms(found) };
    Ok(Response::new(machine::EtcdAlarmDisarmResponse { messages: vec![message] }))
}

/// Gives space inside of the database back.
pub async fn defragment(etcd: &Member) -> Result<Response<machine::EtcdDefragmentResponse>, Status> {
    control_plane(etcd, "etcd defragment")?;
    local()?.defragment().await.map_err(failed("failed to defragment etcd"))?;
    let message = machine::EtcdDefragment { metadata: None };
    Ok(Response::new(machine::EtcdDefragmentResponse { messages: vec![message] }))
}

/// How the local member is.
pub async fn status(etcd: &Member) -> Result<Response<machine::EtcdStatusResponse>, Status> {
    control_plane(etcd, "etcd status")?;
    let status = local()?.status().await.map_err(failed("failed to query etcd status"))?;
    let member_status = machine::EtcdMemberStatus {
        member_id: status.header.map(|header| header.member_id).unwrap_or_default(),
        storage_version: match status.storage_version.is_empty() {
            true => storage_version(&status.version),
            false => status.storage_version,
        },
        protocol_version: status.version,
        db_size: status.db_size,
        db_size_in_use: status.db_size_in_use,
        leader: status.leader,
        raft_index: status.raft_index,
        raft_term: status.raft_term,
        raft_applied_index: status.raft_applied_index,
        errors: status.errors,
        is_learner: status.is_learner,
    };
    let message = machine::EtcdStatus { metadata: None, member_status: Some(member_status) };
    Ok(Response::new(machine::EtcdStatusResponse { messages: vec![message] }))
}

/// Old members do not tell; it goes with their own version.
fn storage_version(version: &str) -> String {
    let mut numbers = version.split('.');
    let mut number = || numbers.next()?.parse::<u32>().ok();
    match (number(), number()) {
        (Some(major), Some(minor)) => format!("{major}.{minor}.0"),
        _ => "unknown".to_owned(),
    }
}

/// Checks, allows or calls off a downgrade; returns the cluster's version.
pub async fn downgrade(
    etcd: &Member,
    what: Downgrade,
    version: &str,
) -> Result<machine::EtcdClusterDowngrade, Status> {
    control_plane(etcd, "etcd downgrade cancel")?;
    if what != Downgrade::Cancel {
        downgrade_version(version)?;
    }
    let cluster_version =
        local()?.downgrade(what, version).await.map_err(failed("failed to query etcd status"))?;
    Ok(machine::EtcdClusterDowngrade { cluster_version })
}

fn downgrade_version(version: &str) -> Result<(), Status> {
    let wrong = |text: &str| Err(Status::invalid_argument(text));
    if version.is_empty() {
        return wrong("version is required for etcd downgrade");
    }
    let parts: Vec<&str> = version.split('.').collect();
    let [major, minor] = parts[..] else { return wrong("version should be in MAJOR.MINOR format") };
    let Ok(major) = major.parse::<u32>() else { return wrong("major version should be a number") };
    let Ok(minor) = minor.parse::<u32>() else { return wrong("minor version should be a number") };
    match (major, minor) < (3, 5) {
        true => wrong("etcd downgrade is only supported to 3.5 and later versions"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downgrades_name_a_version_that_can_be_had() {
        for (version, wrong) in [
            ("", "version is required"),
            ("3", "MAJOR.MINOR"),
            ("3.5.1", "MAJOR.MINOR"),
            ("x.5", "major version"),
            ("3.x", "minor version"),
            ("3.4", "3.5 and later"),
        ] {
            let error = downgrade_version(version).unwrap_err();
            assert!(error.message().contains(wrong), "{version}: {error}");
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        assert!(downgrade_version("3.5").is_ok() && downgrade_version("4.0").is_ok());
    }

    #[test]
    fn the_storage_version_falls_back_to_the_servers() {
        assert_eq!(storage_version("3.5.21"), "3.5.0");
        assert_eq!(storage_version("weird"), "unknown");
    }
}
