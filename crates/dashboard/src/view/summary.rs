//! The machine at a glance: itself, Kubernetes, network, what is wrong, and the end of the kernel log.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use serde_json::Value;

use super::{GOOD, PLAIN, Pair, WARNING, framed, log_lines, pairs, plural, show, text, verdict};
use crate::model::{Model, Node};

/// The addresses the machine is reached at: not those of pods.
const ADDRESSES: &str = "routed-no-k8s";
/// Below this a column is too narrow to read.
const COLUMN_MIN: u16 = 38;

pub(super) fn draw(model: &Model, area: Rect, buffer: &mut Buffer) {
    let node = model.node();
    let mut columns =
        vec![("Machine", machine(node)), ("Kubernetes", kubernetes(node)), ("Network", network(node))];
    // A narrow screen has no room for Kubernetes: its kubelet is on the services line, too.
    if area.width < 3 * COLUMN_MIN {
        columns.remove(1);
    }
    let troubles = troubles(node);
    let lines = columns.iter().map(|(_, lines)| lines.len()).max().unwrap_or_default() as u16;
    let top = (lines + 2).min(area.height / 2);
    let middle = match troubles.len() as u16 {
        0 => 0,
        lines => (lines + 2).min((area.height - top) / 2),
    };
    let parts = [Constraint::Length(top), Constraint::Length(middle), Constraint::Fill(1)];
    let [top, middle, bottom] = Layout::vertical(parts).areas(area);
    let areas = Layout::horizontal(columns.iter().map(|_| Constraint::Fill(1))).split(top);
    for ((title, lines), area) in columns.into_iter().zip(areas.iter()) {
        framed(title, pairs(lines), *area, buffer);
    }
    if !troubles.is_empty() {
        let lines = troubles.into_iter().map(|trouble| Line::styled(trouble, WARNING)).collect();
        framed("Diagnostics", lines, middle, buffer);
    }
    framed("Kernel log", log_lines(node, "", bottom, model.scroll), bottom, buffer);
}

fn machine(node: &Node) -> Vec<Pair> {
    let status = node.get("MachineStatuses", "machine");
    let ready = &status["status"]["ready"];
    let stage = text(status, "stage");
    let stage_style = match stage.as_str() {
        "running" => GOOD,
        "maintenance" | "booting" => WARNING,
        _ => PLAIN,
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
        ("TYPE", machine_type(node), PLAIN),
        ("CLUSTER", text(node.get("Infos", "current"), "clusterName"), PLAIN),
        ("MEMBERS", if members > 0 { plural(members, "machine") } else { String::new() }, PLAIN),
        ("SERVICES", format!("{up} of {all} healthy"), verdict(up == all)),
        ("UUID", text(system, "uuid"), PLAIN),
        ("SECUREBOOT", show(&node.get("SecurityStates", "securitystate")["secureBoot"]), PLAIN),
    ]
}

/// The spec of this type is a bare word.
fn machine_type(node: &Node) -> String {
    node.list("MachineTypes").next().map(|(_, spec)| show(spec)).unwrap_or_default()
}

fn kubernetes(node: &Node) -> Vec<Pair> {
    let image = text(node.get("KubeletSpecs", "kubelet"), "image");
    let version = image.rsplit_once(':').map(|(_, tag)| tag.to_owned()).unwrap_or_default();
    let service = |id: &str| match node.list("Services").find(|(known, _)| *known == id) {
        Some((_, spec)) => {
            let well = spec["healthy"] == true;
            (if well { "healthy" } else { "unhealthy" }.to_owned(), verdict(well))
        }
        None => (String::new(), PLAIN),
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
            None => (String::new(), PLAIN),
        }
    };
    let mut lines = vec![("VERSION", version, PLAIN)];
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

fn network(node: &Node) -> Vec<Pair> {
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
        ("HOST", text(node.get("HostnameStatuses", "hostname"), "hostname"), PLAIN),
        ("IP", text(node.get("NodeAddresses", ADDRESSES), "addresses"), PLAIN),
        ("GW", gateways.join(", "), PLAIN),
        ("CONNECTIVITY", if connected { "ok" } else { "failed" }.to_owned(), verdict(connected)),
        ("DNS", text(node.get("ResolverStatuses", "resolvers"), "dnsServers"), PLAIN),
        ("NTP", servers, PLAIN),
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
