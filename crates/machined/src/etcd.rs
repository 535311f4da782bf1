//! The service `etcd`: how the member of this machine starts, and how one sees that it is well.
//!
//! [`plan`] decides at every start. A member that has a log of its own just starts again; without one it makes a new cluster,
//! restores a snapshot into one, or joins ([`join`]), whatever is [wanted](Wanted). [`leave`] is the way out.

pub mod join;
pub mod leave;
pub mod plan;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_etcd::client;
use ichor_etcd::Client;
use ichor_resource::etcd::EtcdSpec;
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::NetworkStatus;
use ichor_resource::time::TimeStatus;
use ichor_resource::value::Ip;
use ichor_sys::cgroup::Limits;
use tonic::Code;

use crate::daemons::{holds, own_group};
use crate::node::Host;
use crate::services::spec::Plan;
use crate::services::{Health, Run, ServiceManager, ServiceSpec};

pub use ichor_ctl_etcd::{ETCD, UID};

/// Its group.
const GROUP: &str = "podruntime/etcd";

const MIB: u64 = 1024 * 1024;

/// A member that starts may first have to wait for its turn to vote.
const COMING_UP: Duration = Duration::from_secs(30);
const CHECK_EVERY: Duration = Duration::from_secs(20);
const CHECK_MAX: Duration = Duration::from_secs(15);

/// How long a control plane may take to say whether it has etcd.
const OTHERS_MAX: Duration = Duration::from_secs(3);

/// What a member without data does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Intent {
    /// Joins the cluster that is there.
    #[default]
    Join,
    /// Makes a new cluster.
    Bootstrap,
    /// Makes a new cluster of an uploaded snapshot.
    Recover {
        /// The snapshot is a plain copy of a database, without a checksum.
        skip_hash_check: bool,
    },
    /// Forgets all other members, once; data stay.
    Alone,
}

/// What the member of this machine is to do when it starts next. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Wanted(Arc<Mutex<Intent>>);

impl Wanted {
    /// Wants something else from now on.
    pub fn set(&self, intent: Intent) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = intent;
    }

    /// What is wanted.
    pub fn get(&self) -> Intent {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a member's files are.
#[derive(Debug, Clone)]
pub struct Data {
    /// What only etcd may see.
    pub dir: PathBuf,
    /// A snapshot that was uploaded.
    pub upload: PathBuf,
}

impl Data {
    /// Below the data of workloads.
    pub fn below(ephemeral: &Path) -> Self {
        Self { dir: ephemeral.join("lib/etcd"), upload: ephemeral.join("lib/etcd.snapshot") }
    }

    /// Whether the member took part in a cluster: without a log etcd would begin anew, whatever else is there.
    pub fn has_log(&self) -> bool {
        std::fs::read_dir(self.dir.join("member/wal")).is_ok_and(|files| {
            files.flatten().any(|file| file.path().extension().is_some_and(|ending| ending == "wal"))
        })
    }

    /// Whether there is nothing, apart from a restore that did not come to its end.
    pub fn is_empty(&self) -> bool {
        let unfinished = |name: std::ffi::OsString| name.to_string_lossy().starts_with(plan::RESTORE);
        std::fs::read_dir(&self.dir)
            .map_or(true, |files| files.flatten().all(|file| unfinished(file.file_name())))
    }
}

/// The etcd member of this machine, for whoever acts on it. Cheap to clone.
#[derive(Clone)]
pub struct Member {
    /// Resources of the node.
    pub state: State,
    /// The service manager that runs it.
    pub services: ServiceManager,
    /// What it does when it starts without data.
    pub wanted: Wanted,
    /// Its files.
    pub data: Data,
}

impl Member {
    /// The member of a node.
    pub fn new(host: &Host, state: &State, services: &ServiceManager) -> Self {
        let data = Data::below(&host.paths.ephemeral);
        Self { state: state.clone(), services: services.clone(), wanted: Wanted::default(), data }
    }
}

/// The member of a control plane.
pub fn service(member: &Member, environment: Vec<String>) -> ServiceSpec {
    let state = &member.state;
    let limits = Limits {
        memory_low: Some(256 * MIB),
        swap_max: Some(0),
        millicores: Some(2000),
        ..Limits::default()
    };
    ServiceSpec {
        depends: vec!["cri".to_owned()],
        conditions: vec![
            holds(state, "runtime", "node", "time sync", |status: &TimeStatus| status.synced),
            holds(state, "network", "status", "network", |status: &NetworkStatus| {
                status.address_ready && status.hostname_ready && status.etc_files_ready
            }),
            holds(state, "etcd", ETCD, "etcd spec", |_: &EtcdSpec| true),
        ],
        pre: Some(own_group(GROUP, limits)),
        health: Some(health(member.wanted.clone())),
        ..ServiceSpec::new(ETCD, Run::Planned(planned(member, environment)))
    }
}

fn planned(member: &Member, environment: Vec<String>) -> Plan {
    let Member { state, services, wanted, data } = member.clone();
    let planner = plan::Planner { state, services, wanted, data, environment };
    Arc::new(move || {
        let planner = planner.clone();
        Box::pin(async move { planner.plan().await })
    })
}

/// Well is who reads what the cluster agrees on.
fn health(wanted: Wanted) -> Health {
    let kept: Arc<Mutex<Option<Client>>> = Arc::default();
    Health {
        initial: COMING_UP,
        eager: Duration::from_millis(20),
        period: CHECK_EVERY,
        timeout: CHECK_MAX,
        ..Health::new(Arc::new(move || {
            let (wanted, kept) = (wanted.clone(), Arc::clone(&kept));
            Box::pin(async move {
                // A connection that works is kept: a handshake every time is what a check would cost most.
                let last = kept.lock().unwrap_or_else(PoisonError::into_inner).take();
                let client = match last {
                    Some(client) => client,
                    None => client::local().map_err(|error| error.to_string())?,
                };
                let result = client.get("health").await;
                let code = result.as_ref().err().map(tonic::Status::code);
                if code != Some(Code::Unavailable) {
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                }
                match result {
                    Err(error) if code != Some(Code::PermissionDenied) => Err(error.message().to_owned()),
                    _ => {
                        wanted.set(Intent::Join);
                        Ok(())
                    }
                }
            })
        }))
    }
}

/// Addresses of all control planes there are signs of, in random order.
pub fn control_planes(state: &State) -> Vec<IpAddr> {
    use std::hash::BuildHasher;
    let found = state.list::<Endpoint>("controlplane");
    let mut all: Vec<IpAddr> =
        found.iter().flat_map(|endpoint| endpoint.addresses.iter().filter_map(Ip::get)).collect();
    all.sort_unstable();
    all.dedup();
    let dice = std::hash::RandomState::new();
    all.sort_by_cached_key(|address| dice.hash_one(address));
    all
}

/// The same without this machine.
pub fn other_control_planes(state: &State) -> Vec<IpAddr> {
    let own: Vec<IpAddr> = state
        .find::<EtcdSpec>("etcd", ETCD)
        .map(|spec| spec.advertised_addresses.iter().filter_map(Ip::get).collect())
        .unwrap_or_default();
    let mut all = control_planes(state);
    all.retain(|address| !own.contains(address));
    all
}

/// Where the cluster of the other control planes is, if there is one: a member answers. One that has no leader counts
/// unless the cluster is to be recovered from a snapshot.
pub async fn other_cluster(state: &State, recovering: bool) -> Option<String> {
    let client = client::cluster(other_control_planes(state)).ok()?;
    for (endpoint, member) in client.each() {
        let there = match tokio::time::timeout(OTHERS_MAX, member.members(true)).await {
            Ok(Ok(_)) => true,
            // It answers, and has no leader.
            Ok(Err(error)) => !recovering && error.message().contains("etcdserver"),
            Err(_) => false,
        };
        if there {
            return Some(endpoint.to_string());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_log_makes_a_member() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data::below(dir.path());
        assert!(data.is_empty() && !data.has_log());
        std::fs::create_dir_all(data.dir.join(".restore/member/wal")).unwrap();
        assert!(data.is_empty(), "an unfinished restore is nothing");
        std::fs::create_dir_all(data.dir.join("member/wal")).unwrap();
        assert!(!data.is_empty() && !data.has_log(), "a directory alone is no log");
        std::fs::write(data.dir.join("member/wal/0.wal.tmp"), "").unwrap();
        assert!(!data.has_log());
        std::fs::write(data.dir.join("member/wal/0000000000000000-0000000000000000.wal"), "").unwrap();
        assert!(data.has_log());
    }
}
