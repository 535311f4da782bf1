//! Anything may be given to the reader: it answers in bounded time and never panics, and what it read can be written
//! and read again.

use ichor_fuzz::{Random, Target, shape};
use ichor_yaml::{Node, Value, emit, parse};

const WORDS: &[&str] = &[
    "a",
    "b: ",
    "- ",
    "? ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&x ",
    "*x",
    "!!str ",
    "!!binary ",
    "!t ",
    "|",
    ">",
    "|-\n",
    ">+\n",
    "|2\n",
    "'",
    "\"",
    "\n",
    "\n  ",
    "\n    ",
    " ",
    "\t",
    "# c",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "%TAG ! x:\n",
    "<<: ",
    "~",
    "null",
    "1",
    "0x",
    "é",
    "\u{feff}",
    "\\",
    "\\x",
    "\\u12",
    "@",
    "`",
    "%",
    "\r\n",
    "\u{2028}",
    "\u{85}",
    "key: value\n",
];

const SEEDS: &[&str] = &[
    "version: v1alpha1\nmachine:\n    type: worker\n    kubelet:\n        extraArgs: {a: b, c: \"d\"}\n    pods:\n        - a\n        - b: 1\n          c: |\n            x\n             y\n",
    "a: &a\n  b: 1\nc:\n  <<: *a\n  d: [1, 'two', \"three\\n\", ~]\n# comment\n---\n- >-\n  folded\n  text\n\n- ? complex\n  : value\n",
    "\"quoted \\u00e9\": 'it''s'\n? [flow, key]\n: {x: y, ? z}\n...\n---\n!!str 1\n",
];

/// Words in a row; by chance some of them make sense.
fn sentence(random: &mut Random) -> Vec<u8> {
    let count = random.below(24);
    (0..count).flat_map(|_| random.pick(WORDS).bytes()).collect()
}

#[test]
fn fuzz_reader() {
    let mut read = 0;
    let whole = Target::text("yaml-reader")
        .seeds(SEEDS)
        .corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/yaml-reader"))
        .words(WORDS)
        .generator(sentence)
        .len_max(4096)
        .rounds(30_000)
        .run(|input| {
            let text = String::from_utf8_lossy(input);
            let documents = match parse(&text) {
                Ok(documents) => documents,
                Err(error) => {
                    assert!(error.span.is_known() || text.trim().is_empty(), "{text:?}: {error}");
                    return shape(&error.to_string());
                }
            };
            read += 1;
            let mut counts = Counts::default();
            for document in &documents {
                counts.add(&document.root);
                if writable(&document.root) {
                    reads_back(&text, &document.root);
                }
            }
            format!("{} {counts:?}", documents.len().min(4))
        });
    assert!(!whole || (read > 500), "{read} texts were read");
}

fn reads_back(text: &str, node: &Node) {
    let written = emit(node);
    let back = parse(&written).unwrap_or_else(|error| panic!("{text:?} became {written:?}: {error}"));
    let back = back.first().map(|document| plain(&document.root));
    assert_eq!(back, Some(plain(node)), "{text:?} became {written:?}");
}

/// What a tree is made of, roughly: the outcome that steers.
#[derive(Debug, Default)]
struct Counts {
    scalars: u32,
    lists: u32,
    maps: u32,
    depth: usize,
}

impl Counts {
    fn add(&mut self, node: &Node) {
        self.count(node, 0);
        for number in [&mut self.scalars, &mut self.lists, &mut self.maps] {
            *number = number.ilog2_or_zero();
        }
    }

    fn count(&mut self, node: &Node, depth: usize) {
        self.depth = self.depth.max(depth.min(8));
        match &node.value {
            Value::Scalar(_) => self.scalars += 1,
            Value::Seq(items) => {
                self.lists += 1;
                items.iter().for_each(|item| self.count(item, depth + 1));
            }
            Value::Map(entries) => {
                self.maps += 1;
                for (key, value) in entries {
                    self.count(key, depth + 1);
                    self.count(value, depth + 1);
                }
            }
        }
    }
}

trait OrZero {
    fn ilog2_or_zero(self) -> u32;
}

impl OrZero for u32 {
    fn ilog2_or_zero(self) -> u32 {
        self.checked_ilog2().map_or(0, |bits| bits + 1)
    }
}

/// Trees that configurations can have: keys are texts of one line and scalars have no tag.
fn writable(node: &Node) -> bool {
    match &node.value {
        Value::Scalar(scalar) => scalar.tag.is_none(),
        Value::Seq(items) => items.iter().all(writable),
        Value::Map(entries) => entries.iter().all(|(key, value)| {
            key.as_scalar().is_some_and(|key| !key.text.contains('\n') && key.tag.is_none())
                && writable(value)
        }),
    }
}

/// The tree without places and styles.
fn plain(node: &Node) -> String {
    match &node.value {
        Value::Scalar(_) if node.is_null() => "null".to_owned(),
        Value::Scalar(scalar) => format!("{:?}", scalar.text),
        Value::Seq(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let entry = |(key, value): &(Node, Node)| format!("{}: {}", plain(key), plain(value));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}
