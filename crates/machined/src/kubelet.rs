//! The service `kubelet`: the container it runs in, what of the machine it sees, its health check.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_k8s::kubelet_service::{KubeletPort, KubeletRun};
use ichor_http::client::{Client, ClientError, Limits as HttpLimits};
use ichor_resource::k8s::{ExtraMount, IdMapping};
use ichor_resource::network::NetworkStatus;
use ichor_resource::time::TimeStatus;
use ichor_sys::cgroup::Limits;
use ichor_sys::staged_mount::{self, IdRange, StagedMount};

use crate::daemons::{holds, own_group};
use crate::node::Host;
use crate::services::spec::Plan;
use crate::services::{
    ApiAccess, ContainerMount, ContainerSpec, Health, ProcessSpec, Run, ServiceManager, ServiceSpec,
};

/// Service and resources are called so.
pub const KUBELET: &str = "kubelet";

/// The mark of the plan that the running kubelet was started with; gone after a reboot.
pub const MARK: &str = "/system/run/kubelet/started-with";

/// Where additional mounts are prepared that are more than a plain bind.
const STAGE: &str = "/system/run/mounts/kubelet";

/// Options that init applies by itself.
const PLAIN_OPTIONS: [&str; 6] = ["bind", "rbind", "ro", "rw", "shared", "rshared"];

const GROUP: &str = "podruntime/kubelet";
const PROGRAM: &str = "/usr/local/bin/kubelet";
const HEALTH_PORT: u16 = 10_248;
const MIB: u64 = 1024 * 1024;

/// What it sees of the machine: source, target, and how (see `ContainerMount`). All of `/sys` with what is mounted
/// below it, cgroups among them; those can be written to.
const MOUNTS: [(&str, &str, Show); 17] = [
    ("/dev", "/dev", Show::Shared),
    ("/sys", "/sys", Show::SharedReadOnly),
    ("/usr/lib/modules", "/lib/modules", Show::ReadOnly),
    ("/etc/kubernetes", "/etc/kubernetes", Show::Shared),
    (
        "/usr/local/lib/kubelet/credentialproviders",
        "/usr/local/lib/kubelet/credentialproviders",
        Show::ReadOnly,
    ),
    ("/etc/nfsmount.conf", "/etc/nfsmount.conf", Show::ReadOnly),
    ("/etc/machine-id", "/etc/machine-id", Show::ReadOnly),
    ("/etc/os-release", "/etc/os-release", Show::ReadOnly),
    ("/system/resolved/resolv.conf", "/system/resolved/resolv.conf", Show::ReadOnly),
    ("/etc/cni", "/etc/cni", Show::Shared),
    ("/usr/libexec/kubernetes", "/usr/libexec/kubernetes", Show::Shared),
    ("/run", "/var/run", Show::Shared),
    ("/var/lib/containerd", "/var/lib/containerd", Show::Shared),
    ("/var/lib/kubelet", "/var/lib/kubelet", Show::Shared),
    ("/var/log/containers", "/var/log/containers", Show::Shared),
    ("/var/log/pods", "/var/log/pods", Show::Shared),
    ("/var/mnt", "/var/mnt", Show::SharedReadOnly),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    ReadOnly,
    Shared,
    SharedReadOnly,
}

/// The kubelet of this machine: its service, and what it is to run. Its controller decides when. Cheap to clone.
#[derive(Clone)]
pub struct Kubelet {
    host: Host,
    state: State,
    services: ServiceManager,
    /// What the controller read when it last started the service.
    planned: Arc<Mutex<Option<KubeletRun>>>,
}

impl Kubelet {
    /// The kubelet of a node.
    pub fn new(host: &Host, state: &State, services: &ServiceManager) -> Self {
        let planned = Arc::default();
        Self { host: host.clone(), state: state.clone(), services: services.clone(), planned }
    }

    /// The service; its controller starts it.
    pub fn service(&self) -> ServiceSpec {
        let state = &self.state;
        let limits = Limits {
            memory_min: Some(96 * MIB),
            memory_low: Some(192 * MIB),
            swap_max: Some(0),
            millicores: Some(1000),
            ..Limits::default()
        };
        ServiceSpec {
            depends: vec!["cri".to_owned()],
            conditions: vec![
                holds(state, "runtime", "node", "time sync", |status: &TimeStatus| status.synced),
                holds(state, "network", "status", "network", |status: &NetworkStatus| {
                    status.address_ready && status.hostname_ready && status.etc_files_ready
                }),
            ],
            pre: Some(own_group(GROUP, limits)),
            health: Some(Health {
                initial: Duration::from_secs(2),
                ..Health::new(Arc::new(|| Box::pin(healthy())))
            }),
            api: ApiAccess { start: true, restart: true, stop: false },
            ..ServiceSpec::new(KUBELET, Run::Planned(self.plan()))
        }
    }

    /// What the service runs: what its controller planned, whoever starts it.
    fn plan(&self) -> Plan {
        let kubelet = self.clone();
        Arc::new(move || {
            let planned = kubelet.planned().clone();
            let environment = crate::environment::of(&kubelet.host, &kubelet.state);
            Box::pin(async move {
                let planned =
                    planned.ok_or("the kubelet has no specification yet; it starts when it has one")?;
                let container = container(&planned, environment);
                let make = move || {
                    let mut bound = planned.extra_mounts.iter().filter(|mount| binds(mount));
                    bound.try_for_each(|mount| make(&mount.source))?;
                    stage(&planned.extra_mounts, Path::new(STAGE))
                };
                tokio::task::spawn_blocking(make).await.map_err(|error| error.to_string())??;
                Ok(Run::Container(container))
            })
        })
    }

    fn planned(&self) -> MutexGuard<'_, Option<KubeletRun>> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KubeletPort for Kubelet {
    fn is_inherited(&self) -> bool {
        self.services.is_inherited(KUBELET)
    }

    fn start(&self, run: &KubeletRun) -> Result<(), String> {
        *self.planned() = Some(run.clone());
        self.services.load(self.service());
        self.services.start(KUBELET).map_err(|error| error.to_string())
    }

    async fn stop(&self) -> Result<(), String> {
        self.services.load(self.service());
        if self.is_inherited() {
            // Adopted first: whoever stops it has to see its exit.
            self.services.start(KUBELET).map_err(|error| error.to_string())?;
        }
        self.services.stop(KUBELET).await.map_err(|error| error.to_string())
    }
}

fn make(source: &str) -> Result<(), String> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(source);
    match made {
        Err(error) if !std::path::Path::new(source).exists() => Err(format!("make {source}: {error}")),
        _ => Ok(()),
    }
}

/// The container of a kubelet. Pure.
fn container(spec: &KubeletRun, environment: Vec<String>) -> ContainerSpec {
    let mut args = vec![PROGRAM.to_owned()];
    args.extend(spec.args.iter().cloned());
    let mount = |(source, target, show): &(&str, &str, Show)| ContainerMount {
        source: (*source).to_owned(),
        target: (*target).to_owned(),
        read_only: *show != Show::Shared,
        shared: *show != Show::ReadOnly,
        separate: false,
    };
    let mut mounts: Vec<ContainerMount> = MOUNTS.iter().map(mount).collect();
    mounts.extend(spec.extra_mounts.iter().enumerate().map(|(index, mount)| extra_mount(index, mount)));
    let process = ProcessSpec {
        path: PROGRAM.to_owned(),
        args,
        env: environment,
        privileged: true,
        cgroup: Some(GROUP.to_owned()),
        oom_score_adj: -450,
        ..ProcessSpec::default()
    };
    ContainerSpec { image: spec.image.clone(), process, mounts }
}

fn binds(mount: &ExtraMount) -> bool {
    let bind = |option: &String| matches!(option.as_str(), "bind" | "rbind");
    mount.r#type == "bind" || mount.options.iter().any(bind)
}

/// Whether init can show it without any preparation.
fn is_plain(mount: &ExtraMount) -> bool {
    let plain = |option: &String| PLAIN_OPTIONS.contains(&option.as_str());
    let mapped = !mount.uid_mappings.is_empty() || !mount.gid_mappings.is_empty();
    binds(mount) && !mapped && mount.options.iter().all(plain)
}

fn extra_mount(index: usize, mount: &ExtraMount) -> ContainerMount {
    let has = |names: &[&str]| mount.options.iter().any(|option| names.contains(&option.as_str()));
    match is_plain(mount) {
        true => ContainerMount {
            source: mount.source.clone(),
            target: mount.destination.clone(),
            read_only: has(&["ro"]),
            shared: has(&["rbind", "shared", "rshared"]),
            separate: false,
        },
        // What the options say is true of the staged mount already.
        false => ContainerMount {
            source: format!("{STAGE}/{index}"),
            target: mount.destination.clone(),
            shared: true,
            ..ContainerMount::default()
        },
    }
}

/// Prepares the mounts that have more to them. Blocks.
fn stage(mounts: &[ExtraMount], stage: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("machine.kubelet.extraMounts: {error}");
    let ranges = |mappings: &[IdMapping]| {
        let range = |mapping: &IdMapping| IdRange {
            container_id: mapping.container_id,
            host_id: mapping.host_id,
            size: mapping.size,
        };
        mappings.iter().map(range).collect()
    };
    let special: Vec<(usize, &ExtraMount)> =
        mounts.iter().enumerate().filter(|(_, mount)| !is_plain(mount)).collect();
    if special.is_empty() {
        return staged_mount::close_stage(stage).map_err(failed);
    }
    staged_mount::open_stage(stage).map_err(failed)?;
    for (index, mount) in special {
        let staged = StagedMount {
            source: mount.source.clone(),
            kind: mount.r#type.clone(),
            options: mount.options.clone(),
            uids: ranges(&mount.uid_mappings),
            gids: ranges(&mount.gid_mappings),
        };
        staged.make(stage, &index.to_string()).map_err(failed)?;
    }
    Ok(())
}

/// Asks the kubelet itself.
async fn healthy() -> Result<(), String> {
    const LIMITS: HttpLimits = HttpLimits { time: Duration::from_secs(10), bytes: 64 << 10, redirects: 0 };
    static CLIENT: LazyLock<Client> = LazyLock::new(Client::plain);
    let url = format!("http://127.0.0.1:{HEALTH_PORT}/healthz");
    match CLIENT.get(&url, &[], LIMITS).await {
        Ok(_) => Ok(()),
        Err(ClientError::Status { status, .. }) => Err(format!("expected HTTP status OK, got {status}")),
        Err(ClientError::Exchange { url, text, .. }) => Err(format!("Get {url:?}: {text}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ichor_observe::LogManager;
    use ichor_resource::k8s::KubeletSpec;
    use ichor_types::Cmdline;

    use super::*;
    use crate::events::Events;
    use crate::node::Paths;
    use crate::platform::{Mode, Platform};
    use crate::services::port::SpawnError;
    use crate::services::{BoxFuture, Process, ProcessPort};

    #[test]
    fn the_kubelet_sees_the_machine_and_what_the_user_adds() {
        let extra = ExtraMount {
            destination: "/var/data".into(),
            r#type: "bind".into(),
            source: "/var/data".into(),
            options: ["bind", "rshared", "ro"].map(str::to_owned).to_vec(),
            ..ExtraMount::default()
        };
        let spec = KubeletRun {
            image: "ghcr.io/siderolabs/kubelet:v1.35.0".into(),
            args: vec!["--v=2".into()],
            extra_mounts: vec![extra.clone()],
        };
        let container = container(&spec, vec!["A=1".into()]);
        assert_eq!(container.process.args, [PROGRAM, "--v=2"]);
        assert_eq!(container.mounts.len(), MOUNTS.len() + 1);
        let last = container.mounts.last().unwrap();
        assert!(last.read_only && last.shared && last.target == "/var/data");
        let run = container.mounts.iter().find(|mount| mount.target == "/var/run").unwrap();
        assert!(run.source == "/run" && run.shared && !run.read_only);
    }

    #[test]
    fn what_is_more_than_a_plain_bind_is_prepared() {
        let plain = ExtraMount {
            destination: "/data".into(),
            r#type: "bind".into(),
            source: "/var/data".into(),
            options: vec!["rbind".into(), "ro".into()],
            ..ExtraMount::default()
        };
        assert_eq!(extra_mount(3, &plain).source, "/var/data");
        let mapping = IdMapping { container_id: 0, host_id: 1000, size: 10 };
        let others = [
            ExtraMount { r#type: "tmpfs".into(), options: Vec::new(), ..plain.clone() },
            ExtraMount { options: vec!["bind".into(), "noexec".into()], ..plain.clone() },
            ExtraMount { uid_mappings: vec![mapping.clone()], ..plain.clone() },
            ExtraMount { gid_mappings: vec![mapping], ..plain.clone() },
        ];
        for mount in others {
            let shown = extra_mount(3, &mount);
            assert_eq!(
                (shown.source.as_str(), shown.target.as_str()),
                ("/system/run/mounts/kubelet/3", "/data")
            );
            assert!(shown.shared && !shown.read_only, "the prepared mount says the rest");
        }
    }

    struct NoProcesses;

    impl ProcessPort for NoProcesses {
        fn spawn(&self, _: &str, _: &ProcessSpec) -> BoxFuture<'static, Result<Process, SpawnError>> {
            Box::pin(std::future::ready(Err(SpawnError { reason: "not here".to_owned() })))
        }

        fn signal(&self, _: u64, _: i32) {}

        fn release(&self, _: u64) {}
    }

    #[tokio::test]
    async fn the_service_runs_what_its_controller_planned() {
        let (state, _clock) = ichor_testkit::state();
        let (logs, runtime) = (LogManager::new(), tokio::runtime::Handle::current());
        let port = Arc::new(NoProcesses);
        let services = ServiceManager::new(Events::default(), logs, port, BTreeMap::new(), runtime);
        let host = Host {
            platform: Platform { name: "metal".to_owned(), mode: Mode::Metal },
            cmdline: Cmdline::parse("talos.environment=A=1"),
            paths: Paths::default(),
            own_kernel_log: false,
        };
        let kubelet = Kubelet::new(&host, &state, &services);
        let Run::Planned(plan) = kubelet.service().run else { panic!("planned at every start") };
        assert!(plan().await.err().unwrap().contains("no specification yet"));

        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a/b");
        let extra = ExtraMount {
            destination: "/data".into(),
            r#type: "bind".into(),
            source: source.to_string_lossy().into_owned(),
            ..ExtraMount::default()
        };
        let run =
            KubeletRun { image: "kubelet:1".into(), args: vec!["--v=2".into()], extra_mounts: vec![extra] };
        *kubelet.planned() = Some(run.clone());
        // What the state says by now is for the next start.
        let later = KubeletSpec { image: "kubelet:2".into(), ..KubeletSpec::default() };
        state.create("k8s", KUBELET, later, "").unwrap();
        let Ok(Run::Container(found)) = plan().await else { panic!("a container") };
        assert_eq!(found, container(&run, vec!["A=1".into()]));
        assert!(source.is_dir(), "sources of extra mounts are created");
    }
}
