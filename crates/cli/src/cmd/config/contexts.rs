//! Contexts: list, add, remove, switch, and what they point at.

use std::io::{BufRead as _, Write as _, stderr, stdin};
use std::path::Path;

use ichor_config::talosconfig::{ClientConfig, Context};

use crate::connection::Connection;
use crate::failure::{Context as _, Failure};
use crate::parse::Call;
use crate::tabs::Table;
use crate::{files, print, profile, text};

/// The most nodes a list shows.
const NODES_SHOWN: usize = 3;

/// `config contexts`.
pub(super) fn list(call: &Call) -> Result<(), Failure> {
    let (config, _) = profile::open(&call.connection())?;
    print(&list_text(&config))
}

/// The table of contexts.
pub(super) fn list_text(config: &ClientConfig) -> String {
    let mut table = Table::with_header(["CURRENT", "NAME", "ENDPOINTS", "NODES"]);
    for (name, context) in config.contexts.iter() {
        let current = if *name == config.context { "*" } else { "" };
        let mut nodes: Vec<&str> = context.nodes.iter().take(NODES_SHOWN).map(String::as_str).collect();
        if context.nodes.len() > NODES_SHOWN {
            nodes.push("...");
        }
        table.row([current, name, &context.endpoints.join(","), &nodes.join(",")]);
    }
    table.take()
}

/// `config add`.
pub(super) fn add(call: &Call) -> Result<(), Failure> {
    if call.given("crt") != call.given("key") {
        return Err(Failure::new("if either the 'crt' or 'key' flag is specified, both are required"));
    }
    let file = |name: &str| match call.some_text(name) {
        Some(path) => String::from_utf8(files::read(Path::new(path))?)
            .map_err(|_| Failure::new(format!("{path} is not a PEM file"))),
        None => Ok(String::new()),
    };
    let context = Context::new(&[], &file("ca")?, &file("crt")?, &file("key")?);
    let (mut config, path) = profile::open(&call.connection())?;
    config.contexts.entries_mut().insert(call.arg(0).to_owned(), context);
    profile::save(&config, &path)
}

/// `config remove`.
pub(super) fn remove(call: &Call) -> Result<(), Failure> {
    let (dry_run, confirm) = (call.on("dry-run"), !call.on("noconfirm"));
    let (mut config, path) = profile::open(&call.connection())?;
    let pattern = call.arg(0);
    let matching: Vec<String> =
        profile::names(&config).into_iter().filter(|name| glob(pattern, name)).collect();
    if matching.is_empty() {
        let failure = Failure::new(format!("no contexts matched \"{pattern}\""));
        return Err(failure.hint("`ichorctl config contexts` lists them"));
    }
    let mut removed = false;
    for name in matching {
        if name == config.context {
            eprintln!("skipping removal of current context \"{name}\"; switch to another one first");
            continue;
        }
        if dry_run {
            eprintln!("would remove context \"{name}\"");
            continue;
        }
        if confirm && !confirmed(&format!("remove context \"{name}\"? (y/N): "))? {
            continue;
        }
        config.contexts.entries_mut().remove(&name);
        eprintln!("removed context \"{name}\"");
        removed = true;
    }
    if removed { profile::save(&config, &path) } else { Ok(()) }
}

fn confirmed(question: &str) -> Result<bool, Failure> {
    eprint!("{question}");
    stderr().flush().context("ask")?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).context("read the answer")?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// `config context`.
pub(super) fn switch(call: &Call) -> Result<(), Failure> {
    let (mut config, path) = profile::open(&call.connection())?;
    let name = call.arg(0);
    if config.contexts.get(name).is_none() {
        let failure = Failure::new(format!("context \"{name}\" does not exist"));
        return Err(match text::nearest(name, profile::names(&config).iter().map(String::as_str)) {
            Some(near) => failure.hint(format!("did you mean \"{near}\"?")),
            None => failure.hint("`ichorctl config contexts` lists them"),
        });
    }
    config.context = name.to_owned();
    profile::save(&config, &path)
}

/// `config endpoint`.
pub(super) fn endpoints(call: &Call) -> Result<(), Failure> {
    for endpoint in &call.args {
        ichor_client::endpoint::parse(endpoint).plain()?;
    }
    change(&call.connection(), |context| context.endpoints = call.args.clone().into())
}

/// `config node`.
pub(super) fn nodes(call: &Call) -> Result<(), Failure> {
    change(&call.connection(), |context| context.nodes = call.args.clone().into())
}

fn change(connection: &Connection, edit: impl FnOnce(&mut Context)) -> Result<(), Failure> {
    let (mut config, path) = profile::open(connection)?;
    let wanted = connection.context.as_deref();
    if let Err(error) = config.select(wanted) {
        return Err(profile::no_context(&error, Some(&config)));
    }
    let context = config.select_mut(wanted).plain()?;
    edit(context);
    profile::save(&config, &path)
}

/// Whether `name` matches a shell pattern with `*`, `?` and `[…]`.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // Where to go on from when a `*` must take one character more.
    let (mut p, mut n, mut back) = (0, 0, None);
    loop {
        if let Some('*') = pattern.get(p) {
            back = Some((p, n));
            p += 1;
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        let step = name.get(n).and_then(|letter| one(&pattern[p..], *letter));
        match (step, back) {
            (Some(taken), _) => {
                p += taken;
                n += 1;
            }
            (None, Some((star, from))) if from < name.len() => {
                back = Some((star, from + 1));
                (p, n) = (star + 1, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// How many pattern characters match `letter`, when they do.
fn one(pattern: &[char], letter: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => {
            let end = pattern.iter().position(|c| *c == ']')?;
            let set = &pattern[1..end];
            let (inverted, set) = match set.first() {
                Some('^' | '!') => (true, &set[1..]),
                _ => (false, set),
            };
            let ranges = set.windows(3).any(|w| w[1] == '-' && (w[0]..=w[2]).contains(&letter));
            ((ranges || set.contains(&letter)) != inverted).then_some(end + 1)
        }
        plain => (*plain == letter).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, want) in [
            ("*", "anything", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("talos-?", "talos-1", true),
            ("talos-?", "talos-10", false),
            ("t[0-9]", "t5", true),
            ("t[!0-9]", "t5", false),
            ("*-1", "a-1-1", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, name), want, "{pattern} {name}");
        }
    }
}
