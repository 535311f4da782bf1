//! `get`: resources of machines, once or as they change.

use futures_util::{StreamExt as _, stream};
use ichor_client::definitions::{DEFINITION_NAMESPACE, DEFINITION_TYPE};
use ichor_client::resources::Query;
use ichor_client::{Definitions, NodeError, UnknownType, status_text};
use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use ichor_wire::cosi::resource::{Event, EventType, Resource};
use tokio::sync::mpsc;
use tonic::Status;

use crate::explain;
use crate::failure::Failure;
use crate::flags::flags;
use crate::output::resource::{Format, Writer};
use crate::parse::Call;
use crate::session::{Session, StreamErrors, block_on, errors_text, warn_of_old_versions};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::{print, term, text};

/// How many machines are asked at the same time.
const AT_ONCE: usize = 16;
/// Events between the watches and the terminal; a slow terminal slows the watches down.
const QUEUE: usize = 256;

/// The command.
pub static GET: Command = Command {
    name: "get",
    aliases: &["g"],
    group: Group::Machines,
    about: "Show resources",
    long: "Shows resources of a type, or one of them. Types have aliases and any case will do; `get rd` lists\n\
           all types.",
    examples: &[
        "get rd",
        "get members",
        "get machineconfig -o yaml",
        "get services -w",
        "get hostname -o jsonpath='{.spec.hostname}'",
    ],
    args: Args::between("<type> [<id>]", 1, 2).complete(&[Complete::ResourceType, Complete::Nothing]),
    flags: &[
        Flag::text("namespace", "namespace, if not the type's own"),
        Flag::text("output", "table, yaml, json or jsonpath=EXPRESSION")
            .short('o')
            .default("table")
            .complete(Complete::Words(&["table", "yaml", "json", "jsonpath="])),
        Flag::switch("watch", "show changes as they happen").short('w'),
        Flag::switch("insecure", "ask a machine that waits for its configuration").short('i'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

flags! {
    /// The command line, resolved.
    GetFlags {
        connection: connection(),
        insecure: on("insecure"),
        resource_type: arg(0),
        id: some_arg(1),
        namespace: some("namespace"),
        watch: on("watch"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let (flags, format) = (GetFlags::of(call), Format::parse(call.text("output"))?);
    block_on(async {
        let session = Session::open_either(&flags.connection, flags.insecure).await?;
        let first = session.node(&session.each()[0]);
        // Both questions travel together; the answer to the first is only a warning.
        let skew = async {
            if !flags.insecure {
                warn_of_old_versions(&session).await;
            }
        };
        let ((), definitions) = session.ask(async { tokio::join!(skew, first.definitions()) }).await;
        let (listed, definitions) =
            definitions.map_err(|status| explain::status("error listing resource definitions", &status))?;
        let definition = resolve(&definitions, &flags.resource_type)?;
        let query = query(&flags, definition);
        let mut writer = Writer::new(&format, definition, flags.watch)?;
        if flags.watch {
            return watch(&session, &query, &mut writer).await;
        }
        // The definitions themselves are here already.
        let known = Query {
            namespace: DEFINITION_NAMESPACE.to_owned(),
            resource_type: DEFINITION_TYPE.to_owned(),
            id: None,
        };
        let ready = (query == known).then_some(listed);
        list(&session, &query, ready, &mut writer).await
    })
}

/// The definition a name stands for, or what to do about it.
pub fn resolve<'a>(definitions: &'a Definitions, name: &str) -> Result<&'a ResourceDefinitionSpec, Failure> {
    definitions.resolve(name).map_err(|error| {
        let failure = Failure::new(error.to_string());
        match error {
            UnknownType::NotRegistered { name } => {
                let names = definitions.names();
                match text::nearest(&name.to_lowercase(), names.iter().map(String::as_str)) {
                    Some(near) => {
                        failure.hint(format!("did you mean \"{near}\"? `ichorctl get rd` lists all types"))
                    }
                    None => failure.hint("`ichorctl get rd` lists all types"),
                }
            }
            UnknownType::Ambiguous { .. } => failure.hint("use one of these names in full"),
        }
    })
}

fn query(flags: &GetFlags, definition: &ResourceDefinitionSpec) -> Query {
    Query {
        namespace: flags.namespace.clone().unwrap_or_else(|| definition.default_namespace.clone()),
        resource_type: definition.resource_type.clone(),
        id: flags.id.clone(),
    }
}

async fn list(
    session: &Session,
    query: &Query,
    mut ready: Option<Vec<Resource>>,
    writer: &mut Writer,
) -> Result<(), Failure> {
    let asks: Vec<_> = session
        .each()
        .iter()
        .map(|node| {
            let ready = ready.take();
            async move {
                match ready {
                    Some(resources) => (node, Ok(resources)),
                    None => (node, session.node(node).list(query).await),
                }
            }
        })
        .collect();
    let mut answers = stream::iter(asks).buffered(AT_ONCE);
    let mut failed: Vec<NodeError> = Vec::new();
    let mut statuses: Vec<Status> = Vec::new();
    let mut answered = false;
    while let Some((node, answer)) = session.ask(answers.next()).await {
        match answer {
            Ok(resources) => {
                answered = true;
                let mut out = String::new();
                for resource in &resources {
                    out.push_str(&writer.write(session.shown(node), resource, None)?);
                }
                print(&out)?;
            }
            Err(status) => {
                failed.push(NodeError {
                    node: node.clone(),
                    text: status_text(&status),
                    code: Some(status.code()),
                });
                statuses.push(status);
            }
        }
    }
    print(&writer.flush())?;
    if !answered {
        return Err(explain::nodes(&format!("error getting {}", query.resource_type), &failed));
    }
    if !failed.is_empty() {
        term::red(&errors_text(&failed));
        return Err(Failure::told());
    }
    Ok(())
}

enum Change {
    Event(String, Box<Event>),
    Ended(String, Result<(), Status>),
}

async fn watch(session: &Session, query: &Query, writer: &mut Writer) -> Result<(), Failure> {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    for node in session.each() {
        let (client, query, node, sender) = (session.node(node), query.clone(), node.clone(), sender.clone());
        tokio::spawn(async move {
            let ended = forward(&client, &query, &node, &sender).await;
            let _ = sender.send(Change::Ended(node, ended)).await;
        });
    }
    drop(sender);
    let mut errors = StreamErrors::default();
    // What was there before is shown at once, so that the table finds its widths. A watch of one resource
    // has no such beginning.
    let mut begun = query.id.is_some();
    while let Some(change) = receiver.recv().await {
        let mut out = String::new();
        match change {
            Change::Event(node, event) => {
                begun |= event.event_type() == EventType::Bootstrapped;
                out.push_str(&shown(writer, session.shown(&node), &event)?);
            }
            Change::Ended(node, ended) => {
                begun = true;
                if let Err(status) = ended {
                    errors.broken(&node, &status);
                }
            }
        }
        if begun {
            out.push_str(&writer.flush());
        }
        print(&out)?;
    }
    print(&writer.flush())?;
    errors.finish()
}

fn shown(writer: &mut Writer, node: &str, event: &Event) -> Result<String, Failure> {
    match (event.event_type(), &event.resource) {
        (EventType::Created | EventType::Updated | EventType::Destroyed, Some(resource)) => {
            writer.write(node, resource, Some(event.event_type()))
        }
        _ => Ok(String::new()),
    }
}

async fn forward(
    client: &ichor_client::Client,
    query: &Query,
    node: &str,
    sender: &mpsc::Sender<Change>,
) -> Result<(), Status> {
    let mut watch = client.watch(query).await?;
    while let Some(event) = watch.next().await? {
        if sender.send(Change::Event(node.to_owned(), Box::new(event))).await.is_err() {
            break;
        }
    }
    Ok(())
}
