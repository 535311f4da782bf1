//! Objects as programs print them that read them into the types of Kubernetes first.
//!
//! Such programs leave out what is empty, write what has to be there although it is empty, and bring amounts and times
//! into one form. What the types do not know is kept here: a newer Kubernetes may.

use ichor_yaml::{Node, Resolved, Value};
use jiff::Timestamp;

use super::quantity;

/// A line for each type: its name and its fields as `name:kind`. A `?` behind the name says that the field is left out
/// when it is empty, a `~` also when it is a structure. Kinds are those of Go, with `{}` for maps.
const TYPES: &str = include_str!("types.txt");

/// A value that its type has no room for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The field.
    pub(super) path: String,
    /// What belongs there.
    pub(super) wanted: &'static str,
}

/// The value as one of `kind`.
pub(super) fn typed(kind: &str, node: &Node) -> Result<Node, Mismatch> {
    value(kind, Some(node))
}

fn value(kind: &str, node: Option<&Node>) -> Result<Node, Mismatch> {
    let Some(node) = node.filter(|node| !node.is_null()) else { return zero(kind) };
    if let Some(kind) = kind.strip_prefix('*') {
        return value(kind, Some(node));
    }
    if let Some(kind) = kind.strip_prefix("[]") {
        let items = node.as_seq().ok_or_else(|| mismatch("a list"))?;
        let items = items.iter().enumerate();
        let items =
            items.map(|(at, item)| value(kind, Some(item)).map_err(|error| error.below(&format!("[{at}]"))));
        return Ok(Node::seq(items.collect::<Result<_, _>>()?));
    }
    if let Some(kind) = kind.strip_prefix("{}") {
        let entries = node.as_map().ok_or_else(|| mismatch("a mapping"))?.iter();
        let entries = entries.map(|(key, item)| {
            let name = key.as_str().unwrap_or_default();
            Ok((Node::string(name), value(kind, Some(item)).map_err(|error| error.below(name))?))
        });
        return Ok(Node::map(entries.collect::<Result<_, Mismatch>>()?));
    }
    let (text, meaning) = match node.as_scalar() {
        Some(scalar) => (scalar.text.as_str(), Some(scalar.resolve())),
        None => ("", None),
    };
    match (kind, meaning) {
        ("any", _) => Ok(node.clone()),
        ("string" | "bytes", Some(Resolved::Str)) => Ok(Node::string(text)),
        ("string" | "bytes", _) => Err(mismatch("a text")),
        ("bool", Some(Resolved::Bool(known))) => Ok(Node::bool(known)),
        ("bool", _) => Err(mismatch("true or false")),
        ("int" | "intstr", Some(meaning)) if whole(meaning).is_some() => {
            Ok(Node::plain(whole(meaning).unwrap_or_default().to_string()))
        }
        ("intstr", Some(Resolved::Str)) => Ok(Node::string(text)),
        ("int", _) => Err(mismatch("a whole number")),
        ("intstr", _) => Err(mismatch("a whole number or a text")),
        ("quantity", Some(Resolved::Int(_) | Resolved::Uint(_) | Resolved::Float(_) | Resolved::Str)) => {
            // What looks like a number is one, however it is written.
            let text = match meaning {
                Some(Resolved::Float(number)) => number.to_string(),
                Some(other) => whole(other).map_or_else(|| text.to_owned(), |number| number.to_string()),
                None => text.to_owned(),
            };
            quantity::canonical(text.trim())
                .map(Node::string)
                .ok_or_else(|| mismatch("an amount such as 500m or 1Gi"))
        }
        ("quantity", _) => Err(mismatch("an amount such as 500m or 1Gi")),
        ("time" | "microtime", Some(Resolved::Str | Resolved::Timestamp)) => {
            let time: Timestamp = text.parse().map_err(|_| mismatch("a time"))?;
            let form = if kind == "time" { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S.%6fZ" };
            Ok(Node::string(time.strftime(form).to_string()))
        }
        ("time" | "microtime", _) => Err(mismatch("a time")),
        _ => structure(kind, Some(node)),
    }
}

/// The number that a field of whole numbers takes.
fn whole(meaning: Resolved) -> Option<i128> {
    match meaning {
        Resolved::Int(number) => Some(number.into()),
        Resolved::Uint(number) => Some(number.into()),
        // Exact up to here.
        Resolved::Float(number) if number.trunc() == number && number.abs() < 9e15 => Some(number as i128),
        _ => None,
    }
}

/// What stands where nothing was said.
fn zero(kind: &str) -> Result<Node, Mismatch> {
    match kind {
        "string" => Ok(Node::string("")),
        "bool" => Ok(Node::bool(false)),
        "int" | "intstr" => Ok(Node::plain("0")),
        "quantity" => Ok(Node::string("0")),
        "time" | "microtime" | "bytes" | "any" => Ok(Node::null()),
        _ if kind.starts_with(['*', '[', '{']) => Ok(Node::null()),
        _ => structure(kind, None),
    }
}

fn structure(kind: &str, node: Option<&Node>) -> Result<Node, Mismatch> {
    let given = match node {
        Some(node) => node.as_map().ok_or_else(|| mismatch("a mapping"))?,
        None => &[],
    };
    let fields: Vec<(&str, &str)> = fields_of(kind).collect();
    let mut out = Vec::with_capacity(given.len());
    for (field, kind) in &fields {
        let name = field.trim_end_matches(['?', '~']);
        let optional = field.len() > name.len();
        let always = !optional || (is_structure(kind) && !field.ends_with('~'));
        let found = given.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, found)| found);
        let found = found.filter(|found| !found.is_null());
        if found.is_none() && !always {
            continue;
        }
        let known = value(kind, found).map_err(|error| error.below(name))?;
        if !(optional && is_empty(kind, &known)) {
            out.push((Node::string(name), known));
        }
    }
    let unknown = given.iter().filter(|(key, _)| {
        let key = key.as_str().unwrap_or_default();
        !fields.iter().any(|(name, _)| name.trim_end_matches(['?', '~']) == key)
    });
    out.extend(unknown.cloned());
    Ok(Node::map(out))
}

fn fields_of(kind: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let line = TYPES.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    line.unwrap_or_default().split(' ').filter_map(|field| field.split_once(':'))
}

/// Go calls no structure empty.
fn is_structure(kind: &str) -> bool {
    kind.starts_with(|letter: char| letter.is_ascii_uppercase())
        || matches!(kind, "quantity" | "time" | "microtime" | "intstr")
}

fn is_empty(kind: &str, node: &Node) -> bool {
    match &node.value {
        Value::Seq(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty() && kind.starts_with('{'),
        Value::Scalar(scalar) => match kind {
            "string" | "bytes" => scalar.text.is_empty(),
            "bool" => scalar.text == "false",
            "int" => scalar.text == "0",
            _ => false,
        },
    }
}

fn mismatch(wanted: &'static str) -> Mismatch {
    Mismatch { path: String::new(), wanted }
}

impl Mismatch {
    fn below(mut self, name: &str) -> Self {
        let gap = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{name}{gap}{}", self.path);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_a_field_names_is_known() {
        let names: Vec<&str> = TYPES.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.is_sorted(), "the types are in order");
        for name in &names {
            for (field, kind) in fields_of(name) {
                let kind = kind.trim_start_matches(['*', '[', ']', '{', '}']);
                let basic =
                    ["string", "bytes", "bool", "int", "intstr", "quantity", "time", "microtime", "any"];
                assert!(basic.contains(&kind) || names.contains(&kind), "{name}.{field} is of {kind}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_place() {
        for (text, path, wanted) in [
            ("spec: {containers: [{name: 5}]}", "spec.containers[0].name", "a text"),
            ("spec: []", "spec", "a mapping"),
            ("spec: {hostNetwork: 'yes'}", "spec.hostNetwork", "true or false"),
            ("spec: {containers: {}}", "spec.containers", "a list"),
            (
                "spec: {containers: [{resources: {limits: {cpu: much}}}]}",
                "spec.containers[0].resources.limits.cpu",
                "an amount such as 500m or 1Gi",
            ),
            ("metadata: {creationTimestamp: soon}", "metadata.creationTimestamp", "a time"),
        ] {
            let root = ichor_yaml::parse(text).unwrap().remove(0).root;
            assert_eq!(typed("Pod", &root), Err(Mismatch { path: path.to_owned(), wanted }), "{text}");
        }
    }
}
