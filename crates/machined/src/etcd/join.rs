//! Joining a cluster: as a learner first, which the others then let vote.
//!
//! Names of machines can be the same by mistake, so a name alone never costs a member its place: only a member at the very
//! address of this machine, which has no data, is taken for its former self.

use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_etcd::client;
use ichor_ctl_etcd::member::{format_id, peer_urls};
use ichor_etcd::Member;
use ichor_resource::etcd::EtcdSpec;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, info, warn};

use super::{ETCD, other_control_planes};

/// A machine that finds no cluster for this long fails, and is started anew.
const JOIN_MAX: Duration = Duration::from_secs(30 * 60);
/// One attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(30);
/// In the first minutes a cluster is being made, and every moment counts.
const EAGER: Duration = Duration::from_millis(250);
const EAGER_FOR: Duration = Duration::from_secs(180);
/// Later it waits for people.
const CALM: Duration = Duration::from_secs(3);
/// How often people are told.
const HINT: Duration = Duration::from_secs(30);
/// A learner that was not let in after this stays one until its next start.
const PROMOTE_MAX: Duration = Duration::from_secs(10 * 60);

/// What is to be done about the members that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Adds this machine.
    Add,
    /// It was added before and never started.
    Take(u64),
    /// Its former self, whose data are gone, goes first.
    Remove(u64),
    /// Another one is joining; there is one learner at a time.
    Wait,
    /// A member of the same name is somewhere else.
    Refuse(String),
}

/// Decides what a machine without data does, called `name` and reached at `urls`.
pub fn step(members: &[Member], name: &str, urls: &[String]) -> Step {
    let here = |member: &&Member| member.peer_urls.iter().any(|url| urls.contains(url));
    if let Some(member) = members.iter().find(here) {
        // Without a name it never started, so there are no data it could have lost.
        let fresh = member.name.is_empty() && member.is_learner && member.peer_urls == urls;
        return if fresh { Step::Take(member.id) } else { Step::Remove(member.id) };
    }
    match members.iter().find(|member| member.name == name) {
        Some(other) => Step::Refuse(format!(
            "etcd has a member {name:?} at {}, which is not this machine: give this one another host name, or \
             remove that one with `etcd remove-member {}` if its machine is gone",
            other.peer_urls.join(","),
            format_id(other.id)
        )),
        // Asking all the same would fill the log of the cluster with refusals.
        None if members.iter().any(|member| member.is_learner) => Step::Wait,
        None => Step::Add,
    }
}

/// `initial-cluster` for the member `id`, which is called `name`.
pub fn initial_cluster(members: &[Member], id: u64, name: &str) -> String {
    let named = |member: &Member| match (member.id == id, member.name.as_str()) {
        (true, _) => name.to_owned(),
        // One that did not start yet; any name will do.
        (false, "") => format_id(member.id),
        (false, name) => name.to_owned(),
    };
    let urls = members.iter().flat_map(|member| {
        let name = named(member);
        member.peer_urls.iter().map(move |url| format!("{name}={url}"))
    });
    urls.collect::<Vec<_>>().join(",")
}

/// A place in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The own id.
    pub id: u64,
    /// All members, as `initial-cluster`.
    pub cluster: String,
}

/// Joins the cluster of the other control planes; `tell` hears why it has not yet.
pub async fn join(state: &State, tell: impl Fn(String)) -> Result<Joined, String> {
    let began = Instant::now();
    let mut hinted = Instant::now();
    let mut last = String::new();
    loop {
        let spec = state.get::<EtcdSpec>("etcd", ETCD).map_err(|error| error.to_string())?;
        let found = match tokio::time::timeout(ATTEMPT_MAX, attempt(state, &spec)).await {
            Ok(found) => found,
            Err(_) => Err("the members did not answer in time".to_owned()),
        };
        match found {
            Ok(joined) => return Ok(joined),
            Err(error) => {
                if error != last {
                    info!("etcd has not joined yet: {error}");
                    tell(format!("Waiting to join a cluster: {error}"));
                }
                last = error;
            }
        }
        if hinted.elapsed() >= HINT {
            hinted = Instant::now();
            warn!(
                "etcd waits for a cluster to join ({last}); if this is the first control plane of a new cluster, \
                 run `bootstrap` on it"
            );
        }
        if began.elapsed() >= JOIN_MAX {
            return Err(format!("no cluster to join: {last}"));
        }
        tokio::time::sleep(if began.elapsed() < EAGER_FOR { EAGER } else { CALM }).await;
    }
}

async fn attempt(state: &State, spec: &EtcdSpec) -> Result<Joined, String> {
    let others = other_control_planes(state);
    if others.is_empty() {
        return Err("no other control planes are known".to_owned());
    }
    let client = client::cluster(others).map_err(|error| error.to_string())?;
    let text = |error: Status| match error.message().contains("while dialing") {
        true => "no other control plane runs etcd".to_owned(),
        false => error.message().to_owned(),
    };
    let members = client.members(true).await.map_err(text)?;
    let urls = peer_urls(&spec.advertised_addresses);
    let (id, members) = match step(&members, &spec.name, &urls) {
        Step::Add => client.add_learner(urls).await.map_err(text)?,
        Step::Take(id) => (id, members),
        Step::Remove(id) => {
            info!(member = format_id(id), "removing the former member of this machine, whose data are gone");
            client.remove(id).await.map_err(text)?;
            client.add_learner(urls).await.map_err(text)?
        }
        Step::Wait => return Err("another member is joining".to_owned()),
        Step::Refuse(reason) => return Err(reason),
    };
    info!(member = format_id(id), "joined etcd as a learner");
    Ok(Joined { id, cluster: initial_cluster(&members, id, &spec.name) })
}

/// Has the others let the local member vote, if it does not yet. Who has just joined knows its id; others have to ask
/// the member itself, which may take it long to answer.
pub async fn promote(state: State, joined: Option<u64>) {
    let began = Instant::now();
    while began.elapsed() < PROMOTE_MAX {
        tokio::time::sleep(if began.elapsed() < EAGER_FOR { EAGER } else { CALM }).await;
        let id = match joined {
            Some(id) => id,
            None => match learner().await {
                Some(Some(id)) => id,
                Some(None) => return,
                None => continue,
            },
        };
        match promote_once(&state, id).await {
            None => return,
            Some(reason) => debug!(%reason, "still a learner"),
        }
    }
    warn!("this etcd member is still a learner");
}

/// The id of the local member if it is a learner; nothing at all while it does not answer.
async fn learner() -> Option<Option<u64>> {
    let status = client::local().ok()?.status().await.ok()?;
    let id = status.header.map(|header| header.member_id).unwrap_or_default();
    Some(status.is_learner.then_some(id))
}

/// Asks the others one after the other; says why none did it.
async fn promote_once(state: &State, id: u64) -> Option<String> {
    let client = match client::cluster(other_control_planes(state)) {
        Ok(client) => client,
        Err(error) => return Some(error.to_string()),
    };
    let mut why = "no other control planes are known".to_owned();
    for (_, member) in client.each() {
        match member.promote(id).await {
            Ok(()) => {
                info!(member = format_id(id), "this etcd member votes now");
                return None;
            }
            Err(error) if ichor_etcd::is_not_learner(&error) => return None,
            Err(error) => why = error.message().to_owned(),
        }
    }
    Some(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, url: &str, is_learner: bool) -> Member {
        Member { id, name: name.into(), peer_urls: vec![url.into()], client_urls: Vec::new(), is_learner }
    }

    const HERE: &str = "https://10.5.0.3:2380";
    const THERE: &str = "https://10.5.0.2:2380";

    #[track_caller]
    fn check(members: &[Member], expect: &Step) {
        assert_eq!(step(members, "b", &[HERE.to_owned()]), *expect);
    }

    #[test]
    fn a_stranger_is_added() {
        check(&[member(1, "a", THERE, false)], &Step::Add);
    }

    #[test]
    fn who_was_added_and_never_started_takes_that_place() {
        check(&[member(1, "a", THERE, false), member(2, "", HERE, true)], &Step::Take(2));
    }

    #[test]
    fn one_joins_after_the_other() {
        check(&[member(1, "a", THERE, false), member(2, "", "https://10.5.0.4:2380", true)], &Step::Wait);
    }

    #[test]
    fn the_former_self_at_this_address_goes_first() {
        check(&[member(1, "a", THERE, false), member(2, "b", HERE, false)], &Step::Remove(2));
        check(&[member(1, "a", THERE, false), member(2, "renamed", HERE, true)], &Step::Remove(2));
        check(&[member(1, "a", THERE, false), member(2, "", HERE, false)], &Step::Remove(2));
    }

    #[test]
    fn a_member_of_the_same_name_elsewhere_keeps_its_place() {
        let Step::Refuse(reason) = step(&[member(0xab, "b", THERE, false)], "b", &[HERE.to_owned()]) else {
            panic!("a member of another machine would be removed");
        };
        assert!(reason.contains("etcd remove-member 00000000000000ab"), "{reason}");
    }

    #[test]
    fn the_new_member_is_in_the_cluster_by_its_name() {
        let members =
            [member(1, "a", THERE, false), member(2, "", HERE, true), member(3, "", "https://x:2380", true)];
        assert_eq!(
            initial_cluster(&members, 2, "b"),
            "a=https://10.5.0.2:2380,b=https://10.5.0.3:2380,0000000000000003=https://x:2380"
        );
    }
}
