//! `service`: the services of machines, one of them in detail, and their control.

use std::fmt::Write as _;

use ichor_wire::machine::{
    ServiceHealth, ServiceInfo, ServiceList, ServiceRestartRequest, ServiceStartRequest, ServiceStopRequest,
};
use jiff::Timestamp;

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Group};
use crate::tabs::Table;
use crate::text;

/// The command.
pub static SERVICE: Command = Command {
    name: "service",
    aliases: &["services"],
    group: Group::Machines,
    about: "Show services, or start, stop and restart one",
    long: "Without arguments lists the services of the machines. With a service shows it in detail.\n\
           With an action starts, stops or restarts it.",
    examples: &["services", "service apid", "service kubelet restart"],
    args: Args::between("[<id> [start|stop|restart|status]]", 0, 2)
        .complete(&[Complete::Service, Complete::Words(&["start", "stop", "restart", "status"])]),
    run: Some(run),
    ..Command::EMPTY
};

/// What is done to a service.
enum Action {
    Status,
    Start,
    Stop,
    Restart,
}

fn run(call: &Call) -> Result<(), Failure> {
    let (connection, id) = (call.connection(), call.arg(0).to_owned());
    let action = match call.args.get(1).map(String::as_str) {
        None | Some("status") => Action::Status,
        Some("start") => Action::Start,
        Some("stop") => Action::Stop,
        Some("restart") => Action::Restart,
        Some(other) => {
            return Err(Failure::new(format!("unsupported service action: \"{other}\""))
                .hint("use start, stop, restart or status"));
        }
    };
    block_on(async {
        let session = Session::open(&connection).await?;
        let mut machine = session.all().machine();
        let doing = "error on service action";
        let replies: Vec<(String, String)> = match action {
            Action::Start => {
                let reply = session.ask(machine.service_start(ServiceStartRequest { id })).await;
                let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
                replies.into_iter().map(|(node, reply)| (node, reply.resp)).collect()
            }
            Action::Stop => {
                let reply = session.ask(machine.service_stop(ServiceStopRequest { id })).await;
                let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
                replies.into_iter().map(|(node, reply)| (node, reply.resp)).collect()
            }
            Action::Restart => {
                let reply = session.ask(machine.service_restart(ServiceRestartRequest { id })).await;
                let replies = session.gather(doing, reply.map(|reply| reply.into_inner().messages))?;
                replies.into_iter().map(|(node, reply)| (node, reply.resp)).collect()
            }
            Action::Status => {
                let reply = session.ask(machine.service_list(())).await;
                let lists = session
                    .gather("error listing services", reply.map(|reply| reply.into_inner().messages))?;
                let now = Timestamp::now();
                return if id.is_empty() { print(&list_text(&lists, now)) } else { show(&lists, &id, now) };
            }
        };
        print(&actions_text(&replies))
    })
}

fn show(lists: &[(String, ServiceList)], id: &str, now: Timestamp) -> Result<(), Failure> {
    let text = detail_text(lists, id, now);
    if text.is_empty() {
        let known = lists.iter().flat_map(|(_, list)| &list.services).map(|service| service.id.as_str());
        let failure = Failure::new(format!("service \"{id}\" is not registered on any nodes"));
        return Err(match text::nearest(id, known) {
            Some(near) => failure.hint(format!("did you mean \"{near}\"?")),
            None => failure.hint("`ichorctl services` lists them"),
        });
    }
    print(&text)
}

/// The table of all services.
pub fn list_text(lists: &[(String, ServiceList)], now: Timestamp) -> String {
    let mut table = Table::with_header(["NODE", "SERVICE", "STATE", "HEALTH", "LAST CHANGE", "LAST EVENT"]);
    for (node, list) in lists {
        for service in &list.services {
            let last = service.events.as_ref().and_then(|events| events.events.last());
            let change = last.and_then(|event| text::timestamp(event.ts.as_ref()));
            let change = change.map_or(String::new(), |change| text::since(change, now));
            table.row([
                node.clone(),
                service.id.clone(),
                service.state.clone(),
                health(service).to_owned(),
                format!("{change} ago"),
                last.map_or("<none>".to_owned(), |event| event.msg.clone()),
            ]);
        }
    }
    table.take()
}

/// One service on every machine that has it; empty when none does.
pub fn detail_text(lists: &[(String, ServiceList)], id: &str, now: Timestamp) -> String {
    let mut table = Table::default();
    for (node, list) in lists {
        for service in list.services.iter().filter(|service| service.id == id) {
            push_detail(&mut table, node, service, now);
        }
    }
    table.take()
}

fn push_detail(table: &mut Table, node: &str, service: &ServiceInfo, now: Timestamp) {
    table.row(["NODE", node]);
    table.row(["ID", &service.id]);
    table.row(["STATE", &service.state]);
    table.row(["HEALTH", health(service)]);
    let message = service.health.as_ref().map(|health| health.last_message.as_str()).unwrap_or_default();
    if !message.is_empty() {
        table.row(["LAST HEALTH MESSAGE", message]);
    }
    let mut label = "EVENTS";
    for event in service.events.iter().flat_map(|events| events.events.iter().rev()) {
        let mut line = format!("[{}]: {}", event.state, event.msg);
        if let Some(time) = text::timestamp(event.ts.as_ref()) {
            let _ = write!(line, " ({} ago)", text::since(time, now));
        }
        table.row([label, &line]);
        label = "";
    }
}

fn health(service: &ServiceInfo) -> &'static str {
    match &service.health {
        None | Some(ServiceHealth { unknown: true, .. }) => "?",
        Some(ServiceHealth { healthy: true, .. }) => "OK",
        Some(_) => "Fail",
    }
}

fn actions_text(replies: &[(String, String)]) -> String {
    let mut table = Table::with_header(["NODE", "RESPONSE"]);
    for (node, response) in replies {
        table.row([node, response]);
    }
    table.take()
}
