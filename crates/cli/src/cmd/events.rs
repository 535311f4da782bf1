//! `events`: what happens on machines, as it happens.

use ichor_client::events::payload;
use ichor_client::sort;
use ichor_wire::machine::{Event, EventsRequest};

use crate::explain;
use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, StreamErrors, block_on};
use crate::table::{Command, Flag, Group};
use crate::tabs::Table;

/// The command.
pub static EVENTS: Command = Command {
    name: "events",
    group: Group::Machines,
    about: "Stream runtime events",
    examples: &["events --tail -1", "events --duration 10m"],
    flags: &[
        Flag::int32("tail", "0", "start with this many past events; -1 means all"),
        Flag::duration("duration", "0s", "start with the events of this time"),
        Flag::text("since", "start after the event with this id"),
        Flag::text("actor-id", "events of this actor only"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let given = ["tail", "duration", "since"].into_iter().filter(|name| call.given(name)).count();
    if given > 1 {
        return Err(Failure::new("only one of the flags --tail, --duration and --since can be used at once"));
    }
    let request = EventsRequest {
        tail_events: i32::try_from(call.int("tail")).unwrap_or(-1),
        tail_id: call.text("since").to_owned(),
        tail_seconds: i32::try_from(call.duration("duration").as_secs()).unwrap_or(i32::MAX),
        with_actor_id: call.text("actor-id").to_owned(),
    };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let stream = session.all().machine().events(request).await;
        let mut stream =
            stream.map_err(|status| explain::status("error fetching events", &status))?.into_inner();
        let mut errors = StreamErrors::default();
        let mut table = header();
        loop {
            match stream.message().await {
                Ok(Some(event)) => match sort(event, &session.label) {
                    Ok((node, event)) => {
                        if push(&mut table, &node, &event) {
                            print(&table.take())?;
                        }
                    }
                    Err(error) => errors.push(error),
                },
                Ok(None) => break,
                Err(status) => {
                    errors.broken(&session.label, &status);
                    break;
                }
            }
        }
        errors.finish()
    })
}

/// The table with its header.
pub fn header() -> Table {
    Table::with_header(["NODE", "ID", "EVENT", "ACTOR", "SOURCE", "MESSAGE"])
}

/// Adds an event as two lines: where and what, then who and why. Unknown payloads are skipped.
pub fn push(table: &mut Table, node: &str, event: &Event) -> bool {
    let Some((source, message)) = payload(event).describe() else { return false };
    let kind = event.data.as_ref().map(|data| data.type_url.as_str()).unwrap_or_default();
    table.row([node, &event.id, kind]);
    table.row([&event.actor_id, &source, &message]);
    true
}
