//! From what was observed to a verdict. No network here.

use std::collections::BTreeSet;

use ichor_wire::machine::{EtcdMember, ServiceInfo};
use serde_json::Value;

use crate::objects;
use crate::topology::{Kind, Machine};

/// What a control plane needs, less the kernel's part.
const MEMORY_CONTROL_PLANE: u64 = (1848 - 150) << 20;
/// What a worker needs, less the kernel's part.
const MEMORY_WORKER: u64 = (1024 - 150) << 20;
/// What is left of the smallest disk, 6 GiB, for EPHEMERAL: without EFI, STATE, META and the partition table.
pub const EPHEMERAL_MIN: u64 = (6144 - 2101 - 100 - 1 - 10) << 20;
/// The static pods of a control plane.
const STATIC_PODS: [&str; 3] =
    ["kube-system/kube-apiserver", "kube-system/kube-controller-manager", "kube-system/kube-scheduler"];
/// The components of a control plane, by their label `k8s-app`.
pub const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-scheduler", "kube-controller-manager"];

/// What became of one attempt at a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Pass,
    /// There is nothing to check.
    Skip,
    /// Not yet, and why.
    Fail(String),
}

/// What one machine answered, or why it did not.
pub type Answer<T> = (String, Result<T, String>);

/// Passes when there are no complaints.
fn all(complaints: Vec<String>) -> Verdict {
    if complaints.is_empty() { Verdict::Pass } else { Verdict::Fail(complaints.join("; ")) }
}

/// A complaint for each machine that did not answer, or whose answer `judge` complains about.
fn each<T>(answers: &[Answer<T>], judge: impl Fn(&str, &T) -> Option<String>) -> Verdict {
    let complaint = |(node, answer): &Answer<T>| match answer {
        Err(error) => Some(format!("{node}: {error}")),
        Ok(answer) => judge(node, answer).map(|text| format!("{node}: {text}")),
    };
    all(answers.iter().filter_map(complaint).collect())
}

/// The service runs and is healthy on every machine.
pub fn service(id: &str, answers: &[Answer<Vec<ServiceInfo>>]) -> Verdict {
    each(answers, |_, services| {
        let Some(service) = services.iter().find(|service| service.id == id) else {
            return Some(format!("service {id:?} is not there"));
        };
        let last = service.events.as_ref().and_then(|events| events.events.last());
        let Some(last) = last else { return Some(format!("no events recorded yet for service {id:?}")) };
        if last.state != "Running" {
            return Some(format!(
                "service {id:?} not in expected state \"Running\": current state [{}] {}",
                last.state, last.msg
            ));
        }
        let health = service.health.as_ref();
        if health.is_some_and(|health| health.healthy) {
            return None;
        }
        let said = health.map(|health| health.last_message.as_str()).filter(|text| !text.is_empty());
        Some(format!(
            "service is not healthy: {id}{}",
            said.map(|text| format!(" ({text})")).unwrap_or_default()
        ))
    })
}

/// Every machine answers.
pub fn answered<T>(answers: &[Answer<T>]) -> Verdict {
    each(answers, |_, _| None)
}

/// All machines know the same members.
pub fn members_agree(answers: &[Answer<Vec<EtcdMember>>]) -> Verdict {
    let known = |members: &[EtcdMember]| -> BTreeSet<(u64, String, bool)> {
        members.iter().map(|member| (member.id, member.hostname.clone(), member.is_learner)).collect()
    };
    let Some((first, members)) =
        answers.iter().find_map(|(node, answer)| Some((node, answer.as_ref().ok()?)))
    else {
        return answered(answers);
    };
    let expected = known(members);
    each(answers, |_, members| {
        let actual = known(members);
        let names = |set: &BTreeSet<(u64, String, bool)>| {
            set.iter()
                .map(|(id, name, learner)| {
                    let name = if name.is_empty() { format!("{id:016x}") } else { name.clone() };
                    if *learner { format!("{name} (learner)") } else { name }
                })
                .collect::<Vec<_>>()
                .join(" ")
        };
        (actual != expected).then(|| {
            format!("knows the members [{}], while {first} knows [{}]", names(&actual), names(&expected))
        })
    })
}

/// Every member of etcd is on a control plane.
pub fn members_are_control_planes(answer: &Answer<Vec<EtcdMember>>, control_planes: &[Machine]) -> Verdict {
    let (node, members) = answer;
    let members = match members {
        Ok(members) => members,
        Err(error) => return Verdict::Fail(format!("{node}: {error}")),
    };
    let hosts: BTreeSet<&str> =
        members.iter().flat_map(|member| &member.peer_urls).map(|url| host_of(url)).collect();
    let known: BTreeSet<&str> =
        control_planes.iter().flat_map(|machine| &machine.addresses).map(String::as_str).collect();
    let strangers: Vec<&str> = hosts.difference(&known).copied().collect();
    if strangers.is_empty() {
        return Verdict::Pass;
    }
    let known: Vec<&str> = known.into_iter().collect();
    Verdict::Fail(format!(
        "etcd members at [{}] are not among the control planes at [{}]",
        strangers.join(" "),
        known.join(" ")
    ))
}

fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

/// Every machine has enough memory. Nothing is asked of containers.
pub fn memory(answers: &[Answer<Option<u64>>], machines: &[Machine]) -> Verdict {
    each(answers, |node, bytes| {
        let kind = machines.iter().find(|machine| machine.address == node).map(|machine| machine.kind);
        let least = match kind? {
            Kind::ControlPlane => MEMORY_CONTROL_PLANE,
            Kind::Worker => MEMORY_WORKER,
        };
        let bytes = (*bytes)?;
        (bytes < least).then(|| {
            format!(
                "does not meet memory requirements: expected at least {} MiB, actual {} MiB",
                least >> 20,
                bytes >> 20
            )
        })
    })
}

/// Every machine has enough room for its data. Machines without a partition for it have nothing to measure.
pub fn disk(answers: &[Answer<Option<u64>>]) -> Verdict {
    each(answers, |_, bytes| {
        let bytes = (*bytes)?;
        (bytes < EPHEMERAL_MIN).then(|| {
            format!(
                "the EPHEMERAL partition is too small, expected at least {} MiB, actual {} MiB",
                EPHEMERAL_MIN >> 20,
                bytes >> 20
            )
        })
    })
}

/// No machine diagnosed a problem.
pub fn no_diagnostics(answers: &[Answer<Vec<String>>]) -> Verdict {
    match each(answers, |_, messages| (!messages.is_empty()).then(|| messages.join(", "))) {
        Verdict::Fail(text) => Verdict::Fail(format!("active diagnostics: {text}")),
        verdict => verdict,
    }
}

/// Every machine runs.
pub fn booted(answers: &[Answer<Value>]) -> Verdict {
    each(answers, |_, status| {
        let stage = status["stage"].as_str().unwrap_or("unknown");
        if stage == "running" {
            return None;
        }
        let unmet = status["status"]["unmetConditions"].as_array().into_iter().flatten();
        let unmet: Vec<String> = unmet
            .filter_map(|condition| {
                let reason = condition["reason"].as_str().unwrap_or_default();
                Some(format!("{}: {reason}", condition["name"].as_str()?))
            })
            .collect();
        let waits = if unmet.is_empty() { String::new() } else { format!(" ({})", unmet.join(", ")) };
        Some(format!("is not running but {stage}{waits}"))
    })
}

/// Every machine is a node of Kubernetes, and every such node is a machine.
pub fn nodes_match(expected: &[Machine], nodes: &[&Value]) -> Verdict {
    let mut left: Vec<(&str, Vec<String>)> =
        nodes.iter().map(|node| (objects::name(node), objects::node_addresses(node))).collect();
    let mut complaints = Vec::new();
    for machine in expected {
        let found = left
            .iter()
            .position(|(_, addresses)| addresses.iter().any(|address| machine.addresses.contains(address)));
        match found {
            Some(place) => drop(left.swap_remove(place)),
            None => complaints.push(format!("can't find expected node with IPs {:?}", machine.addresses)),
        }
    }
    left.sort();
    complaints.extend(
        left.iter().map(|(name, addresses)| format!("unexpected node {name} with IPs {addresses:?}")),
    );
    all(complaints)
}

/// Every control plane has its static pods.
pub fn static_pods(answers: &[Answer<Vec<String>>]) -> Verdict {
    each(answers, |_, ids| {
        let missing: Vec<&str> =
            STATIC_PODS.into_iter().filter(|pod| !ids.iter().any(|id| id.starts_with(pod))).collect();
        (!missing.is_empty()).then(|| format!("missing static pods: [{}]", missing.join(" ")))
    })
}

/// The pods of a component: as many as there are control planes, all of them ready.
pub fn component(app: &str, pods: &[Value], count: usize) -> Verdict {
    let unready: Vec<String> =
        pods.iter().filter(|pod| !objects::is_ready(pod)).map(objects::unready).collect();
    if pods.len() != count {
        let names: Vec<&str> = pods.iter().map(objects::name).collect();
        return Verdict::Fail(format!(
            "expected number of pods for {app} to be {count}, got {}: [{}]",
            pods.len(),
            names.join(" ")
        ));
    }
    if unready.is_empty() {
        return Verdict::Pass;
    }
    Verdict::Fail(format!("some pods are not ready for {app}: [{}]", unready.join(" ")))
}

/// Every node is ready.
pub fn nodes_ready(nodes: &[Value]) -> Verdict {
    let unready: Vec<String> =
        nodes.iter().filter(|node| !objects::is_ready(node)).map(objects::unready).collect();
    if unready.is_empty() {
        return Verdict::Pass;
    }
    Verdict::Fail(format!("some nodes are not ready: [{}]", unready.join(" ")))
}

/// No node is closed for new pods.
pub fn nodes_schedulable(nodes: &[Value]) -> Verdict {
    let closed: Vec<&str> =
        nodes.iter().filter(|node| node["spec"]["unschedulable"] == true).map(objects::name).collect();
    if closed.is_empty() {
        return Verdict::Pass;
    }
    Verdict::Fail(format!("some nodes are not schedulable: [{}]", closed.join(" ")))
}

/// The pods of a workload: `count` of them, all ready. Pods that are going or have ended do not count.
pub fn workload_pods(pods: &[Value], count: u64, namespace: &str, selector: &str) -> Verdict {
    let counts = |pod: &&Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && pod["status"]["phase"] != "Failed"
            && (!objects::is_over(pod) || pod["status"]["phase"] == "Pending")
    };
    let (ready, unready): (Vec<&Value>, Vec<&Value>) =
        pods.iter().filter(counts).partition(|pod| objects::is_ready(pod));
    if !unready.is_empty() {
        let names: Vec<String> = unready.into_iter().map(objects::unready).collect();
        return Verdict::Fail(format!("some pods are not ready: [{}]", names.join(" ")));
    }
    if ready.is_empty() && count > 0 {
        return Verdict::Fail(format!(
            "no ready pods found for namespace {namespace:?} and label selector {selector:?}"
        ));
    }
    if ready.len() as u64 != count {
        return Verdict::Fail(format!("expected {count} ready pods, got {}", ready.len()));
    }
    Verdict::Pass
}

#[cfg(test)]
mod tests;
