//! Resources in every output format.

use std::borrow::Cow;
use std::fmt::Write as _;

use ichor_client::resources::yaml_of;
use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use ichor_wire::cosi::resource::{EventType, Metadata, Resource};
use serde_json::Value;

use crate::failure::{Context, Failure};
use crate::output::json;
use crate::tabs::Table;
use crate::text;

/// The output formats of `get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Columns.
    Table,
    /// YAML documents.
    Yaml,
    /// JSON objects.
    Json,
    /// What a path through the JSON object finds.
    JsonPath(String),
}

impl Format {
    /// Reads `table`, `yaml`, `json` or `jsonpath=EXPRESSION`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        Ok(match text {
            "table" => Self::Table,
            "yaml" => Self::Yaml,
            "json" => Self::Json,
            other => match other.strip_prefix("jsonpath=") {
                Some(expression) => Self::JsonPath(expression.to_owned()),
                None => {
                    return Err(Failure::new(format!("output format \"{other}\" is not supported"))
                        .hint("use table, yaml, json or jsonpath=EXPRESSION"));
                }
            },
        })
    }
}

/// Turns resources into text, one after another.
pub struct Writer {
    shape: Shape,
    watching: bool,
}

enum Shape {
    Table { table: Table, display_type: String, columns: Columns },
    Yaml { started: bool },
    Json,
    JsonPath(ichor_jsonpath::Path),
}

impl Writer {
    /// A writer for resources of one type; tables start with their header.
    pub fn new(
        format: &Format,
        definition: &ResourceDefinitionSpec,
        watching: bool,
    ) -> Result<Self, Failure> {
        let shape = match format {
            Format::Table => {
                let columns = definition.print_columns.iter().map(|column| path(&column.json_path));
                let mut header: Vec<String> =
                    ["NODE", "NAMESPACE", "TYPE", "ID", "VERSION"].map(str::to_owned).into();
                if watching {
                    header.insert(1, "*".to_owned());
                }
                header.extend(definition.print_columns.iter().map(|column| column.name.to_uppercase()));
                Shape::Table {
                    table: Table::with_header(header),
                    display_type: definition.display_type.clone(),
                    columns: Columns {
                        keys: definition
                            .print_columns
                            .iter()
                            .map(|column| first_key(&column.json_path))
                            .collect(),
                        paths: columns.collect::<Result<_, _>>()?,
                    },
                }
            }
            Format::Yaml => Shape::Yaml { started: false },
            Format::Json => Shape::Json,
            // Unlike a column, a path that leads nowhere is a mistake.
            Format::JsonPath(expression) => Shape::JsonPath(strict_path(expression)?),
        };
        Ok(Self { shape, watching })
    }

    /// Adds a resource; what it returns can be printed at once.
    pub fn write(
        &mut self,
        node: &str,
        resource: &Resource,
        event: Option<EventType>,
    ) -> Result<String, Failure> {
        let event = event.filter(|_| self.watching);
        match &mut self.shape {
            Shape::Table { table, display_type, columns } => {
                table.row(cells(node, resource, event, display_type, columns)?);
                Ok(String::new())
            }
            Shape::Yaml { started } => {
                let dashes = if std::mem::replace(started, true) { "---\n" } else { "" };
                Ok(format!("{dashes}{}", yaml(node, resource, event)))
            }
            Shape::Json => Ok(json::pretty(&object(node, resource, event)?, "    ")),
            Shape::JsonPath(path) => {
                let found = path.results(&object(node, resource, event)?).context("evaluate jsonpath")?;
                Ok(found.iter().map(found_text).collect())
            }
        }
    }

    /// What was held back to find the widths of columns.
    pub fn flush(&mut self) -> String {
        match &mut self.shape {
            Shape::Table { table, .. } => table.take(),
            Shape::Yaml { .. } | Shape::Json | Shape::JsonPath(_) => String::new(),
        }
    }
}

/// What a path found: text as it is, everything with parts as JSON.
fn found_text(found: &Value) -> String {
    match found {
        Value::String(text) => format!("{text}\n"),
        Value::Null => "<nil>\n".to_owned(),
        Value::Object(_) | Value::Array(_) => json::pretty(found, "    "),
        Value::Bool(_) | Value::Number(_) => format!("{found}\n"),
    }
}

fn path(expression: &str) -> Result<ichor_jsonpath::Path, Failure> {
    Ok(strict_path(expression)?.allow_missing_keys())
}

fn strict_path(expression: &str) -> Result<ichor_jsonpath::Path, Failure> {
    ichor_jsonpath::Path::parse(expression).context(format!("jsonpath \"{expression}\""))
}

fn cells(
    node: &str,
    resource: &Resource,
    event: Option<EventType>,
    display_type: &str,
    columns: &Columns,
) -> Result<Vec<String>, Failure> {
    let metadata = resource.metadata.clone().unwrap_or_default();
    let mut cells = vec![node.to_owned()];
    if let Some(event) = event {
        let sign = match event {
            EventType::Created => "+",
            EventType::Destroyed => "-",
            EventType::Updated | EventType::Bootstrapped | EventType::Errored | EventType::Noop => " ",
        };
        cells.push(sign.to_owned());
    }
    cells.extend([metadata.namespace, display_type.to_owned(), metadata.id, metadata.version]);
    if columns.paths.is_empty() {
        return Ok(cells);
    }
    let yaml = yaml_of(resource);
    let needed = match &columns.keys {
        Some(keys) => only_keys(yaml, keys),
        None => Cow::Borrowed(yaml),
    };
    let spec = json::from_yaml_text(&needed).context("read the resource's spec")?;
    for path in &columns.paths {
        cells.push(path.text(&spec).unwrap_or_default());
    }
    Ok(cells)
}

/// The extra columns of a type.
struct Columns {
    paths: Vec<ichor_jsonpath::Path>,
    /// The keys of the spec they look at, when that can be told; the rest need not be read then.
    keys: Option<Vec<String>>,
}

/// The key a simple path such as `{.key.more}` starts with.
fn first_key(expression: &str) -> Option<String> {
    let inner = expression.strip_prefix("{.")?.strip_suffix('}')?;
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    let simple = end > 0 && !inner.contains(['{', '$', '@', '*', '\\']) && !inner.contains("..");
    simple.then(|| inner[..end].to_owned())
}

/// The lines of a mapping that belong to `keys`. Everything below a key is indented, so a key is a line that
/// is not.
fn only_keys<'a>(yaml: &'a str, keys: &[String]) -> Cow<'a, str> {
    let plain_key = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic()) && line.contains(':');
    if !yaml.lines().next().is_some_and(plain_key) {
        return Cow::Borrowed(yaml);
    }
    let mut kept = String::new();
    let mut keep = false;
    for line in yaml.split_inclusive('\n') {
        if !line.starts_with([' ', '\n']) {
            let key = line.split(':').next().unwrap_or_default();
            keep = keys.iter().any(|wanted| wanted == key);
        }
        if keep {
            kept.push_str(line);
        }
    }
    Cow::Owned(kept)
}

/// The object behind JSON output and paths.
pub fn object(node: &str, resource: &Resource, event: Option<EventType>) -> Result<Value, Failure> {
    let mut object = json::from_yaml_text(&yaml("", resource, event)).context("read the resource")?;
    // As text, whatever it looks like.
    if let Value::Object(map) = &mut object {
        map.insert("node".to_owned(), node.into());
    }
    Ok(json::sorted(object))
}

/// A resource as a YAML document, without the line between documents.
pub fn yaml(node: &str, resource: &Resource, event: Option<EventType>) -> String {
    let mut out = format!("node: {node}\n");
    if let Some(event) = event {
        let _ = writeln!(out, "event: {}", event_name(event));
    }
    push_metadata(&mut out, resource.metadata.as_ref().unwrap_or(&Metadata::default()));
    push_spec(&mut out, yaml_of(resource));
    out
}

/// Resources as YAML documents without their machine; secret ones without their spec.
pub fn bare_documents(resources: &[Resource], secret: bool) -> String {
    let mut out = String::new();
    for resource in resources {
        if !out.is_empty() {
            out.push_str("---\n");
        }
        push_metadata(&mut out, resource.metadata.as_ref().unwrap_or(&Metadata::default()));
        push_spec(&mut out, if secret { "<REDACTED>" } else { yaml_of(resource) });
    }
    out
}

/// The word for an event in YAML and JSON.
fn event_name(event: EventType) -> &'static str {
    match event {
        EventType::Created => "created",
        EventType::Updated => "updated",
        EventType::Destroyed => "destroyed",
        EventType::Bootstrapped => "bootstrapped",
        EventType::Errored => "errored",
        EventType::Noop => "noop",
    }
}

fn push_metadata(out: &mut String, metadata: &Metadata) {
    let owner = if metadata.owner.is_empty() { String::new() } else { format!(" {}", bare(&metadata.owner)) };
    let _ = write!(
        out,
        "metadata:\n    namespace: {}\n    type: {}\n    id: {}\n    version: {}\n    owner:{owner}\n    phase: {}\n",
        bare(&metadata.namespace),
        bare(&metadata.r#type),
        bare(&metadata.id),
        metadata.version,
        metadata.phase,
    );
    for (key, time) in [("created", &metadata.created), ("updated", &metadata.updated)] {
        let seconds = text::timestamp(time.as_ref())
            .and_then(|time| jiff::Timestamp::from_second(time.as_second()).ok())
            .unwrap_or_default();
        let _ = writeln!(out, "    {key}: {}", text::rfc3339(seconds));
    }
    for (key, map) in [("labels", &metadata.labels), ("annotations", &metadata.annotations)] {
        if map.is_empty() {
            continue;
        }
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort();
        let _ = writeln!(out, "    {key}:");
        for (name, value) in entries {
            let gap = if value.is_empty() { "" } else { " " };
            let _ = writeln!(out, "        {}:{gap}{}", bare(name), bare(value));
        }
    }
    if !metadata.finalizers.is_empty() {
        out.push_str("    finalizers:\n");
        for finalizer in &metadata.finalizers {
            let _ = writeln!(out, "        - {}", scalar(finalizer));
        }
    }
}

/// A value of the metadata. The original never quotes one for looking like a number or a truth value.
fn bare(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if text.is_empty() || (starts && text.chars().all(harmless)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(scalar(text).to_string())
}

/// Puts the spec below its key: a block one level deeper, a single value behind the key.
fn push_spec(out: &mut String, spec: &str) {
    let spec = spec.strip_suffix('\n').unwrap_or(spec);
    if !is_block(spec) {
        // A block scalar brings its own indentation, which is right for this depth.
        let _ = writeln!(out, "spec: {}", if spec.is_empty() { "{}" } else { spec });
        return;
    }
    out.push_str("spec:\n");
    for line in spec.split('\n') {
        if !line.is_empty() {
            out.push_str("    ");
            out.push_str(line);
        }
        out.push('\n');
    }
}

/// True when the spec is a mapping or list in block form, which needs a line of its own.
fn is_block(spec: &str) -> bool {
    let first = spec.split('\n').next().unwrap_or_default();
    match first.as_bytes().first() {
        None | Some(b'|' | b'>' | b'{' | b'[') => false,
        Some(b'"' | b'\'') => {
            // A quoted key is followed by a colon, a quoted value by nothing.
            spec.contains('\n') || first.ends_with(':') || first.contains("\": ") || first.contains("': ")
        }
        Some(_) => first.ends_with(':') || first.contains(": ") || first.starts_with("- "),
    }
}

/// A string as YAML: bare when it stays a string, quoted otherwise.
fn scalar(text: &str) -> String {
    let simple = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    let starts_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic);
    let bare = starts_well && text.bytes().all(simple);
    if bare
        && ichor_yaml::resolve(text) == ichor_yaml::Resolved::Str
        && !ichor_yaml::resolve::is_old_bool(text)
    {
        return text.to_owned();
    }
    ichor_yaml::emit(&ichor_yaml::Node::string(text)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use ichor_wire::cosi::resource::Spec;

    use super::*;

    fn resource(yaml: &str) -> Resource {
        let metadata =
            Metadata { id: "x".into(), version: "1".into(), phase: "running".into(), ..Metadata::default() };
        let spec = Spec { yaml_spec: yaml.into(), ..Spec::default() };
        Resource { metadata: Some(metadata), spec: Some(spec) }
    }

    #[track_caller]
    fn spec_lines(yaml: &str, expect: expect_test::Expect) {
        let text = super::yaml("n", &resource(yaml), None);
        expect.assert_eq(&text[text.find("spec:").unwrap()..]);
    }

    #[test]
    fn a_spec_stands_below_its_key_or_behind_it() {
        spec_lines(
            "a: 1\nb:\n    - c\n",
            expect_test::expect![[r#"
            spec:
                a: 1
                b:
                    - c
        "#]],
        );
        spec_lines(
            "{}\n",
            expect_test::expect![[r#"
            spec: {}
        "#]],
        );
        spec_lines(
            "controlplane\n",
            expect_test::expect![[r#"
            spec: controlplane
        "#]],
        );
        spec_lines(
            "|\n    version: v1alpha1\n    machine: {}\n",
            expect_test::expect![[r#"
            spec: |
                version: v1alpha1
                machine: {}
        "#]],
        );
        spec_lines(
            "\"quoted: text\"\n",
            expect_test::expect![[r#"
            spec: "quoted: text"
        "#]],
        );
        spec_lines(
            "text: |-\n    a\n\n    b\n",
            expect_test::expect![[r#"
            spec:
                text: |-
                    a

                    b
        "#]],
        );
    }

    #[test]
    fn metadata_is_quoted_only_where_it_could_not_be_read() {
        let mut found = resource("{}\n");
        let metadata = found.metadata.as_mut().unwrap();
        metadata.id = "10.5.0.2/24".into();
        metadata.namespace = "true".into();
        metadata.labels.insert("b".into(), String::new());
        metadata.labels.insert("a".into(), "1".into());
        metadata.finalizers = vec!["network.X".into()];
        expect_test::expect![[r#"
            node: 10.5.0.2
            event: updated
            metadata:
                namespace: true
                type: 
                id: 10.5.0.2/24
                version: 1
                owner:
                phase: running
                created: 1970-01-01T00:00:00Z
                updated: 1970-01-01T00:00:00Z
                labels:
                    a: 1
                    b:
                finalizers:
                    - network.X
            spec: {}
        "#]]
        .assert_eq(&super::yaml("10.5.0.2", &found, Some(EventType::Updated)));
    }

    #[test]
    fn only_the_keys_of_the_columns_are_read() {
        for (expression, key) in [
            ("{.pretty_size}", Some("pretty_size")),
            ("{.hostname}", Some("hostname")),
            ("{.status.ready}", Some("status")),
            ("{.aliases[:]}", Some("aliases")),
            ("{.*}", None),
            ("{range .items[*]}{.a}{end}", None),
            ("x{.a}", None),
            ("{..a}", None),
        ] {
            assert_eq!(first_key(expression).as_deref(), key, "{expression}");
        }
        let yaml = "a: 1\nb:\n    - x: |\n        a: 2\n\n        y\nc: 3\n";
        assert_eq!(only_keys(yaml, &["b".to_owned()]), "b:\n    - x: |\n        a: 2\n\n        y\n");
        assert_eq!(only_keys(yaml, &["a".to_owned(), "c".to_owned()]), "a: 1\nc: 3\n");
        assert_eq!(only_keys("[1, 2]\n", &["a".to_owned()]), "[1, 2]\n");
    }
}
