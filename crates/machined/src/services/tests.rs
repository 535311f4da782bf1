//! The service manager against a fake process port.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use ichor_observe::{LogManager, Start};

use super::port::{ExitKind, Process, ProcessPort, SpawnError};
use super::*;
use crate::events::{Events, Payload, Tail};

/// Longest wait of any test; paused clocks make it short.
const BOUND: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Fake {
    children: Mutex<BTreeMap<u64, Child>>,
    spawned: Mutex<Vec<String>>,
    released: Mutex<Vec<u64>>,
    refuse: Mutex<u32>,
    ignore_term: bool,
}

struct Child {
    exit: Option<oneshot::Sender<ExitKind>>,
    output: std::io::PipeWriter,
}

impl Fake {
    fn process(&self, name: &str) -> Process {
        let mut children = self.children.lock().unwrap();
        let handle = children.len() as u64 + 1;
        let (exit, receiver) = oneshot::channel();
        let (reader, writer) = std::io::pipe().unwrap();
        children.insert(handle, Child { exit: Some(exit), output: writer });
        self.spawned.lock().unwrap().push(name.to_owned());
        Process { handle, pid: 1000 + handle as i32, output: Some(OwnedFd::from(reader)), exit: receiver }
    }

    fn end(&self, handle: u64, exit: ExitKind) {
        if let Some(sender) =
            self.children.lock().unwrap().get_mut(&handle).and_then(|child| child.exit.take())
        {
            let _ = sender.send(exit);
        }
    }

    fn say(&self, handle: u64, text: &str) {
        let mut children = self.children.lock().unwrap();
        children.get_mut(&handle).unwrap().output.write_all(text.as_bytes()).unwrap();
    }
}

impl ProcessPort for Fake {
    fn spawn(&self, name: &str, _spec: &ProcessSpec) -> BoxFuture<'static, Result<Process, SpawnError>> {
        let mut refuse = self.refuse.lock().unwrap();
        let result = if *refuse > 0 {
            *refuse -= 1;
            Err(SpawnError { reason: "exec: no such file".to_owned() })
        } else {
            Ok(self.process(name))
        };
        Box::pin(std::future::ready(result))
    }

    fn signal(&self, handle: u64, signal: i32) {
        if signal == 15 && self.ignore_term {
            return;
        }
        self.end(handle, ExitKind::Signal(signal));
    }

    fn release(&self, handle: u64) {
        self.released.lock().unwrap().push(handle);
    }
}

struct Bench {
    port: Arc<Fake>,
    events: Events,
    logs: LogManager,
    manager: ServiceManager,
}

fn bench_with(port: Fake, inherited: &[&str]) -> Bench {
    let port = Arc::new(port);
    let inherited = inherited.iter().map(|name| ((*name).to_owned(), port.process(name))).collect();
    let (events, logs) = (Events::default(), LogManager::new());
    let dynamic: Arc<dyn ProcessPort> = port.clone();
    let manager = ServiceManager::new(events.clone(), logs.clone(), dynamic, inherited, Handle::current());
    Bench { port, events, logs, manager }
}

fn process(id: &str) -> ServiceSpec {
    let spec = ProcessSpec { args: vec![id.to_owned()], ..ProcessSpec::default() };
    ServiceSpec::new(id, Run::Process(spec))
}

impl Bench {
    async fn until(&self, id: &str, state: ServiceState) {
        let mut changed = self.manager.subscribe();
        let reached = changed.wait_for(|_| self.manager.state(id).is_some_and(|(now, _)| now == state));
        let reached = tokio::time::timeout(BOUND, reached).await;
        assert!(reached.is_ok(), "{id} is {:?}", self.manager.state(id));
    }

    fn history(&self, id: &str) -> Vec<String> {
        let mut watch = self.events.watch(&Tail::Count(None), None);
        let mut out = Vec::new();
        while let Some(event) = watch.try_next() {
            if let Payload::ServiceState(event) = &event.payload
                && event.service == id
            {
                out.push(format!("{}: {}", event.action().as_str_name(), event.message));
            }
        }
        out
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_service_goes_through_its_states() {
    let bench = bench_with(Fake::default(), &[]);
    bench.manager.load(process("apid"));
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    bench.manager.stop("apid").await.unwrap();
    assert_eq!(
        bench.history("apid"),
        [
            "STARTING: Starting service",
            "PREPARING: Running pre state",
            "PREPARING: Creating service runner",
            "RUNNING: Process Process([\"apid\"]) started with PID 1001",
            "STOPPING: Sending SIGTERM to Process([\"apid\"])",
            "FINISHED: Service finished successfully",
        ]
    );
    assert_eq!(*bench.port.released.lock().unwrap(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_service_comes_back() {
    let bench = bench_with(Fake::default(), &[]);
    bench.manager.load(process("apid"));
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    bench.port.say(1, "last words\n");
    bench.port.end(1, ExitKind::Signal(9));
    bench.until("apid", ServiceState::Waiting).await;
    let (_, message) = bench.manager.state("apid").unwrap();
    assert!(message.ends_with("signal: killed (last log \"last words\\n\")"), "{message}");
    bench.until("apid", ServiceState::Running).await;
    assert_eq!(bench.port.spawned.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_cannot_start_is_tried_again() {
    let bench = bench_with(Fake { refuse: Mutex::new(3), ..Fake::default() }, &[]);
    bench.manager.load(process("apid"));
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Waiting).await;
    bench.until("apid", ServiceState::Running).await;
}

#[tokio::test(start_paused = true)]
async fn an_inherited_process_is_adopted_and_not_started_again() {
    let bench = bench_with(Fake::default(), &["apid"]);
    bench.manager.load(process("apid"));
    bench.port.say(1, "still here\n");
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    assert_eq!(bench.history("apid"), ["RUNNING: Process Process([\"apid\"]) found running with PID 1001"]);
    assert!(bench.manager.unclaimed().is_empty());
    let mut follow = bench.logs.ring("apid").follow(Start::Oldest);
    let line = tokio::time::timeout(BOUND, follow.next(64)).await.unwrap().unwrap();
    assert_eq!(&line[..], b"still here\n");
    bench.port.end(1, ExitKind::Signal(9));
    bench.until("apid", ServiceState::Waiting).await;
    bench.until("apid", ServiceState::Running).await;
    assert_eq!(bench.port.spawned.lock().unwrap().len(), 2, "only after it died");
}

#[tokio::test(start_paused = true)]
async fn a_service_waits_for_what_it_needs() {
    let bench = bench_with(Fake::default(), &[]);
    let open = Arc::new(Notify::new());
    let gate = Arc::clone(&open);
    let mut spec = process("trustd");
    spec.depends = vec!["apid".to_owned()];
    spec.conditions = vec![condition("time to be in sync", move || {
        let gate = Arc::clone(&gate);
        Box::pin(async move { gate.notified().await })
    })];
    bench.manager.load(spec);
    bench.manager.load(process("apid"));
    bench.manager.start("trustd").unwrap();
    bench.until("trustd", ServiceState::Waiting).await;
    let (_, message) = bench.manager.state("trustd").unwrap();
    assert_eq!(message, "Waiting for service \"apid\" to be \"up\", time to be in sync");
    bench.manager.start("apid").unwrap();
    bench.manager.wait_up(&["apid"], BOUND).await.unwrap();
    assert_eq!(bench.manager.pending(&["apid", "trustd"]), ["trustd"]);
    open.notify_one();
    bench.manager.wait_up(&["trustd"], BOUND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_health_check_decides_whether_a_service_is_up() {
    let bench = bench_with(Fake::default(), &[]);
    let well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answer = Arc::clone(&well);
    let mut spec = process("apid");
    spec.health = Some(Health::new(Arc::new(move || {
        let well = answer.load(std::sync::atomic::Ordering::SeqCst);
        Box::pin(std::future::ready(if well { Ok(()) } else { Err("refused".to_owned()) }))
    })));
    bench.manager.load(spec);
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    let error = bench.manager.wait_up(&["apid"], Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.to_string(), "timed out waiting for services to be up: apid");
    well.store(true, std::sync::atomic::Ordering::SeqCst);
    bench.manager.wait_up(&["apid"], BOUND).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_ignores_sigterm_is_killed() {
    let bench = bench_with(Fake { ignore_term: true, ..Fake::default() }, &[]);
    bench.manager.load(process("apid"));
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    bench.manager.stop("apid").await.unwrap();
    assert!(bench.history("apid").iter().any(|line| line.contains("Sending SIGKILL")));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_task_fails_that_service_only() {
    let bench = bench_with(Fake::default(), &[]);
    let mut spec =
        ServiceSpec::new("auditd", Run::Task(Arc::new(|_stop| Box::pin(async { panic!("broken") }))));
    spec.restart = RestartPolicy::Once;
    bench.manager.load(spec);
    bench.manager.start("auditd").unwrap();
    bench.until("auditd", ServiceState::Failed).await;
    let (_, message) = bench.manager.state("auditd").unwrap();
    assert!(message.starts_with("Panic: "), "{message}");
}

#[tokio::test(start_paused = true)]
async fn after_shutdown_nothing_starts_any_more() {
    let bench = bench_with(Fake::default(), &[]);
    bench.manager.load(process("apid"));
    bench.manager.start("apid").unwrap();
    bench.until("apid", ServiceState::Running).await;
    bench.manager.shutdown().await;
    assert_eq!(bench.manager.state("apid").unwrap().0, ServiceState::Finished);
    bench.manager.start("apid").unwrap();
    bench.manager.load(process("late"));
    assert_eq!(bench.manager.ids(), ["apid"]);
    assert_eq!(bench.port.spawned.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_api_may_only_do_what_a_service_allows() {
    let bench = bench_with(Fake::default(), &[]);
    bench.manager.load(process("apid"));
    assert_eq!(
        bench.manager.check_api("apid", "restart").unwrap_err().to_string(),
        "service \"apid\" doesn't support restart operation via API"
    );
    assert_eq!(
        bench.manager.check_api("nope", "start").unwrap_err().to_string(),
        "service \"nope\" not defined"
    );
}

/// Hands out roots, but only from a certain attempt on.
struct Roots {
    refusals: Mutex<u32>,
}

impl ImagePort for Roots {
    fn prepare(&self, _id: &str, spec: &ContainerSpec) -> BoxFuture<'static, Result<ProcessSpec, String>> {
        let mut refusals = self.refusals.lock().unwrap();
        let result = match *refusals {
            0 => Ok(ProcessSpec { root: Some(Root::default()), ..spec.process.clone() }),
            _ => {
                *refusals -= 1;
                Err(format!("failed to pull image {:?}: not found", spec.image))
            }
        };
        Box::pin(std::future::ready(result))
    }
}

fn container(image: &str) -> ContainerSpec {
    ContainerSpec { image: image.to_owned(), ..ContainerSpec::default() }
}

#[tokio::test(start_paused = true)]
async fn a_container_waits_for_its_image_and_says_what_is_wrong() {
    let bench = bench_with(Fake::default(), &[]);
    bench.manager.with_images(Arc::new(Roots { refusals: Mutex::new(1) }));
    bench.manager.load(ServiceSpec::new("kubelet", Run::Container(container("k:1"))));
    bench.manager.start("kubelet").unwrap();
    bench.until("kubelet", ServiceState::Running).await;
    assert_eq!(bench.manager.processes(), [("kubelet".to_owned(), 1001)]);
    bench.manager.stop("kubelet").await.unwrap();
    assert!(bench.manager.processes().is_empty());
    let wait = "WAITING: Error running Containerd(kubelet), going to restart forever: failed to pull image \"k:1\": \
                not found";
    assert_eq!(
        bench.history("kubelet")[3..],
        [
            "PREPARING: Preparing image k:1",
            wait,
            "PREPARING: Preparing image k:1",
            "RUNNING: Started task kubelet (PID 1001) for container kubelet",
            "STOPPING: Sending SIGTERM to Containerd(kubelet)",
            "FINISHED: Service finished successfully",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_asked_at_every_start_but_not_for_what_runs() {
    let bench = bench_with(Fake::default(), &["etcd"]);
    bench.manager.with_images(Arc::new(Roots { refusals: Mutex::new(0) }));
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let plan: Plan = Arc::new(move || {
        *count.lock().unwrap() += 1;
        Box::pin(std::future::ready(Ok(Run::Container(container("etcd:1")))))
    });
    bench.manager.load(ServiceSpec::new("etcd", Run::Planned(plan)));
    assert!(bench.manager.is_inherited("etcd") && bench.manager.unclaimed().is_empty());
    bench.manager.start("etcd").unwrap();
    bench.until("etcd", ServiceState::Running).await;
    assert_eq!(*asked.lock().unwrap(), 0);
    let found = "RUNNING: Found task etcd (PID 1001) for container etcd";
    assert_eq!(bench.history("etcd"), [found]);
    bench.port.end(1, ExitKind::Signal(9));
    bench.until("etcd", ServiceState::Waiting).await;
    bench.until("etcd", ServiceState::Running).await;
    assert_eq!(*asked.lock().unwrap(), 1);
    bench.manager.stop("etcd").await.unwrap();
}
