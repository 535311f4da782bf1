//! The services a node runs: what each needs, how it is started, how one sees that it is well.

use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use ichor_cosi::State;
use ichor_resource::network::NetworkStatus;
use ichor_resource::secrets::{ApiCertificate, TrustdCertificate};
use ichor_resource::time::TimeStatus;
use ichor_sys::cgroup::{self, Cgroups, Limits};

use crate::node::Paths;
use crate::services::spec::{Hook, TaskRun};
use crate::services::{Condition, Health, ProcessSpec, RestartPolicy, Run, ServiceSpec, condition_about};

/// User of apid, also of the socket it talks to.
pub const APID_UID: u32 = 50;

/// User of trustd.
pub const TRUSTD_UID: u32 = 51;

/// User of the dashboard, also of the socket it talks to.
pub const DASHBOARD_UID: u32 = 52;

/// The user that a system runs as that is asked what it would do, before it is installed.
pub const CANDIDATE_UID: u32 = 53;

/// Where apid listens.
pub const APID_PORT: u16 = 50_000;

/// Where trustd listens.
pub const TRUSTD_PORT: u16 = 50_001;

/// A daemon that needs more than this is broken.
const DAEMON_MEMORY_MAX: u64 = 128 * MIB;

/// Threads of a daemon: one, and a few that look up names.
const DAEMON_THREADS_MAX: u64 = 64;

pub(crate) const MIB: u64 = 1024 * 1024;

/// What a daemon is guaranteed, in MiB and thousandths of a processor, beside its ceilings.
const fn ceilings(min: u64, low: u64, millicores: u64) -> Limits {
    Limits {
        memory_min: Some(min * MIB),
        memory_low: Some(low * MIB),
        memory_max: Some(DAEMON_MEMORY_MAX),
        swap_max: Some(0),
        millicores: Some(millicores),
        millicores_max: None,
        pids_max: Some(DAEMON_THREADS_MAX),
    }
}

const APID_GROUP: &str = "system/apid";
const APID_CEILINGS: Limits = ceilings(16, 32, 500);
const TRUSTD_GROUP: &str = "system/trustd";
const TRUSTD_CEILINGS: Limits = ceilings(8, 16, 250);

/// Groups that were made before their daemons were asked for.
static MADE: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Where files of `/etc` are kept.
const ETC: &str = "/system/etc";

/// Files about names that the gateway reads, where machined writes them.
const NAME_FILES: [&str; 2] = ["hosts", "resolv.conf"];

/// The daemons get a little longer to finish their calls.
const GRACE: Duration = Duration::from_secs(15);

/// The machine API of this very process.
pub fn machined(paths: &Paths, serve: TaskRun) -> ServiceSpec {
    ServiceSpec {
        health: Some(Health::unix(paths.machine_socket())),
        restart: RestartPolicy::Forever,
        ..ServiceSpec::new("machined", Run::Task(serve))
    }
}

/// The gateway on port 50000. `program` is the multi-call binary.
pub fn apid(program: &str, state: &State) -> ServiceSpec {
    // Its own directory can be written to: it makes the socket for clients on the node there.
    let mut view = vec!["r/system/run/machined".to_owned(), "w/system/run/apid".to_owned()];
    view.extend(NAME_FILES.map(|name| format!("r{ETC}/{name}:/etc/{name}")));
    view.push("r/etc/nsswitch.conf".to_owned());
    ServiceSpec {
        conditions: vec![exists::<ApiCertificate>(state, "secrets", "api", "api certificates")],
        pre: Some(own_group(APID_GROUP, APID_CEILINGS)),
        health: Some(Health::tcp(APID_PORT)),
        grace: GRACE,
        ..ServiceSpec::new("apid", Run::Process(daemon(program, "apid", APID_UID, view)))
    }
}

/// Signs certificates for joining workers.
pub fn trustd(program: &str, state: &State) -> ServiceSpec {
    let view = vec!["r/system/run/trustd".to_owned()];
    ServiceSpec {
        conditions: vec![
            holds(state, "runtime", "node", "time to be in sync", |status: &TimeStatus| status.synced),
            holds(state, "network", "status", "network", |status: &NetworkStatus| {
                status.address_ready && status.hostname_ready
            }),
            exists::<TrustdCertificate>(state, "secrets", "trustd", "trustd certificates"),
        ],
        pre: Some(own_group(TRUSTD_GROUP, TRUSTD_CEILINGS)),
        health: Some(Health::tcp(TRUSTD_PORT)),
        grace: GRACE,
        ..ServiceSpec::new("trustd", Run::Process(daemon(program, "trustd", TRUSTD_UID, view)))
    }
}

/// Makes a daemon's group with its memory ceiling before the daemon enters it.
pub(crate) fn own_group(group: &'static str, limits: Limits) -> Hook {
    Arc::new(move || {
        Box::pin(async move {
            // A handful of small writes to the kernel, some of which wait for a grace period.
            let made = tokio::task::spawn_blocking(move || {
                make_name_files();
                // Made ahead it is right for the first start; later somebody may have changed it.
                match made_ahead().remove(group) {
                    true => Ok(()),
                    false => make_group(group, &limits),
                }
            });
            // Without cgroups a daemon runs unbounded, which is better than not at all; where they work
            // only half, the attempt to enter the group says so.
            match made.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(group, %error, "cgroup not made"),
                Err(error) => warn!(group, %error, "cgroup not made"),
            }
            Ok(())
        })
    })
}

/// Makes the groups of the daemons that every machine starts. Blocks: the kernel takes its time for a group, and a
/// machine has enough of it until it knows its configuration.
pub fn make_groups_ahead() {
    for (group, limits) in [(APID_GROUP, APID_CEILINGS), (TRUSTD_GROUP, TRUSTD_CEILINGS)] {
        // What fails here is tried again, and told, when the daemon starts.
        if make_group(group, &limits).is_ok() {
            made_ahead().insert(group);
        }
    }
}

fn make_group(group: &str, limits: &Limits) -> std::io::Result<()> {
    Cgroups::detect(Path::new(cgroup::MOUNT_POINT))?.create(group, limits)
}

fn made_ahead() -> MutexGuard<'static, BTreeSet<&'static str>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files that a daemon's view shows must exist when it starts: what comes later is written through them.
fn make_name_files() {
    for name in NAME_FILES {
        let path = Path::new(ETC).join(name);
        // Without it names are not looked up, and addresses work.
        let _ = std::fs::OpenOptions::new().create(true).append(true).mode(0o644).open(path);
    }
}

/// A first-party daemon: its own user, no capabilities, and of the whole machine just its sockets.
pub(crate) fn daemon(program: &str, name: &str, uid: u32, view: Vec<String>) -> ProcessSpec {
    ProcessSpec {
        path: program.to_owned(),
        args: vec![name.to_owned()],
        env: vec!["PATH=/usr/bin".to_owned()],
        uid,
        privileged: false,
        cgroup: Some(format!("system/{name}")),
        oom_score_adj: -998,
        view,
        ..ProcessSpec::default()
    }
}

pub(crate) fn exists<T: ichor_resource::TypedSpec>(
    state: &State,
    namespace: &'static str,
    id: &'static str,
    name: &str,
) -> Arc<dyn Condition> {
    holds(state, namespace, id, name, |_: &T| true)
}

/// A condition over one resource.
pub(crate) fn holds<T: ichor_resource::TypedSpec>(
    state: &State,
    namespace: &'static str,
    id: &'static str,
    name: &str,
    check: fn(&T) -> bool,
) -> Arc<dyn Condition> {
    let state = state.clone();
    condition_about(name, (namespace, T::definition().type_name, id), move || {
        let state = state.clone();
        Box::pin(async move {
            // A watch that breaks is begun anew; the condition is about the resource, not the watch.
            while state.wait_for::<T>(namespace, id, |found| check(found.spec())).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    })
}
