//! `docs/compatibility.md`: every call, resource type, message and field of the original with what became of it here.
//! The names come from the list the wire is tested against and from the catalogue of resources, the states from
//! `xtask/compatibility.txt`; a name without a state, or a state without a name, is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const NAMES: &str = "crates/wire/tests/api.json";
const STATES: &str = "xtask/compatibility.txt";
const PAGE: &str = "docs/compatibility.md";

/// What became of a thing of the original. Ordered: a message is as far as the furthest thing that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Never,
    Later,
    Same,
    Better,
}

impl State {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "same" => Self::Same,
            "better" => Self::Better,
            "later" => Self::Later,
            "never" => Self::Never,
            _ => return None,
        })
    }

    fn word(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Later => "later",
            Self::Same => "same",
            Self::Better => "better",
        }
    }
}

/// A state and, where it says more, why.
#[derive(Debug, Clone)]
struct Entry {
    state: State,
    note: String,
}

/// The states by kind of thing (`rpc`, `type`, `message`, `field`) and name.
#[derive(Debug, Default)]
struct States(BTreeMap<(String, String), Entry>);

impl States {
    fn parse(text: &str) -> Result<Self> {
        let mut states = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = || format!("{STATES}:{}", number + 1);
            let (head, note) = line.split_once(" | ").unwrap_or((line, ""));
            let words: Vec<&str> = head.split_whitespace().collect();
            let [kind, name, state] = words[..] else {
                bail!("{}: a line reads `<kind> <name> <state> | <note>`", place());
            };
            ensure!(
                matches!(kind, "rpc" | "type" | "message" | "field"),
                "{}: there is no kind {kind}",
                place()
            );
            let state =
                State::parse(state).with_context(|| format!("{}: there is no state {state}", place()))?;
            ensure!(
                state >= State::Same || !note.is_empty(),
                "{}: {} needs a note that says why",
                place(),
                state.word()
            );
            let entry = Entry { state, note: note.trim().to_owned() };
            let old = states.insert((kind.to_owned(), name.to_owned()), entry);
            ensure!(old.is_none(), "{}: {kind} {name} is listed twice", place());
        }
        Ok(Self(states))
    }

    fn get(&self, kind: &str, name: &str) -> Option<&Entry> {
        self.0.get(&(kind.to_owned(), name.to_owned()))
    }
}

/// One call of the original.
struct Rpc {
    name: String,
    request: String,
    response: String,
    roles: String,
}

/// One message: its fields as `(name, type)`.
type Messages = BTreeMap<String, Vec<(String, String)>>;

/// Writes the page.
pub fn run(root: &Path) -> Result<()> {
    let page = render(root)?;
    std::fs::write(root.join(PAGE), page).with_context(|| format!("write {PAGE}"))
}

/// Checks that the page is the one that would be written now.
pub fn check(root: &Path) -> Result<()> {
    let have = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    ensure!(have == render(root)?, "{PAGE} is out of date; run `cargo xtask compat`");
    Ok(())
}

fn render(root: &Path) -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let names: Value = serde_json::from_str(&read(NAMES)?).with_context(|| format!("parse {NAMES}"))?;
    let states = States::parse(&read(STATES)?)?;
    let (rpcs, messages) = (rpcs(&names)?, messages(&names)?);
    let types: BTreeMap<&str, &str> = ichor_resource::catalogue().map(|d| (d.type_name, d.proto)).collect();
    complete(&states, &rpcs, &types, &messages)?;
    let reached = reach(&states, &rpcs, &types, &messages);
    let orphans: Vec<_> =
        messages.keys().filter(|m| !reached.contains_key(*m) && states.get("message", m).is_none()).collect();
    ensure!(
        orphans.is_empty(),
        "{STATES}: these messages are reached by no call and no type, so they need a line: {orphans:?}"
    );

    let mut page = String::from(HEADER);
    summary(&mut page, &states, &reached);
    rpc_table(&mut page, &states, &rpcs);
    type_table(&mut page, &states, &types);
    message_table(&mut page, &states, &messages, &reached);
    Ok(page)
}

const HEADER: &str = "# Compatibility\n
<!-- Written by `cargo xtask compat` from xtask/compatibility.txt; a test compares. -->\n
Every call, resource type, message and field of the original v1.12.1, and what became of it here:
**same** works as there, **better** does that and more, **later** is not there yet, **never** will not come.
Names and numbers of all messages are always the same; a message is `later` when nothing fills or reads it yet.\n";

fn rpcs(names: &Value) -> Result<Vec<Rpc>> {
    let mut rpcs = Vec::new();
    for package in names["packages"].as_object().context("no packages")?.values() {
        for service in package["services"].as_object().into_iter().flatten().map(|(_, service)| service) {
            let full = service["full_name"].as_str().context("a service without a name")?;
            for (name, rpc) in service["rpcs"].as_object().context("a service without calls")? {
                let text = |key: &str| rpc[key].as_str().unwrap_or_default().to_owned();
                let roles: Vec<&str> =
                    rpc["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                rpcs.push(Rpc {
                    name: format!("{full}/{name}"),
                    request: text("request"),
                    response: text("response"),
                    roles: roles.join(", "),
                });
            }
        }
    }
    Ok(rpcs)
}

fn messages(names: &Value) -> Result<Messages> {
    let mut messages = Messages::new();
    for (package, content) in names["packages"].as_object().context("no packages")? {
        for (name, message) in content["messages"].as_object().into_iter().flatten() {
            let fields = message["fields"].as_array().into_iter().flatten();
            let fields = fields.map(|field| {
                let text = |key: &str| field[key].as_str().unwrap_or_default().to_owned();
                (text("name"), text("type"))
            });
            messages.insert(format!("{package}.{name}"), fields.collect());
        }
    }
    Ok(messages)
}

/// Every name has a state and every state a name.
fn complete(states: &States, rpcs: &[Rpc], types: &BTreeMap<&str, &str>, messages: &Messages) -> Result<()> {
    let mut known = BTreeSet::new();
    known.extend(rpcs.iter().map(|rpc| ("rpc", rpc.name.clone())));
    known.extend(types.keys().map(|name| ("type", (*name).to_owned())));
    let missing: Vec<_> = known.iter().filter(|(kind, name)| states.get(kind, name).is_none()).collect();
    ensure!(missing.is_empty(), "{STATES}: no state for {missing:?}");
    for (name, fields) in messages {
        known.insert(("message", name.clone()));
        known.extend(fields.iter().map(|(field, _)| ("field", format!("{name}.{field}"))));
    }
    let unknown: Vec<_> =
        states.0.keys().filter(|(kind, name)| !known.contains(&(kind.as_str(), name.clone()))).collect();
    ensure!(unknown.is_empty(), "{STATES}: the original has no {unknown:?}");
    Ok(())
}

/// How far each message is: as far as the furthest call or type that carries it.
fn reach(
    states: &States,
    rpcs: &[Rpc],
    types: &BTreeMap<&str, &str>,
    messages: &Messages,
) -> BTreeMap<String, State> {
    let mut reached = BTreeMap::new();
    let mut queue: Vec<(String, State)> = Vec::new();
    for rpc in rpcs {
        let state = states.get("rpc", &rpc.name).map_or(State::Later, |entry| entry.state);
        queue.extend([(rpc.request.clone(), state), (rpc.response.clone(), state)]);
    }
    for (name, message) in types {
        let state = states.get("type", name).map_or(State::Later, |entry| entry.state);
        queue.push(((*message).to_owned(), state));
    }
    while let Some((name, state)) = queue.pop() {
        let Some(fields) = messages.get(&name) else { continue };
        if reached.get(&name).is_some_and(|old| *old >= state) {
            continue;
        }
        reached.insert(name, state);
        queue.extend(fields.iter().map(|(_, kind)| (kind.clone(), state)));
    }
    reached
}

fn summary(page: &mut String, states: &States, reached: &BTreeMap<String, State>) {
    page.push_str("\n| | same | better | later | never |\n|---|---|---|---|---|\n");
    for (title, kind) in [("calls", "rpc"), ("resource types", "type")] {
        let count =
            |state| states.0.iter().filter(|((k, _), entry)| k == kind && entry.state == state).count();
        row(page, title, count);
    }
    row(page, "messages", |state| reached.values().filter(|have| **have == state).count());
}

fn row(page: &mut String, title: &str, count: impl Fn(State) -> usize) {
    let [same, better, later, never] = [State::Same, State::Better, State::Later, State::Never].map(count);
    writeln!(page, "| {title} | {same} | {better} | {later} | {never} |").expect("a string takes all");
}

fn rpc_table(page: &mut String, states: &States, rpcs: &[Rpc]) {
    page.push_str("\n## Calls\n");
    let mut service = "";
    for rpc in rpcs {
        let (head, name) = rpc.name.split_once('/').unwrap_or((&rpc.name, ""));
        if head != service {
            service = head;
            write!(page, "\n### {service}\n\n| Call | Roles | State | Note |\n|---|---|---|---|\n")
                .expect("a string takes all");
        }
        let entry = states.get("rpc", &rpc.name).expect("checked to be complete");
        writeln!(page, "| {name} | {} | {} | {} |", rpc.roles, entry.state.word(), entry.note)
            .expect("a string takes all");
    }
}

fn type_table(page: &mut String, states: &States, types: &BTreeMap<&str, &str>) {
    page.push_str("\n## Resource types\n\n| Type | State | Note |\n|---|---|---|\n");
    for name in types.keys() {
        let entry = states.get("type", name).expect("checked to be complete");
        writeln!(page, "| {name} | {} | {} |", entry.state.word(), entry.note).expect("a string takes all");
    }
}

fn message_table(page: &mut String, states: &States, messages: &Messages, reached: &BTreeMap<String, State>) {
    page.push_str("\n## Messages and fields\n\nFields that differ from their message are marked.\n\n");
    page.push_str("| Message | State | Fields |\n|---|---|---|\n");
    for (name, fields) in messages {
        let own = states.get("message", name);
        let state =
            own.map(|entry| entry.state).or_else(|| reached.get(name).copied()).unwrap_or(State::Later);
        let fields: Vec<String> = fields
            .iter()
            .map(|(field, _)| match states.get("field", &format!("{name}.{field}")) {
                Some(entry) => format!("{field} (**{}**: {})", entry.state.word(), entry.note),
                None => field.clone(),
            })
            .collect();
        let note = own.map_or("", |entry| entry.note.as_str());
        let gap = if note.is_empty() { "" } else { ": " };
        writeln!(page, "| {name} | {}{gap}{note} | {} |", state.word(), fields.join(", "))
            .expect("a string takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_compatibility_is_up_to_date() {
        check(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn a_state_that_is_not_there_yet_says_why() {
        let error = States::parse("rpc a.B/C later").unwrap_err().to_string();
        assert_eq!(error, "xtask/compatibility.txt:1: later needs a note that says why");
    }

    #[test]
    fn a_name_without_a_state_is_refused() {
        let rpc = Rpc {
            name: "a.B/C".into(),
            request: String::new(),
            response: String::new(),
            roles: String::new(),
        };
        let error =
            complete(&States::default(), &[rpc], &BTreeMap::new(), &Messages::new()).unwrap_err().to_string();
        assert!(error.contains("a.B/C"), "{error}");
    }
}
