//! `config`: the client configuration of the person at the terminal, and what there is to know about machine
//! configurations.

mod contexts;
mod info;
mod machine;
mod new;

use crate::failure::Failure;
use crate::parse::Call;
use crate::profile;
use crate::table::{Args, Command, Complete, Flag, Group};

/// The parent.
pub static CONFIG: Command = Command {
    name: "config",
    group: Group::Machines,
    about: "Show and change the client configuration",
    long: "Shows and changes the client configuration (talosconfig): contexts with their endpoints, nodes and\n\
           certificates. `diff`, `explain` and `schema` are about machine configurations and need no machine.",
    subcommands: &[
        &ADD,
        &REMOVE,
        &CONTEXT,
        &CONTEXTS,
        &ENDPOINT,
        &NODE,
        &INFO,
        &MERGE,
        &NEW,
        &RENEW,
        &machine::DIFF,
        &machine::EXPLAIN,
        &machine::SCHEMA,
    ],
    ..Command::EMPTY
};

static ADD: Command = Command {
    name: "add",
    about: "Add a context, or replace one",
    args: Args::between("CONTEXT", 1, 1),
    flags: &[
        Flag::text("ca", "file of the CA certificate").complete(Complete::File),
        Flag::text("crt", "file of the client certificate").complete(Complete::File),
        Flag::text("key", "file of the client key").complete(Complete::File),
    ],
    run: Some(contexts::add),
    ..Command::EMPTY
};

static REMOVE: Command = Command {
    name: "remove",
    about: "Remove contexts by pattern; the current one stays",
    args: Args::between("PATTERN", 1, 1).complete(&[Complete::Context]),
    flags: &[
        Flag::switch("noconfirm", "do not ask").short('y'),
        Flag::switch("dry-run", "show what would be removed"),
    ],
    run: Some(contexts::remove),
    ..Command::EMPTY
};

static CONTEXT: Command = Command {
    name: "context",
    aliases: &["use-context"],
    about: "Switch to another context",
    args: Args::between("CONTEXT", 1, 1).complete(&[Complete::Context]),
    run: Some(contexts::switch),
    ..Command::EMPTY
};

static CONTEXTS: Command = Command {
    name: "contexts",
    aliases: &["get-contexts"],
    about: "List contexts",
    run: Some(contexts::list),
    ..Command::EMPTY
};

static ENDPOINT: Command = Command {
    name: "endpoint",
    aliases: &["endpoints"],
    about: "Set the endpoints of the context",
    args: Args::between("ENDPOINT...", 1, usize::MAX),
    run: Some(contexts::endpoints),
    ..Command::EMPTY
};

static NODE: Command = Command {
    name: "node",
    aliases: &["nodes"],
    about: "Set the nodes of the context; without any the list is cleared",
    args: Args::between("[NODE...]", 0, usize::MAX),
    run: Some(contexts::nodes),
    ..Command::EMPTY
};

static INFO: Command = Command {
    name: "info",
    about: "Show the current context and its certificate",
    flags: &[Flag::text("output", "text, json or yaml")
        .short('o')
        .default("text")
        .complete(Complete::Words(&["text", "json", "yaml"]))],
    run: Some(info::run),
    ..Command::EMPTY
};

static MERGE: Command = Command {
    name: "merge",
    about: "Take over the contexts of another file",
    long: "Takes over the contexts of another file. A name that is taken gets a number; the current context\n\
           becomes that of the other file.",
    args: Args::between("FILE", 1, 1).complete(&[Complete::File]),
    run: Some(merge),
    ..Command::EMPTY
};

static NEW: Command = Command {
    name: "new",
    about: "Ask a control plane machine for a new client configuration",
    args: Args::between("[FILE]", 0, 1).complete(&[Complete::File]),
    flags: &[
        Flag::list("roles", "roles in the certificate").default("os:admin"),
        Flag::duration("crt-ttl", "8760h0m0s", "how long the certificate is valid"),
    ],
    run: Some(new::run),
    ..Command::EMPTY
};

static RENEW: Command = Command {
    name: "renew",
    about: "Get a new client certificate while the old one is valid",
    long: "Asks the endpoint for a client certificate with the roles of the old one, tries it, and puts it in the\n\
           place of the old one; everything else in the file stays. Commands warn from 60 days before a certificate\n\
           ends; with ICHOR_AUTO_RENEW=1 in the environment they renew it by themselves.",
    examples: &["config renew", "config renew --context production --crt-ttl 720h"],
    flags: &[Flag::duration(
        "crt-ttl",
        "0s",
        "how long the certificate is valid; as long as the old one was when left out",
    )],
    run: Some(renew),
    ..Command::EMPTY
};

fn renew(call: &Call) -> Result<(), Failure> {
    let ttl = call.given("crt-ttl").then(|| call.duration("crt-ttl"));
    crate::session::block_on(crate::credentials::renew(&call.connection(), ttl))
}

fn merge(call: &Call) -> Result<(), Failure> {
    let path = std::path::Path::new(call.arg(0));
    let incoming = profile::read(path)?;
    for line in profile::merge_at(&profile::locate(&call.connection())?, &incoming)? {
        eprintln!("{line}");
    }
    Ok(())
}
