//! Texts of a mebibyte that mean harm: an error with a place, few words, in bounded time.

use std::time::{Duration, Instant};

use ichor_config::{Diagnostics, Documents, Mode};

const SIZE: usize = 1 << 20;
/// Generous for a build without optimisation on a busy machine; what is quadratic takes far longer.
const TIME_MAX: Duration = Duration::from_secs(10);
/// The errors that are shown, and the one that says there are more.
const PROBLEMS_MAX: usize = 101;
const HEAD: &str = "version: v1alpha1\nmachine:\n    type: worker\n";

/// `start`, then as many of the numbered lines as fit.
fn lines(start: &str, line: impl Fn(usize) -> String) -> String {
    let mut text = start.to_owned();
    for i in 0.. {
        let next = line(i);
        if text.len() + next.len() > SIZE {
            break;
        }
        text.push_str(&next);
    }
    text
}

fn check(text: &[u8]) -> Result<(), Diagnostics> {
    Documents::load(text)?.validate(Mode::METAL).map(drop)
}

#[track_caller]
fn refused(what: &str, text: &[u8], message: &str) {
    let started = Instant::now();
    let problems = check(text).unwrap_err();
    let took = started.elapsed();
    assert!(took < TIME_MAX, "{what}: {took:?}");
    assert!(problems.items.len() <= PROBLEMS_MAX, "{what}: {} problems", problems.items.len());
    for item in &problems.items {
        assert!(item.span.is_known(), "{what}: {}", item.message);
    }
    let rendered = problems.render("a.yaml", &String::from_utf8_lossy(text));
    assert!(rendered.len() < 64 * 1024, "{what}: {} bytes of errors", rendered.len());
    assert!(rendered.contains(message), "{what}: {}", rendered.chars().take(400).collect::<String>());
}

#[test]
fn copies_of_large_values_are_bounded() {
    let start = format!("a: &a {}\nb:\n", "x".repeat(SIZE / 2));
    refused("alias of a large scalar", lines(&start, |_| "- *a\n".into()).as_bytes(), "excessive aliasing");
    let anchors: String = (0..100).map(|i| format!("&a{i} [")).collect();
    let nested = format!("{anchors}{}{}", "x".repeat(SIZE), "]".repeat(100));
    refused("nested anchors", nested.as_bytes(), "excessive aliasing");
}

#[test]
fn wide_and_deep_texts_are_bounded() {
    refused("deep flow", "[".repeat(SIZE).as_bytes(), "recursion limit");
    refused("deep block", "- ".repeat(SIZE / 2).as_bytes(), "nested deeper than 128 levels");
    let wide = format!("[{}]", "a,".repeat(SIZE / 2));
    refused("wide", wide.as_bytes(), "more than 100000 values");
    refused("documents", "---\n".repeat(SIZE / 4).as_bytes(), "more than 100000 values");
    refused("one key", "a: 1\n".repeat(10_000).as_bytes(), "already defined at line 1");
}

#[test]
fn many_mistakes_are_told_once_there_is_enough() {
    let labels = format!("{HEAD}    nodeLabels:\n");
    let labels = lines(&labels, |i| format!("        key{i}: not a label, of no use to anyone!\n"));
    refused("labels", labels.as_bytes(), "more than 100 problems, the rest is not shown");
    let links = format!("{HEAD}    network:\n        interfaces:\n");
    let links = lines(&links, |i| {
        format!(
            "            - interface: e{i}\n              addresses: [no address nor a network of addresses at all]\n"
        )
    });
    refused("interfaces", links.as_bytes(), "more than 100 problems, the rest is not shown");
    let unknown = lines(HEAD, |i| format!("    key{i:030}: x\n"));
    refused("unknown keys", unknown.as_bytes(), "more than 100 problems, the rest is not shown");
    let hosts = lines("", |i| {
        format!(
            "---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: not-an-address-but-a-long-name-{i}\nhostnames: [a]\n"
        )
    });
    refused(
        "documents with a mistake each",
        hosts.as_bytes(),
        "more than 100 problems, the rest is not shown",
    );
}

#[test]
fn texts_of_nothing_and_texts_that_are_none_have_a_place() {
    for byte in [b' ', b'\n', b'\r'] {
        refused("blank", &vec![byte; SIZE], "config not found");
    }
    refused("only tabs", &vec![b'\t'; SIZE], "found a tab character that violates indentation");
    refused("comments", "# x\n".repeat(SIZE / 4).as_bytes(), "config not found");
    refused("zeros", &vec![0; SIZE], "unexpected character");
    let mut text = format!("{HEAD}    token: {}", "x".repeat(SIZE)).into_bytes();
    text.push(0xff);
    refused("bad text", &text, "a.yaml:4:1048588");
    refused("tabs", format!("machine:\n{}", "\t- x\n".repeat(SIZE / 5)).as_bytes(), "a.yaml:2:");
    let long = format!("{HEAD}    token: {}", "x".repeat(32 * SIZE));
    refused("too long", long.as_bytes(), "at most 16777216 are read");
}
