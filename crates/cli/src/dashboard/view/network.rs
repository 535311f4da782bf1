//! How the network is set up: links, addresses, routes, resolvers, time servers.

use super::super::form::Form;
use super::super::model::{Model, Node};
use super::super::screen::{Area, Colour, Screen, Style};
use super::{pairs, text, verdict};

pub(super) fn draw(screen: &mut Screen, area: Area, model: &Model) {
    let node = model.node();
    let rest = match &model.form {
        Some(form) => draw_form(screen, area, form),
        None => draw_host(screen, area, model),
    };
    let rows = rest.rows(2);
    let lines = links(node);
    table(
        screen,
        rows[0],
        "Links",
        "LINK         STATE    MODE    ADDRESSES                       MTU  HARDWARE ADDRESS",
        &lines,
        model.scroll,
    );
    let lines = routes(node);
    table(
        screen,
        rows[1],
        "Routes",
        "DESTINATION                GATEWAY                 LINK         METRIC",
        &lines,
        model.scroll,
    );
}

fn draw_host(screen: &mut Screen, area: Area, model: &Model) -> Area {
    let node = model.node();
    let (top, rest) = area.top(7);
    let title = if model.may_edit() { "Host (e: change)" } else { "Host" };
    let inside = screen.frame(top, title);
    let hostname = node.get("HostnameStatuses", "hostname");
    let status = node.get("NetworkStatuses", "status");
    let missing: Vec<&str> = [
        ("addressReady", "address"),
        ("connectivityReady", "connectivity"),
        ("hostnameReady", "hostname"),
        ("etcFilesReady", "files in /etc"),
    ]
    .into_iter()
    .filter(|(key, _)| status[*key] != true)
    .map(|(_, name)| name)
    .collect();
    let state =
        if missing.is_empty() { "ready".to_owned() } else { format!("waits for {}", missing.join(", ")) };
    pairs(
        screen,
        inside,
        &[
            ("HOSTNAME", text(hostname, "hostname"), Style::PLAIN),
            ("DOMAIN", text(hostname, "domainname"), Style::PLAIN),
            ("DNS SERVERS", text(node.get("ResolverStatuses", "resolvers"), "dnsServers"), Style::PLAIN),
            (
                "TIME SERVERS",
                text(node.get("TimeServerStatuses", "timeservers"), "timeServers"),
                Style::PLAIN,
            ),
            ("NETWORK", state, verdict(missing.is_empty())),
        ],
    );
    rest
}

fn draw_form(screen: &mut Screen, area: Area, form: &Form) -> Area {
    let (top, rest) = area.top(10);
    let inside = screen.frame(top, "Network configuration (Tab: next, Enter: save, Esc: leave)");
    for (line, (label, value, chosen)) in form.fields().enumerate() {
        let style = if chosen { Style::CHOSEN } else { Style::PLAIN };
        screen.text(inside, 0, line as u16, label, Style::of(Colour::Grey));
        let cursor = if chosen { "_" } else { "" };
        screen.text(inside, 22, line as u16, &format!("{value}{cursor}"), style);
    }
    screen.text(inside, 0, 7, &form.message, Style::of(Colour::Yellow));
    rest
}

fn table(
    screen: &mut Screen,
    area: Area,
    title: &str,
    header: &str,
    lines: &[(String, Style)],
    scroll: usize,
) {
    let inside = screen.frame(area, title);
    screen.text(inside, 0, 0, header, Style::of(Colour::Grey));
    let room = usize::from(inside.height.saturating_sub(1));
    let first = scroll.min(lines.len().saturating_sub(room));
    for (line, (text, style)) in lines.iter().skip(first).take(room).enumerate() {
        screen.text(inside, 0, line as u16 + 1, text, *style);
    }
}

fn links(node: &Node) -> Vec<(String, Style)> {
    let line = |(name, link): (&str, &serde_json::Value)| {
        let addresses: Vec<String> = node
            .list("AddressStatuses")
            .filter(|(_, address)| text(address, "linkName") == name)
            .map(|(_, address)| text(address, "address"))
            .collect();
        let operator = node.list("OperatorSpecs").find(|(_, operator)| text(operator, "linkName") == name);
        let mode = operator.map_or("static".to_owned(), |(_, operator)| text(operator, "operator"));
        let state = text(link, "operationalState");
        let style = if state == "down" { Style::of(Colour::Red) } else { Style::PLAIN };
        let mode = if addresses.is_empty() && mode == "static" { String::new() } else { mode };
        let text = format!(
            "{name:<12} {state:<8} {mode:<7} {:<29} {:>5}  {}",
            addresses.join(", "),
            text(link, "mtu"),
            text(link, "hardwareAddr"),
        );
        (text, style)
    };
    node.list("LinkStatuses").map(line).collect()
}

fn routes(node: &Node) -> Vec<(String, Style)> {
    let is_main = |route: &serde_json::Value| text(route, "table") == "main";
    let line = |(_, route): (&str, &serde_json::Value)| {
        let destination = Some(text(route, "dst")).filter(|dst| !dst.is_empty());
        let text = format!(
            "{:<26} {:<23} {:<12} {}",
            destination.as_deref().unwrap_or("default"),
            text(route, "gateway"),
            text(route, "outLinkName"),
            text(route, "priority"),
        );
        (text, Style::PLAIN)
    };
    node.list("RouteStatuses").filter(|(_, route)| is_main(route)).map(line).collect()
}
