//! Whether etcd can do without this member for the length of an upgrade.

use std::time::Duration;

use tonic::Status;

use ichor_ctl_etcd::client;
use ichor_resource::config::MachineType;
use ichor_types::MachineType as Role;
use ichor_wire::etcd::Member;

use crate::etcd::control_planes;
use crate::node::Node;

/// Only one machine of a cluster looks at a time, as with the original.
const MUTEX: &str = "talos:v1:etcdUpgradeMutex";
const MUTEX_TTL: Duration = Duration::from_secs(60);
/// How long a member may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Refuses the upgrade of a control plane whose etcd would lose its quorum.
pub(super) async fn check(node: &Node) -> Result<(), Status> {
    let state = &node.store.state;
    let role = state.find::<MachineType>("config", MachineType::ID).map(|found| found.machine_type);
    match role.unwrap_or_default() {
        Role::Worker | Role::Unknown => return Ok(()),
        Role::Init | Role::ControlPlane => {}
    }
    let refused = |reason: String| {
        Status::failed_precondition(format!(
            "error validating etcd for upgrade: {reason}; use --force to upgrade anyway"
        ))
    };
    let client = client::cluster(control_planes(state)).map_err(|error| refused(error.to_string()))?;
    let told = |status: Status| refused(status.message().to_owned());
    let guard = client.try_lock(MUTEX, MUTEX_TTL).await.map_err(told)?;
    let guard =
        guard.ok_or_else(|| refused("another machine of this cluster is being upgraded".to_owned()))?;
    let members = client.members(true).await.map_err(told);
    let verdict = match members {
        Ok(members) => match judge(&members) {
            Ok(()) => all_answer(&client).await,
            Err(reason) => Err(reason),
        },
        Err(status) => Err(status.message().to_owned()),
    };
    guard.unlock().await;
    verdict.map_err(refused)
}

/// What the list of members says.
fn judge(members: &[Member]) -> Result<(), String> {
    if members.len() == 2 {
        return Err("etcd has two members and loses its quorum while one of them restarts".to_owned());
    }
    match members.iter().find(|member| member.name.is_empty()) {
        Some(member) => Err(format!("etcd member {:x} has not started yet", member.id)),
        None => Ok(()),
    }
}

async fn all_answer(client: &ichor_etcd::Client) -> Result<(), String> {
    for (endpoint, member) in client.each() {
        match tokio::time::timeout(ANSWER_MAX, member.get("health")).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) if status.code() == tonic::Code::PermissionDenied => {}
            Ok(Err(status)) => {
                return Err(format!("etcd member {endpoint} is not healthy: {}", status.message()));
            }
            Err(_) => {
                return Err(format!(
                    "etcd member {endpoint} does not answer within {} s",
                    ANSWER_MAX.as_secs()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_members_and_members_that_have_not_started_are_refused() {
        let member = |id, name: &str| Member { id, name: name.to_owned(), ..Member::default() };
        let all = [member(1, "a"), member(2, "b"), member(3, "c")];
        assert_eq!(judge(&all[..1]), Ok(()));
        assert_eq!(judge(&all), Ok(()));
        assert!(judge(&all[..2]).unwrap_err().contains("two members"));
        let joining = [member(1, "a"), member(2, "b"), member(0xab, "")];
        assert_eq!(judge(&joining).unwrap_err(), "etcd member ab has not started yet");
    }
}
