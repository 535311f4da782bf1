//! `inject serviceaccount`: Kubernetes manifests whose pods may use the machine API.

use ichor_ops::inject::inject;

use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::table::{Command, Complete, Flag, Group};
use crate::{files, help, print, term};

/// The parent.
pub static INJECT: Command = Command {
    name: "inject",
    group: Group::Offline,
    about: "Add access to the machine API to Kubernetes manifests",
    subcommands: &[&SERVICE_ACCOUNT],
    ..Command::EMPTY
};

static SERVICE_ACCOUNT: Command = Command {
    name: "serviceaccount",
    aliases: &["tsa"],
    about: "Give the pods of Kubernetes manifests a service account of the machine API",
    long: "Gives the pods of Kubernetes manifests a service account of the machine API: every container gets the\n\
           client configuration at /var/run/secrets/talos.dev, and each object a service account with the roles.\n\
           Objects come out as Kubernetes prints them, without comments and with sorted keys; other documents pass\n\
           through. Injecting twice changes nothing.",
    examples: &[
        "inject serviceaccount --roles os:reader -f deployment.yaml > injected.yaml",
        "inject serviceaccount -f - < deployment.yaml | kubectl apply -f -",
    ],
    flags: &[
        Flag::text("file", "file of the manifests, - for standard input").short('f').complete(Complete::File),
        Flag::list("roles", "roles of the service accounts").short('r').default("os:reader"),
    ],
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let Some(file) = call.some_text("file") else { return print(&help::help(&call.path)) };
    let content = files::read_or_stdin(file)?;
    let text = std::str::from_utf8(&content).context(file)?;
    let documents = ichor_yaml::parse(text).context(file)?;
    let roots = documents.into_iter().map(|document| document.root).collect();
    let injected = inject(roots, &call.list("roles")).map_err(|error| Failure::from(error).within(file))?;
    for warning in &injected.warnings {
        term::warn(&format!("{file}: {warning}"));
    }
    // Every document ends with a separator, the last one too.
    print(&format!("{}\n", injected.documents.concat()))
}
