//! Resources in every output format.

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
    Table { table: Table, display_type: String, columns: Vec<ichor_jsonpath::Path> },
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
                    columns: columns.collect::<Result<_, _>>()?,
                }
            }
            Format::Yaml => Shape::Yaml { started: false },
            Format::Json => Shape::Json,
            Format::JsonPath(expression) => Shape::JsonPath(path(expression)?),
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
                let found = path.text(&object(node, resource, event)?).context("evaluate jsonpath")?;
                Ok(format!("{found}\n"))
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

fn path(expression: &str) -> Result<ichor_jsonpath::Path, Failure> {
    let path = ichor_jsonpath::Path::parse(expression).context(format!("jsonpath \"{expression}\""))?;
    Ok(path.allow_missing_keys())
}

fn cells(
    node: &str,
    resource: &Resource,
    event: Option<EventType>,
    display_type: &str,
    columns: &[ichor_jsonpath::Path],
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
    if columns.is_empty() {
        return Ok(cells);
    }
    let spec = spec_value(resource)?;
    for column in columns {
        cells.push(column.text(&spec).unwrap_or_default());
    }
    Ok(cells)
}

fn spec_value(resource: &Resource) -> Result<Value, Failure> {
    json::from_yaml_text(yaml_of(resource)).context("read the resource's spec")
}

/// The object behind JSON output and paths.
pub fn object(node: &str, resource: &Resource, event: Option<EventType>) -> Result<Value, Failure> {
    let text = yaml(node, resource, event);
    Ok(json::sorted(json::from_yaml_text(&text).context("read the resource")?))
}

/// A resource as a YAML document, without the line between documents.
pub fn yaml(node: &str, resource: &Resource, event: Option<EventType>) -> String {
    let mut out = format!("node: {}\n", scalar(node));
    if let Some(event) = event {
        let _ = writeln!(out, "event: {}", event_name(event));
    }
    push_metadata(&mut out, resource.metadata.as_ref().unwrap_or(&Metadata::default()));
    push_spec(&mut out, yaml_of(resource));
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
    let owner =
        if metadata.owner.is_empty() { String::new() } else { format!(" {}", scalar(&metadata.owner)) };
    let _ = write!(
        out,
        "metadata:\n    namespace: {}\n    type: {}\n    id: {}\n    version: {}\n    owner:{owner}\n    phase: {}\n",
        scalar(&metadata.namespace),
        scalar(&metadata.r#type),
        scalar(&metadata.id),
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
            let _ = writeln!(out, "        {}: {}", scalar(name), scalar(value));
        }
    }
    if !metadata.finalizers.is_empty() {
        out.push_str("    finalizers:\n");
        for finalizer in &metadata.finalizers {
            let _ = writeln!(out, "        - {}", scalar(finalizer));
        }
    }
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
