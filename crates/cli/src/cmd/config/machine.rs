//! `config diff`, `config explain` and `config schema`: machine configurations, without a machine.

use ichor_config::patch::{self, StrategicPatch};
use ichor_config::{Documents, describe};

use crate::failure::{Context as _, Failure};
use crate::output::json::pretty;
use crate::parse::Call;
use crate::table::{Args, Command, Complete};
use crate::{files, print};

/// `config diff`.
pub(super) static DIFF: Command = Command {
    name: "diff",
    about: "Print the patch that leads from one machine configuration to another",
    long: "Prints the strategic patch that leads from machine configuration A to B; `machineconfig patch` takes it\n\
           as it is. Comments, formatting and the order of documents do not count. One of the two may be `-`.\n\n\
           Exit status is 0 when there is no difference, 1 when there is one, and 2 when the files cannot be\n\
           compared. Values are printed as they are, secrets included.",
    examples: &["config diff worker.yaml worker-new.yaml > patch.yaml"],
    args: Args::between("A B", 2, 2).complete(&[Complete::File]),
    run: Some(diff),
    trouble: 2,
    ..Command::EMPTY
};

/// `config explain`.
pub(super) static EXPLAIN: Command = Command {
    name: "explain",
    about: "Describe a key of the machine configuration",
    long: "Describes a key of the machine configuration: its type, its default, how patches treat it and the keys\n\
           below it. A path starts at the root document or with the kind of another document; without a path the\n\
           root document and all kinds are listed.",
    examples: &["config explain machine.network.interfaces", "config explain HostnameConfig.auto"],
    args: Args::between("[PATH]", 0, 1).complete(&[Complete::ConfigKey]),
    run: Some(explain),
    ..Command::EMPTY
};

/// `config schema`.
pub(super) static SCHEMA: Command = Command {
    name: "schema",
    about: "Print the JSON schema of the machine configuration",
    long: "Prints the JSON schema of the documents of a machine configuration, for editors.",
    examples: &["config schema > config.schema.json"],
    run: Some(|_| print(&pretty(&describe::schema(), "  "))),
    ..Command::EMPTY
};

fn diff(call: &Call) -> Result<(), Failure> {
    let (old_file, new_file) = (call.arg(0), call.arg(1));
    if old_file == "-" && new_file == "-" {
        return Err(Failure::new("only one of the two can be standard input").whole());
    }
    let (old, new) = (load(old_file)?, load(new_file)?);
    if old.root().is_some() && new.root().is_none() {
        return Err(Failure::new("no patch leads there: the root document cannot be deleted")
            .hint(format!("{old_file} has machine or cluster settings, {new_file} has none")));
    }
    let patches = patch::derive(&old, &new);
    if patches.is_empty() {
        return Ok(());
    }
    let stream = patches.join("---\n");
    // A patch that is printed is one that has been tried.
    let tried = StrategicPatch::load(stream.as_bytes()).context("read the derived patch")?;
    let result = tried.apply(old).context("try the derived patch")?;
    if texts(&result) != texts(&new) {
        return Err(Failure::new(format!("no patch is known that leads from {old_file} to {new_file}")));
    }
    print(&stream)?;
    Err(Failure::told())
}

fn load(file: &str) -> Result<Documents, Failure> {
    let content = files::read_or_stdin(file)?;
    Documents::load(&content).map_err(|diagnostics| {
        let text = String::from_utf8_lossy(&content);
        Failure::new(diagnostics.render(file, &text).trim_end().to_owned()).whole()
    })
}

/// The documents as texts, in an order that does not depend on the files.
fn texts(documents: &Documents) -> Vec<String> {
    let one = |document: &ichor_config::Document| ichor_yaml::emit(&document.encode());
    let mut texts: Vec<String> = documents.iter().map(one).collect();
    texts.sort();
    texts
}

fn explain(call: &Call) -> Result<(), Failure> {
    let path = call.arg(0);
    if path.is_empty() {
        return print(&overview());
    }
    let explanation = describe::explain(path).map_err(|unknown| {
        let text = format!("no key \"{}\" in {}", unknown.key, unknown.parent);
        match unknown.hint {
            Some(hint) => Failure::new(text).hint(hint),
            None => Failure::new(text).hint("`ichorctl config explain` lists where paths start"),
        }
    })?;
    print(&explanation.to_string())
}

/// Where paths start.
fn overview() -> String {
    let summary = |doc: &str| doc.trim().lines().next().unwrap_or_default().trim().to_owned();
    let mut out = String::new();
    for (i, (kind, object, _)) in describe::all_kinds().enumerate() {
        let rows: Vec<(&str, String)> = match i {
            0 => object.fields.iter().map(|field| (field.key, field.summary().to_string())).collect(),
            _ => vec![(kind, summary(object.doc))],
        };
        match i {
            0 => out.push_str("KEYS OF THE ROOT DOCUMENT:\n"),
            1 => out.push_str("\nOTHER KINDS:\n"),
            _ => {}
        }
        for (name, about) in rows {
            out.push_str(format!("    {name:26}  {about}").trim_end());
            out.push('\n');
        }
    }
    out
}
