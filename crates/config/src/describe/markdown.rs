//! Reference pages: one per document, written from the descriptions.

use super::all_kinds;
use crate::{
    document::{API_VERSION, ROOT_KIND},
    model::{FieldInfo, ListMerge, ObjectInfo, Shape},
};

/// A reference page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// File name.
    pub file: String,
    /// The text.
    pub text: String,
}

/// How the schema differs from the published one of the original.
const SCHEMA: &str = "
## The JSON schema

`ichorctl config schema` prints a schema of all documents, for editors. It has the keys of the original's published
schema. Where the two differ, ours says what is really read:

| Key | Difference |
| --- | --- |
| every deprecated key and what is below | missing there although other keys are forbidden; here, marked as deprecated |
| `KubeSpanEndpointsConfig` with `extraAnnouncedEndpoints` | the kind is called `KubeSpanEndpoints` there |
| `RegistryTLSConfig`: `clientIdentity.cert` | called `clientIdentity.crt` there |
| `machine.acceptedCAs[].crt`, `cluster.acceptedCAs[].crt` | an object there: `machine.acceptedCAs.crt`, `cluster.acceptedCAs.crt` |
| `cluster.apiServer.resources.requests`, `cluster.apiServer.resources.limits`, and the same of `cluster.controllerManager.resources.requests`, `cluster.controllerManager.resources.limits`, `cluster.scheduler.resources.requests`, `cluster.scheduler.resources.limits` | left open there |
| texts with a fixed set of values | any text there; here they are listed |
";

/// All pages: an index and one page per document.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let mut index = "# Machine configuration\n\nA configuration is a stream of YAML documents. These pages are written \
                     from the descriptions in `crates/config`; do not edit them.\n\n| Document | What it is for |\n| --- \
                     | --- |\n"
        .to_owned();
    for (kind, object, named) in all_kinds() {
        let title = title(kind);
        let summary = object.doc.lines().next().unwrap_or_default().trim();
        index.push_str(&format!("| [{title}]({}) | {summary} |\n", file(kind)));
        pages.push(Page { file: file(kind), text: page(kind, object, named) });
    }
    index.push_str(SCHEMA);
    pages.insert(0, Page { file: "README.md".to_owned(), text: index });
    pages
}

fn title(kind: &str) -> &str {
    if kind == ROOT_KIND { "Root document" } else { kind }
}

fn file(kind: &str) -> String {
    format!("{}.md", kind.to_lowercase())
}

fn page(kind: &str, object: &'static ObjectInfo, named: bool) -> String {
    let mut out = format!("# {}\n\n{}\n\n", title(kind), paragraph(object.doc));
    if kind != ROOT_KIND {
        let name = if named { "\nname: …" } else { "" };
        out.push_str(&format!("```yaml\napiVersion: {API_VERSION}\nkind: {kind}{name}\n```\n\n"));
    }
    table(&mut out, object);
    let mut seen: Vec<*const ObjectInfo> = Vec::new();
    sections(&mut out, object, "", &mut seen);
    out
}

/// Sections of everything below an object; a type that was described before is only pointed at.
fn sections(out: &mut String, object: &'static ObjectInfo, prefix: &str, seen: &mut Vec<*const ObjectInfo>) {
    for field in object.fields {
        let mut path =
            if prefix.is_empty() { field.key.to_owned() } else { format!("{prefix}.{}", field.key) };
        let mut shape = (field.shape)();
        let inner = loop {
            shape = match shape {
                Shape::List(item, _) => {
                    path.push_str("[]");
                    *item
                }
                Shape::Map(value) => {
                    path.push_str(".*");
                    *value
                }
                Shape::Object(inner) => break Some(inner),
                _ => break None,
            };
        };
        let Some(inner) = inner.filter(|inner| !inner.fields.is_empty()) else { continue };
        out.push_str(&format!("\n## `{path}`\n\n{}\n\n", paragraph(inner.doc)));
        table(out, inner);
        if !seen.contains(&std::ptr::from_ref(inner)) {
            seen.push(inner);
            sections(out, inner, &path, seen);
        }
    }
}

fn table(out: &mut String, object: &ObjectInfo) {
    out.push_str("| Key | Type | Default | Meaning |\n| --- | --- | --- | --- |\n");
    for field in object.fields {
        let key = match field.deprecated() {
            Some(_) => format!("~~`{}`~~", field.key),
            None => format!("`{}`", field.key),
        };
        let default = field.flag("default").map(|default| format!("`{default}`")).unwrap_or_default();
        out.push_str(&format!(
            "| {key} | {} | {default} | {} |\n",
            type_name(&(field.shape)()),
            meaning(field)
        ));
    }
}

fn meaning(field: &FieldInfo) -> String {
    let mut text = paragraph(field.doc).replace('\n', " ").replace('|', "\\|");
    if let Some(instead) = field.deprecated() {
        text.push_str(&format!(" Deprecated: {}.", instead.replace('|', "\\|")));
    }
    match (field.shape)() {
        Shape::List(_, ListMerge::Replace) => text.push_str(" A patch replaces the list."),
        Shape::List(_, ListMerge::ByKey(key)) => {
            text.push_str(&format!(" A patch merges items with the same {key}."));
        }
        _ => {}
    }
    text
}

fn type_name(shape: &Shape) -> String {
    match shape {
        Shape::Choice(texts) => {
            let texts = texts.iter().filter(|text| !text.is_empty());
            texts.map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
        }
        Shape::Object(_) => "object".to_owned(),
        Shape::List(item, _) => format!("list of {}", type_name(item)),
        Shape::Map(value) => format!("map of {}", type_name(value)),
        other => other.name(),
    }
}

fn paragraph(doc: &str) -> String {
    doc.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned()
}
