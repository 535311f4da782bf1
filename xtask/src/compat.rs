//! `docs/compatibility.md`: every call, resource type, message and field of the original with what became of it here.
//! The names come from the list the wire is tested against and from the catalogue of resources, the states from
//! `xtask/compatibility.txt`; a name without a state, a state without a name, and a claim without a test that proves it
//! are errors.

mod proofs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use proofs::Tests;

const NAMES: &str = "crates/wire/tests/api.json";
const STATES: &str = "xtask/compatibility.txt";
const PAGE: &str = "docs/compatibility.md";

/// What became of a thing of the original. Ordered: a message is as far as the furthest thing that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Never,
    Later,
    Part,
    Same,
    Better,
}

const STATES_SHOWN: [State; 5] = [State::Same, State::Better, State::Part, State::Later, State::Never];

impl State {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "same" => Self::Same,
            "better" => Self::Better,
            "part" => Self::Part,
            "later" => Self::Later,
            "never" => Self::Never,
            _ => return None,
        })
    }

    fn word(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Later => "later",
            Self::Part => "part",
            Self::Same => "same",
            Self::Better => "better",
        }
    }
}

/// A state, the tests that prove it and, where it says more, why.
#[derive(Debug, Clone)]
struct Entry {
    state: State,
    proofs: Vec<String>,
    note: String,
}

impl Entry {
    /// The proofs as they stand in a table.
    fn proofs_shown(&self) -> String {
        let names: Vec<String> = self.proofs.iter().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    }
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
            let [kind, name, state, proofs @ ..] = &words[..] else {
                bail!("{}: a line reads `<kind> <name> <state> @<test>... | <note>`", place());
            };
            ensure!(
                matches!(*kind, "rpc" | "type" | "message" | "field"),
                "{}: there is no kind {kind}",
                place()
            );
            let state =
                State::parse(state).with_context(|| format!("{}: there is no state {state}", place()))?;
            let proofs: Option<Vec<String>> =
                proofs.iter().map(|word| Some(word.strip_prefix('@')?.to_owned())).collect();
            let proofs = proofs.with_context(|| format!("{}: a test is named as `@<test>`", place()))?;
            ensure!(
                state >= State::Same || !note.is_empty(),
                "{}: {} needs a note that says what is missing",
                place(),
                state.word()
            );
            ensure!(
                state < State::Same || !proofs.is_empty(),
                "{}: {} needs a test that proves it; without one it is `part`",
                place(),
                state.word()
            );
            let entry = Entry { state, proofs, note: note.trim().to_owned() };
            let old = states.insert(((*kind).to_owned(), (*name).to_owned()), entry);
            ensure!(old.is_none(), "{}: {kind} {name} is listed twice", place());
        }
        Ok(Self(states))
    }

    fn get(&self, kind: &str, name: &str) -> Option<&Entry> {
        self.0.get(&(kind.to_owned(), name.to_owned()))
    }

    /// Every named test exists.
    fn proven(&self, tests: &Tests) -> Result<()> {
        for ((kind, name), entry) in &self.0 {
            for proof in &entry.proofs {
                ensure!(!tests.files(proof).is_empty(), "{STATES}: {kind} {name}: there is no test {proof}");
            }
        }
        Ok(())
    }

    /// All named tests.
    fn proofs(&self) -> BTreeSet<&str> {
        self.0.values().flat_map(|entry| entry.proofs.iter().map(String::as_str)).collect()
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
pub(crate) fn run(root: &Path) -> Result<()> {
    let page = render(root)?;
    std::fs::write(root.join(PAGE), page).with_context(|| format!("write {PAGE}"))
}

/// Checks that the page is the one that would be written now.
pub(crate) fn check(root: &Path) -> Result<()> {
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
    let tests = Tests::find(root)?;
    states.proven(&tests)?;
    whole(&states, &types, &messages)?;
    let reached = reach(&states, &rpcs, &types, &messages);
    let orphans: Vec<_> =
        messages.keys().filter(|m| !reached.contains_key(*m) && states.get("message", m).is_none()).collect();
    ensure!(
        orphans.is_empty(),
        "{STATES}: these messages are reached by no call and no type, so they need a line: {orphans:?}"
    );

    let mut page = String::from(HEADER);
    summary(&mut page, &states, &messages, &reached);
    rpc_table(&mut page, &states, &rpcs);
    type_table(&mut page, &states, &types);
    message_table(&mut page, &states, &messages, &reached);
    test_table(&mut page, &states, &tests);
    Ok(page)
}

const HEADER: &str = "# Compatibility\n
<!-- Written by `cargo xtask compat` from xtask/compatibility.txt; a test compares. -->\n
Every call, resource type, message and field of the original v1.12.1, and what became of it here:
**same** works as there, **better** does that and more, **part** works in part or is not proven, **later** is not there
yet, **never** will not come. `same` and `better` name the tests that prove them; the last table says where those are.\n
Two things are proven for all at once and are not what the states are about. Names, numbers and types of every service,
message, field and enumeration: `every_service_message_field_and_enum_is_the_one_of_the_original` and
`every_field_has_the_number_and_type_of_its_message`. Definition, protobuf and YAML of every resource type:
`TestEveryDefinitionIsThatOfTheLibrary` and `TestEverySpecReadsAndPrintsAsInTheLibrary` (but of `DNSUpstreams`, which have no
protobuf form). Who may call what: `every_method_opens_to_the_roles_it_should_and_to_no_others`.\n
A message is as far as the furthest call or type that carries it, and `part` when one of its fields is behind.\n";

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
        collect(&content["messages"], package, &mut messages);
    }
    Ok(messages)
}

/// Takes messages in, and those that are declared inside of them.
fn collect(declared: &Value, prefix: &str, messages: &mut Messages) {
    for (name, message) in declared.as_object().into_iter().flatten() {
        let full = format!("{prefix}.{name}");
        collect(&message["messages"], &full, messages);
        let fields = message["fields"].as_array().into_iter().flatten();
        let fields = fields.map(|field| {
            let text = |key: &str| field[key].as_str().unwrap_or_default().to_owned();
            (text("name"), text("type"))
        });
        messages.insert(full, fields.collect());
    }
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
    // What nothing names has a line of its own; what it is made of follows it.
    for ((_, name), entry) in states.0.iter().filter(|((kind, _), _)| kind == "message") {
        queue.push((name.clone(), entry.state));
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

/// A type whose message has fields that are behind is not whole itself.
fn whole(states: &States, types: &BTreeMap<&str, &str>, messages: &Messages) -> Result<()> {
    for (name, message) in types {
        let Some(entry) = states.get("type", name).filter(|entry| entry.state >= State::Same) else {
            continue;
        };
        let fields = messages.get(*message).into_iter().flatten();
        let behind: Vec<&str> = fields
            .filter(|(field, _)| field_state(states, message, field).is_some_and(|state| state < entry.state))
            .map(|(field, _)| field.as_str())
            .collect();
        ensure!(
            behind.is_empty(),
            "{STATES}: type {name} is {} although these fields are behind: {}",
            entry.state.word(),
            behind.join(", ")
        );
    }
    Ok(())
}

fn field_state(states: &States, message: &str, field: &str) -> Option<State> {
    states.get("field", &format!("{message}.{field}")).map(|entry| entry.state)
}

/// The state a message is shown with.
fn message_state(
    states: &States,
    reached: &BTreeMap<String, State>,
    name: &str,
    fields: &[(String, String)],
) -> State {
    let own = states.get("message", name).map(|entry| entry.state);
    let state = own.or_else(|| reached.get(name).copied()).unwrap_or(State::Later);
    let behind =
        fields.iter().any(|(field, _)| field_state(states, name, field).is_some_and(|of| of < State::Same));
    if behind { state.min(State::Part) } else { state }
}

fn summary(page: &mut String, states: &States, messages: &Messages, reached: &BTreeMap<String, State>) {
    let words = STATES_SHOWN.map(State::word).join(" | ");
    write!(page, "\n| | {words} | all |\n|---|---|---|---|---|---|---|\n").expect("a string takes all");
    for (title, kind) in [("calls", "rpc"), ("resource types", "type")] {
        let found = states.0.iter().filter(|((k, _), _)| k == kind).map(|(_, entry)| entry.state);
        row(page, title, &found.collect::<Vec<_>>());
    }
    let found = messages.iter().map(|(name, fields)| message_state(states, reached, name, fields));
    row(page, "messages", &found.collect::<Vec<_>>());
}

fn row(page: &mut String, title: &str, found: &[State]) {
    let counts = STATES_SHOWN.map(|state| found.iter().filter(|have| **have == state).count().to_string());
    writeln!(page, "| {title} | {} | {} |", counts.join(" | "), found.len()).expect("a string takes all");
}

fn rpc_table(page: &mut String, states: &States, rpcs: &[Rpc]) {
    page.push_str("\n## Calls\n");
    let mut service = "";
    for rpc in rpcs {
        let (head, name) = rpc.name.split_once('/').unwrap_or((&rpc.name, ""));
        if head != service {
            service = head;
            write!(
                page,
                "\n### {service}\n\n| Call | Roles | State | Note | Proof |\n|---|---|---|---|---|\n"
            )
            .expect("a string takes all");
        }
        let entry = states.get("rpc", &rpc.name).expect("checked to be complete");
        let proofs = entry.proofs_shown();
        writeln!(page, "| {name} | {} | {} | {} | {proofs} |", rpc.roles, entry.state.word(), entry.note)
            .expect("a string takes all");
    }
}

fn type_table(page: &mut String, states: &States, types: &BTreeMap<&str, &str>) {
    page.push_str("\n## Resource types\n\n| Type | State | Note | Proof |\n|---|---|---|---|\n");
    for name in types.keys() {
        let entry = states.get("type", name).expect("checked to be complete");
        let proofs = entry.proofs_shown();
        writeln!(page, "| {name} | {} | {} | {proofs} |", entry.state.word(), entry.note)
            .expect("a string takes all");
    }
}

fn message_table(page: &mut String, states: &States, messages: &Messages, reached: &BTreeMap<String, State>) {
    page.push_str("\n## Messages and fields\n\nFields that differ from their message are marked.\n\n");
    page.push_str("| Message | State | Fields |\n|---|---|---|\n");
    for (name, fields) in messages {
        let state = message_state(states, reached, name, fields);
        let fields: Vec<String> = fields
            .iter()
            .map(|(field, _)| match states.get("field", &format!("{name}.{field}")) {
                Some(entry) => format!("{field} (**{}**: {})", entry.state.word(), entry.note),
                None => field.clone(),
            })
            .collect();
        let own = states.get("message", name);
        let note = own.map_or("", |entry| entry.note.as_str());
        let gap = if note.is_empty() { "" } else { ": " };
        writeln!(page, "| {name} | {}{gap}{note} | {} |", state.word(), fields.join(", "))
            .expect("a string takes all");
    }
}

fn test_table(page: &mut String, states: &States, tests: &Tests) {
    page.push_str("\n## Tests\n\n| Test | Where |\n|---|---|\n");
    for name in states.proofs() {
        writeln!(page, "| `{name}` | {} |", tests.files(name).join(", ")).expect("a string takes all");
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
        assert_eq!(error, "xtask/compatibility.txt:1: later needs a note that says what is missing");
    }

    #[test]
    fn a_claim_needs_a_test_that_exists() {
        let error = States::parse("rpc a.B/C same").unwrap_err().to_string();
        assert!(error.ends_with("same needs a test that proves it; without one it is `part`"), "{error}");
        let states = States::parse("rpc a.B/C same @no_such_test").unwrap();
        let error = states.proven(&Tests::default()).unwrap_err().to_string();
        assert!(error.ends_with("rpc a.B/C: there is no test no_such_test"), "{error}");
    }

    #[test]
    fn a_type_with_a_field_that_is_behind_is_not_the_same() {
        let messages = Messages::from([("p.M".to_owned(), vec![("f".to_owned(), "string".to_owned())])]);
        let types = BTreeMap::from([("Ms.p", "p.M")]);
        let states = States::parse("type Ms.p same @t\nfield p.M.f later | not yet").unwrap();
        let error = whole(&states, &types, &messages).unwrap_err().to_string();
        assert!(error.contains("type Ms.p is same although these fields are behind: f"), "{error}");
        let reached = BTreeMap::from([("p.M".to_owned(), State::Same)]);
        assert_eq!(message_state(&states, &reached, "p.M", &messages["p.M"]), State::Part);
    }

    #[test]
    fn the_summary_counts_what_the_tables_show() {
        let page = render(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        let table = page.split("## Messages and fields").nth(1).unwrap().split("## Tests").next().unwrap();
        let states: Vec<&str> =
            table.lines().skip(5).filter_map(|line| line.split(" | ").nth(1)?.split(':').next()).collect();
        let count = |word: &str| states.iter().filter(|state| **state == word).count().to_string();
        let counts = STATES_SHOWN.map(|state| count(state.word())).join(" | ");
        assert!(page.contains(&format!("| messages | {counts} | {} |", states.len())), "{counts}");
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
