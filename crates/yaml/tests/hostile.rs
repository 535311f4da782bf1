//! Anything may be given to the reader: it answers in bounded time and never panics.

use ichor_yaml::{Node, Value, emit, parse};

/// A small generator (splitmix64), the same for every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

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
    "!t ",
    "|",
    ">",
    "|-\n",
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
    "<<: ",
    "~",
    "null",
    "1",
    "0x",
    "é",
    "\u{feff}",
    "\\",
    "\\x",
    "@",
    "`",
    "%",
    "\r\n",
    "\u{2028}",
    "key: value\n",
];

/// A number that `make fuzz` sets: a seed of its own, and how many times longer to run.
fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn random_words_are_read_or_refused() {
    let mut random = Random(setting("ICHOR_FUZZ_SEED", 1));
    let mut read = 0;
    for _ in 0..20_000 * setting("ICHOR_FUZZ_FACTOR", 1) {
        let count = random.below(24);
        let text: String = (0..count).map(|_| WORDS[random.below(WORDS.len())]).collect();
        let Ok(documents) = parse(&text) else { continue };
        read += 1;
        for document in documents {
            if !writable(&document.root) {
                continue;
            }
            let written = emit(&document.root);
            let back = parse(&written).unwrap_or_else(|error| panic!("{text:?} became {written:?}: {error}"));
            assert_eq!(
                back.first().map(|d| plain(&d.root)),
                Some(plain(&document.root)),
                "{text:?} became {written:?}"
            );
        }
    }
    assert!(read > 500, "{read} texts were read");
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
        Value::Seq(items) => format!("{:?}", items.iter().map(plain).collect::<Vec<_>>()),
        Value::Map(entries) => {
            format!("{:?}", entries.iter().map(|(key, value)| (plain(key), plain(value))).collect::<Vec<_>>())
        }
    }
}
