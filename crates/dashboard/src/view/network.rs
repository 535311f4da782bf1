//! How the network is set up: links, addresses, routes, resolvers, time servers.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use super::{BAD, CHOSEN, FAINT, PLAIN, WARNING, framed, pairs, text, verdict};
use crate::form::Form;
use crate::model::{Model, Node};

pub(super) fn draw(model: &Model, area: Rect, buffer: &mut Buffer) {
    let node = model.node();
    let top = if model.form.is_some() { 10 } else { 7 };
    let parts = [Constraint::Length(top), Constraint::Fill(1), Constraint::Fill(1)];
    let [top, links_area, routes_area] = Layout::vertical(parts).areas(area);
    match &model.form {
        Some(form) => draw_form(form, top, buffer),
        None => draw_host(model, top, buffer),
    }
    let header = "LINK         STATE    MODE    ADDRESSES                       MTU  HARDWARE ADDRESS";
    table("Links", header, links(node), model.scroll, links_area, buffer);
    let header = "DESTINATION                GATEWAY                 LINK         METRIC";
    table("Routes", header, routes(node), model.scroll, routes_area, buffer);
}

fn draw_host(model: &Model, area: Rect, buffer: &mut Buffer) {
    let node = model.node();
    let title = if model.may_edit() { "Host (e: change)" } else { "Host" };
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
    let servers = text(node.get("TimeServerStatuses", "timeservers"), "timeServers");
    let lines = pairs(vec![
        ("HOSTNAME", text(hostname, "hostname"), PLAIN),
        ("DOMAIN", text(hostname, "domainname"), PLAIN),
        ("DNS SERVERS", text(node.get("ResolverStatuses", "resolvers"), "dnsServers"), PLAIN),
        ("TIME SERVERS", servers, PLAIN),
        ("NETWORK", state, verdict(missing.is_empty())),
    ]);
    framed(title, lines, area, buffer);
}

fn draw_form(form: &Form, area: Rect, buffer: &mut Buffer) {
    let field = |(label, value, chosen): (&'static str, &str, bool)| {
        let (style, cursor) = if chosen { (CHOSEN, "_") } else { (PLAIN, "") };
        let value = Span::styled(format!("{value}{cursor}"), style);
        Line::from(vec![Span::styled(format!("{label:<22}"), FAINT), value])
    };
    let message = Line::styled(form.message.clone(), WARNING);
    let lines = form.fields().map(field).chain([message]).collect();
    framed("Network configuration (Tab: next, Enter: save, Esc: leave)", lines, area, buffer);
}

fn table(
    title: &str,
    header: &'static str,
    rows: Vec<Line<'static>>,
    scroll: usize,
    area: Rect,
    buffer: &mut Buffer,
) {
    let room = usize::from(area.height.saturating_sub(3));
    let first = scroll.min(rows.len().saturating_sub(room));
    let lines = [Line::styled(header, FAINT)].into_iter().chain(rows.into_iter().skip(first)).collect();
    framed(title, lines, area, buffer);
}

fn links(node: &Node) -> Vec<Line<'static>> {
    let line = |(name, link): (&str, &serde_json::Value)| {
        let addresses: Vec<String> = node
            .list("AddressStatuses")
            .filter(|(_, address)| text(address, "linkName") == name)
            .map(|(_, address)| text(address, "address"))
            .collect();
        let operator = node.list("OperatorSpecs").find(|(_, operator)| text(operator, "linkName") == name);
        let mode = operator.map_or("static".to_owned(), |(_, operator)| text(operator, "operator"));
        let state = text(link, "operationalState");
        let style = if state == "down" { BAD } else { PLAIN };
        let mode = if addresses.is_empty() && mode == "static" { String::new() } else { mode };
        let text = format!(
            "{name:<12} {state:<8} {mode:<7} {:<29} {:>5}  {}",
            addresses.join(", "),
            text(link, "mtu"),
            text(link, "hardwareAddr"),
        );
        Line::styled(text, style)
    };
    node.list("LinkStatuses").map(line).collect()
}

fn routes(node: &Node) -> Vec<Line<'static>> {
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
        Line::raw(text)
    };
    node.list("RouteStatuses").filter(|(_, route)| is_main(route)).map(line).collect()
}
