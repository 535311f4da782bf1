//! The life of one service, from "starting" to its final state.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use ichor_observe::LogRing;

use super::backoff::Backoff;
use super::health::Health;
use super::manager::{ServiceManager, Shared};
use super::port::{ExitKind, Process};
use super::record::ServiceState;
use super::spec::{ContainerSpec, ProcessSpec, RestartPolicy, Run, ServiceSpec, TaskRun};

const SIGTERM: i32 = 15;
pub(super) const SIGKILL: i32 = 9;

/// Output quoted in the error of a failed service.
const LAST_LOG_MAX: usize = 512;

/// Longest pause between checks of a service that is coming up.
const EAGER_MAX: Duration = Duration::from_millis(50);

/// A container that lived this long got through its start.
const CONTAINER_SETTLED: Duration = Duration::from_secs(5);

/// Bytes taken from a pipe at once.
const OUTPUT_READ: usize = 4096;

/// Reads after the exit: a pipe holds 64 KiB, or 1 MiB where it was made large.
const OUTPUT_REST_READS: usize = 1024 * 1024 / OUTPUT_READ;

/// How often the list of open conditions is looked at anew.
const REFRESH: Duration = Duration::from_secs(1);

/// Runs a service until it is down.
pub(super) async fn run(
    manager: &ServiceManager,
    spec: Arc<ServiceSpec>,
    stop: &CancellationToken,
    inherited: Option<Process>,
) {
    let shared = &manager.shared;
    let id = &spec.id;
    let result = match inherited {
        // It runs already: its conditions were met before, and a pre-step could disturb it.
        Some(process) => attempts(shared, &spec, stop, Some(process)).await,
        None => {
            shared.update(id, ServiceState::Starting, "Starting service");
            prepare_and_run(manager, &spec, stop).await
        }
    };
    if let Some(post) = &spec.post
        && let Err(error) = post().await
    {
        tracing::warn!(service = %id, %error, "post step failed");
    }
    match result {
        Ok(Ended::Finished) => {
            shared.update(id, ServiceState::Finished, "Service finished successfully");
        }
        Ok(Ended::Skipped) => shared.update(id, ServiceState::Skipped, "Service skipped"),
        Err(error) => shared.update(id, ServiceState::Failed, capitalised(&error)),
    }
}

enum Ended {
    Finished,
    Skipped,
}

async fn prepare_and_run(
    manager: &ServiceManager,
    spec: &ServiceSpec,
    stop: &CancellationToken,
) -> Result<Ended, String> {
    let shared = &manager.shared;
    tokio::select! {
        () = conditions(manager, spec) => {}
        () = stop.cancelled() => return Err("condition failed: canceled".to_owned()),
    }
    shared.update(&spec.id, ServiceState::Preparing, "Running pre state");
    if let Some(pre) = &spec.pre {
        pre().await.map_err(|error| format!("failed to run pre stage: {error}"))?;
    }
    shared.update(&spec.id, ServiceState::Preparing, "Creating service runner");
    if stop.is_cancelled() {
        return Ok(Ended::Finished);
    }
    attempts(shared, spec, stop, None).await
}

/// Waits for dependencies and conditions, saying each second what is still open.
async fn conditions(manager: &ServiceManager, spec: &ServiceSpec) {
    let needs: Vec<&str> = spec.depends.iter().map(String::as_str).collect();
    let mut open: Vec<(String, _)> =
        spec.conditions.iter().map(|condition| (condition.describe(), condition.wait())).collect();
    let mut changed = manager.subscribe();
    loop {
        changed.mark_unchanged();
        open.retain_mut(|(_, wait)| wait.now_or_never().is_none());
        let pending = manager.pending(&needs);
        if pending.is_empty() && open.is_empty() {
            return;
        }
        let names: Vec<String> = pending
            .iter()
            .map(|id| format!("service {id:?} to be \"up\""))
            .chain(open.iter().map(|(name, _)| name.clone()))
            .collect();
        manager.shared.update(&spec.id, ServiceState::Waiting, format!("Waiting for {}", names.join(", ")));
        let deadline = tokio::time::sleep(REFRESH);
        // `select_all` wants at least one future.
        let any_open = async {
            match open.is_empty() {
                true => std::future::pending().await,
                false => {
                    let waits = open.iter_mut().map(|(_, wait)| wait);
                    let (_, index, _) = futures_util::future::select_all(waits).await;
                    index
                }
            }
        };
        let met = tokio::select! {
            index = any_open => Some(index),
            _ = changed.changed() => None,
            () = deadline => None,
        };
        if let Some(index) = met {
            drop(open.remove(index));
        }
    }
}

/// Runs again and again, as the restart policy says.
async fn attempts(
    shared: &Shared,
    spec: &ServiceSpec,
    stop: &CancellationToken,
    mut inherited: Option<Process>,
) -> Result<Ended, String> {
    let mut backoff = Backoff::default();
    loop {
        let began = Instant::now();
        let mut ran = true;
        let result = match (inherited.take(), &spec.run) {
            (_, Run::Nothing) => return Ok(Ended::Skipped),
            (_, Run::Task(task)) => run_task(shared, spec, task, stop).await,
            (Some(child), run) => {
                let name = run.describe(&spec.id);
                let message = match run {
                    Run::Process(_) => format!("Process {name} found running with PID {}", child.pid),
                    Run::Container(_) | Run::Planned(_) | Run::Task(_) | Run::Nothing => {
                        found_task(&spec.id, child.pid, "Found")
                    }
                };
                watch_process(shared, spec, &name, stop, child, message).await
            }
            (None, run) => {
                let decided = tokio::select! {
                    decided = decide(shared, spec, run) => decided,
                    () = stop.cancelled() => return Ok(Ended::Finished),
                };
                match decided {
                    Ok(Run::Nothing) => return Ok(Ended::Skipped),
                    Ok(Run::Task(task)) => run_task(shared, spec, &task, stop).await,
                    Ok(Run::Process(process)) => run_process(shared, spec, &process, stop).await,
                    Ok(Run::Container(_) | Run::Planned(_)) => {
                        Err("a plan may not lead to a plan".to_owned())
                    }
                    Err(error) => {
                        ran = false;
                        Err(error)
                    }
                }
            }
        };
        if stop.is_cancelled() {
            return Ok(Ended::Finished);
        }
        // An image that could not be had is no process that ran, however long it took to find out; and a container
        // that gives up takes longer to do so than a daemon of our own.
        ran &= !spec.run.is_contained() || began.elapsed() >= CONTAINER_SETTLED;
        let name = spec.run.describe(&spec.id);
        let again = match (spec.restart, &result) {
            (RestartPolicy::Forever, _) | (RestartPolicy::UntilSuccess, Err(_)) => true,
            (RestartPolicy::Once, _) | (RestartPolicy::UntilSuccess, Ok(())) => false,
        };
        if !again {
            return result.map(|()| Ended::Finished);
        }
        let message = match result {
            Ok(()) => format!("Runner {name} exited without error, going to restart it"),
            Err(error) => format!("Error running {name}, going to restart forever: {error}"),
        };
        shared.update(&spec.id, ServiceState::Waiting, message);
        tokio::select! {
            () = tokio::time::sleep(backoff.rest(if ran { began.elapsed() } else { Duration::ZERO })) => {}
            () = stop.cancelled() => return Ok(Ended::Finished),
        }
    }
}

async fn run_task(
    shared: &Shared,
    spec: &ServiceSpec,
    task: &TaskRun,
    stop: &CancellationToken,
) -> Result<(), String> {
    let mut running = tokio::spawn(task(stop.clone()));
    shared.update(&spec.id, ServiceState::Running, "Service started as a task");
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = health(shared, spec) => return Ok(()),
        () = stop.cancelled() => {
            shared.update(&spec.id, ServiceState::Stopping, "Service stopping");
            match tokio::time::timeout(spec.grace * 2, &mut running).await {
                Ok(ended) => ended,
                Err(_) => {
                    running.abort();
                    return Err("aborted".to_owned());
                }
            }
        }
    };
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(format!("panic: {error}")),
        Err(_) => Err("aborted".to_owned()),
    }
}

/// Finds out what is to be run: asks the plan, and makes the root of a container.
async fn decide(shared: &Shared, spec: &ServiceSpec, run: &Run) -> Result<Run, String> {
    match run {
        Run::Planned(plan) => match plan().await? {
            Run::Container(container) => contain(shared, spec, &container).await,
            other => Ok(other),
        },
        Run::Container(container) => contain(shared, spec, container).await,
        Run::Process(process) => Ok(Run::Process(process.clone())),
        Run::Task(task) => Ok(Run::Task(Arc::clone(task))),
        Run::Nothing => Ok(Run::Nothing),
    }
}

async fn contain(shared: &Shared, spec: &ServiceSpec, container: &ContainerSpec) -> Result<Run, String> {
    let images = shared.images.get().ok_or("there is nothing on this node that holds images")?;
    shared.update(&spec.id, ServiceState::Preparing, format!("Preparing image {}", container.image));
    images.prepare(&spec.id, container).await.map(Run::Process)
}

/// Runs a container or process of no service to its end.
pub(super) async fn run_once(shared: &Shared, spec: &ServiceSpec) -> Result<(), String> {
    match decide(shared, spec, &spec.run).await? {
        Run::Process(process) => run_process(shared, spec, &process, &CancellationToken::new()).await,
        Run::Container(_) | Run::Planned(_) | Run::Task(_) | Run::Nothing => Err("nothing to run".to_owned()),
    }
}

fn found_task(id: &str, pid: i32, verb: &str) -> String {
    format!("{verb} task {id} (PID {pid}) for container {id}")
}

async fn run_process(
    shared: &Shared,
    spec: &ServiceSpec,
    process: &ProcessSpec,
    stop: &CancellationToken,
) -> Result<(), String> {
    let name = spec.run.describe(&spec.id);
    let child = shared
        .port
        .spawn(&spec.id, process)
        .await
        .map_err(|error| format!("failed to start {name}: {error}"))?;
    let message = match process.root {
        Some(_) => found_task(&spec.id, child.pid, "Started"),
        None => format!("Process {name} started with PID {}", child.pid),
    };
    watch_process(shared, spec, &name, stop, child, message).await
}

/// Sees a process through to its end.
async fn watch_process(
    shared: &Shared,
    spec: &ServiceSpec,
    name: &str,
    stop: &CancellationToken,
    mut child: Process,
    message: String,
) -> Result<(), String> {
    let log = shared.logs.ring(&spec.id);
    let exited = CancellationToken::new();
    let copier =
        child.output.take().map(|output| tokio::spawn(copy_output(output, Arc::clone(&log), exited.clone())));
    shared.has_process(&spec.id, Some(child.pid));
    shared.update(&spec.id, ServiceState::Running, message);

    let exit = tokio::select! {
        exit = &mut child.exit => exit.ok(),
        () = health(shared, spec) => None,
        () = stop.cancelled() => terminate(shared, spec, name, &mut child).await,
    };
    shared.has_process(&spec.id, None);
    exited.cancel();
    if let Some(copier) = copier {
        let _ = copier.await;
    }
    shared.port.release(child.handle);
    match exit {
        Some(ExitKind::Code(0)) => Ok(()),
        _ if stop.is_cancelled() => Ok(()),
        Some(kind) => Err(with_last_log(&kind.to_string(), &log)),
        None => Err(format!("lost sight of PID {}", child.pid)),
    }
}

/// SIGTERM, the grace, SIGKILL.
async fn terminate(shared: &Shared, spec: &ServiceSpec, name: &str, child: &mut Process) -> Option<ExitKind> {
    shared.update(&spec.id, ServiceState::Stopping, format!("Sending SIGTERM to {name}"));
    shared.port.signal(child.handle, SIGTERM);
    if let Ok(exit) = tokio::time::timeout(spec.grace, &mut child.exit).await {
        return exit.ok();
    }
    shared.update(&spec.id, ServiceState::Stopping, format!("Sending SIGKILL to {name}"));
    shared.port.signal(child.handle, SIGKILL);
    tokio::time::timeout(spec.grace, &mut child.exit).await.ok()?.ok()
}

/// Checks the health for as long as it is polled; never ends.
async fn health(shared: &Shared, spec: &ServiceSpec) {
    let Some(Health { check, initial, eager, period, timeout }) = &spec.health else {
        return std::future::pending().await;
    };
    let began = Instant::now();
    let mut well_once = false;
    let mut pause = *eager;
    loop {
        let result = match tokio::time::timeout(*timeout, check()).await {
            Ok(result) => result,
            Err(_) => Err("timed out".to_owned()),
        };
        well_once |= result.is_ok();
        let coming_up = !well_once && began.elapsed() < *initial;
        if !coming_up {
            shared.checked(&spec.id, result);
        }
        tokio::time::sleep(if coming_up { pause } else { *period }).await;
        pause = (pause * 2).min(EAGER_MAX);
    }
}

/// Copies a process's output to its log until it ends; after the exit takes what is left and ends,
/// since a grandchild may hold the pipe open for ever.
async fn copy_output(output: OwnedFd, log: Arc<LogRing>, exited: CancellationToken) {
    let Ok(rest) = output.try_clone().map(std::fs::File::from) else {
        return;
    };
    let Ok(pipe) = pipe::Receiver::from_owned_fd(output) else {
        return;
    };
    tokio::select! {
        () = copy_until_end(&pipe, &log) => return,
        () = exited.cancelled() => {}
    }
    // Straight from the descriptor: the reactor may not have noticed the last bytes yet. The
    // descriptor does not block, the reactor made it so.
    let mut buffer = vec![0u8; OUTPUT_READ];
    for _ in 0..OUTPUT_REST_READS {
        match (&rest).read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(len) => log.write(&buffer[..len]),
        }
    }
}

async fn copy_until_end(pipe: &pipe::Receiver, log: &LogRing) {
    let mut buffer = vec![0u8; OUTPUT_READ];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => log.write(&buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

fn with_last_log(error: &str, log: &LogRing) -> String {
    match log.last_bytes(LAST_LOG_MAX) {
        text if text.is_empty() => error.to_owned(),
        text => format!("{error} (last log {text:?})"),
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}
