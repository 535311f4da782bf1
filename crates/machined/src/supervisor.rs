//! The connection to init: starts, signals and inherits processes, and ends the machine.
//!
//! One task reads what init says and hands each message to whoever waits for it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use ichor_sys::confine::Filter;
use ichor_sys::credentials::Capabilities;
use ichor_sys::supervisor::{
    Child, ChildId, ChildState, Client, Event, GuardNotice, PowerRequest, RebootCommand, Seq, SpawnRequest,
};

use crate::reactor;
use crate::services::{BoxFuture, ExitKind, Process, ProcessPort, ProcessSpec, Root, SpawnError};

/// init answers at once; longer means that something is badly wrong.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How often init hears that machined makes progress. init waits for many of these before it acts.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// A message that found the socket full is tried again this often.
const SEND_TRIES: u32 = 250;

/// Between two tries.
const SEND_REST: Duration = Duration::from_millis(20);

/// What a container can be given: neither the end of the machine nor new code in its kernel.
const GRANTABLE: Capabilities =
    Capabilities::ALL.without(Capabilities::SYS_BOOT).without(Capabilities::SYS_MODULE);

/// What machined finds when it starts.
pub struct Inheritance {
    /// How many times machined was started since boot, this one included.
    pub generation: u32,
    /// Processes that run already, by service id.
    pub processes: BTreeMap<String, Process>,
    /// Descriptors an earlier machined asked init to keep, by name.
    pub kept: BTreeMap<String, OwnedFd>,
}

/// The connection to init. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    client: Arc<Client>,
    waiting: Arc<Mutex<Waiting>>,
    runtime: Handle,
    decided: CancellationToken,
}

#[derive(Default)]
struct Waiting {
    spawns: HashMap<Seq, oneshot::Sender<Result<Process, SpawnError>>>,
    exits: HashMap<ChildId, oneshot::Sender<ExitKind>>,
    confirmations: HashMap<Seq, oneshot::Sender<()>>,
}

impl Supervisor {
    /// Greets init and takes over what it holds. Requests to stop the machine that come from outside
    /// the API go to `power`.
    ///
    /// # Errors
    /// When init does not answer.
    pub fn connect(
        client: Client,
        runtime: &Handle,
        power: mpsc::Sender<PowerRequest>,
    ) -> io::Result<(Self, Inheritance)> {
        let supervisor = Self {
            client: Arc::new(client),
            waiting: Arc::default(),
            runtime: runtime.clone(),
            decided: CancellationToken::new(),
        };
        let inheritance = supervisor.inherit(&power)?;
        let _inside = runtime.enter();
        let socket = reactor::readable(&*supervisor.client)?;
        runtime.spawn(pump(socket, supervisor.clone(), power));
        runtime.spawn(show_progress(supervisor.clone()));
        Ok((supervisor, inheritance))
    }

    /// Ends the machine.
    pub fn reboot(&self, command: RebootCommand) {
        self.send(move |client| client.reboot(command));
    }

    /// Tells init that this system is not on trial, or no longer: it is guarded no more.
    pub fn trial_decided(&self) {
        self.decided.cancel();
        self.send(|client| client.guard(GuardNotice::Decided));
    }

    /// Has init let go of the watchdog device, so that it can be opened here.
    ///
    /// # Errors
    /// When init does not answer.
    pub async fn take_watchdog(&self) -> io::Result<()> {
        let (sender, confirmed) = oneshot::channel();
        {
            // Held over the call, so that the answer cannot come before its waiter is known.
            let mut waiting = self.lock();
            let seq = self.client.guard(GuardNotice::Yield)?;
            waiting.confirmations.insert(seq, sender);
        }
        match tokio::time::timeout(ANSWER_MAX, confirmed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Has init hold a descriptor over the death of machined.
    pub fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.client.keep(name, fd).map(drop)
    }

    /// Has init close a kept descriptor.
    pub fn drop_kept(&self, name: &str) {
        let name = name.to_owned();
        self.send(move |client| client.drop_kept(&name));
    }

    fn inherit(&self, power: &mpsc::Sender<PowerRequest>) -> io::Result<Inheritance> {
        let mut found = Inheritance { generation: 1, processes: BTreeMap::new(), kept: BTreeMap::new() };
        self.client.hello()?;
        let listed = self.client.list()?;
        loop {
            let event = self.client.recv_timeout(ANSWER_MAX)?.ok_or(io::ErrorKind::TimedOut)?;
            match event {
                Event::Welcome { generation, .. } => found.generation = generation,
                Event::Child { child, .. } => {
                    let name = child.name.clone();
                    let process = self.lock().adopt(child);
                    found.processes.insert(name, process);
                }
                Event::Kept { name, fd, .. } => {
                    found.kept.insert(name, fd);
                }
                Event::Done { seq } if seq == listed => return Ok(found),
                Event::Failed { seq, failure } if seq == listed => {
                    return Err(io::Error::from_raw_os_error(failure.errno));
                }
                other => self.lock().deliver(other, power),
            }
        }
    }

    /// Sends a message that must arrive, in the background when the socket is full.
    fn send(&self, message: impl Fn(&Client) -> io::Result<Seq> + Send + 'static) {
        match message(&self.client) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return warn!(%error, "init did not take a message"),
            Ok(_) => return,
        }
        let client = Arc::clone(&self.client);
        self.runtime.spawn(async move {
            for _ in 0..SEND_TRIES {
                tokio::time::sleep(SEND_REST).await;
                match message(&client) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return warn!(%error, "init did not take a message"),
                    Ok(_) => return,
                }
            }
            error!("init does not read its socket");
        });
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn adopt(&mut self, child: Child) -> Process {
        let (sender, exit) = oneshot::channel();
        match child.state {
            ChildState::Running => {
                self.exits.insert(child.id, sender);
            }
            // It died while there was no machined: its end is told as if it happened now.
            ChildState::Exited(status) => {
                let _ = sender.send(kind(status));
            }
        }
        Process { handle: child.id.0, pid: child.pid, output: child.output, exit }
    }

    fn deliver(&mut self, event: Event, power: &mpsc::Sender<PowerRequest>) {
        match event {
            Event::Spawned { seq, child } => {
                // The exit is registered here, before the next message can be the exit itself.
                let process = self.adopt(child);
                if let Some(waiter) = self.spawns.remove(&seq) {
                    let _ = waiter.send(Ok(process));
                }
            }
            Event::Failed { seq, failure } => {
                self.confirmations.remove(&seq);
                if let Some(waiter) = self.spawns.remove(&seq) {
                    let cause = io::Error::from_raw_os_error(failure.errno);
                    let reason = format!("{}: {cause}", failure.stage.as_str());
                    let _ = waiter.send(Err(SpawnError { reason }));
                }
            }
            Event::Exited { id, status, .. } => {
                if let Some(waiter) = self.exits.remove(&id) {
                    let _ = waiter.send(kind(status));
                }
            }
            Event::Power(request) => {
                // A full queue already holds a request to stop.
                let _ = power.try_send(request);
            }
            Event::Done { seq } => {
                if let Some(waiter) = self.confirmations.remove(&seq) {
                    let _ = waiter.send(());
                }
            }
            Event::Welcome { .. } | Event::Child { .. } | Event::Kept { .. } => {}
        }
    }
}

/// Shows init that the runtime of the controllers gives everybody their turn, as long as init wants to know.
async fn show_progress(supervisor: Supervisor) {
    let until = supervisor.decided.clone();
    let show = async {
        loop {
            // One that does not fit into the socket is made up for by the next.
            let _ = supervisor.client.guard(GuardNotice::Progress);
            tokio::time::sleep(PROGRESS_EVERY).await;
        }
    };
    until.run_until_cancelled(show).await;
}

async fn pump(socket: AsyncFd<OwnedFd>, supervisor: Supervisor, power: mpsc::Sender<PowerRequest>) {
    loop {
        let mut ready = match socket.readable().await {
            Ok(ready) => ready,
            Err(error) => return error!(%error, "the socket to init cannot be watched"),
        };
        loop {
            match supervisor.client.try_recv() {
                Ok(Some(event)) => supervisor.lock().deliver(event, &power),
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    warn!("init said something that makes no sense");
                }
                Err(error) => return error!(%error, "the socket to init is gone"),
            }
        }
        ready.clear_ready();
    }
}

impl ProcessPort for Supervisor {
    fn spawn(&self, name: &str, spec: &ProcessSpec) -> BoxFuture<'static, Result<Process, SpawnError>> {
        let terminal = match open_terminal(spec) {
            Ok(terminal) => terminal,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let request = SpawnRequest {
            args: spec.args.clone(),
            env: spec.env.clone(),
            uid: spec.uid,
            gid: spec.uid,
            cgroup: spec.cgroup.clone(),
            capabilities: match (is_privileged(spec), &spec.root) {
                (true, None) => Capabilities::ALL,
                (true, Some(_)) => GRANTABLE,
                (false, _) => Capabilities::NONE,
            },
            oom_score_adj: spec.oom_score_adj,
            nice: spec.nice,
            no_new_privs: !is_privileged(spec),
            filter: match (spec.sealed, spec.privileged, spec.view.is_empty()) {
                (true, _, _) => Filter::Sealed,
                (false, true, _) => Filter::None,
                (false, false, true) => Filter::Service,
                (false, false, false) => Filter::Daemon,
            },
            masked: spec.masked.clone(),
            view: spec.view.clone(),
            root: spec.root.as_ref().map(Root::parts).unwrap_or_default(),
            ..SpawnRequest::new(name, &spec.path)
        };
        let (sender, receiver) = oneshot::channel();
        // Held over the call, so that the answer cannot come before its waiter is known.
        let mut waiting = self.lock();
        let descriptors: Vec<BorrowedFd<'_>> = terminal.iter().map(AsFd::as_fd).collect();
        let sent = self.client.spawn(&request, &descriptors);
        match sent {
            Ok(seq) => {
                waiting.spawns.insert(seq, sender);
            }
            Err(error) => {
                let _ = sender.send(Err(SpawnError { reason: format!("ask init: {error}") }));
            }
        }
        drop(waiting);
        Box::pin(async move {
            match tokio::time::timeout(ANSWER_MAX, receiver).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(SpawnError { reason: "init is gone".to_owned() }),
                Err(_) => Err(SpawnError { reason: "init does not answer".to_owned() }),
            }
        })
    }

    fn signal(&self, handle: u64, signal: i32) {
        self.send(move |client| client.signal(ChildId(handle), signal));
    }

    fn release(&self, handle: u64) {
        self.send(move |client| client.release(ChildId(handle)));
    }
}

fn is_privileged(spec: &ProcessSpec) -> bool {
    spec.privileged && !spec.sealed
}

/// The terminal of a process that is to have one.
fn open_terminal(spec: &ProcessSpec) -> Result<Option<OwnedFd>, SpawnError> {
    let open = |path: &String| {
        let failed = |error| SpawnError { reason: format!("open the terminal {path}: {error}") };
        ichor_sys::terminal::open_raw(Path::new(path)).map_err(failed)
    };
    spec.terminal.as_ref().map(open).transpose()
}

fn kind(status: ExitStatus) -> ExitKind {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitKind::Code(code),
        (None, Some(signal)) => ExitKind::Signal(signal),
        (None, None) => ExitKind::Code(-1),
    }
}

#[cfg(test)]
mod tests {
    use ichor_observe::{LogManager, Start};
    use ichor_sys::supervisor::local;

    use super::*;
    use crate::events::Events;
    use crate::services::{Run, ServiceManager, ServiceSpec, ServiceState};

    const BOUND: Duration = Duration::from_secs(20);

    fn connect() -> (Supervisor, Inheritance) {
        let (power, _) = mpsc::channel(1);
        Supervisor::connect(local::start().unwrap(), &Handle::current(), power).unwrap()
    }

    fn shell(script: &str) -> ProcessSpec {
        ProcessSpec {
            path: "/bin/sh".to_owned(),
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            privileged: true,
            ..ProcessSpec::default()
        }
    }

    #[tokio::test]
    async fn a_real_process_is_started_logged_and_stopped() {
        let (supervisor, found) = connect();
        assert!(found.processes.is_empty() && found.kept.is_empty());
        let logs = LogManager::new();
        let manager = ServiceManager::new(
            Events::default(),
            logs.clone(),
            Arc::new(supervisor),
            found.processes,
            Handle::current(),
        );
        manager.load(ServiceSpec::new("demo", Run::Process(shell("echo hello; exec sleep 60"))));
        manager.start("demo").unwrap();
        manager.wait_up(&["demo"], BOUND).await.unwrap();
        let mut follow = logs.ring("demo").follow(Start::Oldest);
        let line = tokio::time::timeout(BOUND, follow.next(64)).await.unwrap();
        assert_eq!(line.as_deref(), Some(&b"hello\n"[..]));
        tokio::time::timeout(BOUND, manager.stop("demo")).await.unwrap().unwrap();
        assert_eq!(manager.state("demo").unwrap().0, ServiceState::Finished);
    }

    #[tokio::test]
    async fn a_missing_program_is_named_with_its_stage() {
        let (supervisor, _) = connect();
        let spec = ProcessSpec { path: "/no/such/program".to_owned(), ..shell("") };
        let error = supervisor.spawn("demo", &spec).await.unwrap_err();
        assert_eq!(error.to_string(), "exec: No such file or directory (os error 2)");
    }

    #[tokio::test]
    async fn the_watchdog_is_handed_over_by_init() {
        let (supervisor, _) = connect();
        tokio::time::timeout(BOUND, supervisor.take_watchdog()).await.unwrap().unwrap();
        assert!(supervisor.lock().confirmations.is_empty());
    }

    #[tokio::test]
    async fn the_exit_status_arrives() {
        let (supervisor, _) = connect();
        let process = supervisor.spawn("demo", &shell("exit 3")).await.unwrap();
        let exit = tokio::time::timeout(BOUND, process.exit).await.unwrap().unwrap();
        assert_eq!(exit, ExitKind::Code(3));
        supervisor.release(process.handle);
    }
}
