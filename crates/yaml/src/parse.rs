//! From text to trees: events of the parser below, aliases and merge keys expanded within a budget.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, StructureStyle, Tag};

use crate::{
    error::{Error, ErrorKind},
    node::{Document, Node, Scalar, Span, Style, Value},
    resolve::Resolved,
    tabs::Tabs,
};

/// Bounds on what is read; everything beyond is an error with a position.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of text.
    pub bytes: usize,
    /// Nested collections.
    pub depth: usize,
    /// Values in the whole stream, expanded aliases included.
    pub nodes: usize,
    /// Values that come out of aliases; anchors may keep as many again.
    pub alias_nodes: usize,
    /// Bytes of text that anchors keep and aliases bring in.
    pub alias_bytes: usize,
}

impl Default for Limits {
    /// Room for any real configuration (a large one has a few thousand values), little for a bomb.
    fn default() -> Self {
        Self { bytes: 16 << 20, depth: 128, nodes: 100_000, alias_nodes: 50_000, alias_bytes: 8 << 20 }
    }
}

/// Parses a stream with the default limits.
pub fn parse(text: &str) -> Result<Vec<Document>, Error> {
    parse_with(text, Limits::default())
}

/// Parses a stream within limits.
pub fn parse_with(text: &str, limits: Limits) -> Result<Vec<Document>, Error> {
    if text.len() > limits.bytes {
        let kind = ErrorKind::TooLong { actual: text.len(), limit: limits.bytes };
        return Err(Error::new(kind, Span::START));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    // The builder has the tighter bound and the better message; these only keep the parser itself in check.
    options.flow_nesting_limit = limits.depth + 1;
    options.block_nesting_limit = limits.depth + 1;
    let mut builder = Builder::new(limits);
    let mut tabs = Tabs::of(text);
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|error| {
            let mark = error.marker();
            let offset = mark.byte_offset().unwrap_or(0) as u32;
            let span = Span { line: mark.line() as u32, column: mark.col() as u32 + 1, offset, end: offset };
            Error::new(ErrorKind::Syntax(error.info()), span)
        })?;
        if let Some(tabs) = &mut tabs {
            note_tabs(tabs, &event, place(&span));
        }
        builder.event(event, place(&span))?;
    }
    tabs.map_or(Ok(()), |tabs| tabs.check())?;
    Ok(builder.documents)
}

fn note_tabs(tabs: &mut Tabs<'_>, event: &Event<'_>, span: Span) {
    match event {
        Event::Scalar(..) => tabs.scalar(span),
        Event::SequenceStart(style, ..) | Event::MappingStart(style, ..) => {
            tabs.open(*style == StructureStyle::Flow, span);
        }
        Event::SequenceEnd | Event::MappingEnd => tabs.close(span),
        _ => {}
    }
}

fn place(span: &granit_parser::Span) -> Span {
    Span {
        line: span.start.line() as u32,
        column: span.start.col() as u32 + 1,
        offset: span.start.byte_offset().unwrap_or(0) as u32,
        end: span.end.byte_offset().unwrap_or(0) as u32,
    }
}

/// A collection under construction.
enum Open {
    Seq { items: Vec<Node>, span: Span, anchor: usize },
    Map { entries: Vec<(Node, Node)>, key: Option<Node>, span: Span, anchor: usize },
}

struct Builder {
    limits: Limits,
    documents: Vec<Document>,
    stack: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    alias_nodes: usize,
    anchor_nodes: usize,
    copied_bytes: usize,
}

impl Builder {
    fn new(limits: Limits) -> Self {
        let (documents, stack, anchors) = (Vec::new(), Vec::new(), HashMap::new());
        let (nodes, alias_nodes, anchor_nodes, copied_bytes) = (0, 0, 0, 0);
        Self { limits, documents, stack, root: None, anchors, nodes, alias_nodes, anchor_nodes, copied_bytes }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Error> {
        match event {
            Event::DocumentStart(..) => {
                self.root = None;
                self.anchors.clear();
                Ok(())
            }
            Event::DocumentEnd => {
                let root = self.root.take().unwrap_or_else(|| null_at(span));
                self.documents.push(Document { root });
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, span)?;
                let scalar = Scalar {
                    text: text.into_owned(),
                    style: match style {
                        ScalarStyle::Plain => Style::Plain,
                        ScalarStyle::SingleQuoted => Style::SingleQuoted,
                        ScalarStyle::DoubleQuoted => Style::DoubleQuoted,
                        ScalarStyle::Literal => Style::Literal,
                        ScalarStyle::Folded => Style::Folded,
                    },
                    tag: tag.as_deref().map(short_tag),
                };
                let node = Node { value: Value::Scalar(scalar), span, comments: None };
                self.finish(node, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(Open::Seq { items: Vec::new(), span, anchor }, span)
            }
            Event::MappingStart(_, anchor, _) => {
                self.open(Open::Map { entries: Vec::new(), key: None, span, anchor }, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            Event::Alias(id) => {
                // An anchor is known once its node is complete; until then it is inside itself.
                let target = self.anchors.get(&id).ok_or_else(|| Error::new(ErrorKind::Cycle, span))?;
                let size = Size::of(target);
                self.alias_nodes += size.nodes;
                self.copied_bytes += size.bytes;
                self.check_copies(span)?;
                let target = target.clone();
                self.count(size.nodes, span)?;
                self.finish(target, 0)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, more: usize, span: Span) -> Result<(), Error> {
        self.nodes += more;
        if self.nodes > self.limits.nodes {
            return Err(Error::new(ErrorKind::TooManyNodes(self.limits.nodes), span));
        }
        Ok(())
    }

    /// Fails before a copy is made that would be too much.
    fn check_copies(&self, span: Span) -> Result<(), Error> {
        let Limits { alias_nodes, alias_bytes, .. } = self.limits;
        let most_nodes = self.alias_nodes.max(self.anchor_nodes);
        if most_nodes > alias_nodes || self.copied_bytes > alias_bytes {
            return Err(Error::new(ErrorKind::ExcessiveAliasing, span));
        }
        Ok(())
    }

    fn open(&mut self, open: Open, span: Span) -> Result<(), Error> {
        self.count(1, span)?;
        if self.stack.len() >= self.limits.depth {
            return Err(Error::new(ErrorKind::TooDeep(self.limits.depth), span));
        }
        self.stack.push(open);
        Ok(())
    }

    fn close(&mut self, end: Span) -> Result<(), Error> {
        match self.stack.pop() {
            Some(Open::Seq { items, span, anchor }) => {
                let span = Span { end: end.end.max(span.end), ..span };
                self.finish(Node { value: Value::Seq(items), span, comments: None }, anchor)
            }
            Some(Open::Map { entries, span, anchor, .. }) => {
                let span = Span { end: end.end.max(span.end), ..span };
                let entries = expand_merges(entries)?;
                self.finish(Node { value: Value::Map(entries), span, comments: None }, anchor)
            }
            None => Ok(()),
        }
    }

    /// Hands a complete node to the collection it is in.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Error> {
        if anchor != 0 {
            let size = Size::of(&node);
            self.anchor_nodes += size.nodes;
            self.copied_bytes += size.bytes;
            self.check_copies(node.span)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::Seq { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                None => *key = Some(node),
                Some(name) => entries.push((name, node)),
            },
        }
        Ok(())
    }
}

fn null_at(span: Span) -> Node {
    let scalar = Scalar { text: String::new(), style: Style::Plain, tag: None };
    Node { value: Value::Scalar(scalar), span, comments: None }
}

fn short_tag(tag: &Tag) -> Box<str> {
    match tag.core_suffix() {
        Some(suffix) => format!("!!{suffix}").into(),
        None if tag.handle() == "tag:yaml.org,2002:" => format!("!!{}", tag.suffix()).into(),
        None => tag.original().into(),
    }
}

/// What a copy of a tree costs.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    fn of(node: &Node) -> Self {
        let mut size = Self::default();
        size.add(node);
        size
    }

    fn add(&mut self, node: &Node) {
        self.nodes += 1;
        match &node.value {
            Value::Scalar(scalar) => {
                self.bytes += scalar.text.len() + scalar.tag.as_ref().map_or(0, |tag| tag.len());
            }
            Value::Seq(items) => items.iter().for_each(|item| self.add(item)),
            Value::Map(entries) => entries.iter().for_each(|(key, value)| {
                self.add(key);
                self.add(value);
            }),
        }
    }
}

/// Checks for repeated keys and replaces `<<` entries by the entries they bring in.
fn expand_merges(entries: Vec<(Node, Node)>) -> Result<Vec<(Node, Node)>, Error> {
    check_duplicates(&entries)?;
    let is_merge = |key: &Node| key.as_scalar().is_some_and(|s| s.resolve() == Resolved::Merge);
    if !entries.iter().any(|(key, _)| is_merge(key)) {
        return Ok(entries);
    }
    let (merges, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(key, _)| is_merge(key));
    let mut known: HashSet<String> =
        own.iter().filter_map(|(key, _)| key.as_str()).map(str::to_owned).collect();
    for (_, value) in merges {
        let sources = match value.value {
            Value::Map(_) => vec![value],
            Value::Seq(items) => items,
            Value::Scalar(_) => return Err(Error::new(ErrorKind::BadMerge, value.span)),
        };
        for source in sources {
            let Value::Map(more) = source.value else {
                return Err(Error::new(ErrorKind::BadMerge, source.span));
            };
            for (key, value) in more {
                if key.as_str().is_none_or(|text| known.insert(text.to_owned())) {
                    own.push((key, value));
                }
            }
        }
    }
    Ok(own)
}

/// Mappings up to this size are compared key by key, which is quicker than a table.
const FEW: usize = 12;

fn check_duplicates(entries: &[(Node, Node)]) -> Result<(), Error> {
    if entries.len() <= FEW {
        for (i, (key, _)) in entries.iter().enumerate() {
            let Some(text) = key.as_str() else { continue };
            let twin = entries[..i].iter().rev().find(|(other, _)| other.as_str() == Some(text));
            if let Some((first, _)) = twin {
                let kind = ErrorKind::DuplicateKey { key: text.to_owned(), first_line: first.span.line };
                return Err(Error::new(kind, key.span));
            }
        }
        return Ok(());
    }
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (key, _) in entries {
        let Some(text) = key.as_str() else { continue };
        if let Some(first_line) = seen.insert(text, key.span.line) {
            let kind = ErrorKind::DuplicateKey { key: text.to_owned(), first_line };
            return Err(Error::new(kind, key.span));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Expect) {
        let got = match parse(text) {
            Ok(documents) => documents.iter().map(|d| format!("{:?}\n", d.root)).collect(),
            Err(error) => format!("{error} (column {})", error.span.column),
        };
        expect.assert_eq(&got);
    }

    #[test]
    fn every_value_knows_its_place() {
        check(
            "a: 1\nb:\n  - x\n  - y: z\n",
            expect![[r#"
            {"a"@1:1: "1"@1:4, "b"@2:1: ["x"@3:5, {"y"@4:5: "z"@4:8}]}
        "#]],
        );
    }

    #[test]
    fn streams_hold_several_documents_and_empty_ones() {
        check(
            "a: 1\n---\n---\nb: 2\n",
            expect![[r#"
                {"a"@1:1: "1"@1:4}
                "~"@2:4
                {"b"@4:1: "2"@4:4}
            "#]],
        );
        check("", expect![""]);
        check("# only words\n", expect![""]);
    }

    #[test]
    fn anchors_and_merge_keys_are_expanded() {
        check(
            "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n",
            expect![[r#"
            {"base"@1:1: {"x"@1:11: "1"@1:14, "y"@1:17: "2"@1:20}, "use"@2:1: {"y"@4:3: "3"@4:6, "x"@1:11: "1"@1:14}}
        "#]],
        );
        check("a: &a [*a]\n", expect!["yaml: line 1: anchor contains itself (column 8)"]);
        check(
            "a: {<<: 3}\n",
            expect!["yaml: line 1: map merge requires map or sequence of maps as the value (column 9)"],
        );
    }

    #[test]
    fn repeated_keys_are_refused() {
        check(
            "a: 1\nb: 2\na: 3\n",
            expect![[r#"yaml: line 3: mapping key "a" already defined at line 1 (column 1)"#]],
        );
    }

    #[test]
    fn bombs_stay_small() {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(",");
            text.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        let error = parse(&text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ExcessiveAliasing);
        let deep = "[".repeat(100_000);
        assert!(matches!(parse(&deep).unwrap_err().kind, ErrorKind::TooDeep(_) | ErrorKind::Syntax(_)));
        // Little text that stands for gigabytes, in few values.
        let heavy = format!("a: &a {}\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(100_000));
        let error = parse(&heavy).unwrap_err();
        assert_eq!((error.kind, error.span.line), (ErrorKind::ExcessiveAliasing, 2));
        // Anchors cost without a single alias: each keeps what it names.
        let anchors: String = (0..100).map(|i| format!("&a{i} [")).collect();
        for inside in ["x,".repeat(40_000), "x".repeat(1 << 20)] {
            let nested = format!("{anchors}{inside}{}", "]".repeat(100));
            assert_eq!(parse(&nested).unwrap_err().kind, ErrorKind::ExcessiveAliasing);
        }
        let wide = format!("[{}]", "a,".repeat(400_000));
        assert!(matches!(parse(&wide).unwrap_err().kind, ErrorKind::TooManyNodes(_)));
    }

    #[test]
    fn merging_many_keys_takes_time_by_their_number() {
        let keys = |letter: char| (0..12_000).map(move |i| format!("{letter}{i}: 1,")).collect::<String>();
        let text = format!("a: &a {{{}}}\nb: {{<<: *a, {}}}\n", keys('k'), keys('z'));
        let started = std::time::Instant::now();
        let documents = parse(&text).unwrap();
        let merged = documents[0].root.get("b").and_then(Node::as_map).unwrap();
        assert_eq!(merged.len(), 24_000);
        // Comparing each key with each takes many times as long, even in an optimised build.
        assert!(started.elapsed() < std::time::Duration::from_secs(8), "{:?}", started.elapsed());
    }
}
