//! All documents of a configuration: load, look up, encode.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ichor_yaml::{Limits, Node, Span, Value};

use crate::{
    diagnostic::{Diagnostic, Diagnostics, Stage},
    document::{self, API_VERSION, Document, DocumentId, ROOT_KIND},
    model::{Decoder, PROBLEMS_MAX, Path},
    v1alpha1,
};

/// A machine configuration: the root document first, then the others in their order.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    pub(crate) items: Vec<Entry>,
    source: Option<Arc<[u8]>>,
}

/// A document with the tree it was read from.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) document: Document,
    pub(crate) tree: Option<Arc<Node>>,
}

impl PartialEq for Documents {
    /// Equal values; comments and formatting do not matter.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// How much of the documentation is written along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommentMode {
    /// None.
    #[default]
    None,
    /// A short description per key.
    Docs,
    /// Sample values of keys that are not set.
    Examples,
    /// Both.
    All,
}

impl Documents {
    /// Reads a configuration; all errors come at once, each with its place.
    pub fn load(bytes: &[u8]) -> Result<Self, Diagnostics> {
        let text = utf8(bytes)?;
        let trees = parse(text)?;
        if trees.is_empty() {
            return Err(no_documents());
        }
        let mut documents = Self::from_trees(trees)?;
        documents.source = Some(bytes.into());
        Ok(documents)
    }

    /// Reads documents from trees.
    pub(crate) fn from_trees(trees: Vec<Node>) -> Result<Self, Diagnostics> {
        let mut problems = Diagnostics::default();
        let mut items: Vec<Entry> = Vec::new();
        let mut seen: HashSet<DocumentId> = HashSet::new();
        for tree in trees {
            if problems.items.len() > PROBLEMS_MAX {
                break;
            }
            if let Some(entry) = read_document(tree, &mut seen, &mut problems) {
                items.push(entry);
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Self::assemble(items)
    }

    /// A configuration made by code.
    pub fn new(documents: Vec<Document>) -> Result<Self, Diagnostics> {
        Self::assemble(documents.into_iter().map(|document| Entry { document, tree: None }).collect())
    }

    /// Puts the root document first and checks that the documents can stand together.
    pub(crate) fn assemble(mut items: Vec<Entry>) -> Result<Self, Diagnostics> {
        items.sort_by_key(|entry| !matches!(entry.document, Document::Config(_)));
        let mut problems = Diagnostics::default();
        let mut seen: HashSet<(&str, &str)> = HashSet::new();
        let mut exclusive: HashMap<(usize, &str), &str> = HashMap::new();
        for entry in &items {
            let (kind, name) = (entry.document.kind(), entry.document.name());
            let group = document::exclusive_group(kind);
            let rival = group.and_then(|group| exclusive.insert((group, name), kind));
            let message = if !seen.insert((kind, name)) {
                match kind {
                    ROOT_KIND => Some("duplicate v1alpha1.Config".to_owned()),
                    kind => Some(format!("duplicate document: {kind}/{name}")),
                }
            } else {
                rival.map(|other| format!("conflicting documents: {other}/{name} and {kind}/{name}"))
            };
            if let Some(message) = message {
                let span = entry.tree.as_ref().map_or(Span::NONE, |tree| tree.span);
                let base = Diagnostic::error(Stage::Stream, message);
                problems.items.push(Diagnostic { span, document: entry.document.title(), ..base });
            }
        }
        if problems.is_empty() { Ok(Self { items, source: None }) } else { Err(problems) }
    }

    /// The documents in order.
    pub fn iter(&self) -> impl Iterator<Item = &Document> {
        self.items.iter().map(|entry| &entry.document)
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there is no document.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The root document.
    pub fn root(&self) -> Option<&v1alpha1::Config> {
        self.iter().find_map(|document| match document {
            Document::Config(config) => Some(&**config),
            _ => None,
        })
    }

    /// The root document, for changes; the original text is forgotten.
    pub fn root_mut(&mut self) -> Option<&mut v1alpha1::Config> {
        self.forget_source();
        self.items.iter_mut().find_map(|entry| match &mut entry.document {
            Document::Config(config) => Some(&mut **config),
            _ => None,
        })
    }

    /// True if a machine can boot with it: the root document is there.
    pub fn is_complete(&self) -> bool {
        self.root().is_some()
    }

    /// The document with an identity.
    pub fn get(&self, kind: &str, name: &str) -> Option<&Document> {
        self.iter().find(|document| document.kind() == kind && document.name() == name)
    }

    /// The documents of a kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Document> {
        self.iter().filter(move |document| document.kind() == kind)
    }

    /// The text this was loaded from, if it has not been changed since.
    pub fn source(&self) -> Option<&[u8]> {
        self.source.as_deref()
    }

    /// The bytes to store: the original text with its comments if there is one, else the encoding.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.source {
            Some(source) => source.to_vec(),
            None => self.encode(CommentMode::None).into_bytes(),
        }
    }

    /// Writes the configuration anew.
    pub fn encode(&self, comments: CommentMode) -> String {
        let nodes: Vec<Node> = match comments {
            CommentMode::None => self.iter().map(Document::encode).collect(),
            mode => self.iter().map(|document| crate::comments::annotate(document, mode)).collect(),
        };
        ichor_yaml::emit_all(&nodes)
    }

    pub(crate) fn forget_source(&mut self) {
        self.source = None;
        for entry in &mut self.items {
            entry.tree = None;
        }
    }

    /// Changes documents in place; the original text is forgotten.
    pub(crate) fn documents_mut(&mut self) -> impl Iterator<Item = &mut Document> {
        self.forget_source();
        self.items.iter_mut().map(|entry| &mut entry.document)
    }
}

/// The error of a text without documents; it stands at the start, where the first should be.
pub(crate) fn no_documents() -> Diagnostics {
    Diagnostics::single(Diagnostic {
        span: Span::START,
        ..Diagnostic::error(Stage::Stream, "config not found")
    })
}

/// Checks that bytes are text.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, Diagnostics> {
    std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let line = good.iter().filter(|b| **b == b'\n').count() as u32 + 1;
        let start = good.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&good[start..]).chars().count() as u32 + 1;
        let offset = good.len() as u32;
        let span = Span { line, column, offset, end: offset + 1 };
        let message = format!("yaml: line {line}: invalid UTF-8");
        Diagnostics::single(Diagnostic { span, ..Diagnostic::error(Stage::Syntax, message) })
    })
}

/// Parses a stream into its trees.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, Diagnostics> {
    match ichor_yaml::parse_with(text, Limits::default()) {
        Ok(documents) => Ok(documents.into_iter().map(|document| document.root).collect()),
        Err(error) => {
            let base = Diagnostic::error(Stage::Syntax, error.to_string());
            Err(Diagnostics::single(Diagnostic { span: error.span, ..base }))
        }
    }
}

/// The identity that a tree claims to have.
pub(crate) fn claimed_id(tree: &Node) -> DocumentId {
    let text = |key: &str| tree.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
    let kind = text("kind");
    let kind = if kind.is_empty() && is_root(tree) { ROOT_KIND.to_owned() } else { kind };
    DocumentId { api_version: text("apiVersion"), kind, name: text("name") }
}

fn is_root(tree: &Node) -> bool {
    ["machine", "cluster", "debug", "persist"].iter().any(|key| tree.get(key).is_some())
}

fn read_document(tree: Node, seen: &mut HashSet<DocumentId>, problems: &mut Diagnostics) -> Option<Entry> {
    let mut fail = |span: Span, message: String, help: Option<String>| {
        problems.items.push(Diagnostic { span, help, ..Diagnostic::error(Stage::Stream, message) });
    };
    let Some(entries) = tree.as_map() else {
        fail(tree.span, "recovered: expected a mapping node".to_owned(), None);
        return None;
    };
    let id = claimed_id(&tree);
    if !seen.insert(id.clone()) {
        let DocumentId { api_version, kind, name } = &id;
        fail(tree.span, format!("duplicate document {api_version}/{kind}/{name} is not allowed"), None);
        return None;
    }
    let written_kind = tree.get("kind").and_then(Node::as_str).unwrap_or_default();
    if id.kind.is_empty() {
        let help = "a document has `apiVersion` and `kind`, or one of machine, cluster, debug, persist";
        fail(tree.span, "missing kind".to_owned(), Some(help.to_owned()));
        return None;
    }
    let known = document::kind_info(&id.kind).is_some();
    let registered = match written_kind {
        "" => true,
        _ => known && id.api_version == API_VERSION,
    };
    if !registered {
        let span = tree.entry("kind").map_or(tree.span, |(_, value)| value.span);
        let help = if known {
            Some(format!("the API version of {} is {API_VERSION}", id.kind))
        } else {
            crate::suggest::did_you_mean(&id.kind, document::KINDS.iter().map(|info| info.kind))
        };
        fail(span, format!("{:?} {:?}: not registered", id.kind, id.api_version), help);
        return None;
    }
    let body = (!written_kind.is_empty()).then(|| {
        let own = entries.iter().filter(|(key, _)| !matches!(key.as_str(), Some("apiVersion" | "kind")));
        Node { value: Value::Map(own.cloned().collect()), span: tree.span, comments: None }
    });
    let mut decoder = Decoder::default();
    let document = Document::decode_kind(&id.kind, body.as_ref().unwrap_or(&tree), &mut decoder)?;
    if decoder.problems.is_empty() {
        return Some(Entry { document, tree: Some(Arc::new(tree)) });
    }
    let title = document.title();
    for mut problem in decoder.problems {
        problem.document.clone_from(&title);
        if !problem.span.is_known() {
            problem.span = problem.path.locate(&tree);
        }
        problems.items.push(problem);
    }
    problems.unknown.extend(decoder.unknown);
    None
}

impl Documents {
    /// The tree a document was read from.
    pub(crate) fn tree_of(&self, document: &Document) -> Option<&Node> {
        let entry = self.items.iter().find(|entry| std::ptr::eq(&entry.document, document))?;
        entry.tree.as_deref()
    }

    /// Where in the text a path of a document is.
    pub fn locate(&self, document: &Document, path: &Path) -> Span {
        let entry = self.items.iter().find(|entry| std::ptr::eq(&entry.document, document));
        entry.and_then(|entry| entry.tree.as_ref()).map_or(Span::NONE, |tree| path.locate(tree))
    }
}
