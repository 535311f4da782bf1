//! The rules a configuration has to keep, beyond the types of its values.

mod cluster;
mod images;
mod kinds;
mod labels;
mod machine;
mod network;
mod runtime_spec;
mod text;
mod volumes;

use std::cmp::Ordering;

use ichor_cel::{Env, Expression, Type};
use ichor_yaml::{Node, Span};

use crate::{
    diagnostic::{Diagnostic, Diagnostics, Severity, Stage},
    document::Document,
    documents::Documents,
    model::{PROBLEMS_MAX, Path},
    v1alpha1,
};

pub use machine::KUBELET_PROTECTED;
pub use text::check_endpoint;

/// What the place a configuration is meant for demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Name for messages.
    pub name: &'static str,
    /// True if the system is installed on a disk there.
    pub requires_install: bool,
    /// True inside a container.
    pub in_container: bool,
}

impl Mode {
    /// Machines with disks to install on.
    pub const METAL: Self = Self { name: "metal", requires_install: true, in_container: false };
    /// Machines that boot an installed image.
    pub const CLOUD: Self = Self { name: "cloud", requires_install: false, in_container: false };
    /// Containers.
    pub const CONTAINER: Self = Self { name: "container", requires_install: false, in_container: true };
    /// Machines that boot an image with an agent.
    pub const METAL_AGENT: Self = Self { name: "metal-agent", requires_install: false, in_container: false };

    /// The mode with a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::METAL, Self::CLOUD, Self::CONTAINER, Self::METAL_AGENT]
            .into_iter()
            .find(|mode| mode.name == name)
    }
}

/// How strict to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValidateOptions {
    /// Treat warnings about the root document as errors.
    pub strict: bool,
    /// Also warn about deprecated keys and name what replaces them.
    pub deprecations: bool,
}

/// Deprecated keys that are told; one more tells how many others there are.
const DEPRECATIONS_MAX: usize = 20;

/// Collects what a document breaks.
pub(crate) struct Report<'a> {
    documents: &'a Documents,
    document: &'a Document,
    /// Cross-document messages carry no title.
    untitled: bool,
    /// Errors that are still shown; one more tells that there are others.
    room: usize,
    pub(crate) errors: Vec<Diagnostic>,
    pub(crate) warnings: Vec<Diagnostic>,
}

impl Report<'_> {
    pub(crate) fn error(&mut self, path: &Path, message: impl Into<String>) {
        self.error_with_help(path, message, None);
    }

    pub(crate) fn error_with_help(&mut self, path: &Path, message: impl Into<String>, help: Option<String>) {
        let (message, help) = match self.errors.len().cmp(&self.room) {
            Ordering::Less => (message.into(), help),
            Ordering::Equal => (format!("more than {PROBLEMS_MAX} problems, the rest is not shown"), None),
            // Finding the place of a problem costs; nobody would see it.
            Ordering::Greater => return,
        };
        let base = Diagnostic::error(Stage::Validate, message);
        let placed = self.place(base, path);
        self.errors.push(Diagnostic { help, ..placed });
    }

    pub(crate) fn warn(&mut self, path: &Path, message: impl Into<String>) {
        let message = match self.warnings.len().cmp(&PROBLEMS_MAX) {
            Ordering::Less => message.into(),
            Ordering::Equal => format!("more than {PROBLEMS_MAX} warnings, the rest is not shown"),
            Ordering::Greater => return,
        };
        let placed = self.place(Diagnostic::warning(message), path);
        self.warnings.push(placed);
    }

    /// Checks an expression; a mistake is shown at its place inside the text.
    pub(crate) fn expression(&mut self, path: &Path, what: &str, text: &str, env: &Env, wanted: &Type) {
        let checked = Expression::parse(text).and_then(|expression| expression.check_type(env, wanted));
        let Err(error) = checked else { return };
        self.error(path, format!("{what} is invalid: {error}"));
        let tree = self.documents.tree_of(self.document);
        let node = tree.and_then(|tree| path.find(tree));
        if let (Some(offset), Some(node), Some(last)) = (error.offset, node, self.errors.last_mut())
            && let Some(span) = inside(node, offset)
        {
            last.span = span;
        }
    }

    fn place(&self, diagnostic: Diagnostic, path: &Path) -> Diagnostic {
        let document = if self.untitled { String::new() } else { self.document.title() };
        let span = self.documents.locate(self.document, path);
        Diagnostic { document, path: path.clone(), span, ..diagnostic }
    }
}

/// The place of a byte of a scalar's text, if the text stands in one line as it is.
fn inside(node: &Node, offset: usize) -> Option<Span> {
    let text = node.as_str().filter(|text| !text.contains('\n'))?;
    let written = (node.span.end as usize).checked_sub(node.span.offset as usize)?;
    let quote = match written.checked_sub(text.len())? {
        0 => 0,
        2 => 1,
        _ => return None,
    };
    let before = text.get(..offset)?;
    let shift = (before.chars().count() + quote) as u32;
    let start = node.span.offset + (offset + quote) as u32;
    Some(Span { column: node.span.column + shift, offset: start, end: start + 1, ..node.span })
}

impl Documents {
    /// Checks the rules for a mode; warnings come back, errors all at once.
    pub fn validate(&self, mode: Mode) -> Result<Vec<Diagnostic>, Diagnostics> {
        self.validate_with(mode, ValidateOptions::default())
    }

    /// Checks the rules for a mode with options.
    pub fn validate_with(
        &self,
        mode: Mode,
        options: ValidateOptions,
    ) -> Result<Vec<Diagnostic>, Diagnostics> {
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        for document in self.iter() {
            if errors.len() > PROBLEMS_MAX {
                break;
            }
            let mut report = self.report(document, errors.len());
            match document {
                Document::Config(config) => machine::check(&mut report, config, mode),
                other => kinds::check(&mut report, other),
            }
            if options.strict && matches!(document, Document::Config(_)) {
                for mut warning in report.warnings.drain(..) {
                    warning.severity = Severity::Error;
                    warning.message = format!("warning: {}", warning.message);
                    report.errors.push(warning);
                }
            }
            errors.append(&mut report.errors);
            warnings.append(&mut report.warnings);
        }
        if let Some(root) = self.root() {
            for document in self.iter() {
                if errors.len() > PROBLEMS_MAX {
                    break;
                }
                let mut report = self.report(document, errors.len());
                report.untitled = true;
                check_against_root(&mut report, document, root);
                errors.append(&mut report.errors);
            }
        }
        if options.deprecations {
            warnings.extend(self.deprecations());
        }
        if errors.is_empty() {
            Ok(warnings)
        } else {
            Err(Diagnostics { items: errors, ..Default::default() })
        }
    }

    fn report<'a>(&'a self, document: &'a Document, before: usize) -> Report<'a> {
        let room = PROBLEMS_MAX.saturating_sub(before);
        Report { documents: self, document, untitled: false, room, errors: Vec::new(), warnings: Vec::new() }
    }
}

/// Settings that may stand in the root document or in a document of their own, but not in both.
fn check_against_root(report: &mut Report<'_>, document: &Document, root: &v1alpha1::Config) {
    let machine = root.machine.as_deref();
    let network = machine.and_then(|machine| machine.network.as_ref());
    let here = Path::root();
    match document {
        Document::HostnameConfig(_) => {
            let features = machine.and_then(|machine| machine.features.as_ref());
            if network.is_some_and(|network| !network.hostname.is_empty()) {
                report.error(&here, "static hostname is already set in v1alpha1 config");
            } else if features.and_then(|features| features.stable_hostname) == Some(true) {
                report.error(&here, "stable hostname is already set in v1alpha1 config");
            }
        }
        Document::ResolverConfig(_) => {
            let Some(network) = network else { return };
            let set = [
                ("searchDomains", !network.search_domains.is_empty()),
                ("nameservers", !network.nameservers.is_empty()),
                ("disableSearchDomain", network.disable_search_domain == Some(true)),
            ];
            if let Some((key, _)) = set.iter().find(|(_, set)| *set) {
                report.error(&here, format!(".machine.network.{key} is already set in v1alpha1 config"));
            }
        }
        Document::TimeSyncConfig(_) => {
            let Some(time) = machine.and_then(|machine| machine.time.as_ref()) else { return };
            let both = "in both v1alpha1 and new-style configuration";
            if time.disabled == Some(true) {
                report.error(&here, format!("time sync cannot be disabled {both}"));
            } else if !time.servers.is_empty() {
                report.error(&here, format!("time servers cannot be specified {both}"));
            } else if !time.boot_timeout.is_zero() {
                report.error(&here, format!("boot timeout cannot be specified {both}"));
            }
        }
        Document::VolumeConfig(volume) => {
            let legacy = machine.and_then(|machine| machine.system_disk_encryption.as_ref());
            let legacy = legacy.and_then(|encryption| match volume.name.as_str() {
                "STATE" => encryption.state.as_ref(),
                "EPHEMERAL" => encryption.ephemeral.as_ref(),
                _ => None,
            });
            if legacy.is_some() && !volume.encryption.is_absent() {
                let name = &volume.name;
                let message = "is configured in both v1alpha1.Config and VolumeConfig";
                report
                    .error(&here.key("encryption"), format!("system disk encryption for {name:?} {message}"));
            }
        }
        _ => {}
    }
}

impl Documents {
    /// Warnings about keys that have been superseded, each naming what to use instead. What stands below such a
    /// key goes with it and is not told again.
    pub fn deprecations(&self) -> Vec<Diagnostic> {
        let (mut found, mut others) = (Vec::new(), 0);
        for entry in &self.items {
            let (Document::Config(_), Some(tree)) = (&entry.document, &entry.tree) else { continue };
            let title = entry.document.title();
            let mut note = |path: &Path, span, instead: &str| {
                if found.len() == DEPRECATIONS_MAX {
                    others += 1;
                    return;
                }
                let message = format!("{path} is deprecated: {instead}");
                let base = Diagnostic::warning(message);
                found.push(Diagnostic { document: title.clone(), path: path.clone(), span, ..base });
            };
            walk_deprecated(tree, &v1alpha1::Config::INFO, &Path::root(), &mut note);
        }
        if others > 0 {
            found.push(Diagnostic::warning(format!("{others} more deprecated keys are not shown")));
        }
        found
    }
}

fn walk_deprecated(
    node: &Node,
    info: &crate::model::ObjectInfo,
    path: &Path,
    note: &mut impl FnMut(&Path, Span, &str),
) {
    use crate::model::Shape;
    for (key, value) in node.as_map().unwrap_or_default() {
        let Some(field) = key.as_str().and_then(|key| info.field(key)) else { continue };
        let at = path.key(field.key);
        // Every generated configuration has this one; telling people about it would be telling them off.
        if field.key == "persist" {
            continue;
        }
        if let Some(instead) = field.deprecated() {
            note(&at, key.span, instead);
            continue;
        }
        match (field.shape)() {
            Shape::Object(inner) => walk_deprecated(value, inner, &at, note),
            Shape::List(item, _) => {
                let Shape::Object(inner) = *item else { continue };
                for (i, item) in value.as_seq().unwrap_or_default().iter().enumerate() {
                    walk_deprecated(item, inner, &at.index(i), note);
                }
            }
            _ => {}
        }
    }
}
