//! What a key means: `explain machine.network.interfaces`.

use std::fmt;

use super::{kind_object, object_of};
use crate::{
    document::{KINDS, ROOT_KIND},
    model::{FieldInfo, ListMerge, ObjectInfo, Shape},
    v1alpha1,
};

/// What is known about a key or a document.
#[derive(Debug)]
pub struct Explanation {
    /// The path as asked for.
    pub path: String,
    /// The key; nothing for a whole document.
    pub field: Option<&'static FieldInfo>,
    /// What is below it.
    pub object: Option<&'static ObjectInfo>,
    shape: Option<Shape>,
}

/// A path that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key {key:?} in {parent}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct UnknownPath {
    /// The part that does not exist.
    pub key: String,
    /// Where it was looked for.
    pub parent: String,
    /// What may have been meant.
    pub hint: Option<String>,
}

/// Explains a path: keys of the root document, or a kind and its keys. List indices and map keys are skipped.
pub fn explain(path: &str) -> Result<Explanation, UnknownPath> {
    let mut parts = split(path).into_iter().peekable();
    let mut object: &'static ObjectInfo = &v1alpha1::Config::INFO;
    let mut parent = "the root document".to_owned();
    if let Some(first) = parts.peek()
        && let Some(info) = kind_object(first).filter(|_| first != ROOT_KIND || path == ROOT_KIND)
    {
        object = info;
        parent.clone_from(first);
        parts.next();
    }
    let mut found = Explanation { path: path.to_owned(), field: None, object: Some(object), shape: None };
    let mut in_map = false;
    for part in parts {
        // Below a map any name is an entry of it.
        if std::mem::take(&mut in_map) {
            continue;
        }
        let fields = found.object.map_or(&[][..], |object| object.fields);
        let Some(field) = fields.iter().find(|field| field.key == part) else {
            let kinds = KINDS.iter().map(|info| info.kind).filter(|_| found.field.is_none());
            let known = fields.iter().map(|field| field.key).chain(kinds);
            let hint = crate::suggest::did_you_mean(&part, known);
            return Err(UnknownPath { key: part, parent, hint });
        };
        let shape = (field.shape)();
        in_map = matches!(shape, Shape::Map(_));
        found.object = object_of(&shape);
        found.shape = Some(shape);
        found.field = Some(field);
        parent.clone_from(&part);
    }
    Ok(found)
}

/// Splits at dots and drops list indices.
fn split(path: &str) -> Vec<String> {
    let parts = path.trim_start_matches('.').split('.').map(|part| part.split('[').next().unwrap_or(part));
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "KEY:     {}", self.path)?;
        if let Some(shape) = &self.shape {
            writeln!(f, "TYPE:    {}", shape.name())?;
        }
        if let Some(field) = self.field {
            if let Some(default) = field.flag("default") {
                writeln!(f, "DEFAULT: {default}")?;
            }
            if let Some(instead) = field.deprecated() {
                writeln!(f, "DEPRECATED: {instead}")?;
            }
        }
        if let Some(Shape::List(_, merge)) = &self.shape {
            let text = match merge {
                ListMerge::Append => "a patch appends to this list".to_owned(),
                ListMerge::Replace => "a patch replaces this list".to_owned(),
                ListMerge::ByKey(key) => {
                    format!("a patch merges items with the same {key}, others are appended")
                }
            };
            writeln!(f, "PATCH:   {text}")?;
        }
        let doc =
            self.field.map(|field| field.doc).or(self.object.map(|object| object.doc)).unwrap_or_default();
        writeln!(f)?;
        for line in doc.lines() {
            writeln!(f, "{}", format!("    {}", line.trim()).trim_end())?;
        }
        if let Some(example) = self.field.and_then(|field| field.flag("example")) {
            writeln!(f, "\nEXAMPLE:")?;
            for line in example.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        if let Some(object) = self.object.filter(|object| !object.fields.is_empty()) {
            writeln!(f, "\nKEYS:")?;
            let width = object.fields.iter().map(|field| field.key.len()).max().unwrap_or(0);
            for field in object.fields {
                let old = if field.deprecated().is_some() { " (deprecated)" } else { "" };
                writeln!(f, "    {:width$}  {}{old}", field.key, field.summary())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn keys_are_explained_from_their_description() {
        let text = explain("machine.network.interfaces[0].dhcpOptions").unwrap().to_string();
        expect![[r#"
            KEY:     machine.network.interfaces[0].dhcpOptions
            TYPE:    DhcpOptions

                Details of DHCP.

            KEYS:
                routeMetric  Metric of the routes that DHCP gives.
                ipv4         Ask for an IPv4 address.
                ipv6         Ask for an IPv6 address.
                duidv6       Identifier of this client for IPv6, in hex.
        "#]]
        .assert_eq(&text);
        let text = explain("HostnameConfig.auto").unwrap().to_string();
        assert!(text.contains("off | talos-addr | stable"), "{text}");
        assert!(explain("machine.registries.mirrors.ghcr.endpoints").is_ok());
    }

    #[test]
    fn unknown_paths_come_with_a_guess() {
        let error = explain("machine.network.interfaces.dhpc").unwrap_err();
        assert_eq!(error.to_string(), "no key \"dhpc\" in interfaces; did you mean \"dhcp\"?");
        let error = explain("HostnamConfig").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no key \"HostnamConfig\" in the root document; did you mean \"HostnameConfig\"?"
        );
    }

    #[test]
    fn completion_knows_what_comes_next() {
        assert_eq!(super::super::complete("machine.net"), ["network"]);
        assert_eq!(super::super::complete("HostnameConfig."), ["auto", "hostname"]);
        assert!(super::super::complete("").contains(&"HostnameConfig"));
    }
}
