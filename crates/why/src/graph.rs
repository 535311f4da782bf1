//! Why a resource is not there: who would write it, and what keeps that controller from it.

use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::DevicesStatus;
use ichor_resource::time::TimeStatus;
use ichor_resource::{Resource, TypedSpec};

use crate::finding::{Cause, listed, span};
use crate::snapshot::{Controller, Place, Snapshot};
use crate::{network, time};

/// Steps from a resource to what it is made from; longer chains do not exist, circles do.
const DEPTH_MAX: usize = 8;

/// Why the resource at `place` is not there, or not as it should be; `None` when all is well with it.
pub(crate) fn resource(snapshot: &Snapshot, place: &Place) -> Option<Cause> {
    walk(snapshot, place, &mut Vec::new())
}

fn walk(snapshot: &Snapshot, place: &Place, seen: &mut Vec<Place>) -> Option<Cause> {
    if seen.contains(place) || seen.len() >= DEPTH_MAX {
        return None;
    }
    seen.push(place.clone());
    let cause = match snapshot.find(place) {
        Some(found) if found.meta().is_running() => not_ready(snapshot, place),
        Some(found) => Some(teardown(snapshot, place, found)),
        None => Some(absent(snapshot, place, seen)),
    };
    seen.pop();
    cause
}

/// The few resources that are there and still say "not yet".
fn not_ready(snapshot: &Snapshot, place: &Place) -> Option<Cause> {
    let is = |name: &'static str| place.type_name == name;
    if is(TimeStatus::definition().type_name) {
        return time::cause(snapshot);
    }
    if is(NetworkStatus::definition().type_name) {
        return network::not_ready(snapshot);
    }
    if is(DevicesStatus::definition().type_name)
        && !snapshot.get::<DevicesStatus>("devices").is_some_and(|devices| devices.ready)
    {
        let advice = "look at `ichorctl service udevd` and `ichorctl dmesg`: devices are still being found";
        return Some(
            Cause::new("devices", "devices", advice)
                .step("the device manager is not done", "DevicesStatuses/devices: ready=false"),
        );
    }
    None
}

/// A resource that is on its way out and does not go.
pub(crate) fn teardown(snapshot: &Snapshot, place: &Place, found: &Resource) -> Cause {
    let holders = found.meta().finalizers();
    let evidence = format!("{}: phase tearing down for {}", place.short(), span(snapshot.age(found)));
    let root = format!("teardown {}", place.short());
    if holders.is_empty() {
        let owner = found.meta().owner();
        let cause =
            Cause::new("teardown", root, format!("look at {owner}: `ichorctl logs controller-runtime`"))
                .step(format!("it is being removed and only {owner} can finish that"), evidence);
        return with_complaint(snapshot, cause, owner);
    }
    let advice = format!("look at {}: `ichorctl logs controller-runtime`", listed(holders));
    let cause = Cause::new("teardown", root, advice)
        .step(format!("it is being removed and {} still holds it", listed(holders)), evidence);
    let blamed =
        holders.iter().find(|name| snapshot.controller(name).is_some_and(|c| c.complaint().is_some()));
    match blamed {
        Some(name) => with_complaint(snapshot, cause, name),
        None => cause,
    }
}

fn with_complaint(snapshot: &Snapshot, cause: Cause, name: &str) -> Cause {
    match snapshot.controller(name).and_then(|controller| Some((controller, controller.complaint()?))) {
        Some((controller, complaint)) => cause.step(complaint, evidence(controller)),
        None => cause,
    }
}

fn absent(snapshot: &Snapshot, place: &Place, seen: &mut Vec<Place>) -> Cause {
    let missing = format!("{} does not exist", place.short());
    let where_ = format!("namespace {}", place.namespace);
    let writers: Vec<&Controller> = snapshot
        .edges
        .iter()
        .filter(|edge| edge.output && edge.place.type_name == place.type_name)
        .filter_map(|edge| snapshot.controller(&edge.controller))
        .collect();
    if writers.is_empty() {
        return Cause::new(
            "resource",
            format!("nobody writes {}", place.type_name),
            "nothing to wait for: this node has no part that makes it",
        )
        .step(missing, where_)
        .step("no controller of this node writes that type", "ichorctl inspect dependencies");
    }
    // A writer that complains is a better lead than one that is content.
    if let Some(writer) = writers.iter().find(|writer| writer.complaint().is_some()) {
        return controller(snapshot, writer).behind(missing, where_);
    }
    for writer in &writers {
        if let Some(cause) = inputs(snapshot, writer, seen) {
            return cause
                .behind(format!("{} has not all it needs", writer.name), format!("{} passes", writer.runs))
                .behind(missing, where_);
        }
    }
    let names: Vec<&str> = writers.iter().map(|writer| writer.name.as_str()).collect();
    let advice = "ask for it in the machine configuration (`ichorctl get machineconfig -o yaml`), if it should be there";
    Cause::new("resource", format!("not asked for {}", place.short()), advice).step(missing, where_).step(
        format!("{} would write it, has all it needs and sees no reason to", listed(&names)),
        "no controller fails",
    )
}

/// The first input of a controller that is missing or not ready.
fn inputs(snapshot: &Snapshot, writer: &Controller, seen: &mut Vec<Place>) -> Option<Cause> {
    let reads = snapshot.edges.iter().filter(|edge| !edge.output && edge.controller == writer.name);
    // An input without an id may well be empty: lists often are.
    let mut named: Vec<&Place> = reads.map(|edge| &edge.place).filter(|place| place.id.is_some()).collect();
    // What is there and not ready says more than what is not there.
    named.sort_by_key(|place| snapshot.find(place).is_none());
    named.into_iter().find_map(|place| {
        let cause = walk(snapshot, place, seen)?;
        // "Not asked for" is an end, not a cause, as long as another input may be the one.
        (cause.kind != "resource").then_some(cause)
    })
}

/// What is wrong with a controller that complains.
pub(crate) fn controller(snapshot: &Snapshot, controller: &Controller) -> Cause {
    let complaint = controller.complaint().unwrap_or_default();
    if let Some(cause) = special(snapshot, controller, complaint) {
        return cause;
    }
    let advice = format!(
        "follow it with `ichorctl logs controller-runtime -f`; {} tries again by itself",
        controller.name
    );
    Cause::new("controller", format!("controller {}", controller.name), advice)
        .step(complaint, evidence(controller))
}

/// Controllers whose complaints have a known way out.
fn special(snapshot: &Snapshot, controller: &Controller, complaint: &str) -> Option<Cause> {
    match controller.name.as_str() {
        "time.SyncController" => time::cause(snapshot),
        "network.RouteSpecController" => network::routes(snapshot).into_iter().next().map(|(_, cause)| cause),
        "network.DNSUpstreamController" => network::dns(snapshot),
        "k8s.StaticEndpointController" => {
            let cause = network::dns(snapshot).unwrap_or_else(|| {
                Cause::new(
                    "endpoint",
                    "endpoint name",
                    "correct the host in `cluster.controlPlane.endpoint`, or make the name known to the resolvers",
                )
            });
            Some(cause.behind(complaint, evidence(controller)))
        }
        "secrets.APIController" if complaint.contains("no control plane machine signed") => {
            Some(network::control_plane(snapshot, complaint, &evidence(controller)))
        }
        _ => None,
    }
}

/// Where one sees that a controller is not doing well.
pub(crate) fn evidence(controller: &Controller) -> String {
    if controller.failures == 0 {
        return controller.name.clone();
    }
    let next =
        controller.retry_in.map(|seconds| format!(", next try in {}", span(seconds))).unwrap_or_default();
    let times = if controller.failures == 1 {
        "once".to_owned()
    } else {
        format!("{} times in a row", controller.failures)
    };
    format!("{}: failed {times}, last {} ago{next}", controller.name, span(controller.error_ago))
}
