//! Texts of a mebibyte and more that mean harm. What reads configurations has to refuse them, with a place, in bounded
//! time and memory.

/// A text that means harm.
pub struct Case {
    /// What it is.
    pub name: &'static str,
    /// The text.
    pub text: Vec<u8>,
    /// A part of what has to be said about it.
    pub says: &'static str,
}

const SIZE: usize = 1 << 20;
const HEAD: &str = "version: v1alpha1\nmachine:\n    type: worker\n";

/// `start`, then as many of the numbered lines as fit.
fn lines(start: &str, line: impl Fn(usize) -> String) -> String {
    at_most(usize::MAX, start, line)
}

/// The same with a bound on the number of lines: more than 100 000 values are refused before anything else.
fn at_most(most: usize, start: &str, line: impl Fn(usize) -> String) -> String {
    let mut text = start.to_owned();
    for i in 0..most {
        let next = line(i);
        if text.len() + next.len() > SIZE {
            break;
        }
        text.push_str(&next);
    }
    text
}

/// Anchors that double what is below them, ten times per level.
fn laughs(levels: usize) -> String {
    let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for i in 1..levels {
        let below = vec![format!("*a{}", i - 1); 9].join(", ");
        text.push_str(&format!("a{i}: &a{i} [{below}]\n"));
    }
    text
}

fn merges() -> String {
    let keys: String = (0..2000).map(|i| format!("  k{i}: {i}\n")).collect();
    lines(&format!("base: &b\n{keys}"), |i| format!("m{i}:\n  <<: [*b, *b, *b, *b]\n"))
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let case = |name, text: String, says| Case { name, text: text.into_bytes(), says };
    let repeat = |text: &str| text.repeat(SIZE / text.len());
    let anchors: String = (0..100).map(|i| format!("&a{i} [")).collect();
    let mut bad = format!("{HEAD}    token: {}", "x".repeat(SIZE)).into_bytes();
    bad.push(0xff);
    let large = format!("{HEAD}    token: {}\n", "x".repeat(32 * SIZE));
    let entries: Vec<String> = (0..70_000).map(|i| format!("k{i}: v")).collect();
    vec![
        case("bomb of anchors", laughs(40), "excessive aliasing"),
        case("bomb of merges", merges(), "x.yaml:"),
        case(
            "alias of a large scalar",
            lines(&format!("a: &a {}\nb:\n", "x".repeat(SIZE / 2)), |_| "- *a\n".into()),
            "excessive aliasing",
        ),
        case(
            "nested anchors",
            format!("{anchors}{}{}", "x".repeat(SIZE), "]".repeat(100)),
            "excessive aliasing",
        ),
        case("cycle", format!("machine: &m\n  pods: [*m]\n{}", repeat("# x\n")), "anchor contains itself"),
        case("deep flow", repeat("["), "x.yaml:1:"),
        case("deep flow maps", repeat("{a: "), "x.yaml:1:"),
        case("deep block", repeat("- "), "nested deeper than 128 levels"),
        case("questions", repeat("? "), "x.yaml:1:"),
        case("wide list", format!("machine:\n  pods: [{}]\n", repeat("a,")), "more than 100000 values"),
        case("wide map", format!("machine: {{sysctls: {{{}}}}}\n", entries.join(",")), "x.yaml:1:"),
        case("documents", repeat("---\n"), "more than 100000 values"),
        case("second root documents", "---\ndebug: true\n".repeat(30_000), "not allowed"),
        case(
            "unknown kinds",
            at_most(14_000, "", |i| format!("---\napiVersion: v1alpha1\nkind: Kind{i}\nname: a\n")),
            "not registered",
        ),
        case("one key again and again", "a: 1\n".repeat(49_000), "already defined at line 1"),
        case(
            "keys of a newer version",
            lines(HEAD, |i| format!("    newKey{i:030}: x\n")),
            "more than 100 problems",
        ),
        case(
            "wrong labels",
            lines(&format!("{HEAD}    nodeLabels:\n"), |i| format!("        k{i}: not a label!\n")),
            "more than 100 problems",
        ),
        case(
            "wrong documents",
            at_most(9_000, "", |i| {
                format!("---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: no-{i}\nhostnames: [a]\n")
            }),
            "more than 100 problems",
        ),
        case(
            "wrong types",
            at_most(19_000, &format!("{HEAD}    network:\n        interfaces:\n"), |_| {
                "            - {mtu: x, dhcp: y}\n".into()
            }),
            "x.yaml:6:",
        ),
        case("blanks", repeat(" "), "config not found"),
        case("tabs", format!("machine:\n{}", repeat("\t- x\n")), "x.yaml:2:"),
        case("line breaks", repeat("\r\n"), "config not found"),
        case("comments", repeat("# x\n"), "config not found"),
        case("one comment", repeat("#"), "config not found"),
        case("zeros", repeat("\0"), "unexpected character"),
        case("quotes", repeat("\""), "x.yaml:1:"),
        case("escapes", format!("a: \"{}", repeat("\\x41")), "x.yaml:1:"),
        case("percent signs", repeat("%"), "x.yaml:1:"),
        case("block", format!("machine: |\n{}", repeat(" a\n")), "x.yaml:2:"),
        case("long key", format!("{}: 1\n", "k".repeat(SIZE)), "x.yaml:1:"),
        case(
            "expression",
            format!("apiVersion: v1alpha1\nkind: OOMConfig\ntriggerExpression: \"{}\"\n", repeat("(")),
            "x.yaml:3:",
        ),
        Case { name: "bad UTF-8", text: bad, says: "x.yaml:4:1048588" },
        case("scalar of 32 MiB", large, "at most 16777216 are read"),
    ]
}
