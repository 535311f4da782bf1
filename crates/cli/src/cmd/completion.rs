//! `completion`, the entry the shells call, and the writer of the reference page.

use std::time::Duration;

use crate::complete::{self, Sources, complete};
use crate::failure::Failure;
use crate::help;
use crate::parse::Call;
use crate::print;
use crate::session::Session;
use crate::table::{Args, Command, Complete};

/// How long a machine may take before completion goes without it.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// `completion`.
pub static COMPLETION: Command = Command {
    name: "completion",
    about: "Print completion code for a shell",
    long: "Prints completion code for bash, fish or zsh.\n\n\
           bash:  source <(ichorctl completion bash)\n\
           zsh:   source <(ichorctl completion zsh)\n\
           fish:  ichorctl completion fish | source",
    args: Args::between("bash|fish|zsh", 1, 1).complete(&[Complete::Words(complete::SHELLS)]),
    run: Some(run),
    ..Command::EMPTY
};

/// `docs`, which writes the reference page.
pub static DOCS: Command = Command {
    name: "docs",
    about: "Print the reference page of all commands",
    run: Some(|_| print(&help::reference(&super::ROOT))),
    hidden: true,
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    match complete::script(call.arg(0)) {
        Some(script) => print(script),
        None => Err(Failure::new(format!("unsupported shell: \"{}\"", call.arg(0)))
            .hint(format!("use one of {}", complete::SHELLS.join(", ")))),
    }
}

/// Answers a shell: `words` are what stands behind the program's name so far.
pub fn answer(words: &[String]) -> String {
    let sources = Live { call: flags_so_far(words) };
    complete(&super::ROOT, words, &sources).lines()
}

/// The connection flags that are on the line already, so that the right machine is asked.
fn flags_so_far(words: &[String]) -> Call {
    let mut kept = vec!["version".to_owned()];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let known = crate::table::CONNECTION_FLAGS.iter().any(|flag| {
            word.strip_prefix("--") == Some(flag.name)
                || flag.short.is_some_and(|short| *word == format!("-{short}"))
        });
        if known && words.peek().is_some() {
            kept.push(word.clone());
            kept.extend(words.next().cloned());
        }
    }
    match crate::parse::parse(&super::ROOT, &kept) {
        Ok(crate::parse::Parsed::Run(call)) => call,
        Ok(crate::parse::Parsed::Help(_)) | Err(_) => Call::default(),
    }
}

struct Live {
    call: Call,
}

impl Live {
    /// Asks the first node something; nothing when it does not answer soon.
    fn ask<T: Default>(&self, question: impl AsyncFnOnce(Session) -> Option<T>) -> T {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            return T::default();
        };
        let answer = runtime.block_on(async {
            tokio::time::timeout(ASK_TIMEOUT, async {
                question(Session::open(&self.call.connection()).await.ok()?).await
            })
            .await
        });
        runtime.shutdown_background();
        answer.ok().flatten().unwrap_or_default()
    }
}

impl Sources for Live {
    fn contexts(&self) -> Vec<String> {
        crate::profile::context_names(&self.call.connection())
    }

    fn nodes(&self) -> Vec<String> {
        crate::profile::load(&self.call.connection()).map(|profile| profile.nodes).unwrap_or_default()
    }

    fn resource_types(&self) -> Vec<String> {
        self.ask(async |session| {
            let (_, definitions) = session.node(&session.nodes[0]).definitions().await.ok()?;
            Some(definitions.names())
        })
    }

    fn services(&self) -> Vec<String> {
        self.ask(async |session| {
            let reply = session.node(&session.nodes[0]).machine().service_list(()).await.ok()?;
            let lists = reply.into_inner().messages;
            Some(lists.into_iter().flat_map(|list| list.services).map(|service| service.id).collect())
        })
    }

    fn clusters(&self) -> Vec<String> {
        super::cluster::names(&self.call)
    }
}
