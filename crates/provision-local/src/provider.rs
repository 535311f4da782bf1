//! The provider as its users see it: creates the directory, starts the supervisor, talks to it, removes it all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ichor_provision::{
    Cluster, ClusterRequest, Configs, Endpoint, Machine, MachineRequest, MachineStatus, Plan, Power,
    Provider, ProvisionError, Setting, Steps, Store,
};
use ichor_sys::{process, signal};

use crate::control::{self, Reply, Request};
use crate::error::SetupError;
use crate::layout::Layout;
use crate::supervisor::{FAILED, READY};
use crate::{Kind, ipv4};

const SIGKILL: i32 = 9;
/// How long the supervisor may take to set itself up.
const READY_WAIT: Duration = Duration::from_secs(120);
/// How long killed processes may take to be gone.
const GONE_WAIT: Duration = Duration::from_secs(60);
/// How long a quick request may take.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How long machines may take to be made or forgotten.
const RELOAD_WAIT: Duration = Duration::from_secs(30);
/// The ports of the machine API and of the Kubernetes API.
const MACHINE_PORT: u16 = 50000;
const KUBERNETES_PORT: u16 = 6443;

/// A provider of machines of one kind on this host.
#[derive(Clone, Debug)]
pub struct Local<K> {
    store: Store,
    kind: PhantomData<K>,
}

impl<K: Kind> Local<K> {
    /// The name of the provider.
    pub const NAME: &'static str = K::NAME;

    /// A provider that keeps its clusters in `store`.
    pub fn new(store: Store) -> Self {
        // The supervisor works from another directory.
        let root = std::path::absolute(store.root());
        Self { store: root.map_or(store, Store::new), kind: PhantomData }
    }

    /// The paths of a cluster.
    ///
    /// # Errors
    /// When the name cannot be one.
    pub fn layout(&self, cluster: &str) -> Result<Layout, ProvisionError> {
        Ok(Layout::new(&self.store.dir(cluster)?))
    }

    fn ask(&self, cluster: &str, request: &Request, wait: Duration) -> Result<Reply, ProvisionError> {
        // Says it when there is no such cluster, or no such machine.
        let state = self.store.load(cluster)?;
        if let Request::Start(Some(name))
        | Request::Stop(Some(name))
        | Request::Cut(Some(name))
        | Request::Reset(name) = request
        {
            state.machine(name)?;
        }
        let reply = control::ask(&self.layout(cluster)?.control(), request, wait)
            .map_err(|_| ProvisionError::NotRunning { name: cluster.to_owned() })?;
        match reply.error {
            Some(text) => Err(ProvisionError::Failed { text }),
            None => Ok(reply),
        }
    }

    /// Starts the supervisor and waits for its word; where the host wants it, if it does.
    fn launch(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        let plain = || {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("ichorctl");
            command
        };
        let program = crate::own_program()
            .map_err(|error| ProvisionError::Failed { text: format!("find this program: {error}") })?;
        let Some(launcher) = K::launcher(layout, name, &program) else {
            return self.launch_with(plain(), layout, name);
        };
        match self.launch_with(launcher, layout, name) {
            // The launcher is missing or was refused, which is in the log: there is another place for the cluster.
            Err(ProvisionError::EndedEarly { .. }) if !K::launched(layout) => {
                self.launch_with(plain(), layout, name)
            }
            done => done,
        }
    }

    fn launch_with(&self, mut command: Command, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        let log = layout.log();
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| ProvisionError::File { what: "write", path, source }
        };
        let stderr = OpenOptions::new().create(true).append(true).open(&log).map_err(file(&log))?;
        let ended_early = || ProvisionError::EndedEarly { name: name.to_owned(), log: layout.log() };
        let child = command
            .args([K::HIDDEN, "supervisor"])
            .arg(layout.dir())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn();
        let mut child = match child {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ended_early()),
            child => child.map_err(file(layout.dir()))?,
        };
        let stdout = child.stdout.take();
        // The thread ends with the pipe, and the pipe with the word or the process.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|out| BufReader::new(out).lines());
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let failed = match receiver.recv_timeout(READY_WAIT) {
            Ok(line) if line == READY => return Ok(()),
            Ok(line) => {
                let text = line.strip_prefix(FAILED).unwrap_or(&line).to_owned();
                ProvisionError::Failed { text }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => ended_early(),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => ProvisionError::TimedOut {
                what: format!("starting the supervisor of cluster {name}"),
                seconds: READY_WAIT.as_secs(),
                log,
            },
        };
        let _ = child.kill();
        let _ = child.wait();
        Err(failed)
    }

    /// Everything but the checks of `create`; what it leaves behind on failure is the caller's to remove.
    fn make(
        &self,
        plan: &Plan,
        configs: &Configs,
        layout: &Layout,
        steps: Steps<'_>,
    ) -> Result<(), ProvisionError> {
        use std::os::unix::fs::PermissionsExt;
        let dir = layout.dir();
        // Configurations hold secrets.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(|source| {
            ProvisionError::File { what: "set the mode of", path: dir.to_owned(), source }
        })?;
        self.store.save(&plan.cluster)?;
        self.make_persistent(plan, configs, layout)?;
        steps("starting the machines");
        self.launch(layout, &plan.cluster.name)
    }

    fn make_persistent(&self, plan: &Plan, configs: &Configs, layout: &Layout) -> Result<(), ProvisionError> {
        plan.new.iter().try_for_each(|machine| {
            K::make_machine(layout, &plan.cluster, &machine.name)
                .and_then(|()| match configs.get(&machine.name) {
                    Some(config) => save_config(layout, &machine.name, config),
                    None => Ok(()),
                })
                .map_err(|error| ProvisionError::Failed { text: error.sentence() })
        })
    }

    /// Kills all processes of the cluster and waits until they are gone.
    fn kill_all(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        let deadline = Instant::now() + GONE_WAIT;
        loop {
            let left = own_processes(K::HIDDEN, layout.dir());
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ProvisionError::TimedOut {
                    what: format!("ending the processes of cluster {name}"),
                    seconds: GONE_WAIT.as_secs(),
                    log: layout.log(),
                });
            }
            for pid in left {
                let _ = signal::send(pid, SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn remove_all(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        self.kill_all(layout, name)?;
        K::clean(layout)?;
        let dir = layout.dir();
        fs::remove_dir_all(dir).map_err(|source| ProvisionError::File {
            what: "remove",
            path: dir.to_owned(),
            source,
        })
    }

    fn with_status(&self, mut cluster: Cluster) -> Cluster {
        let Ok(layout) = self.layout(&cluster.name) else { return cluster };
        let told = control::ask(&layout.control(), &Request::Status, ANSWER_WAIT);
        for machine in &mut cluster.machines {
            let found = told.as_ref().ok().and_then(|reply| {
                reply.machines.iter().find(|(name, _)| *name == machine.name).map(|(_, status)| *status)
            });
            machine.status = found.unwrap_or(MachineStatus::Unknown);
        }
        cluster
    }
}

impl<K: Kind> Provider for Local<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn settings(&self) -> &'static [Setting] {
        K::SETTINGS
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn plan(&self, request: &ClusterRequest) -> Result<Plan, ProvisionError> {
        self.plan_cluster(request)
    }

    fn create(&self, plan: &Plan, configs: &Configs, steps: Steps<'_>) -> Result<Cluster, ProvisionError> {
        need_root("making machines")?;
        let name = &plan.cluster.name;
        let layout = self.layout(name)?;
        steps("making the cluster's directory");
        self.store.reserve(name)?;
        // The supervisor sees the same directory by its real name.
        if let Err(error) = self.make(plan, configs, &layout, steps) {
            let _ = self.remove_all(&layout, name);
            return Err(error);
        }
        Ok(self.with_status(plan.cluster.clone()))
    }

    fn plan_more(&self, cluster: &str, machines: &[MachineRequest]) -> Result<Plan, ProvisionError> {
        self.plan_machines(cluster, machines)
    }

    fn add(&self, plan: &Plan, configs: &Configs, steps: Steps<'_>) -> Result<Cluster, ProvisionError> {
        need_root("making machines")?;
        let cluster = plan.cluster.name.as_str();
        let before = self.store.load(cluster)?;
        let _lock = self.store.lock(cluster)?;
        self.ask(cluster, &Request::Status, ANSWER_WAIT)?;
        let is_new = |machine: &&Machine| plan.new.iter().any(|new| new.name == machine.name);
        let old = plan.cluster.machines.iter().filter(|machine| !is_new(machine)).map(|old| &old.name);
        if !old.eq(before.machines.iter().map(|machine| &machine.name)) {
            // Between plan and lock somebody else changed the cluster; addresses may be taken.
            return Err(ProvisionError::Busy { name: cluster.to_owned() });
        }
        let layout = self.layout(cluster)?;
        steps("starting the machines");
        let made = self
            .make_persistent(plan, configs, &layout)
            .and_then(|()| self.store.save(&plan.cluster))
            .and_then(|()| self.ask(cluster, &Request::Reload, RELOAD_WAIT));
        if let Err(error) = made {
            let names = || plan.new.iter().map(|machine| machine.name.as_str());
            // Whatever of it runs, ends; then it is as if nothing had been asked for.
            for name in names() {
                let _ = self.ask(cluster, &Request::Cut(Some(name.to_owned())), ANSWER_WAIT);
            }
            self.store.save(&before)?;
            let _ = self.ask(cluster, &Request::Reload, RELOAD_WAIT);
            for name in names() {
                let _ = fs::remove_dir_all(layout.machine(name));
            }
            return Err(error);
        }
        Ok(self.with_status(plan.cluster.clone()))
    }

    fn remove(&self, cluster: &str, machine: &str, steps: Steps<'_>) -> Result<Cluster, ProvisionError> {
        need_root("removing machines")?;
        self.store.load(cluster)?.machine(machine)?;
        let _lock = self.store.lock(cluster)?;
        let mut state = self.store.load(cluster)?;
        state.endpoint = state.endpoint();
        steps("removing the machine");
        self.ask(cluster, &Request::Cut(Some(machine.to_owned())), ANSWER_WAIT)?;
        state.machines.retain(|own| own.name != machine);
        self.store.save(&state)?;
        self.ask(cluster, &Request::Reload, RELOAD_WAIT)?;
        let layout = self.layout(cluster)?;
        let place = layout.machine(machine);
        fs::remove_dir_all(&place).map_err(|source| ProvisionError::File {
            what: "remove",
            path: place,
            source,
        })?;
        let _ = fs::remove_file(layout.console(machine));
        Ok(self.with_status(state))
    }

    fn reach(&self, _: &Cluster, machine: &Machine) -> Endpoint {
        // A machine without an IPv4 address is none of this provider.
        let host = ipv4::address(machine).map(ipv4::loopback).unwrap_or(std::net::Ipv4Addr::LOCALHOST);
        Endpoint::new(host, MACHINE_PORT)
    }

    fn kubernetes(&self, cluster: &Cluster) -> Vec<Endpoint> {
        let endpoint = cluster.endpoint().and_then(|host| host.parse().ok());
        let others = ipv4::addresses(cluster.control_planes());
        let others = others.into_iter().filter(|address| Some(*address) != endpoint);
        let all = endpoint.into_iter().chain(others);
        all.map(|address| Endpoint::new(ipv4::loopback(address), KUBERNETES_PORT)).collect()
    }

    fn power(&self, cluster: &str, machine: Option<&str>, power: Power) -> Result<(), ProvisionError> {
        let named = machine.map(str::to_owned);
        match power {
            Power::On => {
                need_root("starting machines")?;
                match self.ask(cluster, &Request::Start(named), ANSWER_WAIT) {
                    Ok(_) => Ok(()),
                    // As after a restart of the host: the machines' directories are there, so bring them up again.
                    Err(ProvisionError::NotRunning { .. }) => {
                        let layout = self.layout(cluster)?;
                        self.kill_all(&layout, cluster)?;
                        self.launch(&layout, cluster)
                    }
                    Err(error) => Err(error),
                }
            }
            Power::Off => {
                need_root("stopping machines")?;
                self.ask(cluster, &Request::Stop(named), K::STOP_WAIT + ANSWER_WAIT).map(drop)
            }
            Power::Cut => {
                need_root("stopping machines")?;
                self.ask(cluster, &Request::Cut(named), ANSWER_WAIT).map(drop)
            }
            Power::Reset => {
                need_root("resetting machines")?;
                let names = match named {
                    Some(name) => vec![name],
                    None => self.store.load(cluster)?.machines.into_iter().map(|own| own.name).collect(),
                };
                let reset = |name| self.ask(cluster, &Request::Reset(name), ANSWER_WAIT).map(drop);
                names.into_iter().try_for_each(reset)
            }
        }
    }

    fn console(&self, cluster: &str, machine: &str) -> Result<Box<dyn Read + Send>, ProvisionError> {
        let state = self.store.load(cluster)?;
        let path = self.layout(cluster)?.console(&state.machine(machine)?.name);
        match File::open(&path) {
            Ok(file) => Ok(Box::new(file)),
            // It has not written anything yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Box::new(io::empty())),
            Err(source) => Err(ProvisionError::File { what: "read", path, source }),
        }
    }

    fn show(&self, cluster: &str) -> Result<Cluster, ProvisionError> {
        Ok(self.with_status(self.store.load(cluster)?))
    }

    fn destroy(&self, cluster: &str, steps: Steps<'_>) -> Result<(), ProvisionError> {
        need_root("removing machines")?;
        let layout = self.layout(cluster)?;
        if !layout.dir().is_dir() {
            return Err(ProvisionError::NoSuchCluster { name: cluster.to_owned() });
        }
        steps("removing the machines");
        self.remove_all(&layout, cluster)
    }
}

/// Writes the configuration that a machine's platform offers.
fn save_config(layout: &Layout, machine: &str, config: &[u8]) -> Result<(), SetupError> {
    use std::os::unix::fs::OpenOptionsExt;
    // Holds the cluster's secrets.
    let path = layout.config(machine);
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(config)).map_err(SetupError::file("write", &path))
}

pub(crate) fn need_root(what: &'static str) -> Result<(), ProvisionError> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(ProvisionError::NotRoot { what }),
    }
}

/// The supervisor and boot processes of a cluster, found by their arguments: no file that says so can be stale.
fn own_processes(hidden: &str, dir: &Path) -> Vec<i32> {
    let Ok(all) = process::list() else { return Vec::new() };
    let supervisor = format!(" {hidden} supervisor {}", dir.display());
    let boot = format!(" {hidden} boot {} ", dir.display());
    all.into_iter()
        .filter(|process| process.args.ends_with(&supervisor) || process.args.contains(&boot))
        // A zombie has no arguments any more, so it is not among these.
        .map(|process| process.pid)
        .collect()
}
