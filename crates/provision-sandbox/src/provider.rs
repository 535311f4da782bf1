//! The provider as its users see it: creates the directory, starts the supervisor, talks to it, removes it all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ichor_provision::{
    Cluster, ClusterRequest, MachineRequest, MachineStatus, Provider, ProvisionError, Store,
};
use ichor_sys::{loopdev, process, signal};
use ipnet::Ipv4Net;

use crate::control::{self, Reply, Request};
use crate::fleet::STOP_WAIT;
use crate::layout::Layout;
use crate::supervisor::{FAILED, READY};
use crate::{HIDDEN, rootfs};

const SIGKILL: i32 = 9;
/// How long the supervisor may take to set itself up.
const READY_WAIT: Duration = Duration::from_secs(120);
/// How long killed processes may take to be gone.
const GONE_WAIT: Duration = Duration::from_secs(60);
/// How long the kernel may take to free the image's loop device.
const LOOP_WAIT: Duration = Duration::from_secs(30);
/// How long a quick request may take.
const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// How long machines may take to be made or forgotten.
const RELOAD_WAIT: Duration = Duration::from_secs(30);
/// The networks offered when none is asked for: 10.5.0.0/24 and up.
const FIRST_NETWORK: u8 = 5;
const LAST_NETWORK: u8 = 89;
/// Longer, and the kernel refuses the address of a Unix socket.
const SOCKET_PATH_MAX: usize = 107;

/// Machines made of namespaces.
#[derive(Clone, Debug)]
pub struct Sandbox {
    store: Store,
}

impl Sandbox {
    /// The name of the provider.
    pub const NAME: &'static str = "sandbox";

    /// A provider that keeps its clusters in `store`.
    pub fn new(store: Store) -> Self {
        // The supervisor works from another directory.
        let root = std::path::absolute(store.root());
        Self { store: root.map_or(store, Store::new) }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// A network that no cluster in the store uses and whose first loopback address is free.
    pub fn free_network(&self) -> Option<Ipv4Net> {
        let taken: Vec<Ipv4Net> =
            self.store.list().unwrap_or_default().into_iter().map(|cluster| cluster.network.cidr).collect();
        (FIRST_NETWORK..=LAST_NETWORK)
            .filter_map(|second| Ipv4Net::new([10, second, 0, 0].into(), 24).ok())
            .filter(|network| !taken.iter().any(|other| other.contains(network) || network.contains(other)))
            .find(|network| {
                let first = network.hosts().nth(1).map(ichor_provision::loopback);
                first.is_some_and(|address| {
                    std::net::TcpListener::bind((address, crate::forward::PORTS[0])).is_ok()
                })
            })
    }

    fn layout(&self, cluster: &str) -> Result<Layout, ProvisionError> {
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

    /// Starts the supervisor and waits for its word.
    fn launch(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        let log = layout.log();
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| ProvisionError::File { what: "write", path, source }
        };
        let stderr = OpenOptions::new().create(true).append(true).open(&log).map_err(file(&log))?;
        let mut child = Command::new("/proc/self/exe")
            .arg0("ichorctl")
            .args([HIDDEN, "supervisor"])
            .arg(layout.dir())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(file(layout.dir()))?;
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
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => ProvisionError::Failed {
                text: format!("the supervisor of cluster {name} ended early; its log is {}", log.display()),
            },
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
        cluster: &Cluster,
        request: &ClusterRequest,
        layout: &Layout,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), ProvisionError> {
        use std::os::unix::fs::PermissionsExt;
        let dir = layout.dir();
        // Configurations hold secrets.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(|source| {
            ProvisionError::File { what: "set the mode of", path: dir.to_owned(), source }
        })?;
        self.store.save(cluster)?;
        for machine in &request.machines {
            rootfs::make_persistent(layout, &machine.name, machine.config.as_deref())
                .map_err(|error| ProvisionError::Failed { text: error.sentence() })?;
        }
        progress("starting the machines");
        self.launch(layout, &cluster.name)
    }

    /// Kills all processes of the cluster and waits until they are gone.
    fn kill_all(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        let deadline = Instant::now() + GONE_WAIT;
        loop {
            let left = own_processes(layout.dir());
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

    fn clean(&self, layout: &Layout) -> Result<(), ProvisionError> {
        let failed = |text: String| ProvisionError::Failed { text };
        let done = Command::new("/proc/self/exe")
            .args([HIDDEN, "cleanup"])
            .arg(layout.dir())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(format!("start the clean-up: {error}")))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
        }
    }

    fn remove_all(&self, layout: &Layout, name: &str) -> Result<(), ProvisionError> {
        self.kill_all(layout, name)?;
        self.clean(layout)?;
        release_loop(layout, self.store.load(name).ok().as_ref());
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

impl Provider for Sandbox {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn create(
        &self,
        request: &ClusterRequest,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError> {
        need_root("making sandbox machines")?;
        let mut cluster = Cluster::plan(Self::NAME, request)?;
        cluster.image = fs::canonicalize(&request.image)
            .ok()
            .filter(|path| File::open(path).is_ok() && path.is_file())
            .ok_or_else(|| ProvisionError::NoImage { path: request.image.clone() })?;
        if let Some(images) = &mut cluster.images {
            // The supervisor works from another directory, and says so late.
            let found = fs::canonicalize(&*images).ok().filter(|path| path.join("index.json").is_file());
            *images = found.ok_or_else(|| ProvisionError::NoImages { path: images.clone() })?;
        }
        let layout = self.layout(&cluster.name)?;
        let socket = layout.control();
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(ProvisionError::File {
                what: "use",
                path: socket,
                source: io::Error::new(
                    io::ErrorKind::InvalidFilename,
                    "the path of the state directory is too long for a socket",
                ),
            });
        }
        progress("making the cluster's directory");
        self.store.reserve(&cluster.name)?;
        // The supervisor sees the same directory by its real name.
        if let Err(error) = self.make(&cluster, request, &layout, progress) {
            let _ = self.remove_all(&layout, &cluster.name);
            return Err(error);
        }
        Ok(self.with_status(cluster))
    }

    fn add(
        &self,
        cluster: &str,
        machines: &[MachineRequest],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError> {
        need_root("making sandbox machines")?;
        let before = self.store.load(cluster)?;
        let _lock = self.store.lock(cluster)?;
        self.ask(cluster, &Request::Status, ANSWER_WAIT)?;
        let mut after = before.clone();
        after.grow(machines)?;
        let layout = self.layout(cluster)?;
        progress("starting the machines");
        let made = machines
            .iter()
            .try_for_each(|machine| {
                rootfs::make_persistent(&layout, &machine.name, machine.config.as_deref())
                    .map_err(|error| ProvisionError::Failed { text: error.sentence() })
            })
            .and_then(|()| self.store.save(&after))
            .and_then(|()| self.ask(cluster, &Request::Reload, RELOAD_WAIT));
        if let Err(error) = made {
            let names = || machines.iter().map(|machine| machine.name.as_str());
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
        Ok(self.with_status(after))
    }

    fn remove(
        &self,
        cluster: &str,
        machine: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Cluster, ProvisionError> {
        need_root("removing sandbox machines")?;
        self.store.load(cluster)?.machine(machine)?;
        let _lock = self.store.lock(cluster)?;
        let mut state = self.store.load(cluster)?;
        state.endpoint = state.endpoint();
        progress("removing the machine");
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

    fn start(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError> {
        need_root("starting sandbox machines")?;
        let request = Request::Start(machine.map(str::to_owned));
        match self.ask(cluster, &request, ANSWER_WAIT) {
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

    fn stop(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError> {
        need_root("stopping sandbox machines")?;
        let request = Request::Stop(machine.map(str::to_owned));
        self.ask(cluster, &request, STOP_WAIT + ANSWER_WAIT).map(drop)
    }

    fn cut_power(&self, cluster: &str, machine: Option<&str>) -> Result<(), ProvisionError> {
        need_root("stopping sandbox machines")?;
        self.ask(cluster, &Request::Cut(machine.map(str::to_owned)), ANSWER_WAIT).map(drop)
    }

    fn reset(&self, cluster: &str, machine: &str) -> Result<(), ProvisionError> {
        need_root("resetting sandbox machines")?;
        self.ask(cluster, &Request::Reset(machine.to_owned()), ANSWER_WAIT).map(drop)
    }

    fn console(&self, cluster: &str, machine: &str) -> Result<PathBuf, ProvisionError> {
        let state = self.store.load(cluster)?;
        Ok(self.layout(cluster)?.console(&state.machine(machine)?.name))
    }

    fn show(&self, cluster: &str) -> Result<Cluster, ProvisionError> {
        Ok(self.with_status(self.store.load(cluster)?))
    }

    fn list(&self) -> Result<Vec<Cluster>, ProvisionError> {
        let ours = |cluster: &Cluster| cluster.provisioner == Self::NAME;
        let clusters = self.store.list()?.into_iter().filter(ours);
        Ok(clusters.map(|cluster| self.with_status(cluster)).collect())
    }

    fn destroy(&self, cluster: &str, progress: &mut dyn FnMut(&str)) -> Result<(), ProvisionError> {
        need_root("removing sandbox machines")?;
        let layout = self.layout(cluster)?;
        if !layout.dir().is_dir() {
            return Err(ProvisionError::NoSuchCluster { name: cluster.to_owned() });
        }
        progress("removing the machines");
        self.remove_all(&layout, cluster)
    }
}

/// Waits until the kernel has let the image go, which it does in its own time, and takes the device away if it
/// was made for us. Best effort: a free device too many harms nobody.
fn release_loop(layout: &Layout, cluster: Option<&Cluster>) {
    let Ok(note) = fs::read_to_string(layout.loop_device()) else { return };
    let Some((number, origin)) = note.split_once(' ') else { return };
    let Ok(number) = number.parse() else { return };
    let ours = || {
        let backing = loopdev::backing_file(number);
        backing.is_some() && cluster.is_none_or(|cluster| backing.as_ref() == Some(&cluster.image))
    };
    let deadline = Instant::now() + LOOP_WAIT;
    while ours() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    if origin == "created" {
        let _ = loopdev::remove(number);
    }
}

fn need_root(what: &'static str) -> Result<(), ProvisionError> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(ProvisionError::NotRoot { what }),
    }
}

/// The supervisor and boot processes of a cluster, found by their arguments: no file that says so can be stale.
fn own_processes(dir: &Path) -> Vec<i32> {
    let Ok(all) = process::list() else { return Vec::new() };
    let supervisor = format!(" {HIDDEN} supervisor {}", dir.display());
    let boot = format!(" {HIDDEN} boot {} ", dir.display());
    all.into_iter()
        .filter(|process| process.args.ends_with(&supervisor) || process.args.contains(&boot))
        // A zombie has no arguments any more, so it is not among these.
        .map(|process| process.pid)
        .collect()
}
