//! The machine at a glance: itself, Kubernetes, network, what is wrong, and the end of the kernel log.

use serde_json::Value;

use super::super::model::{Model, Node};
use super::super::screen::{Area, Colour, Screen, Style};
use super::{draw_log, pairs, plural, show, text, verdict};

/// The addresses the machine is reached at: not those of pods.
const ADDRESSES: &str = "routed-no-k8s";
/// Below this a column is too narrow to read.
const COLUMN_MIN: u16 = 38;

pub(super) fn draw(screen: &mut Screen, area: Area, model: &Model) {
    let node = model.node();
    let (machine, kubernetes, network) = (machine(node), kubernetes(node), network(node));
    let three = area.width >= 3 * COLUMN_MIN;
    let lines = machine.len().max(kubernetes.len()).max(network.len()) as u16;
    let height = (lines + 2).min(area.height / 2);
    let (top, mut rest) = area.top(height);
    // On a narrow screen Kubernetes comes last to be told: it is on the services line, too.
    let columns = top.columns(if three { 3 } else { 2 });
    let inside = screen.frame(columns[0], "Machine");
    pairs(screen, inside, &machine);
    let inside = screen.frame(columns[columns.len() - 1], "Network");
    pairs(screen, inside, &network);
    if three {
        let inside = screen.frame(columns[1], "Kubernetes");
        pairs(screen, inside, &kubernetes);
    }
    let troubles = troubles(node);
    if !troubles.is_empty() {
        let (top, below) = rest.top((troubles.len() as u16 + 2).min(rest.height / 2));
        let inside = screen.frame(top, "Diagnostics");
        for (line, trouble) in troubles.iter().enumerate() {
            screen.text(inside, 0, line as u16, trouble, Style::of(Colour::Yellow));
        }
        rest = below;
    }
    let inside = screen.frame(rest, "Kernel log");
    draw_log(screen, inside, node, "", model.scroll);
}

type Line = (&'static str, String, Style);

fn machine(node: &Node) -> Vec<Line> {
    let status = node.get("MachineStatuses", "machine");
    let ready = &status["status"]["ready"];
    let stage = text(status, "stage");
    let stage_style = match stage.as_str() {
        "running" => Style::of(Colour::Green),
        "maintenance" | "booting" => Style::of(Colour::Yellow),
        _ => Style::PLAIN,
    };
    let (up, all) = node.list("Services").fold((0, 0), |(up, all), (_, service)| {
        let well = service["running"] == true && (service["healthy"] == true || service["unknown"] == true);
        (up + usize::from(well), all + 1)
    });
    let members = node.list("Members").count();
    let system = node.get("SystemInformations", "systeminformation");
    vec![
        ("STAGE", stage, stage_style),
        ("READY", show(ready), verdict(*ready == Value::Bool(true))),
        ("TYPE", machine_type(node), Style::PLAIN),
        ("CLUSTER", text(node.get("Infos", "current"), "clusterName"), Style::PLAIN),
        ("MEMBERS", if members > 0 { plural(members, "machine") } else { String::new() }, Style::PLAIN),
        ("SERVICES", format!("{up} of {all} healthy"), verdict(up == all)),
        ("UUID", text(system, "uuid"), Style::PLAIN),
        ("SECUREBOOT", show(&node.get("SecurityStates", "securitystate")["secureBoot"]), Style::PLAIN),
    ]
}

/// The spec of this type is a bare word.
fn machine_type(node: &Node) -> String {
    node.list("MachineTypes").next().map(|(_, spec)| show(spec)).unwrap_or_default()
}

fn kubernetes(node: &Node) -> Vec<Line> {
    let image = text(node.get("KubeletSpecs", "kubelet"), "image");
    let version = image.rsplit_once(':').map(|(_, tag)| tag.to_owned()).unwrap_or_default();
    let service = |id: &str| match node.list("Services").find(|(known, _)| *known == id) {
        Some((_, spec)) => {
            let well = spec["healthy"] == true;
            (if well { "healthy" } else { "unhealthy" }.to_owned(), verdict(well))
        }
        None => (String::new(), Style::PLAIN),
    };
    let pod = |name: &str| {
        let mut pods = node.list("StaticPodStatuses").filter(|(id, _)| id.contains(name));
        match pods.next() {
            Some((_, spec)) => {
                let conditions = spec["conditions"].as_array();
                let ready =
                    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
                (if ready { "healthy" } else { "unhealthy" }.to_owned(), verdict(ready))
            }
            None => (String::new(), Style::PLAIN),
        }
    };
    let mut lines = vec![("VERSION", version, Style::PLAIN)];
    for (name, (state, style)) in [
        ("KUBELET", service("kubelet")),
        ("APISERVER", pod("kube-apiserver")),
        ("CONTROLLER-MANAGER", pod("kube-controller-manager")),
        ("SCHEDULER", pod("kube-scheduler")),
    ] {
        lines.push((name, state, style));
    }
    lines
}

fn network(node: &Node) -> Vec<Line> {
    let status = node.get("NetworkStatuses", "status");
    let connected = status["connectivityReady"] == true;
    let gateways: Vec<String> = node
        .list("RouteStatuses")
        .filter(|(_, route)| text(route, "dst").is_empty())
        .map(|(_, route)| text(route, "gateway"))
        .filter(|gateway| !gateway.is_empty())
        .collect();
    let time = node.get("TimeStatuses", "node");
    let servers = text(node.get("TimeServerStatuses", "timeservers"), "timeServers");
    let sync = match (time["synced"] == true, time["syncDisabled"] == true) {
        (_, true) => "not asked",
        (true, false) => "in sync",
        (false, false) => "not in sync",
    };
    vec![
        ("HOST", text(node.get("HostnameStatuses", "hostname"), "hostname"), Style::PLAIN),
        ("IP", text(node.get("NodeAddresses", ADDRESSES), "addresses"), Style::PLAIN),
        ("GW", gateways.join(", "), Style::PLAIN),
        ("CONNECTIVITY", if connected { "ok" } else { "failed" }.to_owned(), verdict(connected)),
        ("DNS", text(node.get("ResolverStatuses", "resolvers"), "dnsServers"), Style::PLAIN),
        ("NTP", servers, Style::PLAIN),
        ("TIME", sync.to_owned(), verdict(time["synced"] == true)),
    ]
}

/// What keeps the machine from being ready, and its own diagnostics.
fn troubles(node: &Node) -> Vec<String> {
    let status = node.get("MachineStatuses", "machine");
    let unmet = status["status"]["unmetConditions"].as_array();
    let unmet = unmet
        .into_iter()
        .flatten()
        .map(|unmet| format!("{}: {}", text(unmet, "name"), text(unmet, "reason")));
    let diagnostics = node.list("Diagnostics").flat_map(|(_, spec)| {
        let details =
            spec["details"].as_array().into_iter().flatten().map(|detail| format!("  {}", show(detail)));
        [text(spec, "message")].into_iter().chain(details).collect::<Vec<_>>()
    });
    unmet.chain(diagnostics).collect()
}
