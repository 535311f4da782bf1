//! Wrong configurations and what is said about each: place, message, way out.

use expect_test::expect_file;
use ichor_config::{Diagnostic, Documents, Mode, Severity, ValidateOptions};

const CASES: &str = include_str!("wrong/cases.txt");

struct Case {
    title: String,
    mode: Mode,
    strict: bool,
    text: String,
}

/// Reads the cases; the format is explained at the top of the file.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for block in CASES.split("\n## ").skip(1) {
        let (head, body) = block.split_once('\n').unwrap_or((block, ""));
        let (title, flags) = head.trim_end_matches(']').rsplit_once(" [").expect("flags in brackets");
        let flags: Vec<&str> = flags.split(' ').collect();
        let lines = |mark: &str| {
            let marked = body.lines().filter_map(|line| line.strip_prefix(mark));
            marked.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>()
        };
        let raw = lines("R");
        let text = if raw.is_empty() {
            skeleton(flags[0], &lines("M"), &lines("C"), &lines("D"))
        } else {
            raw.join("\n")
        };
        cases.push(Case {
            title: title.to_owned(),
            mode: Mode::parse(flags[1]).expect("a mode"),
            strict: flags.contains(&"strict"),
            text,
        });
    }
    cases
}

fn skeleton(role: &str, machine: &[&str], cluster: &[&str], documents: &[&str]) -> String {
    let key = if role == "worker" { "\"\"" } else { "a2V5" };
    let indent = |lines: &[&str]| lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
    let mut text = format!(
        "version: v1alpha1\nmachine:\n    type: {role}\n    token: t\n    ca:\n        crt: Y2E=\n        key: {key}\n"
    );
    text.push_str(&indent(machine));
    text.push_str("cluster:\n    controlPlane:\n        endpoint: https://10.0.0.1:6443\n");
    text.push_str(&indent(cluster));
    if !documents.is_empty() {
        text.push_str("---\n");
        text.push_str(&documents.join("\n"));
        text.push('\n');
    }
    text
}

fn shown(item: &Diagnostic) -> String {
    let level = if item.severity == Severity::Warning { "warning: " } else { "" };
    let help = item.help.as_ref().map(|help| format!("\n      = {help}")).unwrap_or_default();
    format!("    {}:{} {level}{}{help}\n", item.span.line, item.span.column, item.titled())
}

fn diagnose(case: &Case) -> Vec<Diagnostic> {
    match Documents::load(case.text.as_bytes()) {
        Err(error) => error.items,
        Ok(documents) => {
            let options = ValidateOptions { strict: case.strict, deprecations: false };
            documents.validate_with(case.mode, options).unwrap_or_else(|error| error.items)
        }
    }
}

#[test]
fn every_wrong_configuration_gets_its_message_and_place() {
    let mut out = String::new();
    for case in cases() {
        out.push_str(&format!("## {}\n", case.title));
        let items = diagnose(&case);
        if items.is_empty() {
            out.push_str("    fine\n");
        }
        out.extend(items.iter().map(shown));
    }
    expect_file!["wrong/expected.txt"].assert_eq(&out);
}

#[test]
fn every_message_points_somewhere() {
    let cases = cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    for case in cases {
        for item in diagnose(&case) {
            assert!(item.span.is_known(), "{}: {}", case.title, item.message);
            let rendered = item.render("file.yaml", &case.text);
            assert!(rendered.contains('^'), "{}: {rendered}", case.title);
        }
    }
}
