//! `Why`: takes the picture that `ichor-why` reasons about, and hands its findings out.

use std::net::IpAddr;

use jiff::Timestamp;
use tonic::{Request, Response, Status};

use ichor_cosi::{EdgeKind, State};
use ichor_observe::LogManager;
use ichor_resource::Definition;
use ichor_why::{
    Condition, Controller, Edge, Neighbour, Place, Report, Service, ServiceEvent, Snapshot, Target,
};
use ichor_wire::ichor::node::node_service_server::NodeService;
use ichor_wire::ichor::node::{
    EtcdRebuildRequest, EtcdRebuildResponse, Finding, Reason, Why, WhyRequest, WhyResponse,
};

use super::machine::Api;
use crate::lanes::HOST;
use crate::last_boot::LastBootAnswer;
use crate::node::Store;
use crate::services::{Record, ServiceManager, ServiceSpec};

/// Bytes of a service's log that are looked at for its last lines.
const LOG_TAIL: usize = 2048;

/// The question why the machine went down.
const LAST_BOOT: &str = "last-boot";

/// Longest text a question may carry.
const TEXT_MAX: usize = 256;

#[tonic::async_trait]
impl NodeService for Api {
    async fn why(&self, request: Request<WhyRequest>) -> Result<Response<WhyResponse>, Status> {
        let request = request.into_inner();
        if request.target == LAST_BOOT {
            let report = last_boot(self.node.power.last_boot.told());
            return Ok(Response::new(WhyResponse { messages: vec![wire(report)] }));
        }
        let target = target(&self.node.store.state, &self.node.services, &request)?;
        let neighbours = HOST.run(ichor_sys::neighbours::read).await;
        let mut snapshot = snapshot(&self.node.store, &self.node.services, &self.node.journal.logs);
        // Without the table there is less evidence, and still an answer.
        snapshot.neighbours = neighbours.ok().and_then(Result::ok).map(shown).unwrap_or_default();
        let report = ichor_why::explain(&snapshot, &target);
        Ok(Response::new(WhyResponse { messages: vec![wire(report)] }))
    }

    async fn etcd_rebuild(
        &self,
        request: Request<EtcdRebuildRequest>,
    ) -> Result<Response<EtcdRebuildResponse>, Status> {
        super::etcd::rebuild(&self.node.etcd, request.into_inner()).await
    }
}

fn shown(found: Vec<ichor_sys::neighbours::Neighbour>) -> Vec<Neighbour> {
    let shown = |one: ichor_sys::neighbours::Neighbour| Neighbour {
        address: IpAddr::V4(one.address),
        link: one.link,
        answers: one.answers,
    };
    found.into_iter().map(shown).collect()
}

/// Why the machine went down, as a report.
fn last_boot(told: Option<LastBootAnswer>) -> Report {
    let Some(told) = told else {
        let summary = "this boot has not yet found out how the last one ended; ask again".to_owned();
        return Report { healthy: true, summary, findings: Vec::new() };
    };
    let advice = match told.kind.as_str() {
        "panic" | "out-of-memory" => "read the kernel's last messages: logs last-crash",
        "watchdog" => "look for what kept the machine busy: logs of machined and kernel below /var/log",
        "power-cut" => {
            "look at the power supply; kernels tell of a panic only where they have a place to write it to (pstore)"
        }
        "failed-slot" => {
            "the system of before runs; read what the new one wrote below /var/log before you upgrade again"
        }
        _ => "",
    };
    let healthy = told.is_well();
    let finding = ichor_why::Finding {
        kind: "last-boot",
        subject: "last boot".to_owned(),
        summary: told.text.clone(),
        because: Vec::new(),
        advice: advice.to_owned(),
        also: Vec::new(),
    };
    Report { healthy, summary: told.text, findings: if healthy { Vec::new() } else { vec![finding] } }
}

/// What the question is about: a service before a resource type, since there are few of them.
fn target(state: &State, services: &ServiceManager, request: &WhyRequest) -> Result<Target, Status> {
    let WhyRequest { target, id, namespace } = request;
    if target.len() + id.len() + namespace.len() > TEXT_MAX {
        return Err(Status::invalid_argument("the question is too long"));
    }
    let (target, id) = match target.split_once('/') {
        Some((kind, rest)) if id.is_empty() => (kind, rest),
        _ => (target.as_str(), id.as_str()),
    };
    if target.is_empty() || (target == "node" && id.is_empty()) {
        return Ok(Target::Node);
    }
    let services = services.ids();
    if id.is_empty() && services.iter().any(|known| known == target) {
        return Ok(Target::Service(target.to_owned()));
    }
    if ["service", "services"].contains(&target) && !id.is_empty() {
        return match services.iter().any(|known| known == id) {
            true => Ok(Target::Service(id.to_owned())),
            false => Err(Status::not_found(format!(
                "there is no service {id:?}; there are: {}",
                services.join(", ")
            ))),
        };
    }
    let wanted = target.to_lowercase();
    let answers =
        |definition: &&&Definition| definition.id() == wanted || definition.all_aliases().contains(&wanted);
    let definitions = state.definitions();
    let found: Vec<&&'static Definition> = definitions.iter().filter(answers).collect();
    // The full name is exact even where an alias of another type is the same.
    let definition = match found.as_slice() {
        [] => {
            let text = format!(
                "{target:?} is neither a service ({}) nor a resource type (`get rd` lists those)",
                services.join(", ")
            );
            return Err(Status::not_found(text));
        }
        [only] => only,
        many => many.iter().find(|definition| definition.id() == wanted).unwrap_or(&many[0]),
    };
    let namespace = if namespace.is_empty() { definition.default_namespace } else { namespace };
    Ok(Target::Resource(Place {
        namespace: namespace.to_owned(),
        type_name: definition.type_name.to_owned(),
        id: Some(id.to_owned()).filter(|id| !id.is_empty()),
    }))
}

/// The node as it is now. Contents are shared, not copied.
fn snapshot(store: &Store, services: &ServiceManager, logs: &LogManager) -> Snapshot {
    let now = Timestamp::now();
    let kinds = store.state.kinds();
    let resources = kinds
        .iter()
        .filter_map(|kind| store.state.find_kind(kind.namespace(), kind.type_name()))
        .flat_map(|kind| kind.list())
        .collect();
    let edges = store.controllers.dependencies().into_iter().map(|edge| Edge {
        controller: edge.controller.to_owned(),
        output: matches!(edge.kind, EdgeKind::Output(_)),
        place: Place {
            namespace: edge.namespace,
            type_name: edge.type_name.to_owned(),
            id: edge.id.map(|id| id.to_string()),
        },
    });
    let now_ns = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
    let seconds = |from: i64, to: i64| u64::try_from(to.saturating_sub(from) / 1_000_000_000).unwrap_or(0);
    let controllers = store.controllers.status().into_iter().map(|status| Controller {
        name: status.name.to_owned(),
        runs: status.runs,
        failures: status.failures,
        error: status.last_error,
        error_ago: status.last_error_at.map_or(0, |at| seconds(at.0, now_ns)),
        retry_in: status.retry_at.map(|at| seconds(now_ns, at.0)),
        trouble: status.trouble,
    });
    Snapshot {
        resources,
        services: services
            .look(|spec, record| service(spec, record, now))
            .into_iter()
            .map(|mut service| {
                service.log = last_lines(logs, &service.id);
                service
            })
            .collect(),
        controllers: controllers.collect(),
        edges: edges.collect(),
        neighbours: Vec::new(),
        now_ns,
    }
}

fn service(spec: &ServiceSpec, record: &Record, now: Timestamp) -> Service {
    let info = record.info();
    let events = info.events.into_iter().flat_map(|events| events.events).map(|event| ServiceEvent {
        state: event.state,
        message: event.msg,
        ago: event.ts.map_or(0, |ts| u64::try_from(now.as_second() - ts.seconds).unwrap_or(0)),
    });
    let conditions = spec.conditions.iter().map(|condition| Condition {
        name: condition.describe(),
        about: condition.about().map(|(namespace, type_name, id)| Place {
            namespace: namespace.to_owned(),
            type_name: type_name.to_owned(),
            id: Some(id.to_owned()),
        }),
    });
    Service {
        id: spec.id.clone(),
        state: info.state,
        healthy: record.health().healthy,
        health_message: record.health().message.clone(),
        up: record.is_up(),
        events: events.collect(),
        depends: spec.depends.clone(),
        conditions: conditions.collect(),
        log: Vec::new(),
    }
}

fn last_lines(logs: &LogManager, id: &str) -> Vec<String> {
    let Ok(ring) = logs.get(id) else { return Vec::new() };
    let text = ring.last_bytes(LOG_TAIL);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn wire(report: Report) -> Why {
    let finding = |finding: ichor_why::Finding| Finding {
        kind: finding.kind.to_owned(),
        subject: finding.subject,
        summary: finding.summary,
        because: finding
            .because
            .into_iter()
            .map(|reason| Reason { text: reason.text, evidence: reason.evidence })
            .collect(),
        advice: finding.advice,
        also: finding.also,
    };
    Why {
        metadata: None,
        healthy: report.healthy,
        summary: report.summary,
        findings: report.findings.into_iter().map(finding).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_boot_is_a_finding_only_when_nobody_asked_for_its_end() {
        let answer =
            |kind: &str| Some(LastBootAnswer { kind: kind.to_owned(), text: "so it was".to_owned() });
        for kind in ["asked", "unknown"] {
            let report = last_boot(answer(kind));
            assert!(report.healthy && report.findings.is_empty() && report.summary == "so it was", "{kind}");
        }
        for kind in ["power-cut", "panic", "out-of-memory", "watchdog", "failed-slot"] {
            let report = last_boot(answer(kind));
            assert!(!report.healthy && report.findings.len() == 1, "{kind}");
            assert!(!report.findings[0].advice.is_empty(), "{kind}");
        }
        assert!(last_boot(None).healthy);
    }
}
