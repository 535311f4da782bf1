//! Stage and readiness of the machine.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, Wake, exclusive, weak};
use ichor_resource::config::MachineType;
use ichor_resource::k8s::{NodeStatus, Nodename, StaticPodStatus};
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::{MachineStage, MachineStatus, MachineStatusStatus, UnmetCondition};
use ichor_resource::time::TimeStatus;
use ichor_resource::v1alpha1::Service;
use tracing::info;

use crate::stage::Stages;

/// The one id of the status.
const MACHINE: &str = "machine";

/// Writes `MachineStatuses`.
#[derive(Debug)]
pub struct MachineStatusController {
    stages: Stages,
    kubernetes: bool,
    was_ready: bool,
}

impl MachineStatusController {
    /// A controller that takes the stage from there; a system that runs `kubernetes` is not ready without it.
    pub fn new(stages: Stages, kubernetes: bool) -> Self {
        Self { stages, kubernetes, was_ready: false }
    }
}

/// What readiness depends on.
#[derive(Debug, Default)]
struct Seen {
    time: Option<TimeStatus>,
    network: Option<NetworkStatus>,
    control_plane: bool,
    kubernetes: bool,
    services: Vec<(String, Service)>,
    static_pods: Vec<(String, StaticPodStatus)>,
    nodename: Option<Nodename>,
    node: Option<NodeStatus>,
}

impl Seen {
    fn gather(ctx: &Context, kubernetes: bool) -> Result<Self, ControllerError> {
        let nodename = ctx.get::<Nodename>("nodename")?.map(owned);
        let node = match &nodename {
            Some(nodename) => ctx.get::<NodeStatus>(&nodename.nodename)?.map(owned),
            None => None,
        };
        Ok(Self {
            time: ctx.get::<TimeStatus>("node")?.map(owned),
            network: ctx.get::<NetworkStatus>("status")?.map(owned),
            control_plane: ctx
                .get::<MachineType>(MachineType::ID)?
                .is_some_and(|machine| machine.machine_type.is_control_plane()),
            kubernetes,
            services: ctx.list::<Service>()?.into_iter().map(named).collect(),
            static_pods: ctx.list::<StaticPodStatus>()?.into_iter().map(named).collect(),
            nodename,
            node,
        })
    }
}

fn owned<T: ichor_resource::TypedSpec>(found: Typed<T>) -> T {
    (*found).clone()
}

fn named<T: ichor_resource::TypedSpec>(found: Typed<T>) -> (String, T) {
    (found.id().to_string(), owned(found))
}

/// What keeps the machine from being ready. Only a machine that boots or runs has anything to wait for.
fn unmet(stage: MachineStage, seen: &Seen) -> Vec<UnmetCondition> {
    match stage {
        MachineStage::Booting | MachineStage::Running => {}
        MachineStage::Unknown
        | MachineStage::Installing
        | MachineStage::Maintenance
        | MachineStage::Rebooting
        | MachineStage::ShuttingDown
        | MachineStage::Resetting
        | MachineStage::Upgrading => return Vec::new(),
    }
    let checks = [
        ("time", time(seen)),
        ("network", network(seen)),
        ("services", services(seen)),
        ("staticPods", static_pods(seen)),
        ("nodeReady", node_ready(seen)),
    ];
    let failed = checks.into_iter().filter_map(|(name, reason)| Some((name, reason?)));
    failed.map(|(name, reason)| UnmetCondition { name: name.to_owned(), reason }).collect()
}

fn time(seen: &Seen) -> Option<String> {
    let synced = seen.time.as_ref().is_some_and(|status| status.synced);
    (!synced).then(|| "time is not synced".to_owned())
}

fn network(seen: &Seen) -> Option<String> {
    let status = seen.network.clone().unwrap_or_default();
    let missing: Vec<_> = [
        ("address", status.address_ready),
        ("connectivity", status.connectivity_ready),
        ("etc-files", status.etc_files_ready),
        ("hostname", status.hostname_ready),
    ]
    .into_iter()
    .filter_map(|(name, ready)| (!ready).then_some(name))
    .collect();
    (!missing.is_empty()).then(|| format!("waiting on: {}", missing.join(", ")))
}

fn services(seen: &Seen) -> Option<String> {
    let mut required = vec!["apid", "machined"];
    if seen.control_plane {
        required.push("trustd");
    }
    if seen.kubernetes {
        required.push("kubelet");
        required.extend(seen.control_plane.then_some("etcd"));
    }
    let mut problems = Vec::new();
    for (id, service) in &seen.services {
        required.retain(|name| name != id);
        if !service.running {
            problems.push(format!("{id} not running"));
        } else if !service.unknown && !service.healthy {
            problems.push(format!("{id} not healthy"));
        }
    }
    problems.extend(required.into_iter().map(|name| format!("{name} not running")));
    problems.sort_unstable();
    (!problems.is_empty()).then(|| problems.join(", "))
}

fn static_pods(seen: &Seen) -> Option<String> {
    let problems: Vec<_> =
        seen.static_pods.iter().filter_map(|(id, pod)| Some((id, pod_problem(pod)?))).collect();
    let texts: Vec<_> = problems.iter().map(|(id, problem)| format!("{id} {problem}")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn pod_problem(pod: &StaticPodStatus) -> Option<&'static str> {
    let status = &pod.pod_status.0;
    match status.get("phase").and_then(|phase| phase.as_str()) {
        Some("Succeeded") => None,
        Some("Running") => {
            let conditions = status.get("conditions").and_then(|conditions| conditions.as_array());
            let ready = conditions.into_iter().flatten().any(|condition| {
                condition.get("type").and_then(|kind| kind.as_str()) == Some("Ready")
                    && condition.get("status").and_then(|status| status.as_str()) == Some("True")
            });
            (!ready).then_some("not ready")
        }
        Some("Failed") => Some("failed"),
        Some("Pending") => Some("pending"),
        Some(_) | None => Some("in unknown state"),
    }
}

fn node_ready(seen: &Seen) -> Option<String> {
    // Without Kubernetes, before the node has a name, and where it stays out, there is nothing to wait for.
    let nodename =
        seen.nodename.as_ref().filter(|nodename| seen.kubernetes && !nodename.skip_node_registration)?;
    match &seen.node {
        None => Some(format!("node {:?} status is not available yet", nodename.nodename)),
        Some(node) if !node.node_ready => Some(format!("node {:?} is not ready", nodename.nodename)),
        Some(_) => None,
    }
}

impl Controller for MachineStatusController {
    const NAME: &'static str = "runtime.MachineStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<TimeStatus>().id("node"),
            weak::<NetworkStatus>().id("status"),
            weak::<Service>(),
            weak::<StaticPodStatus>(),
            weak::<MachineType>().id(MachineType::ID),
            weak::<Nodename>().id("nodename"),
            weak::<NodeStatus>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<MachineStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.stages.subscribe(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let stage = self.stages.current();
        let unmet_conditions = unmet(stage, &Seen::gather(ctx, self.kubernetes)?);
        let ready = unmet_conditions.is_empty();
        ctx.modify::<MachineStatus>(MACHINE, |spec| {
            spec.stage = stage;
            spec.status = MachineStatusStatus { ready, unmet_conditions: unmet_conditions.clone() };
        })?;
        let is_ready = ready && stage == MachineStage::Running;
        if is_ready && !self.was_ready {
            info!("machine is running and ready");
        }
        self.was_ready = is_ready;
        Ok(())
    }
}

/// Passes the machine's status on, as an event.
pub trait StatusSink: Send + Sync + 'static {
    /// Called with every status that differs from the one before.
    fn machine_status(&self, status: &MachineStatus);
}

/// Tells a [`StatusSink`] of every change of `MachineStatuses`.
#[derive(Debug)]
pub struct MachineStatusPublisherController<S> {
    sink: S,
    last: Option<MachineStatus>,
}

impl<S: StatusSink> MachineStatusPublisherController<S> {
    /// A controller that tells this sink.
    pub fn new(sink: S) -> Self {
        Self { sink, last: None }
    }
}

impl<S: StatusSink> Controller for MachineStatusPublisherController<S> {
    const NAME: &'static str = "runtime.MachineStatusPublisherController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MachineStatus>().id(MACHINE)]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if let Some(status) = ctx.get::<MachineStatus>(MACHINE)?
            && self.last.as_ref() != Some(&*status)
        {
            self.sink.machine_status(&status);
            self.last = Some((*status).clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_resource::value::Object;

    use super::*;

    #[track_caller]
    fn check(stage: MachineStage, seen: &Seen, expect: Expect) {
        let lines: Vec<_> = unmet(stage, seen)
            .into_iter()
            .map(|found| format!("{}: {}\n", found.name, found.reason))
            .collect();
        expect.assert_eq(&lines.concat());
    }

    fn service(id: &str, running: bool, healthy: bool, unknown: bool) -> (String, Service) {
        (id.to_owned(), Service { running, healthy, unknown })
    }

    fn pod(id: &str, json: &str) -> (String, StaticPodStatus) {
        (id.to_owned(), StaticPodStatus { pod_status: Object(serde_json::from_str(json).unwrap()) })
    }

    #[test]
    fn nothing_is_met_at_the_start_of_a_boot() {
        check(
            MachineStage::Booting,
            &Seen { control_plane: true, kubernetes: true, ..Seen::default() },
            expect![[r#"
                time: time is not synced
                network: waiting on: address, connectivity, etc-files, hostname
                services: apid not running, etcd not running, kubelet not running, machined not running, trustd not running
            "#]],
        );
    }

    #[test]
    fn other_stages_wait_for_nothing() {
        for stage in MachineStage::ALL {
            if !matches!(stage, MachineStage::Booting | MachineStage::Running) {
                assert_eq!(unmet(*stage, &Seen::default()), []);
            }
        }
    }

    #[test]
    fn each_problem_is_named() {
        let seen = Seen {
            time: Some(TimeStatus { synced: true, ..TimeStatus::default() }),
            network: Some(NetworkStatus {
                address_ready: true,
                connectivity_ready: true,
                hostname_ready: true,
                etc_files_ready: true,
            }),
            services: vec![
                service("apid", true, false, false),
                service("kubelet", true, false, true),
                service("machined", true, true, false),
                service("udevd", false, false, false),
            ],
            static_pods: vec![
                pod(
                    "kube-system/a",
                    r#"{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}"#,
                ),
                pod(
                    "kube-system/b",
                    r#"{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}"#,
                ),
                pod("kube-system/c", r#"{"phase":"Pending"}"#),
            ],
            nodename: Some(Nodename { nodename: "node-1".into(), ..Nodename::default() }),
            kubernetes: true,
            ..Seen::default()
        };
        check(
            MachineStage::Running,
            &seen,
            expect![[r#"
                services: apid not healthy, udevd not running
                staticPods: kube-system/b not ready, kube-system/c pending
                nodeReady: node "node-1" status is not available yet
            "#]],
        );
    }
}
