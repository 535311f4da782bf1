//! Services of system extensions, run by init in the directory that the extension brought, as etcd and kubelet are run in
//! the roots of their images.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ichor_cosi::State;
use ichor_ctl_runtime::extension_services::{
    Dependency, ExtensionMount, ExtensionPort, ExtensionService, NetworkPart, Restart,
};
use ichor_observe::ConsoleLogs;
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::{ExtensionServiceConfig, ExtensionServiceConfigStatus};
use ichor_resource::time::TimeStatus;
use ichor_sys::staged_mount::{self, StagedMount};

use crate::daemons::holds;
use crate::images::{PATH, with_usual};
use crate::node::Host;
use crate::services::spec::{Hook, Plan};
use crate::services::{
    ApiAccess, BoxFuture, Condition, ContainerMount, ProcessSpec, RestartPolicy, Root, Run, ServiceManager,
    ServiceSpec, ServiceState, condition,
};

/// Where extensions bring their roots.
const ROOTS: &str = "/usr/local/lib/containers";

/// What is written to a root, and its configuration files.
const OVERLAYS: &str = "/system/overlays";

/// Where mounts are prepared, and an empty directory to cover others with.
const STAGES: &str = "/system/run/mounts";
const EMPTY: &str = "/system/run/empty";

/// How often a path is looked for.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes of an environment file that are read.
const ENVIRONMENT_MAX: u64 = 64 * 1024;

/// Covered, unless a service says otherwise, as container runtimes do.
const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Read-only, unless a service says otherwise.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Runs services of extensions on this machine.
#[derive(Clone)]
pub struct Extensions {
    host: Host,
    state: State,
    services: ServiceManager,
    console: ConsoleLogs,
}

impl Extensions {
    /// Those of a node.
    pub fn new(host: &Host, state: &State, services: &ServiceManager, console: &ConsoleLogs) -> Self {
        Self {
            host: host.clone(),
            state: state.clone(),
            services: services.clone(),
            console: console.clone(),
        }
    }

    fn service(&self, extension: &ExtensionService) -> ServiceSpec {
        let mut depends = Vec::new();
        let mut conditions: Vec<Arc<dyn Condition>> = Vec::new();
        for dependency in &extension.depends {
            match dependency {
                Dependency::Service(id) => depends.push(id.clone()),
                Dependency::Path(path) => conditions.push(file(path)),
                Dependency::Network(parts) => {
                    conditions.extend(parts.iter().map(|part| network(&self.state, *part)));
                }
                Dependency::Time => {
                    let synced = |status: &TimeStatus| status.synced;
                    conditions.push(holds(&self.state, "runtime", "node", "time sync", synced));
                }
                Dependency::Configuration => conditions.push(configured(&self.state, &extension.name)),
            }
        }
        conditions.extend(extension.container.environment_file.as_deref().map(file));
        ServiceSpec {
            depends,
            conditions,
            post: Some(release(&extension.name)),
            restart: match extension.restart {
                Restart::Always => RestartPolicy::Forever,
                Restart::Never => RestartPolicy::Once,
                Restart::UntilSuccess => RestartPolicy::UntilSuccess,
            },
            api: ApiAccess { start: true, stop: true, restart: true },
            ..ServiceSpec::new(&extension.id(), Run::Planned(self.plan(extension)))
        }
    }

    /// Reads the configuration of the moment at every start.
    fn plan(&self, extension: &ExtensionService) -> Plan {
        let (extensions, extension) = (self.clone(), extension.clone());
        Arc::new(move || {
            let config = extensions.state.find::<ExtensionServiceConfig>("runtime", &extension.name);
            let config = config.map(|config| config.spec().clone()).unwrap_or_default();
            let environment = crate::environment::of(&extensions.host, &extensions.state);
            let extension = extension.clone();
            Box::pin(async move {
                let prepare = move || prepare(&extension, &config, environment);
                let process =
                    tokio::task::spawn_blocking(prepare).await.map_err(|error| error.to_string())??;
                Ok(Run::Process(process))
            })
        })
    }
}

impl ExtensionPort for Extensions {
    fn start(&self, extension: &ExtensionService) -> Result<(), String> {
        let id = extension.id();
        if extension.log_to_console {
            self.console.copy_always(&id);
        }
        self.services.load(self.service(extension));
        self.services.start(&id).map_err(|error| error.to_string())
    }

    async fn restart(&self, id: &str) -> Result<(), String> {
        match self.services.state(id) {
            Some((ServiceState::Running | ServiceState::Failed | ServiceState::Finished, _)) => {
                self.services.restart(id).await.map_err(|error| error.to_string())
            }
            // It reads its configuration when it starts, or somebody stops it.
            _ => Ok(()),
        }
    }
}

fn file(path: &str) -> Arc<dyn Condition> {
    let path = path.to_owned();
    condition(&format!("file {path:?} to exist"), move || {
        let path = PathBuf::from(&path);
        Box::pin(async move {
            while !path.exists() {
                tokio::time::sleep(LOOK).await;
            }
        })
    })
}

fn network(state: &State, part: NetworkPart) -> Arc<dyn Condition> {
    let (name, check): (&str, fn(&NetworkStatus) -> bool) = match part {
        NetworkPart::Addresses => ("network addresses", |status| status.address_ready),
        NetworkPart::Connectivity => ("network connectivity", |status| status.connectivity_ready),
        NetworkPart::Hostname => ("network hostname", |status| status.hostname_ready),
        NetworkPart::EtcFiles => ("network etc files", |status| status.etc_files_ready),
    };
    holds(state, "network", "status", name, check)
}

fn configured(state: &State, name: &str) -> Arc<dyn Condition> {
    let (state, name) = (state.clone(), name.to_owned());
    condition("extension service config", move || -> BoxFuture<'static, ()> {
        let (state, name) = (state.clone(), name.clone());
        Box::pin(async move {
            let there = |_: &_| true;
            // A watch that breaks is begun anew.
            while state.wait_for::<ExtensionServiceConfigStatus>("runtime", &name, there).await.is_err() {
                tokio::time::sleep(LOOK).await;
            }
        })
    })
}

/// Lets go of what was prepared.
fn release(name: &str) -> Hook {
    let stage = stage_of(name);
    Arc::new(move || {
        let stage = stage.clone();
        Box::pin(async move {
            let close = move || staged_mount::close_stage(&stage);
            let closed = tokio::task::spawn_blocking(close).await.map_err(|error| error.to_string())?;
            closed.map_err(|error| error.to_string())
        })
    })
}

fn stage_of(name: &str) -> PathBuf {
    Path::new(STAGES).join(format!("ext-{name}"))
}

/// Makes everything ready on the machine and says what to run. Blocks.
fn prepare(
    extension: &ExtensionService,
    config: &ExtensionServiceConfig,
    environment: Vec<String>,
) -> Result<ProcessSpec, String> {
    let stage = stage_of(&extension.name);
    let root = Path::new(ROOTS).join(&extension.name);
    if !root.is_dir() {
        return Err(format!("{} does not exist; the extension brings no root", root.display()));
    }
    let overlay = Path::new(OVERLAYS).join(format!("ext-{}", extension.name));
    // What an earlier run wrote is gone with it.
    let _ = std::fs::remove_dir_all(&overlay);
    for dir in [overlay.join("diff"), overlay.join("work"), PathBuf::from(EMPTY)] {
        std::fs::create_dir_all(&dir).map_err(|error| format!("make {}: {error}", dir.display()))?;
    }
    staged_mount::open_stage(&stage).map_err(|error| error.to_string())?;
    for (index, mount) in extension.container.mounts.iter().enumerate() {
        if binds(mount) && !Path::new(&mount.source).exists() {
            let make = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&mount.source);
            make.map_err(|error| format!("make {}: {error}", mount.source))?;
        }
        let staged = StagedMount {
            source: mount.source.clone(),
            kind: mount.kind.clone(),
            options: mount.options.clone(),
            ..StagedMount::default()
        };
        staged.make(&stage, &index.to_string()).map_err(|error| error.to_string())?;
    }
    let file = match &extension.container.environment_file {
        Some(path) => read_text(path).map_err(|error| format!("read {path}: {error}"))?,
        None => String::new(),
    };
    let kind = |path: &str| std::fs::metadata(path).ok().map(|found| found.is_dir());
    let program = find_program(&extension.container.entrypoint, |path| root.join(&path[1..]).is_file())?;
    Ok(process(extension, config, environment, &file, &program, kind))
}

fn read_text(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(ENVIRONMENT_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn binds(mount: &ExtensionMount) -> bool {
    mount.kind == "bind" || mount.options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"))
}

/// Where the program is in the root: a name without a slash is looked for where programs are.
fn find_program(entrypoint: &str, exists: impl Fn(&str) -> bool) -> Result<String, String> {
    if entrypoint.contains('/') {
        let relative = entrypoint.trim_start_matches("./").trim_start_matches('/');
        return Ok(format!("/{relative}"));
    }
    let places = PATH.trim_start_matches("PATH=").split(':').map(|dir| format!("{dir}/{entrypoint}"));
    let at_top = std::iter::once(format!("/{entrypoint}"));
    places
        .chain(at_top)
        .find(|path| exists(path))
        .ok_or_else(|| format!("the root of the extension has no program {entrypoint:?}"))
}

/// The process. Pure; `kind` says whether a path of the machine is a directory, if it is there.
fn process(
    extension: &ExtensionService,
    config: &ExtensionServiceConfig,
    environment: Vec<String>,
    environment_file: &str,
    program: &str,
    kind: impl Fn(&str) -> Option<bool>,
) -> ProcessSpec {
    let ExtensionService { name, container, .. } = extension;
    let mut args = vec![container.entrypoint.clone()];
    args.extend(container.args.iter().cloned());
    let from_file = environment_file
        .lines()
        .map(str::trim)
        .filter(|line| line.contains('=') && !line.starts_with('#'))
        .map(str::to_owned);
    let mut env = vec![PATH.to_owned()];
    for variable in environment
        .into_iter()
        .chain(container.environment.iter().cloned())
        .chain(from_file)
        .chain(config.environment.iter().cloned())
    {
        let key = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
        env.retain(|known| key(known) != key(&variable));
        env.push(variable);
    }
    let options = format!(
        "{}lowerdir={lower},upperdir={over}/diff,workdir={over}/work",
        if container.writable_root { "" } else { "ro:" },
        lower = &format!("{ROOTS}/{name}")[1..],
        over = &format!("{OVERLAYS}/ext-{name}")[1..],
    );
    ProcessSpec {
        path: program.to_owned(),
        args,
        env,
        privileged: true,
        cgroup: Some(format!("system/extensions/{name}")),
        oom_score_adj: -600,
        root: Some(Root { base: "/".to_owned(), options, mounts: mounts(extension, config, kind) }),
        ..ProcessSpec::default()
    }
}

/// All that it sees of the machine, parents first.
fn mounts(
    extension: &ExtensionService,
    config: &ExtensionServiceConfig,
    kind: impl Fn(&str) -> Option<bool>,
) -> Vec<ContainerMount> {
    let ExtensionService { name, container, .. } = extension;
    // Covered in parts below, which must not show on the machine.
    let own = |path: &str, read_only: bool| ContainerMount {
        source: path.to_owned(),
        target: path.to_owned(),
        read_only,
        separate: true,
        ..ContainerMount::default()
    };
    let shared = container.root_propagation.ends_with("shared");
    let dev = ContainerMount {
        source: "/dev".into(),
        target: "/dev".into(),
        shared: true,
        ..ContainerMount::default()
    };
    let mut all = with_usual(&[dev, own("/proc", false), own("/sys", !container.writable_sysfs)]);
    let defaults = |said: &Option<Vec<String>>, usual: &[&str]| {
        said.clone().unwrap_or_else(|| usual.iter().map(|path| (*path).to_owned()).collect())
    };
    for path in defaults(&container.masked_paths, &MASKED) {
        let Some(directory) = kind(&path) else { continue };
        let source = if directory { EMPTY } else { "/dev/null" };
        all.push(ContainerMount {
            source: source.to_owned(),
            target: path,
            read_only: directory,
            ..ContainerMount::default()
        });
    }
    for path in defaults(&container.readonly_paths, &READ_ONLY) {
        if kind(&path).is_some() {
            all.push(own(&path, true));
        }
    }
    let stage = stage_of(name);
    for (index, mount) in container.mounts.iter().enumerate() {
        let propagated =
            mount.options.iter().any(|option| option.ends_with("shared") || option.ends_with("slave"));
        all.push(ContainerMount {
            source: stage.join(index.to_string()).to_string_lossy().into_owned(),
            target: mount.destination.clone(),
            read_only: false,
            shared: shared || propagated,
            separate: !(shared || propagated),
        });
    }
    for file in &config.files {
        all.push(ContainerMount {
            source: format!("{OVERLAYS}/extensions/{name}/{}", file.mount_path.replace('/', "-")),
            target: file.mount_path.clone(),
            read_only: true,
            ..ContainerMount::default()
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_resource::runtime::ExtensionServiceConfigFile;

    use super::*;

    fn extension() -> ExtensionService {
        ExtensionService::parse(
            "name: hello\ncontainer:\n  entrypoint: ./hello\n  args: [--msg, hi]\n  environment: [A=1, B=1]\n  mounts:\n    \
             - {source: /var/log, destination: /log, type: bind, options: [rbind, ro]}\nrestart: always\n",
        )
        .unwrap()
    }

    #[test]
    fn a_service_sees_its_root_its_mounts_and_its_files() {
        let config = ExtensionServiceConfig {
            files: vec![ExtensionServiceConfigFile {
                content: "x".into(),
                mount_path: "/etc/hello/conf".into(),
            }],
            environment: vec!["B=3".into()],
        };
        let file = "# note\nB=2\nC=2\n\nodd\n";
        let kind = |path: &str| match path {
            "/proc/acpi" => Some(true),
            "/proc/kcore" | "/proc/sysrq-trigger" => Some(false),
            _ => None,
        };
        let process = process(&extension(), &config, vec!["A=0".into(), "P=0".into()], file, "/hello", kind);
        assert_eq!(process.args, ["./hello", "--msg", "hi"]);
        assert_eq!(process.env, [PATH, "P=0", "A=1", "C=2", "B=3"]);
        assert_eq!(process.cgroup.as_deref(), Some("system/extensions/hello"));
        let parts = process.root.unwrap().parts();
        expect![[r#"
            /
            ro:lowerdir=usr/local/lib/containers/hello,upperdir=system/overlays/ext-hello/diff,workdir=system/overlays/ext-hello/work
            r/etc/hosts /etc/hosts
            r/etc/resolv.conf /etc/resolv.conf
            W/dev /dev
            S/proc /proc
            s/sys /sys
            r/system/run/empty /proc/acpi
            w/dev/null /proc/kcore
            s/proc/sysrq-trigger /proc/sysrq-trigger
            S/system/run/mounts/ext-hello/0 /log
            r/system/overlays/extensions/hello/-etc-hello-conf /etc/hello/conf
        "#]]
        .assert_eq(&format!(
            "{}\n{}\n{}",
            parts[0],
            parts[1],
            parts[2..].chunks(2).map(|pair| format!("{}\n", pair.join(" "))).collect::<String>()
        ));
    }

    #[test]
    fn a_program_is_found_in_the_root() {
        let here = |path: &str| path == "/usr/bin/hello";
        assert_eq!(find_program("./hello", here).unwrap(), "/hello");
        assert_eq!(find_program("/opt/hello", here).unwrap(), "/opt/hello");
        assert_eq!(find_program("bin/hello", here).unwrap(), "/bin/hello");
        assert_eq!(find_program("hello", here).unwrap(), "/usr/bin/hello");
        assert!(find_program("other", here).unwrap_err().contains("no program \"other\""));
    }

    #[test]
    fn an_extension_without_a_root_is_told() {
        let extension = ExtensionService { name: "no-such-extension".into(), ..extension() };
        let error = prepare(&extension, &ExtensionServiceConfig::default(), Vec::new()).unwrap_err();
        assert_eq!(
            error,
            "/usr/local/lib/containers/no-such-extension does not exist; the extension brings no root"
        );
    }
}
