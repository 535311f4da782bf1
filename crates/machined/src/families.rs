//! The controller families of a node, with their ports chosen for the real machine.

use std::path::Path;
use std::sync::Arc;

use ichor_ctl_block::mounts::SystemMounts;
use ichor_ctl_block::volumes::SystemVolumes;
use ichor_ctl_block::{META_LABEL, SystemBlock};
use ichor_ctl_k8s::kubelet_service::KubeletServiceController;
use ichor_ctl_runtime::cri::CRIImageGCController;
use ichor_ctl_runtime::extension_services::ExtensionServiceController;
use ichor_ctl_runtime::{
    ConsoleLogController, DirectoryVolumeController, HostFiles, KmsgLogDeliveryController,
    LogDeliveryController, LogPersistenceController, Moment, OOMController, Stages, StatusSink, SystemGroups,
};
use ichor_resource::block::{VolumePhase, VolumeStatus};
use ichor_resource::runtime::MachineStatus;
use ichor_sys::credentials::Capabilities;
use ichor_wire::machine;
use ichor_wire::machine::machine_status_event;

use crate::api::configuration::validation_mode;
use crate::api::streams;
use crate::event_sink::EventsSinkController;
use crate::events::{Events, Payload, Tail};
use crate::extension_services::Extensions;
use crate::kernel_log::NodeKernelLog;
use crate::kubelet;
use crate::node::Node;
use crate::platform::Mode;
use crate::programs::Programs;
use crate::trust::{self, SystemResolver, TrustClient};
use crate::version;

/// What pods run in; without it there is no kubelet to wait for.
const KUBELET_RUNTIME: &str = crate::cri::CONTAINERD;

/// A family could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum FamilyError {
    /// A controller was refused; a bug.
    #[error("register a controller: {0}")]
    Register(#[from] ichor_cosi::RegisterError),
    /// The kernel's network cannot be reached.
    #[error("open the network: {0}")]
    Network(#[from] ichor_net::NetError),
}

/// Adds all families to the node's runtime.
pub fn register(node: &Arc<Node>) -> Result<(), FamilyError> {
    let runtime = &node.store.controllers;
    secrets(runtime)?;
    network(node)?;
    let stages = Stages::default();
    tokio::spawn(follow_stages(node.journal.events.clone(), stages.clone()));
    let ports = ichor_ctl_runtime::Ports {
        files: HostFiles::new("/", &node.host.paths.state),
        root: "/".into(),
        meta: node.store.meta.clone(),
        sink: EventSink(node.journal.events.clone()),
        time: ichor_ctl_runtime::SystemClock { owned: ichor_sys::power::in_first_pid_namespace() },
        stages,
        version: version::COMPATIBLE_TAG.to_owned(),
        cmdline: node.host.cmdline.to_string(),
        platform: node.host.platform.name.clone(),
        mode: validation_mode(&node.host.platform),
        device_manager: crate::udevd::is_here(),
        disks: has_disks(),
        kubernetes: Path::new(KUBELET_RUNTIME).exists(),
    };
    ichor_ctl_runtime::register(runtime, ports)?;
    let extensions = Extensions::new(&node.host, &node.store.state, &node.services, &node.journal.console);
    runtime.register(ExtensionServiceController::new(extensions, "/"))?;
    volumes(node)?;
    shipping(node)?;
    let unified = ichor_sys::cgroup::Cgroups::detect(Path::new(ichor_sys::cgroup::MOUNT_POINT))
        .is_ok_and(|cgroups| cgroups.layout() == ichor_sys::cgroup::Layout::Unified);
    // The groups of a sandbox are part of its host's, and so is the pressure.
    if unified && ichor_sys::power::in_first_pid_namespace() {
        runtime.register(OOMController::new(SystemGroups { root: ichor_sys::cgroup::MOUNT_POINT.into() }))?;
    }
    ichor_ctl_runtime::cri::register(
        runtime,
        crate::registryd::port(node.services.clone()),
        &ichor_ctl_runtime::CriHost {
            etc: "/etc".into(),
            shadow: "/system/etc".into(),
            profiles: node.host.paths.ephemeral.join("lib/kubelet/seccomp/profiles"),
            disks: has_disks(),
            restrict_oom: ichor_sys::credentials::permitted()
                .is_ok_and(|held| held & Capabilities::SYS_RESOURCE.bits() == 0),
            unified,
        },
    )?;
    ichor_ctl_k8s::register(runtime, kubelet_host(node))?;
    if Path::new(KUBELET_RUNTIME).exists() {
        let ports = crate::kube::ports();
        let kubelet = KubeletServiceController::new(node.kubelet.clone(), "/", kubelet::MARK);
        let kubelet = kubelet.requesting(ports.connect.clone()).on_volume(has_disks());
        runtime.register(kubelet)?;
        ichor_ctl_k8s::api::register(runtime, &ports)?;
        let images = ichor_containerd::Client::new(&node.host.paths.containerd);
        runtime.register(CRIImageGCController::new(images))?;
    }
    ichor_ctl_etcd::register(runtime)?;
    ichor_ctl_cluster::register(runtime, version::COMPATIBLE_TAG, Arc::new(trust::discovery))?;
    Ok(())
}

/// What this machine offers the kubelet.
pub(crate) fn kubelet_host(node: &Node) -> ichor_ctl_k8s::kubelet::Host {
    ichor_ctl_k8s::kubelet::Host {
        cgroup_root: "/".to_owned(),
        protect_kernel: node.host.platform.mode != Mode::Container,
        cgroup_v1: ichor_sys::cgroup::Cgroups::detect(Path::new(ichor_sys::cgroup::MOUNT_POINT))
            .is_ok_and(|cgroups| cgroups.layout() == ichor_sys::cgroup::Layout::Split),
        shared: !ichor_sys::power::in_first_pid_namespace(),
    }
}

/// Whether this machine has disks: a sandbox has none, and those of its host are not shown in it.
pub(crate) fn has_disks() -> bool {
    ichor_sys::power::in_first_pid_namespace()
}

/// Disks and volumes. A sandbox keeps everything in directories; another machine does, too, while it runs from memory.
fn volumes(node: &Arc<Node>) -> Result<(), FamilyError> {
    let (runtime, paths) = (&node.store.controllers, &node.host.paths);
    let (state, ephemeral) = (paths.state.clone(), paths.ephemeral.clone());
    if !has_disks() {
        let places = vec![("STATE", state), ("EPHEMERAL", ephemeral)];
        runtime.register(DirectoryVolumeController::new(places))?;
        return Ok(());
    }
    ichor_ctl_block::register(runtime, SystemBlock::new("/"), crate::udevd::is_here())?;
    let programs = || Programs(node.services.port());
    let (volumes, mounts) = (SystemVolumes::new(programs()), SystemMounts::new(programs()));
    ichor_ctl_block::register_volumes(runtime, volumes, mounts, state, ephemeral)?;
    tokio::spawn(load_filesystem(node.store.state.clone()));
    Ok(())
}

/// Loads the filesystem of the system's volumes once it is known that there are any: it takes a while, in which the device
/// manager is still at work.
async fn load_filesystem(state: ichor_cosi::State) {
    let is_found = |meta: &ichor_cosi::Typed<VolumeStatus>| meta.phase == VolumePhase::Ready;
    if state.wait_for::<VolumeStatus>("runtime", META_LABEL, is_found).await.is_ok() {
        // The kernel does it by itself otherwise, at the first mount.
        let _ = tokio::task::spawn_blocking(|| {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            let folder = Path::new("/usr/lib/modules").join(release.trim());
            ichor_sys::module::load_by_name(&folder, "xfs", "")
        })
        .await;
    }
}

/// What is sent to other machines, kept on disk and shown on the console.
fn shipping(node: &Arc<Node>) -> Result<(), FamilyError> {
    let (runtime, drain) = (&node.store.controllers, &node.journal.shipping);
    let kernel = match node.host.own_kernel_log {
        true => NodeKernelLog::Kernel,
        false => NodeKernelLog::Ring(node.journal.logs.ring(streams::KERNEL)),
    };
    runtime.register(KmsgLogDeliveryController::new(kernel, drain.clone()))?;
    runtime.register(LogDeliveryController::new(node.journal.logs.clone(), drain.clone()))?;
    let kept =
        LogPersistenceController::new(node.journal.logs.clone(), node.host.paths.ephemeral.join("log"));
    runtime.register(kept.on_volume(has_disks()))?;
    runtime.register(ConsoleLogController::new(node.journal.console.clone()))?;
    runtime.register(EventsSinkController::new(node.journal.events.clone(), drain.clone()))?;
    Ok(())
}

fn network(node: &Arc<Node>) -> Result<(), FamilyError> {
    let events = node.journal.events.clone();
    let ports = ichor_ctl_network::Ports::system(&node.host.cmdline)?
        .with_seed(crate::nocloud::reader(&node.store.state))
        .on_addresses(move |hostname, addresses| {
            events.publish(machine::AddressEvent {
                hostname: hostname.to_owned(),
                addresses: addresses.to_vec(),
            });
        });
    ichor_ctl_network::register(&node.store.controllers, ports)?;
    Ok(())
}

fn secrets(runtime: &ichor_cosi::Runtime) -> Result<(), FamilyError> {
    use ichor_ctl_secrets as secrets;
    runtime.register(secrets::RootOs::default())?;
    runtime.register(secrets::RootEtcd::default())?;
    runtime.register(secrets::RootKubernetes::default())?;
    runtime.register(secrets::Kubelet::default())?;
    runtime.register(secrets::ApiCertSans)?;
    runtime.register(secrets::MaintenanceCertSans)?;
    runtime.register(secrets::KubernetesCertSans)?;
    runtime.register(secrets::Api::new(TrustClient::default()))?;
    runtime.register(secrets::Trustd::default())?;
    runtime.register(secrets::Etcd::default())?;
    runtime.register(secrets::Kubernetes::default())?;
    runtime.register(secrets::KubernetesDynamic::default())?;
    runtime.register(secrets::MaintenanceRoot)?;
    runtime.register(secrets::Maintenance::default())?;
    runtime.register(secrets::StaticEndpoint::new(SystemResolver))?;
    runtime.register(secrets::TrustedRoots::new(secrets::BUILT_IN_ROOTS))?;
    Ok(())
}

/// Publishes the machine's status as events.
struct EventSink(Events);

impl StatusSink for EventSink {
    fn machine_status(&self, status: &MachineStatus) {
        let unmet_conditions = status
            .status
            .unmet_conditions
            .iter()
            .map(|unmet| machine_status_event::machine_status::UnmetCondition {
                name: unmet.name.clone(),
                reason: unmet.reason.clone(),
            })
            .collect();
        self.0.publish(machine::MachineStatusEvent {
            stage: status.stage as i32,
            status: Some(machine_status_event::MachineStatus {
                ready: status.status.ready,
                unmet_conditions,
            }),
        });
    }
}

/// Tells the stages what the sequencer says, for as long as the node runs.
async fn follow_stages(events: Events, stages: Stages) {
    let mut watch = events.watch(&Tail::Count(None), None);
    loop {
        let Some(event) = watch.next().await else {
            // A full ring behind; the next sequence puts the stage right.
            watch = events.watch(&Tail::None, None);
            continue;
        };
        if let Some(moment) = moment(&event.payload) {
            stages.observe(moment);
        }
    }
}

/// What an event means for the stage.
fn moment(payload: &Payload) -> Option<Moment<'_>> {
    use machine::sequence_event::Action as Sequence;
    use machine::{phase_event, task_event};
    match payload {
        Payload::Sequence(event) => match (event.action(), &event.error) {
            (Sequence::Start, _) => Some(Moment::SequenceStart(&event.sequence)),
            (Sequence::Stop, _) => Some(Moment::SequenceStop(&event.sequence)),
            (Sequence::Noop, Some(error)) if error.code() == ichor_wire::common::Code::Fatal => {
                Some(Moment::Fatal)
            }
            (Sequence::Noop, _) => None,
        },
        Payload::Phase(event) => {
            (event.action() == phase_event::Action::Start).then_some(Moment::PhaseStart(&event.phase))
        }
        Payload::Task(event) => Some(match event.action() {
            task_event::Action::Start => Moment::TaskStart(&event.task),
            task_event::Action::Stop => Moment::TaskStop(&event.task),
        }),
        Payload::ServiceState(_)
        | Payload::ConfigLoadError(_)
        | Payload::ConfigValidationError(_)
        | Payload::Address(_)
        | Payload::MachineStatus(_)
        | Payload::Restart(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_reboot_pseudo_error_is_fatal_and_a_lock_is_nothing() {
        let event = |code: ichor_wire::common::Code| {
            Payload::from(machine::SequenceEvent {
                sequence: "boot".into(),
                action: 0,
                error: Some(ichor_wire::common::Error { code: code.into(), ..Default::default() }),
            })
        };
        assert_eq!(moment(&event(ichor_wire::common::Code::Fatal)), Some(Moment::Fatal));
        assert_eq!(moment(&event(ichor_wire::common::Code::Locked)), None);
    }

    #[test]
    fn the_status_reaches_the_events() {
        let events = Events::default();
        EventSink(events.clone()).machine_status(&MachineStatus {
            stage: ichor_resource::runtime::MachineStage::Running,
            ..MachineStatus::default()
        });
        let event = events.watch(&Tail::Count(None), None).try_next().unwrap();
        let Payload::MachineStatus(status) = &event.payload else { panic!("{event:?}") };
        assert_eq!(status.stage(), machine_status_event::MachineStage::Running);
    }
}
