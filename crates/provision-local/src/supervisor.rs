//! The process that owns a cluster: network, machines, forwarders and the control socket.
//!
//! It starts with one thread: it binds the host's loopback sockets, takes new namespaces and forks. The child is
//! PID 1 of the fleet; the parent only waits, and its death is the child's.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ichor_net::{Netlink, link};
use ichor_provision::Cluster;
use ichor_sys::mount::{self, MountFlags, Propagation};
use ichor_sys::namespace::{self, Namespaces};
use ichor_sys::signal;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::control::{LINE_MAX, Reply, Request};
use crate::error::SetupError;
use crate::fleet::{Effect, Fleet};
use crate::forward::{self, Forward, Forwards};
use crate::layout::Layout;
use crate::reload::StandIn;
use crate::{Kind, ipv4, reload};

/// The bridge that joins the machines, in the fleet's own network namespace.
pub const BRIDGE: &str = "br0";
/// The words on standard output that tell the creator how it went.
pub(crate) const READY: &str = "ready";
pub(crate) const FAILED: &str = "failed ";

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Requests waiting for the loop; each comes from a connection that waits for its answer.
const REQUESTS_MAX: usize = 16;
/// A console log above this is moved aside.
const CONSOLE_MAX: u64 = 16 * 1024 * 1024;
const CONSOLE_CHECK: Duration = Duration::from_secs(30);

pub(crate) fn main<K: Kind>(dir: &Path) -> ExitCode {
    let _ = rustix::process::setsid();
    let layout = Layout::new(dir);
    match outer::<K>(&layout) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Tells the creator, and the log.
fn fail(error: &SetupError) -> ExitCode {
    let sentence = error.sentence();
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{FAILED}{sentence}");
    let _ = stdout.flush();
    eprintln!("{sentence}");
    ExitCode::FAILURE
}

/// On the host's side: sockets, namespaces, fork, wait.
fn outer<K: Kind>(layout: &Layout) -> Result<ExitCode, SetupError> {
    let cluster = layout.load()?;
    K::prepare_host(layout, &cluster)?;
    let host = namespace::own_net().map_err(SetupError::step("open the network namespace"))?;
    let forwards = forward::bind(&reload::addresses(&cluster))?;
    let kinds = Namespaces::MOUNT.union(Namespaces::NET).union(Namespaces::PID);
    namespace::unshare(kinds).map_err(SetupError::step("make namespaces"))?;
    let mut forwards = Some(forwards);
    let pid =
        namespace::fork(|| match inner::<K>(layout, &cluster, forwards.take().unwrap_or_default(), &host) {
            Ok(()) => 0,
            Err(error) => {
                fail(&error);
                1
            }
        })
        .map_err(SetupError::step("fork"))?;
    // The child has the sockets and the creator's ear; kept here they would outlive it.
    drop(forwards);
    close_stdout();
    let status = signal::wait_for(pid).map_err(SetupError::step("wait for the fleet"))?;
    Ok(if status == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn close_stdout() {
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null.as_fd());
    }
}

/// PID 1 of the fleet.
fn inner<K: Kind>(
    layout: &Layout,
    cluster: &Cluster,
    bound: Vec<Forward>,
    host: &File,
) -> Result<(), SetupError> {
    signal::set_parent_death_signal(SIGKILL).map_err(SetupError::step("follow the parent"))?;
    // Two descriptors for each forwarded connection.
    ichor_sys::credentials::raise_nofile(1 << 20);
    mount::set_propagation(Path::new("/"), Propagation::Private)?;
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount::mount("proc", Path::new("/proc"), "proc", flags, "")?;
    let run = layout.run();
    fs::create_dir_all(&run).map_err(SetupError::file("make", &run))?;
    mount::mount("ichor", &run, "tmpfs", MountFlags::empty(), "mode=0700,size=64M")?;
    K::prepare_fleet(layout, cluster)?;
    for machine in &cluster.machines {
        K::make_machine(layout, cluster, &machine.name)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SetupError::step("make a runtime"))?;
    runtime.block_on(async {
        make_bridge(cluster).await?;
        serve_images(cluster).await?;
        K::serve(layout, cluster).await?;
        let mut forwards = Forwards::new(K::ACCEPTS_WITHIN);
        forwards.start(bound)?;
        serve::<K>(layout, cluster, forwards, host).await
    })
}

async fn make_bridge(cluster: &Cluster) -> Result<(), SetupError> {
    let netlink = Netlink::open()?;
    link::set_up(&netlink, "lo", true).await?;
    link::create_bridge(&netlink, BRIDGE).await?;
    link::set_mtu(&netlink, BRIDGE, cluster.network.mtu).await?;
    let network = ipv4::network(cluster)?;
    let address = ipnet::Ipv4Net::new(ipv4::gateway(cluster)?, network.prefix_len()).unwrap_or(network);
    link::add_address(&netlink, BRIDGE, address.into()).await?;
    link::set_up(&netlink, BRIDGE, true).await?;
    // A machine whose link has just come up is found at once, not at the next full second.
    let _ = fs::write(format!("/proc/sys/net/ipv4/neigh/{BRIDGE}/retrans_time_ms"), "20");
    Ok(())
}

/// Serves the container images to the machines, for as long as the process lives.
async fn serve_images(cluster: &Cluster) -> Result<(), SetupError> {
    let (Some(images), Some(address)) = (&cluster.images, ipv4::registry(cluster)) else { return Ok(()) };
    let layout = ichor_registry::Layout::open(images)
        .map_err(|error| SetupError::file("serve the images of", images)(std::io::Error::other(error)))?;
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(SetupError::step("listen for pulls of images"))?;
    let limits = ichor_registry::Limits::default();
    tokio::spawn(ichor_registry::serve(listener, layout.into(), limits, std::future::pending()));
    Ok(())
}

type Call = (Request, oneshot::Sender<Reply>);

/// Starts all machines and serves requests, for as long as the process lives.
async fn serve<K: Kind>(
    layout: &Layout,
    cluster: &Cluster,
    forwards: Forwards,
    host: &File,
) -> Result<(), SetupError> {
    let mut children = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())
        .map_err(SetupError::step("watch children"))?;
    let socket = layout.control();
    // Left by a supervisor that was killed; two at once cannot be, as the loopback sockets are taken first.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(SetupError::file("listen on", &socket))?;
    let (sender, mut calls) = mpsc::channel(REQUESTS_MAX);
    tokio::spawn(accept(listener, sender));

    let names = cluster.machines.iter().map(|machine| machine.name.clone());
    let mut loop_state = Supervisor::<K> {
        kind: PhantomData,
        layout,
        cluster: cluster.clone(),
        host,
        forwards,
        stand_in: None,
        fleet: Fleet::new(names, K::STOP_WAIT),
        waiting: Vec::new(),
    };
    loop_state.lead().await?;
    for at in 0..cluster.machines.len() {
        let effect = loop_state.fleet.start(at);
        loop_state.apply(effect);
    }
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{READY}").and_then(|()| stdout.flush());
    close_stdout();

    let mut console_check = tokio::time::interval(CONSOLE_CHECK);
    loop {
        let due = loop_state.fleet.next_due();
        tokio::select! {
            _ = children.recv() => loop_state.reap(),
            Some((request, answer)) = calls.recv() => match request {
                Request::Reload => {
                    let error = loop_state.reload().await.err().map(|error| error.sentence());
                    let _ = answer.send(Reply { error, machines: loop_state.fleet.status() });
                }
                request => loop_state.handle(&request, answer),
            },
            () = sleep_until(due) => loop_state.wake(),
            _ = console_check.tick() => loop_state.trim_consoles(),
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

pub(crate) struct Supervisor<'a, K> {
    kind: PhantomData<K>,
    pub(crate) layout: &'a Layout,
    pub(crate) cluster: Cluster,
    /// The network namespace of the host.
    pub(crate) host: &'a File,
    pub(crate) forwards: Forwards,
    /// Who answers at the endpoint when its machine is gone.
    pub(crate) stand_in: Option<StandIn>,
    pub(crate) fleet: Fleet,
    /// Who waits for which machines to be off. Bounded by the connections that wait.
    waiting: Vec<(Vec<usize>, oneshot::Sender<Reply>)>,
}

impl<K: Kind> Supervisor<'_, K> {
    pub(crate) fn apply(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Boot(at) => self.boot(at),
                Effect::Shutdown(pid) => drop(signal::send(pid, SIGTERM)),
                Effect::Kill(pid) => drop(signal::send(pid, SIGKILL)),
            }
        }
    }

    fn boot(&mut self, at: usize) {
        let name = self.fleet.name(at).to_owned();
        match spawn_boot(K::HIDDEN, self.layout, &name) {
            Ok(pid) => {
                eprintln!("{name}: power on");
                self.fleet.booted(at, pid, Instant::now());
            }
            Err(error) => {
                eprintln!("{name}: {}", error.sentence());
                self.fleet.boot_failed(at);
            }
        }
    }

    fn reap(&mut self) {
        while let Some((pid, status)) = signal::reap_any() {
            let code = exit_code(status);
            if let Some(name) = self.fleet.ended(pid, code, Instant::now()) {
                eprintln!("{name}: ended with {code}");
                let gone = self.cluster.machines.iter().find(|machine| machine.name == name);
                if let Some(address) = gone.and_then(|machine| ipv4::address(machine).ok()) {
                    self.forwards.cut(address);
                }
            }
        }
        self.wake();
    }

    fn wake(&mut self) {
        let effects = self.fleet.due(Instant::now());
        self.apply(effects);
        let status = self.fleet.status();
        for (which, answer) in std::mem::take(&mut self.waiting) {
            if self.fleet.all_off(&which) {
                // Who does not wait any more does not want to know.
                let _ = answer.send(Reply { error: None, machines: status.clone() });
            } else {
                self.waiting.push((which, answer));
            }
        }
    }

    fn handle(&mut self, request: &Request, answer: oneshot::Sender<Reply>) {
        let name = match request {
            Request::Status | Request::Reload => None,
            Request::Start(name) | Request::Stop(name) | Request::Cut(name) => name.as_deref(),
            Request::Reset(name) => Some(name.as_str()),
        };
        let Some(which) = self.fleet.select(name) else {
            let error = Some(format!("there is no machine {}", name.unwrap_or_default()));
            let _ = answer.send(Reply { error, machines: self.fleet.status() });
            return;
        };
        let now = Instant::now();
        let effects: Vec<Effect> = which
            .iter()
            .filter_map(|at| match request {
                Request::Status | Request::Reload => None,
                Request::Start(_) => self.fleet.start(*at),
                Request::Stop(_) => self.fleet.stop(*at, now),
                Request::Cut(_) => self.fleet.cut(*at, false),
                Request::Reset(_) => self.fleet.cut(*at, true),
            })
            .collect();
        self.apply(effects);
        match request {
            Request::Stop(_) | Request::Cut(_) => {
                self.waiting.push((which, answer));
                self.wake();
            }
            Request::Status | Request::Reload | Request::Start(_) | Request::Reset(_) => {
                let _ = answer.send(Reply { error: None, machines: self.fleet.status() });
            }
        }
    }

    /// Machines append to their logs, so an emptied file goes on at its start.
    fn trim_consoles(&self) {
        for (_, name) in self.fleet.names() {
            let path = self.layout.console(name);
            let full = fs::metadata(&path).is_ok_and(|found| found.len() > CONSOLE_MAX);
            if full && fs::copy(&path, path.with_extension("log.1")).is_ok() {
                let _ = OpenOptions::new().write(true).truncate(true).open(&path);
            }
        }
    }
}

fn spawn_boot(hidden: &str, layout: &Layout, machine: &str) -> Result<i32, SetupError> {
    let path = layout.console(machine);
    let console =
        OpenOptions::new().create(true).append(true).open(&path).map_err(SetupError::file("open", &path))?;
    let copy = console.try_clone().map_err(SetupError::file("open", &path))?;
    let child = Command::new("/proc/self/exe")
        .arg0("ichorctl")
        .args([hidden, "boot"])
        .arg(layout.dir())
        .arg(machine)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(copy)
        .stderr(console)
        .spawn()
        .map_err(SetupError::step("start the boot process"))?;
    // Reaped by the loop with all others; the handle has no other use.
    i32::try_from(child.id())
        .map_err(|error| SetupError::step("start the boot process")(std::io::Error::other(error)))
}

/// The end of a process as shells have it: its exit code, or 128 and the signal.
pub fn exit_code(status: i32) -> i32 {
    let status = ExitStatus::from_raw(status);
    status.code().unwrap_or_else(|| status.signal().map_or(1, |signal| 128 + signal))
}

async fn accept(listener: UnixListener, calls: mpsc::Sender<Call>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(answer(stream, calls.clone()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// One request, one answer; anything else closes the connection.
async fn answer(stream: UnixStream, calls: mpsc::Sender<Call>) {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let read = BufReader::new(reader.take(LINE_MAX)).read_line(&mut line).await;
    if read.is_err() {
        return;
    }
    let reply = match serde_json::from_str(&line) {
        Ok(request) => {
            let (sender, receiver) = oneshot::channel();
            if calls.send((request, sender)).await.is_err() {
                return;
            }
            receiver.await.unwrap_or_default()
        }
        Err(error) => Reply { error: Some(format!("not a request: {error}")), machines: Vec::new() },
    };
    if let Ok(mut text) = serde_json::to_string(&reply) {
        text.push('\n');
        let _ = writer.write_all(text.as_bytes()).await;
    }
}
