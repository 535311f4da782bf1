//! From a symptom to its cause.
//!
//! [`explain`] takes a picture of a node and a question and gives findings: what is wrong, step by step why,
//! where each step can be seen, and what to do. It touches nothing: whoever asks brings the [`Snapshot`].

pub mod finding;
mod graph;
mod network;
mod services;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod time;

use ichor_resource::config::MachineConfig;
use ichor_resource::k8s::{NodeStatus, Nodename};
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::{Diagnostic, MachineStage, MachineStatus};

use finding::{Cause, Collector, listed, span};
pub use finding::{Finding, Reason, Report};
pub use snapshot::{Condition, Controller, Edge, Neighbour, Place, Service, ServiceEvent, Snapshot};

/// A resource may be on its way out for so long before somebody has to look.
const TEARDOWN_MAX: u64 = 30;

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The whole node.
    Node,
    /// One service.
    Service(String),
    /// One resource, or a kind of resources.
    Resource(Place),
}

/// Answers a question about a node.
pub fn explain(snapshot: &Snapshot, target: &Target) -> Report {
    let mut found = Collector::default();
    let well = match target {
        Target::Node => {
            node(snapshot, &mut found);
            node_is_well(snapshot)
        }
        Target::Service(id) => {
            let Some(service) = snapshot.service(id) else {
                return Report { summary: format!("there is no service {id}"), ..Report::default() };
            };
            if let Some((summary, cause)) = services::service(snapshot, service) {
                found.add(format!("service {id}"), summary, cause);
            }
            service_is_well(service)
        }
        Target::Resource(place) => {
            if let Some(cause) = graph::resource(snapshot, place) {
                let summary = match snapshot.find(place) {
                    None => format!("{} is not there", place.short()),
                    Some(found) if !found.meta().is_running() => {
                        format!("{} is being removed", place.short())
                    }
                    Some(_) => format!("{} is there and says \"not yet\"", place.short()),
                };
                found.add(format!("resource {}", place.short()), summary, cause);
            }
            resource_is_well(snapshot, place)
        }
    };
    let findings = found.finish();
    match findings.len() {
        0 => Report { healthy: true, summary: well, findings },
        1 => Report { healthy: false, summary: "one thing is wrong".to_owned(), findings },
        count => Report { healthy: false, summary: format!("{count} things are wrong"), findings },
    }
}

fn node_is_well(snapshot: &Snapshot) -> String {
    let up = snapshot.services.iter().filter(|service| service.up).count();
    format!("nothing is wrong: the machine is ready, {up} services are up, no controller fails")
}

fn service_is_well(service: &Service) -> String {
    let since = service.events.last().map_or(String::new(), |event| format!(" for {}", span(event.ago)));
    match service.state.as_str() {
        "Running" if service.healthy == Some(true) => format!("{} runs and is healthy{since}", service.id),
        "Running" => format!("{} runs{since}", service.id),
        state => format!("{} is {}{since}", service.id, state.to_lowercase()),
    }
}

fn resource_is_well(snapshot: &Snapshot, place: &Place) -> String {
    match snapshot.find(place) {
        Some(found) if !found.meta().owner().is_empty() => format!(
            "{} is there: written by {}, last changed {} ago",
            place.short(),
            found.meta().owner(),
            span(snapshot.age(found))
        ),
        _ => format!("{} is there", place.short()),
    }
}

/// Everything that is wrong, the deepest causes first.
fn node(snapshot: &Snapshot, found: &mut Collector) {
    let status = snapshot.get::<MachineStatus>("machine");
    let stage = status.map_or(MachineStage::Unknown, |status| status.stage);
    if stage == MachineStage::Maintenance {
        found.add("node", "the machine waits for its configuration", unconfigured(snapshot));
    }
    network_findings(snapshot, found);
    if let Some(cause) = time::cause(snapshot) {
        found.add("time", time::symptom(snapshot), cause);
    }
    for service in &snapshot.services {
        if let Some((summary, cause)) = services::service(snapshot, service) {
            found.add(format!("service {}", service.id), summary, cause);
        }
    }
    for controller in snapshot.controllers.iter().filter(|controller| controller.complaint().is_some()) {
        let cause = graph::controller(snapshot, controller);
        let name = &controller.name;
        let summary = match name.as_str() {
            // Told above, in the words of what they look after.
            "time.SyncController" | "network.RouteSpecController" | "network.DNSUpstreamController"
                if found.knows(&cause.root) =>
            {
                continue;
            }
            "k8s.StaticEndpointController" => "the control plane endpoint has no address".to_owned(),
            "secrets.APIController" => "the API certificate cannot be made or renewed".to_owned(),
            _ if controller.failures > 0 => format!("{name} fails"),
            _ => format!("{name} cannot do its work"),
        };
        found.add(format!("controller {name}"), summary, cause);
    }
    stuck(snapshot, found);
    for (id, diagnostic) in snapshot.list::<Diagnostic>() {
        let advice = match id {
            "config-not-applied" => "remove these fields, or accept that they have no effect".to_owned(),
            "cmdline-not-applied" => "remove these arguments, or accept that they have no effect".to_owned(),
            "manifests-refused" => "correct these manifests in the machine configuration".to_owned(),
            id => format!("https://talos.dev/diagnostic/{id} says more"),
        };
        let mut cause = Cause::new("diagnostic", format!("diagnostic {id}"), advice);
        for detail in &diagnostic.details {
            cause = cause.step(detail, format!("Diagnostics/{id}"));
        }
        found.add(format!("diagnostic {id}"), &diagnostic.message, cause);
    }
    unmet(snapshot, found);
}

fn unconfigured(snapshot: &Snapshot) -> Cause {
    let mut cause = Cause::new(
        "configuration",
        "configuration",
        "send one: `ichorctl apply-config --insecure -n ADDRESS --file machine.yaml`",
    )
    .step(
        "no configuration was found on disk, on the kernel command line or at the platform",
        "stage maintenance",
    );
    let acquire = snapshot.controller("config.AcquireController");
    if let Some((controller, complaint)) = acquire.and_then(|found| Some((found, found.complaint()?))) {
        cause = cause.step(complaint, graph::evidence(controller));
    }
    cause
}

fn network_findings(snapshot: &Snapshot, found: &mut Collector) {
    for (summary, cause) in network::routes(snapshot) {
        found.add("network", summary, cause);
    }
    if let Some(cause) = network::dns(snapshot).filter(|_| snapshot.get::<NetworkStatus>("status").is_some())
    {
        // Without a network there is nothing to ask over.
        let summary = match cause.root.as_str() {
            "no resolvers" => "there are no resolvers",
            _ => "names do not resolve",
        };
        if cause.root == "dns" {
            found.add("dns", summary, cause);
        }
    }
    if let Some(cause) = network::not_ready(snapshot).filter(|_| configured(snapshot)) {
        found.add("network", "the network is not ready", cause);
    }
    if let Some(cause) = network::probe(snapshot) {
        found.add("network", "a probe fails", cause);
    }
}

fn configured(snapshot: &Snapshot) -> bool {
    snapshot.get::<MachineConfig>(MachineConfig::ACTIVE).is_some()
}

/// Resources that are on their way out and do not go.
fn stuck(snapshot: &Snapshot, found: &mut Collector) {
    for resource in &snapshot.resources {
        if resource.meta().is_running() || snapshot.age(resource) < TEARDOWN_MAX {
            continue;
        }
        let meta = resource.meta();
        let place = Place {
            namespace: meta.namespace().to_owned(),
            type_name: meta.type_name().to_owned(),
            id: Some(meta.id().to_string()),
        };
        let cause = graph::teardown(snapshot, &place, resource);
        found.add(
            format!("resource {}", place.short()),
            format!("{} does not go away", place.short()),
            cause,
        );
    }
}

/// What the machine itself gives as the reason why it is not ready, as far as nothing else explains it.
fn unmet(snapshot: &Snapshot, found: &mut Collector) {
    let Some(status) = snapshot.get::<MachineStatus>("machine") else { return };
    if status.status.ready {
        return;
    }
    for condition in &status.status.unmet_conditions {
        let explained = match condition.name.as_str() {
            "time" => time::cause(snapshot).is_some_and(|cause| found.knows(&cause.root)),
            "network" => network::not_ready(snapshot).is_some_and(|cause| found.knows(&cause.root)),
            "services" => {
                snapshot.services.iter().any(|service| services::service(snapshot, service).is_some())
            }
            _ => false,
        };
        if explained {
            continue;
        }
        let advice = "wait a little and ask again; `ichorctl get machinestatus -w` follows it";
        let evidence = format!("MachineStatuses/machine: unmet condition {}", condition.name);
        let deeper = (condition.name == "nodeReady").then(|| node_status(snapshot)).flatten();
        let cause = match deeper {
            Some(cause) => cause.behind(&condition.reason, evidence),
            None => Cause::new("node", format!("unmet {}", condition.name), advice)
                .step(&condition.reason, evidence),
        };
        let names: Vec<&str> =
            status.status.unmet_conditions.iter().map(|unmet| unmet.name.as_str()).collect();
        found.add("node", format!("the machine is not ready: {}", listed(&names)), cause);
    }
}

/// Why Kubernetes does not tell how the node is.
fn node_status(snapshot: &Snapshot) -> Option<Cause> {
    let name = &snapshot.get::<Nodename>("nodename")?.nodename;
    graph::resource(snapshot, &Place::of::<NodeStatus>(name))
}
