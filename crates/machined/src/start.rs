//! The start of machined: everything is put together here, once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{Level, error, info, warn};

use ichor_ctl_config::{AcquireController, MachineTypeController};
use ichor_ctl_k8s::prism::KubePrismController;
use ichor_ctl_runtime::WatchdogTimerController;
use ichor_observe::{ConsoleSink, KernelSink, LogLayer, LogManager};
use ichor_rpc::unix::{self, Access};
use ichor_sys::supervisor::{Client, PowerRequest};
use ichor_types::Cmdline;
use ichor_wire::common;

use crate::api::console::serve_console;
use crate::api::server::{FOR_APID, FOR_TRUSTD, Readable, serve_machine, serve_runtime};
use crate::api::streams;
use crate::daemons::{self, APID_UID, DASHBOARD_UID, TRUSTD_UID};
use crate::dashboard;
use crate::events::{Payload, Tail};
use crate::lanes;
use crate::maintenance::{MaintenanceConfigController, MaintenanceServiceController};
use crate::node::{Node, NodeParts, Paths};
use crate::platform::{self, Platform, Signs};
use crate::prism::{self, KeptListener};
use crate::sequencer::{Request, SequenceError};
use crate::service_controller::ServiceController;
use crate::services::spec::TaskRun;
use crate::sources::NodeSources;
use crate::supervisor::Supervisor;
use crate::tasks::NodeTasks;
use crate::watchdog::SharedWatchdog;

/// Before an emergency reboot, for people who look at the console.
const COUNTDOWN: Duration = Duration::from_secs(10);

/// Threads for blocking work of the node itself: saving, issuing, starting, and look-ups of configured names, which may
/// all wait for a name server that is gone. They end after a second without any work.
const OWN_THREADS_MAX: usize = 32;

/// Threads of the API: those of its lanes, and for uploads and look-ups that have none.
const API_THREADS_MAX: usize = lanes::THREADS + 8;

/// Freed memory goes back to the kernel this often; with a small heap that is a fraction of a millisecond.
const TRIM_EVERY: Duration = Duration::from_secs(10);

/// Runs machined. Returns only when init is gone or the start failed; init starts it again.
pub fn main(_args: &[String]) -> ExitCode {
    let client = match Client::inherited() {
        Ok(client) => client,
        Err(error) => {
            eprintln!("machined: {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = ichor_sys::confine::lock_manager() {
        // A node that cannot be managed helps nobody: go on, and say so.
        eprintln!("machined: not locked: {error}");
    }
    ichor_pki::install_provider();
    match run(client) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("machined cannot start: {error}");
            eprintln!("machined: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why machined cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel or init refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The platform is not known.
    #[error(transparent)]
    Platform(#[from] platform::PlatformError),
    /// A controller was refused; a bug.
    #[error("register controllers: {0}")]
    Register(String),
    /// The state refused something at the start; a bug.
    #[error("set up the state: {0}")]
    State(#[from] ichor_cosi::StateError),
}

fn io<T>(what: &str, result: io::Result<T>) -> Result<T, StartError> {
    result.map_err(|source| StartError::Io { what: what.to_owned(), source })
}

fn single_thread(blocking_threads: usize) -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
}

/// The runtime of the controllers, with threads that no client reaches.
///
/// # Errors
/// When the kernel has no descriptors for it.
pub fn controllers_runtime() -> io::Result<Runtime> {
    single_thread(OWN_THREADS_MAX)
}

/// A thread of its own for the API, so that no controller can hold up a call.
///
/// # Errors
/// When the kernel has no thread or descriptors for it.
pub fn api_thread() -> io::Result<Handle> {
    let runtime = single_thread(API_THREADS_MAX)?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new().name("api".to_owned());
    thread.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

fn run(client: Client) -> Result<(), StartError> {
    let cmdline = Cmdline::parse(&ichor_sys::host::command_line().unwrap_or_default());
    let logs = LogManager::new();
    let (own_kernel_log, console) = set_up_logging(&logs);
    let environment = std::env::var("PLATFORM").ok();
    let signs = Signs {
        container_marker: Path::new("/usr/etc/in-container").exists(),
        agent_marker: Path::new("/usr/local/etc/is-metal-agent").exists(),
        environment: environment.as_deref(),
    };
    let platform = platform::detect(signs, &cmdline)?;
    let paths = Paths::default();
    make_directories(&paths)?;

    let controllers = io("make the controller runtime", controllers_runtime())?;
    let api = io("start the API thread", api_thread())?;
    let (power, power_requests) = mpsc::channel(1);
    let (supervisor, inheritance) =
        io("greet init", Supervisor::connect(client, controllers.handle(), power))?;
    info!(platform = platform.name, generation = inheritance.generation, "machined starts");

    controllers.block_on(async move {
        let machine = Machine { platform, cmdline, paths, logs, own_kernel_log, console, supervisor, api };
        machine.run(inheritance.processes, inheritance.kept, power_requests).await
    })
}

/// Console lines go to the kernel log where it is ours, else to standard error and a ring.
fn set_up_logging(logs: &LogManager) -> (bool, Arc<dyn ConsoleSink>) {
    let own = ichor_sys::power::in_first_pid_namespace();
    if own {
        // The kernel takes the word only with a newline behind it.
        let _ = std::fs::write("/proc/sys/kernel/printk_devkmsg", "on\n");
    }
    let kmsg = if own { KernelSink::kmsg(Path::new("/dev/kmsg")).ok() } else { None };
    let own = kmsg.is_some();
    let console: Arc<dyn ConsoleSink> = match kmsg {
        Some(sink) => Arc::new(sink),
        None => Arc::new(KernelSink::console(Box::new(io::stderr()), logs.ring(streams::KERNEL))),
    };
    ichor_observe::install(LogLayer::new(logs, Arc::clone(&console), Level::INFO));
    (own, console)
}

fn make_directories(paths: &Paths) -> Result<(), StartError> {
    let dirs: [(PathBuf, u32, Option<u32>); 7] = [
        (paths.state.clone(), 0o700, None),
        (paths.run.clone(), 0o751, None),
        (paths.run.join("machined"), 0o771, Some(APID_UID)),
        (paths.run.join("apid"), 0o751, Some(APID_UID)),
        (paths.run.join("trustd"), 0o751, Some(TRUSTD_UID)),
        (paths.run.join("dashboard"), 0o751, Some(DASHBOARD_UID)),
        (PathBuf::from("/system/etc"), 0o700, None),
    ];
    for (dir, mode, owner) in dirs {
        let make = || -> io::Result<()> {
            std::fs::DirBuilder::new().recursive(true).mode(mode).create(&dir)?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode))?;
            match owner {
                Some(id) => std::os::unix::fs::chown(&dir, Some(id), Some(id)),
                None => Ok(()),
            }
        };
        io(&format!("make {}", dir.display()), make())?;
    }
    Ok(())
}

struct Machine {
    platform: Platform,
    cmdline: Cmdline,
    paths: Paths,
    logs: LogManager,
    own_kernel_log: bool,
    console: Arc<dyn ConsoleSink>,
    supervisor: Supervisor,
    api: Handle,
}

impl Machine {
    async fn run(
        self,
        processes: BTreeMap<String, crate::services::Process>,
        kept: BTreeMap<String, OwnedFd>,
        power_requests: mpsc::Receiver<PowerRequest>,
    ) -> Result<(), StartError> {
        let program = program();
        let sockets = Arc::new(Sockets { kept: Mutex::new(kept), supervisor: self.supervisor.clone() });
        let (serving, serve) = serve_task(Arc::clone(&sockets), self.api.clone());
        let tasks = Arc::new(NodeTasks::new(self.supervisor.clone(), serve, program.clone()));
        let parts = NodeParts {
            platform: self.platform,
            cmdline: self.cmdline,
            paths: self.paths,
            logs: self.logs,
            own_kernel_log: self.own_kernel_log,
        };
        let node = parts.assemble(Arc::new(self.supervisor.clone()), processes, &tasks)?;
        let _ = serving.set(Arc::clone(&node));
        register_controllers(&node, &self.api).map_err(StartError::Register)?;
        let prism = KeptListener::new(self.supervisor.clone(), sockets.take(prism::KEPT));
        node.store
            .controllers
            .register(KubePrismController::new(prism))
            .map_err(|error| StartError::Register(error.to_string()))?;
        node.store
            .controllers
            .register(WatchdogTimerController::new(SharedWatchdog::new(self.supervisor.clone())))
            .map_err(|error| StartError::Register(error.to_string()))?;
        for (daemon, uid, readable) in [("apid", APID_UID, FOR_APID), ("trustd", TRUSTD_UID, FOR_TRUSTD)] {
            serve_daemon_state(&node, &sockets, &self.api, daemon, uid, readable);
        }
        if dashboard::is_wanted(&node.host) {
            serve_dashboard(&node, &sockets, &self.api);
        }
        if node.host.own_kernel_log {
            tokio::spawn(streams::keep_kernel_log(node.journal.logs.ring(streams::KERNEL)));
        }
        let (copies, logs) = (node.journal.console.clone(), node.journal.logs.clone());
        tokio::spawn(async move { copies.run(logs, self.console).await });
        tokio::task::spawn_blocking(daemons::make_groups_ahead);
        let running = node.store.controllers.clone();
        tokio::spawn(async move { running.run(std::future::pending()).await });
        tokio::spawn(trim_memory());
        tokio::spawn(heed_power(Arc::clone(&node), power_requests));

        let fatal = watch_for_fatal(&node);
        boot(&node, &program).await;
        fatal.await;
        emergency(&node, &self.supervisor, &tasks).await;
        // init ends the machine, and this process with it.
        std::future::pending().await
    }
}

/// Initialize, install, the gateway, boot. What goes wrong is told by events.
async fn boot(node: &Arc<Node>, program: &str) {
    let run = async |request| {
        let done = node.power.sequencer.run(request, false, "").await;
        if matches!(done, Err(SequenceError::Canceled { .. })) {
            info!("the start was taken over by another sequence");
        }
        done.is_ok()
    };
    if !run(Request::Initialize).await {
        return;
    }
    let needed = crate::tasks::install::is_needed(node).await;
    if !run(Request::Install { needed }).await {
        return;
    }
    let state = &node.store.state;
    node.services.load(crate::environment::with(daemons::apid(program, state), &node.host, state));
    if let Err(error) = node.services.start("apid") {
        error!(%error, "apid does not start");
    }
    // A failure is in the events, and whoever watches them acts on it.
    let _ = node.power.sequencer.run(Request::Boot, false, "").await;
}

/// Ends when a sequence failed for good.
fn watch_for_fatal(node: &Arc<Node>) -> impl Future<Output = ()> + use<> {
    let mut watch = node.journal.events.watch(&Tail::None, None);
    let events = node.journal.events.clone();
    async move {
        let mut restarting = false;
        loop {
            let Some(event) = watch.next().await else {
                // A full ring behind: what is lost is lost, the next failure counts.
                watch = events.watch(&Tail::None, None);
                continue;
            };
            match &event.payload {
                Payload::Restart(_) => restarting = true,
                Payload::Sequence(event) => {
                    let fatal = event.error.as_ref().is_some_and(|error| error.code() == common::Code::Fatal);
                    if fatal && !restarting {
                        return;
                    }
                }
                _ => {}
            }
        }
    }
}

async fn emergency(node: &Node, supervisor: &Supervisor, tasks: &NodeTasks) {
    if node.host.cmdline.first("panic") == Some("0") {
        error!("a sequence failed; staying as it is because of panic=0");
        return std::future::pending().await;
    }
    error!("a sequence failed; rebooting in {} s", COUNTDOWN.as_secs());
    let by = "machined, because a sequence failed";
    node.power.last_boot.asked(crate::families::has_disks(), "reboot", by).await;
    tokio::time::sleep(COUNTDOWN).await;
    supervisor.reboot(tasks.emergency());
}

/// Somebody pressed the power button, or signalled PID 1.
async fn heed_power(node: Arc<Node>, mut requests: mpsc::Receiver<PowerRequest>) {
    while let Some(request) = requests.recv().await {
        match request {
            PowerRequest::Shutdown => node.power.sequencer.start(Request::Shutdown { force: true }, true, ""),
            PowerRequest::Reboot => node.power.sequencer.start(Request::Reboot { force: false }, true, ""),
        }
    }
}

async fn trim_memory() {
    loop {
        tokio::time::sleep(TRIM_EVERY).await;
        ichor_sys::memory::trim();
    }
}

/// The multi-call binary, for the other daemons.
fn program() -> String {
    match std::env::current_exe() {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => "/usr/bin/ichor".to_owned(),
    }
}

/// Listening sockets, kept by init over the death of machined so that callers wait instead of failing.
struct Sockets {
    kept: Mutex<BTreeMap<String, OwnedFd>>,
    supervisor: Supervisor,
}

impl Sockets {
    /// A descriptor kept under this name.
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// The socket at `path`: the kept one, or a new one.
    fn listener(&self, name: &str, path: &Path, access: Access) -> io::Result<StdListener> {
        if let Some(fd) = self.take(name)
            && path.exists()
        {
            let listener = StdListener::from(fd);
            listener.set_nonblocking(true)?;
            return Ok(listener);
        }
        let listener = unix::bind(path, access).map_err(io::Error::other)?.into_std()?;
        if let Err(error) = self.supervisor.keep(name, listener.as_fd()) {
            warn!(name, %error, "init does not keep this socket");
        }
        Ok(listener)
    }
}

/// The in-process service `machined`: the machine API on the API thread. The node is filled in later.
fn serve_task(sockets: Arc<Sockets>, api: Handle) -> (Arc<OnceLock<Arc<Node>>>, TaskRun) {
    let serving = Arc::new(OnceLock::new());
    let filled_in = Arc::clone(&serving);
    let run: TaskRun = Arc::new(move |stop: CancellationToken| {
        let node: Option<Arc<Node>> = serving.get().cloned();
        let (sockets, api) = (Arc::clone(&sockets), api.clone());
        Box::pin(async move {
            let Some(node) = node else { return Err("the node is gone".to_owned()) };
            let path = node.host.paths.machine_socket();
            let served = api.spawn(async move {
                let listener = sockets
                    .listener("machine.sock", &path, Access::owned_by(APID_UID))
                    .and_then(UnixListener::from_std)
                    .map_err(|error| format!("listen on {}: {error}", path.display()))?;
                serve_machine(node, listener, stop).await;
                Ok(())
            });
            served.await.map_err(|error| error.to_string())?
        })
    });
    (filled_in, run)
}

/// Serves what one daemon may read of the state, for as long as machined lives.
fn serve_daemon_state(
    node: &Arc<Node>,
    sockets: &Arc<Sockets>,
    api: &Handle,
    daemon: &'static str,
    uid: u32,
    readable: &'static [Readable],
) {
    let path = node.host.paths.runtime_socket(daemon);
    let (sockets, state, audit) = (Arc::clone(sockets), node.store.state.clone(), node.journal.audit.clone());
    api.spawn(async move {
        let listener = sockets
            .listener(&format!("{daemon}.runtime"), &path, Access::owned_by(uid))
            .and_then(UnixListener::from_std);
        match listener {
            Ok(listener) => serve_runtime(state, audit, readable, listener, CancellationToken::new()).await,
            Err(error) => error!(daemon, %error, "the state of a daemon is not served"),
        }
    });
}

/// Serves what the console may see and do, for as long as machined lives.
fn serve_dashboard(node: &Arc<Node>, sockets: &Arc<Sockets>, api: &Handle) {
    let path = node.host.paths.console_socket();
    let (sockets, node) = (Arc::clone(sockets), Arc::clone(node));
    api.spawn(async move {
        let listener = sockets
            .listener("dashboard.machine", &path, Access::owned_by(DASHBOARD_UID))
            .and_then(UnixListener::from_std);
        match listener {
            Ok(listener) => serve_console(node, listener, CancellationToken::new()).await,
            Err(error) => error!(%error, "the dashboard is not served"),
        }
    });
}

/// Everything that turns resources into other resources.
fn register_controllers(node: &Arc<Node>, api: &Handle) -> Result<(), String> {
    let runtime = &node.store.controllers;
    let text = |error: ichor_cosi::RegisterError| error.to_string();
    let sources = NodeSources::new(&node.host, &node.journal.events, &node.store.state);
    runtime.register(AcquireController::new(sources, node.store.config.clone())).map_err(text)?;
    runtime.register(MachineTypeController).map_err(text)?;
    runtime.register(ServiceController::new(node.services.clone())).map_err(text)?;
    runtime.register(MaintenanceConfigController).map_err(text)?;
    runtime.register(MaintenanceServiceController::new(Arc::clone(node), api.clone())).map_err(text)?;
    crate::families::register(node).map_err(|error| error.to_string())
}
