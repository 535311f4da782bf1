//! Tasks that start and stop services.

use std::path::Path;
use std::time::Duration;

use tracing::info;

use ichor_observe::LogManager;
use ichor_types::{Cmdline, MachineType as Role};

use super::{config, failed};
use crate::node::{Host, Node, Paths};
use crate::sequencer::{Task, TaskError};
use crate::services::spec::TaskRun;
use crate::services::{ServiceError, ServiceManager, ServiceSpec};
use crate::{cri, daemons, dashboard, environment, etcd, log_services, udevd};

/// Starts the device manager and waits for it.
pub(super) async fn start_udevd(services: ServiceManager, cmdline: Cmdline) -> Result<(), TaskError> {
    start(&services, udevd::service(&services, &cmdline), Task::StartUdevd).await
}

/// Starts the machine API and waits for it.
pub(super) async fn start_machined(
    services: ServiceManager,
    paths: Paths,
    serve: TaskRun,
) -> Result<(), TaskError> {
    start(&services, daemons::machined(&paths, serve), Task::StartMachined).await
}

/// Starts the log of the kernel's audit records, without waiting for it.
pub(super) async fn start_auditd(
    services: ServiceManager,
    logs: LogManager,
    cmdline: Cmdline,
) -> Result<(), TaskError> {
    if !log_services::is_audited(&cmdline) {
        return Ok(());
    }
    services.load(log_services::auditd(&logs));
    services.start(log_services::AUDITD).map_err(failed)
}

/// Starts the log of what programs say, without waiting for it.
pub(super) async fn start_syslogd(services: ServiceManager, logs: LogManager) -> Result<(), TaskError> {
    services.load(log_services::syslogd(&logs, log_services::LOG_SOCKET));
    services.start(log_services::SYSLOGD).map_err(failed)
}

/// Starts the dashboard on the console, without waiting for it.
pub(super) async fn start_dashboard(
    services: ServiceManager,
    program: String,
    host: Host,
) -> Result<(), TaskError> {
    services.load(dashboard::service(&program, &host));
    services.start(dashboard::DASHBOARD).map_err(failed)
}

async fn start(services: &ServiceManager, spec: ServiceSpec, task: Task) -> Result<(), TaskError> {
    let id = spec.id.clone();
    services.load(spec);
    services.start(&id).map_err(failed)?;
    services.wait_up(&[&id], task.limit()).await.map_err(failed)
}

/// Stops what runs on the data volume.
pub(super) async fn stop_for_upgrade(services: ServiceManager) -> Result<(), TaskError> {
    services.stop_with_dependants(&["cri", "trustd"]).await.map_err(failed)
}

/// Ends all services for good.
pub(super) async fn stop_all(services: ServiceManager) -> Result<(), TaskError> {
    services.shutdown().await;
    Ok(())
}

/// Makes the services of this machine's role known and starts them.
fn start_role(node: &Node, program: &str) -> Result<(), ServiceError> {
    let Node { host, store, services, .. } = node;
    let has_runtime = Path::new(cri::CONTAINERD).exists();
    if has_runtime {
        // The kubelet is started by its controller.
        services.load(node.kubelet.service());
        services.load(cri::service(host, &store.state));
        services.start("cri")?;
    }
    match config::role(&store.state) {
        Role::Init | Role::ControlPlane => {
            services.load(daemons::trustd(program, &store.state));
            services.start("trustd")?;
            if has_runtime {
                services.load(etcd::service(&node.etcd, environment::of(host, &store.state)));
                services.start(etcd::ETCD)?;
            }
        }
        Role::Worker | Role::Unknown => {}
    }
    Ok(())
}

/// Starts the services of a configured machine and waits for all.
pub(super) async fn start_all(node: &Node, program: &str) -> Result<(), TaskError> {
    /// How often the open ones are named.
    const NAG: Duration = Duration::from_secs(15);
    start_role(node, program).map_err(failed)?;
    let services = &node.services;
    // What an earlier machined ran and this configuration does not want.
    for id in services.unclaimed() {
        info!(service = id, "stopping a process that no service claims");
        services.drop_unclaimed(&id);
    }
    let deadline = tokio::time::Instant::now() + Task::StartAllServices.limit();
    loop {
        let ids = services.ids();
        // A screen that does not work must not keep a machine from its cluster.
        let ids: Vec<&str> =
            ids.iter().map(String::as_str).filter(|id| *id != dashboard::DASHBOARD).collect();
        match services.wait_up(&ids, NAG).await {
            Ok(()) => return Ok(()),
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(failed(error)),
            Err(ServiceError::NotUp { pending }) => {
                info!("service(s) not yet up: {}", pending.join(", "));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}
