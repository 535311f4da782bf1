//! `why`: from a symptom to its cause, asked from the machines.

use ichor_client::{NodeError, split, status_text};
use ichor_wire::ichor::node::{Why, WhyRequest};
use jiff::Timestamp;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::flags::flags;
use crate::output::json::pretty;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag, Group};
use crate::why::{self, Answer, Hop, Own};
use crate::{explain, profile};

/// The command.
pub static WHY: Command = Command {
    name: "why",
    group: Group::Machines,
    about: "Explain what is wrong with a machine, a service or a resource",
    long: "Walks from the symptom to the cause and says what to do. Without an argument, or with \"node\", tells all\n\
           that is wrong with the machines. With a service's name tells why it waits, fails or is unhealthy; with a\n\
           resource type and an id why that resource is not there. A machine that does not answer is explained from\n\
           here. With --last-boot tells why the machines went down the last time: asked for, power cut, panic, out of\n\
           memory, watchdog, or an upgrade that was taken back.\n\n\
           Exit status 0 means that nothing is wrong.",
    examples: &[
        "why",
        "why trustd",
        "why apicertificate api",
        "why -n 10.5.0.2,10.5.0.3 -o json",
        "why --insecure -n 10.5.0.2",
        "why --last-boot",
    ],
    args: Args::between("[node | SERVICE | TYPE [ID]]", 0, 2)
        .complete(&[Complete::Service, Complete::Nothing]),
    flags: &[
        Flag::text("namespace", "namespace of the resource, if not the type's own"),
        Flag::text("output", "text or json")
            .short('o')
            .default("text")
            .complete(Complete::Words(&["text", "json"])),
        Flag::switch("last-boot", "tell why the machines went down the last time"),
        Flag::switch("insecure", "ask a machine that waits for its configuration").short('i'),
    ],
    run: Some(run),
    trouble: 2,
    ..Command::EMPTY
};

flags! {
    /// The command line, resolved.
    WhyFlags {
        connection: connection(),
        insecure: on("insecure"),
        last_boot: on("last-boot"),
        target: arg(0),
        id: arg(1),
        namespace: text("namespace"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let as_json = match call.text("output") {
        "json" => true,
        "text" | "" => false,
        other => {
            return Err(
                Failure::new(format!("output format \"{other}\" is not supported")).hint("use text or json")
            );
        }
    };
    let mut flags = WhyFlags::of(call);
    if flags.last_boot {
        if !flags.target.is_empty() {
            return Err(Failure::new("--last-boot is about the whole machine").hint("leave the argument out"));
        }
        flags.target = "last-boot".to_owned();
    }
    block_on(async {
        let answers = ask(&flags).await?;
        if as_json {
            print(&pretty(&why::to_json(&answers), "  "))?;
        } else {
            print(&why::text(&answers))?;
        }
        match answers.iter().all(|(_, why)| why.healthy) {
            true => Ok(()),
            false => Err(Failure::told()),
        }
    })
}

/// One answer for each machine, of its own or made up here.
async fn ask(flags: &WhyFlags) -> Result<Vec<Answer>, Failure> {
    let request =
        WhyRequest { target: flags.target.clone(), id: flags.id.clone(), namespace: flags.namespace.clone() };
    let own = own(flags);
    let (client, nodes) = Session::prepare(&flags.connection, flags.insecure)?;
    if let Err(error) = crate::term::patient("connecting", client.connect()).await {
        let of = |error: &ichor_client::DialError| why::silent(&error.to_string(), Hop::First, &own);
        let answers = error.0.iter().map(|error| (endpoint(error, &nodes), of(error)));
        let answers: Vec<Answer> = answers.collect();
        return if answers.is_empty() { Err(explain::unreachable(&error)) } else { Ok(answers) };
    }
    let session = Session::over_client(client, nodes, !flags.insecure);
    let reply = session.ask(session.all().node().why(request)).await;
    match reply {
        Ok(reply) => {
            let split = split(reply.into_inner().messages, &session.label);
            let mut answers: Vec<Answer> = split.ok;
            for error in &split.failed {
                answers.push((error.node.clone(), of_node(error, &own)?));
            }
            let place =
                |node: &str| session.nodes.iter().position(|known| known == node).unwrap_or(usize::MAX);
            answers.sort_by_key(|(node, _)| place(node));
            Ok(answers)
        }
        Err(status) => {
            asked_badly(&status)?;
            let hop = if session.each().len() == 1 { Hop::Second } else { Hop::First };
            let silent = why::silent(&status_text(&status), hop, &own);
            Ok(session.each().iter().map(|node| (node.clone(), silent.clone())).collect())
        }
    }
}

fn of_node(error: &NodeError, own: &Own) -> Result<Why, Failure> {
    if error.code == Some(Code::NotFound) || error.code == Some(Code::InvalidArgument) {
        return Err(Failure::new(error.to_string()));
    }
    Ok(why::silent(&error.text, Hop::Second, own))
}

/// A question about something that does not exist is no story about the machine.
fn asked_badly(status: &Status) -> Result<(), Failure> {
    match status.code() {
        Code::NotFound | Code::InvalidArgument => Err(Failure::new(status.message().to_owned())),
        _ => Ok(()),
    }
}

/// The endpoint an error is about; the machines' names where it does not say.
fn endpoint(error: &ichor_client::DialError, nodes: &[String]) -> String {
    use ichor_client::DialError as E;
    match error {
        E::Tcp { endpoint, .. } | E::Timeout { endpoint } | E::Tls { endpoint, .. } => endpoint.to_string(),
        E::Lookup { host, .. } | E::ServerName { host } => host.clone(),
        _ => nodes.join(", "),
    }
}

/// What this client knows of itself.
fn own(flags: &WhyFlags) -> Own {
    let now = Timestamp::now();
    let date = |at: Timestamp| at.strftime("%Y-%m-%d %H:%M UTC").to_string();
    let not_after = if flags.insecure { None } else { profile::own_certificate_end(&flags.connection) };
    Own {
        not_after: not_after.map(Timestamp::as_second),
        not_after_text: not_after.map(date).unwrap_or_default(),
        now: now.as_second(),
        now_text: date(now),
    }
}
