//! A rendering as text: a line that says which form it has, a YAML document for each thing, and a line that says it is whole.
//!
//! ```text
//! rendering: 1
//! ---
//! thing: etcd
//! spec:
//!     args:
//!         - --name=cp-1
//! rendering ends: 1
//! ```

use std::collections::BTreeMap;

use ichor_yaml::{Limits, Node, Value};

/// The form that is written here.
pub const FORM: &str = "1";
/// What the first line begins with.
pub const BEGIN: &str = "rendering: ";
/// What the last line begins with.
pub const END: &str = "rendering ends: ";
/// The most bytes of a thing; of a longer one only its digest is shown.
pub const THING_MAX: usize = 64 << 10;
/// The most bytes of all things; what comes after is shown as digests.
pub const TOTAL_MAX: usize = 512 << 10;
/// The most things; further ones are left out, and how many they are is a thing itself.
pub const THINGS_MAX: usize = 1024;
/// The longest name of a thing.
const NAME_MAX: usize = 256;
/// The name under which it stands what is left out.
const REST: &str = "left-out";

/// What a machine would run: the text of each thing, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendering {
    things: BTreeMap<String, String>,
}

/// A text that is no rendering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The last line is missing.
    #[error("the rendering breaks off: the line {END:?} is missing")]
    BrokenOff,
    /// It is whole and says something else.
    #[error("the rendering announces {announced:?} things and has {found}")]
    Count {
        /// What the last line says.
        announced: String,
        /// What is there.
        found: usize,
    },
    /// It is no YAML.
    #[error("the rendering is not YAML: {0}")]
    Syntax(String),
    /// A document is of another kind.
    #[error("document {0} of the rendering has no `thing` and `spec`")]
    Document(usize),
}

/// What a program printed, as far as renderings go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Printed {
    /// It renders nothing.
    Nothing,
    /// It renders in a form that is not known here.
    OtherForm(String),
    /// What it renders.
    Rendering(Rendering),
}

impl Rendering {
    /// From trees. Keys are put in order; what is too large is shown as a digest.
    pub fn of(nodes: impl IntoIterator<Item = (String, Node)>) -> Self {
        let (mut things, mut total, mut rest) = (BTreeMap::new(), 0, 0_usize);
        for (name, node) in nodes {
            if things.len() == THINGS_MAX || name.len() > NAME_MAX {
                rest += 1;
                continue;
            }
            let mut text = ichor_yaml::emit(&normal(&node));
            if text.len() > THING_MAX || total + text.len() > TOTAL_MAX {
                text = digest(&text);
            }
            total += text.len();
            things.insert(name, text);
        }
        if rest > 0 {
            things.insert(REST.to_owned(), format!("things: {rest}\n"));
        }
        Self { things }
    }

    /// The text of a thing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.things.get(name).map(String::as_str)
    }

    /// Names of all things, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.things.keys().map(String::as_str)
    }

    /// The text form.
    pub fn print(&self) -> String {
        let mut out = format!("{BEGIN}{FORM}\n");
        for (name, text) in &self.things {
            // A text that is no YAML cannot come from here; it would be shown as it is.
            let tree =
                ichor_yaml::parse(text).ok().and_then(|documents| Some(documents.into_iter().next()?.root));
            let spec = tree.unwrap_or_else(|| Node::string(text));
            let thing = vec![(Node::string("thing"), Node::string(name)), (Node::string("spec"), spec)];
            out.push_str("---\n");
            out.push_str(&ichor_yaml::emit(&Node::map(thing)));
        }
        out.push_str(&format!("{END}{}\n", self.things.len()));
        out
    }

    /// Finds a rendering in what a program printed.
    ///
    /// # Errors
    /// When there is one of the known form that cannot be read.
    pub fn find(printed: &str) -> Result<Printed, StreamError> {
        let mut lines = printed.lines();
        let Some(form) = lines.by_ref().find_map(|line| line.strip_prefix(BEGIN)) else {
            return Ok(Printed::Nothing);
        };
        if form != FORM {
            return Ok(Printed::OtherForm(form.to_owned()));
        }
        let mut body = String::new();
        for line in lines {
            if let Some(announced) = line.strip_prefix(END) {
                let read = Self::parse(&body)?;
                return match announced == read.things.len().to_string() {
                    true => Ok(Printed::Rendering(read)),
                    false => {
                        let announced = announced.to_owned();
                        Err(StreamError::Count { announced, found: read.things.len() })
                    }
                };
            }
            body.push_str(line);
            body.push('\n');
        }
        Err(StreamError::BrokenOff)
    }

    fn parse(body: &str) -> Result<Self, StreamError> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        // No aliases are written, and so none are read.
        let limits = Limits { alias_nodes: 0, alias_bytes: 0, ..Limits::default() };
        let documents =
            ichor_yaml::parse_with(body, limits).map_err(|error| StreamError::Syntax(error.to_string()))?;
        let mut things = BTreeMap::new();
        for (position, document) in documents.iter().enumerate() {
            let name = document.root.get("thing").and_then(Node::as_str);
            let (Some(name), Some(spec)) = (name, document.root.get("spec")) else {
                return Err(StreamError::Document(position + 1));
            };
            things.insert(name.to_owned(), ichor_yaml::emit(&normal(spec)));
        }
        Ok(Self { things })
    }
}

/// Keys in order, every string written as this version writes strings: two versions that mean the same say the same.
fn normal(node: &Node) -> Node {
    match &node.value {
        Value::Scalar(scalar) => match scalar.resolve() {
            ichor_yaml::Resolved::Str => Node::string(&scalar.text),
            _ => Node::plain(&scalar.text),
        },
        Value::Seq(items) => Node::seq(items.iter().map(normal).collect()),
        Value::Map(entries) => {
            let mut entries: Vec<(Node, Node)> =
                entries.iter().map(|(key, value)| (normal(key), normal(value))).collect();
            entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
            Node::map(entries)
        }
    }
}

fn digest(text: &str) -> String {
    let sum: String = ichor_pki::sha256(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("bytes: {}\nsha256: {sum}\n", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        ichor_yaml::parse(text).unwrap().remove(0).root
    }

    #[test]
    fn a_text_that_begins_with_an_empty_line_and_spaces_is_read_again() {
        let read = Rendering {
            things: BTreeMap::from([("a".to_owned(), ichor_yaml::emit(&Node::string("\n  b\n")))]),
        };
        assert_eq!(Rendering::find(&read.print()), Ok(Printed::Rendering(read)));
    }

    fn rendering(things: &[(&str, &str)]) -> Rendering {
        Rendering::of(things.iter().map(|(name, text)| ((*name).to_owned(), tree(text))))
    }

    #[test]
    fn what_is_printed_is_found_again_between_other_lines() {
        let made = rendering(&[
            ("etcd", "b: 1\na: [x, 'true', \"two\\nlines\\n\"]\n"),
            ("list", "[--a=b, --c]"),
            ("odd: name", "{}"),
        ]);
        assert_eq!(
            made.get("etcd"),
            Some("a:\n    - x\n    - \"true\"\n    - |\n      two\n      lines\nb: 1\n")
        );
        let printed = format!("note: something\n{}warning on standard error\n", made.print());
        assert_eq!(Rendering::find(&printed), Ok(Printed::Rendering(made)));
    }

    #[test]
    fn how_something_is_written_makes_no_difference() {
        let other = "rendering: 1\n---\nspec: {b: 'x', a: 1}\nthing: t\nrendering ends: 1\n";
        let own = rendering(&[("t", "a: 1\nb: x\n")]);
        assert_eq!(Rendering::find(other), Ok(Printed::Rendering(own)));
    }

    #[test]
    fn a_text_without_rendering_has_none_and_a_later_form_is_named() {
        assert_eq!(Rendering::find("note: x\n"), Ok(Printed::Nothing));
        assert_eq!(Rendering::find("rendering: 2\n@@@"), Ok(Printed::OtherForm("2".to_owned())));
        let empty = Rendering::default();
        assert_eq!(Rendering::find(&empty.print()), Ok(Printed::Rendering(empty)));
    }

    #[test]
    fn a_rendering_that_is_not_whole_is_refused() {
        let whole = rendering(&[("a", "x: 1"), ("b", "x: 2")]).print();
        let cut = &whole[..whole.len() - 2];
        let without_end = whole.replace(END, "");
        let without_b = whole.replace("---\nthing: b\nspec:\n    x: 2\n", "");
        for (text, expected) in [
            (without_end.as_str(), "the rendering breaks off"),
            (cut, "the rendering announces \"\" things and has 2"),
            (without_b.as_str(), "the rendering announces \"2\" things and has 1"),
            ("rendering: 1\n---\na: [\nrendering ends: 1\n", "the rendering is not YAML"),
            ("rendering: 1\n---\na: 1\nrendering ends: 1\n", "document 1 of the rendering has no"),
            (
                "rendering: 1\n---\nthing: a\nspec: [&x 1, *x]\nrendering ends: 1\n",
                "the rendering is not YAML",
            ),
        ] {
            let error = Rendering::find(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_rendering_has_a_bound_whatever_the_configuration() {
        let long = |letter: &str, len: usize| Node::string(letter.repeat(len));
        let made = Rendering::of(
            (0..THINGS_MAX + 5).map(|number| (format!("pod-{number:04}"), long("x", THING_MAX - 10))),
        );
        assert!(made.print().len() < 2 * TOTAL_MAX, "{}", made.print().len());
        assert_eq!(made.get(REST), Some("things: 5\n"));
        let (a, b) = (long("a", THING_MAX + 1), long("b", THING_MAX + 1));
        let made = Rendering::of([("a".to_owned(), a), ("b".to_owned(), b)]);
        assert!(made.get("a").unwrap().starts_with("bytes: 6553"));
        assert_ne!(made.get("a"), made.get("b"), "a difference still shows");
    }
}
