//! Random configurations, drawn from the descriptions of all types.

use ichor_config::{
    Documents, document,
    model::{ListMerge, ObjectInfo, Shape},
    v1alpha1,
};
use ichor_yaml::Node;

/// A small generator (splitmix64); the seed is printed so that a run can be repeated.
pub(crate) struct Random(u64);

impl Random {
    /// A generator that always draws the same from the same seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a bound.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len() as u64) as usize]
    }
}

const TEXTS: &[&str] = &[
    "plain",
    "with space",
    "true",
    "off",
    "123",
    "0x1f",
    "1.5",
    "null",
    "~",
    "a: b",
    "a #b",
    "- x",
    "'quoted'",
    "\"double\"",
    "tab\there",
    " lead",
    "trail ",
    "two\nlines",
    "two\nlines\n",
    "two\n\n  deep\n\n",
    "é",
    "😀",
    "2024-01-01",
    "12:30",
    "0000:04:00.00",
    "!x",
    "&a",
    "*a",
    "%a",
    "@a",
    "`a`",
    "[a]",
    "{a}",
    "a,b",
    "?",
    "-",
    "---",
    "...",
    "key:",
    ":",
    "x:y",
    "#",
    "=",
    "<<",
    "yes",
    "No",
    "1_000",
    "0o17",
    "+1",
    "-1",
    ".5",
    "1e3",
    "\\",
    "a\\b",
    "<a>",
    "|",
    ">",
    "very long text that goes on and on and on and on and on and on and on and on and on on",
    " \n",
    "\n",
    "a\r\nb",
    "\u{a0}",
    "$patch",
    "10GiB",
    "space \nbreak",
];
const KEYS: &[&str] =
    &["a", "b10", "b2", "B", "key.with/slash", "12", "true", "a b", "_x", "-y", "é", "z-1", "z.1", "z1"];

fn scalar(text: impl Into<String>) -> Node {
    Node::string(text)
}

fn value(random: &mut Random, shape: &Shape, depth: usize) -> Node {
    match shape {
        Shape::String => scalar(random.pick(TEXTS)),
        Shape::Bool => Node::bool(random.below(2) == 0),
        Shape::Integer { min, max } => {
            let top = (*max).min(100_000);
            let sign = if *min < 0 && random.below(4) == 0 { "-" } else { "" };
            Node::plain(format!("{sign}{}", random.below(top + 1)))
        }
        Shape::Format(name @ ("octal file mode" | "port or port range")) => Node::plain(format(random, name)),
        Shape::Format(name) => scalar(format(random, name)),
        Shape::Choice(texts) => {
            let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
            scalar(random.pick(&texts))
        }
        Shape::Size => scalar(random.pick(&["10GiB", "2.5TiB", "100 MB", "1048576", "1000", "123456789"])),
        Shape::Free => free(random, depth),
        Shape::List(item, merge) => {
            // Two items with the same key would be one after a merge.
            let most = if matches!(merge, ListMerge::ByKey(_)) { 2 } else { 4 };
            let count = random.below(most);
            Node::seq((0..count).map(|_| value(random, item, depth + 1)).collect())
        }
        Shape::Map(item) => {
            let mut entries: Vec<(Node, Node)> = Vec::new();
            for _ in 0..random.below(5) {
                let key = random.pick(KEYS);
                if entries.iter().all(|(have, _)| have.as_str() != Some(key)) {
                    entries.push((scalar(key), value(random, item, depth + 1)));
                }
            }
            Node::map(entries)
        }
        Shape::Object(info) => object(random, info, depth),
    }
}

fn object(random: &mut Random, info: &'static ObjectInfo, depth: usize) -> Node {
    let mut entries = Vec::new();
    for field in info.fields {
        // Deeper parts are set less often, so that documents stay readable.
        if matches!(field.key, "protocol" | "portSelector") || random.below(3 + depth as u64) < 2 {
            entries.push((scalar(field.key), value(random, &(field.shape)(), depth + 1)));
        }
    }
    Node::map(entries)
}

fn format(random: &mut Random, name: &str) -> &'static str {
    match name {
        "duration" => random.pick(&["1h", "90s", "100ms", "1.5h", "2m3s", "1us"]),
        "URL" => random.pick(&[
            "https://10.0.0.1:6443",
            "https://host/path?x=1&a=2#f",
            "tcp://[fd00::1]:514/",
            "grpc://user@host",
            "udp://h:1",
        ]),
        "base64" => random.pick(&["aGVsbG8=", "AAECAwQF", "LS0tLS0K"]),
        "CIDR prefix" => random.pick(&["10.0.0.0/8", "10.1.2.3/24", "fd00::1/64", "2001:DB8::/32"]),
        "IP address" => random.pick(&["10.0.0.1", "fd00::1", "2001:0DB8::0001"]),
        "IP address and port" => random.pick(&["10.0.0.1:51820", "[fd00::1]:7"]),
        "hardware address" => random.pick(&["2e:3c:4d:5e:6f:70", "00:11:22:33:44:55", "AA:BB:CC:DD:EE:FF"]),
        "port or port range" => random.pick(&["80", "8000-9000"]),
        "CEL expression" => random.pick(&["system_disk", "!system_disk && disk.size > 10u"]),
        "octal file mode" => random.pick(&["0o644", "0600", "493"]),
        "size condition" => random.pick(&[">= 100GB", "10GiB", "<1TB", "==5"]),
        other if other.starts_with("routing table") => random.pick(&["10", "main", "default", "252"]),
        _ => "x",
    }
}

fn free(random: &mut Random, depth: usize) -> Node {
    let mut entries: Vec<(Node, Node)> = Vec::new();
    for _ in 0..random.below(4) {
        let key = random.pick(KEYS);
        let value = match random.below(if depth > 8 { 5 } else { 7 }) {
            0 => scalar(random.pick(TEXTS)),
            1 => Node::bool(random.below(2) == 0),
            2 => Node::plain(random.below(1_000_000).to_string()),
            3 => Node::plain(*random.pick(&[
                &"1.5",
                &"1e30",
                &"-0.001",
                &"1e-7",
                &"100000.0",
                &"123456789.125",
                &"1000000.0",
                &"-1234567.5",
            ])),
            4 => Node::null(),
            5 => Node::seq((0..random.below(3)).map(|_| free(random, depth + 1)).collect()),
            _ => free(random, depth + 1),
        };
        if entries.iter().all(|(have, _)| have.as_str() != Some(key)) {
            entries.push((scalar(key), value));
        }
    }
    Node::map(entries)
}

/// One random stream: perhaps the root document, and a few others with names of their own.
fn stream(random: &mut Random) -> String {
    let mut nodes = Vec::new();
    if random.below(4) > 0 {
        let mut root = object(random, &v1alpha1::Config::INFO, 0);
        if let ichor_yaml::Value::Map(entries) = &mut root.value
            && entries.iter().all(|(key, _)| key.as_str() != Some("debug"))
        {
            entries.push((scalar("debug"), Node::bool(false)));
        }
        nodes.push(root);
    }
    for number in 0..random.below(6) + 1 {
        let info = &document::KINDS[random.below(document::KINDS.len() as u64) as usize];
        let Node { value: ichor_yaml::Value::Map(mut entries), .. } = object(random, info.object, 0) else {
            continue;
        };
        entries.retain(|(key, _)| key.as_str() != Some("name"));
        let mut head = vec![(scalar("apiVersion"), scalar("v1alpha1")), (scalar("kind"), scalar(info.kind))];
        if info.named {
            head.push((scalar("name"), scalar(format!("n{number}"))));
        }
        head.extend(entries);
        nodes.push(Node::map(head));
    }
    ichor_yaml::emit_all(&nodes)
}

/// Random documents that can stand together.
pub(crate) fn documents(random: &mut Random) -> Documents {
    // Two documents of a kind without names cannot stand together; such streams are drawn again.
    for _ in 0..100 {
        let text = stream(random);
        match Documents::load(text.as_bytes()) {
            Ok(documents) => return documents,
            Err(error) if error.to_string().contains("duplicate") => {}
            Err(error) => panic!("a random stream must decode: {}", error.render("stream", &text)),
        }
    }
    Documents::default()
}
