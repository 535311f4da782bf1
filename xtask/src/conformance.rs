//! What a run of Kubernetes' conformance tests came to: a table by SIG, what failed and why, and whether that is known.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// As many of the slowest tests are named.
const SLOWEST: usize = 5;
/// As much of a failure is shown.
const REASON_MAX: usize = 300;

/// A test that was run.
#[derive(Debug, Clone, PartialEq)]
struct Test {
    name: String,
    seconds: f64,
    /// What it said when it failed.
    failure: Option<String>,
}

impl Test {
    fn sig(&self) -> &str {
        let sig = self.name.strip_prefix("[sig-").and_then(|rest| rest.split_once(']'));
        sig.map_or("none", |(sig, _)| sig)
    }
}

/// A failure that is not ours: the name of the test, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    reason: String,
}

/// `conformance RESULTS [EXPECTED]`: reads every JUnit file below `RESULTS` and writes `table.md` there. Fails when a test failed
/// that `tests/conformance/known` does not name, or when fewer than `EXPECTED` were run.
///
/// `conformance RESULTS --fault FILE`: fails unless exactly the tests failed that `FILE` calls red.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let (results, expected) = match args {
        [results] => (PathBuf::from(results), None),
        [results, option, file] if option == "--fault" => {
            return run_fault(Path::new(results), Path::new(file));
        }
        [results, expected] => {
            let count = expected.parse::<usize>();
            (PathBuf::from(results), Some(count.with_context(|| format!("{expected} is no number"))?))
        }
        _ => bail!("usage: cargo xtask conformance RESULTS [EXPECTED | --fault FILE]"),
    };
    let known = root.join("tests/conformance/known");
    let known =
        known_failures(&fs::read_to_string(&known).with_context(|| format!("read {}", known.display()))?)?;
    let tests = read_results(&results)?;
    let (text, verdict) = report(&tests, &known, expected);
    print!("{text}");
    fs::write(results.join("table.md"), text)?;
    verdict
}

fn run_fault(results: &Path, file: &Path) -> Result<()> {
    let fault = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let (text, verdict) = judge_fault(&read_results(results)?, &fault);
    print!("{text}");
    fs::write(results.join("table.md"), text)?;
    verdict
}

/// The tests of all parts of a run.
fn read_results(results: &Path) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for part in fs::read_dir(results).with_context(|| format!("read {}", results.display()))? {
        let file = part?.path().join("junit_01.xml");
        if file.is_file() {
            let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            tests.extend(junit(&text).with_context(|| format!("in {}", file.display()))?);
        }
    }
    Ok(tests)
}

/// Compares a run on a broken cluster with what its fault says: a line for each test, and whether all are as they should be.
fn judge_fault(tests: &[Test], fault: &str) -> (String, Result<()>) {
    let mut text = String::from("| Test | Should | Did |\n|---|---|---|\n");
    let (mut all, mut wrong) = (0, 0);
    for line in fault.lines() {
        let (should, name) = match (line.strip_prefix("red: "), line.strip_prefix("green: ")) {
            (Some(name), _) => ("fail", name.trim()),
            (None, Some(name)) => ("pass", name.trim()),
            (None, None) => continue,
        };
        let did = match tests.iter().find(|test| test.name == name) {
            None => "not run",
            Some(test) if test.failure.is_some() => "fail",
            Some(_) => "pass",
        };
        all += 1;
        wrong += usize::from(should != did);
        let _ = writeln!(text, "| {name} | {should} | {did} |");
    }
    let verdict = match (all, wrong) {
        (0, _) => Err(anyhow::anyhow!("the fault names no test")),
        (_, 0) => Ok(()),
        (all, wrong) => Err(anyhow::anyhow!("{wrong} of {all} tests did not do what the fault says")),
    };
    (text, verdict)
}

/// The tests of a JUnit file that were run; those that were not chosen are in there too.
fn junit(text: &str) -> Result<Vec<Test>> {
    let mut reader = Reader::from_str(text);
    let mut tests = Vec::new();
    // The test that is being read, unless it was skipped.
    let mut current: Option<Test> = None;
    loop {
        match reader.read_event()? {
            Event::Start(tag) => match tag.name().as_ref() {
                b"testcase" => current = test(&tag)?,
                b"skipped" => current = None,
                b"failure" | b"error" => {
                    let text = reader.read_text(tag.name())?.decode()?.into_owned();
                    if let Some(test) = &mut current {
                        test.failure = Some(unescape(&text)?.into_owned());
                    }
                }
                _ => {}
            },
            Event::Empty(tag) => match tag.name().as_ref() {
                b"testcase" => tests.extend(test(&tag)?),
                b"skipped" => current = None,
                _ => {}
            },
            Event::End(tag) if tag.name().as_ref() == b"testcase" => tests.extend(current.take()),
            Event::Eof => return Ok(tests),
            _ => {}
        }
    }
}

fn test(tag: &BytesStart) -> Result<Option<Test>> {
    let name = attribute(tag, "name")?.unwrap_or_default();
    // What runs before and after all tests is listed like one.
    let Some(name) = name.strip_prefix("[It] ") else { return Ok(None) };
    if attribute(tag, "status")?.as_deref() == Some("skipped") {
        return Ok(None);
    }
    let seconds = attribute(tag, "time")?.and_then(|time| time.parse().ok()).unwrap_or_default();
    Ok(Some(Test { name: name.to_owned(), seconds, failure: None }))
}

fn attribute(tag: &BytesStart, name: &str) -> Result<Option<String>> {
    match tag.try_get_attribute(name)? {
        Some(value) => Ok(Some(value.normalized_value(XmlVersion::Explicit1_0)?.into_owned())),
        None => Ok(None),
    }
}

/// `name :: reason` lines.
fn known_failures(text: &str) -> Result<Vec<Known>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let parts = line.split_once(" :: ").filter(|(_, reason)| !reason.trim().is_empty());
            let (name, reason) =
                parts.with_context(|| format!("tests/conformance/known: no reason in: {line}"))?;
            Ok(Known { name: name.trim().to_owned(), reason: reason.trim().to_owned() })
        })
        .collect()
}

/// The table, and whether all is well.
fn report(tests: &[Test], known: &[Known], expected: Option<usize>) -> (String, Result<()>) {
    let reason = |test: &Test| known.iter().find(|known| known.name == test.name);
    let mut rows: BTreeMap<&str, (usize, usize, f64)> = BTreeMap::new();
    for test in tests {
        let row = rows.entry(test.sig()).or_default();
        row.0 += 1;
        row.1 += usize::from(test.failure.is_none());
        row.2 += test.seconds;
    }
    let mut text =
        String::from("| SIG | Tests | Passed | Failed | Time of all, s |\n|---|---|---|---|---|\n");
    let mut line = |name: &str, (all, passed, seconds): (usize, usize, f64)| {
        let _ = writeln!(text, "| {name} | {all} | {passed} | {} | {seconds:.0} |", all - passed);
    };
    for (sig, row) in &rows {
        line(sig, *row);
    }
    let sum = rows.values().fold((0, 0, 0.0), |sum, row| (sum.0 + row.0, sum.1 + row.1, sum.2 + row.2));
    line("**all**", sum);

    let failed: Vec<&Test> = tests.iter().filter(|test| test.failure.is_some()).collect();
    if !failed.is_empty() {
        text.push_str("\nFailed:\n\n");
    }
    for test in &failed {
        let why = match reason(test) {
            Some(known) => format!("known: {}", known.reason),
            None => short(test.failure.as_deref().unwrap_or_default()),
        };
        let _ = writeln!(text, "- {}: {why}", test.name);
    }
    for name in known
        .iter()
        .filter(|known| tests.iter().any(|test| test.name == known.name && test.failure.is_none()))
    {
        let _ = writeln!(text, "\nPasses although tests/conformance/known lists it: {}", name.name);
    }
    let mut slowest: Vec<&Test> = tests.iter().collect();
    slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    text.push_str("\nSlowest:\n\n");
    for test in slowest.iter().take(SLOWEST) {
        let _ = writeln!(text, "- {:.0} s {}", test.seconds, test.name);
    }
    let verdict = (|| {
        let unknown = failed.iter().filter(|test| reason(test).is_none()).count();
        ensure!(!tests.is_empty(), "no test was run");
        ensure!(unknown == 0, "{unknown} of {} tests failed", tests.len());
        match expected {
            Some(expected) if tests.len() < expected => {
                bail!("{} of {expected} tests were run", tests.len())
            }
            _ => Ok(()),
        }
    })();
    (text, verdict)
}

/// The first lines of a failure, as one.
fn short(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(REASON_MAX) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" classname="x" status="passed" time="0.1"></testcase>
<testcase name="[It] [sig-node] Pods should run &lt;a&gt; [Conformance]" status="passed" time="2.5"><system-err>x</system-err></testcase>
<testcase name="[It] [sig-network] DNS should answer [Conformance]" status="failed" time="4"><failure message="" type="failed">[FAILED] timed&#xA;out</failure></testcase>
<testcase name="[It] [sig-apps] not chosen" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>"#;

    #[test]
    fn tests_that_were_run_are_read_with_what_they_said() {
        let tests = junit(JUNIT).unwrap();
        assert_eq!(tests.len(), 2);
        assert_eq!(tests[0].name, "[sig-node] Pods should run <a> [Conformance]");
        assert_eq!((tests[0].sig(), tests[0].failure.clone()), ("node", None));
        assert_eq!(tests[1].failure.as_deref(), Some("[FAILED] timed\nout"));
    }

    #[test]
    fn a_fault_turns_the_right_tests_red() {
        let tests = junit(JUNIT).unwrap();
        let fault = "# broken\nkubectl: delete x\nred: [sig-network] DNS should answer [Conformance]\n\
                     green: [sig-node] Pods should run <a> [Conformance]\n";
        let (text, verdict) = judge_fault(&tests, fault);
        assert!(text.contains("DNS should answer [Conformance] | fail | fail |"), "{text}");
        verdict.unwrap();
        for (fault, error) in [
            (
                "red: [sig-node] Pods should run <a> [Conformance]",
                "1 of 1 tests did not do what the fault says",
            ),
            ("green: [sig-node] nobody ran this", "1 of 1 tests did not do what the fault says"),
            ("kubectl: delete x", "the fault names no test"),
        ] {
            assert_eq!(judge_fault(&tests, fault).1.unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn a_failure_without_a_reason_is_one() {
        let tests = junit(JUNIT).unwrap();
        let (text, verdict) = report(&tests, &[], None);
        assert!(text.contains("| network | 1 | 0 | 1 | 4 |"), "{text}");
        assert!(text.contains("| **all** | 2 | 1 | 1 | 6 |"), "{text}");
        assert!(text.contains("DNS should answer [Conformance]: [FAILED] timed out"), "{text}");
        assert_eq!(verdict.unwrap_err().to_string(), "1 of 2 tests failed");
        let known =
            known_failures("# why\n[sig-network] DNS should answer [Conformance] :: no DNS here\n").unwrap();
        let (text, verdict) = report(&tests, &known, Some(2));
        assert!(text.contains("known: no DNS here"), "{text}");
        assert!(verdict.is_ok());
        assert!(known_failures("a test without a reason").is_err());
    }

    #[test]
    fn a_run_of_fewer_tests_than_there_are_is_no_success() {
        assert_eq!(report(&[], &[], None).1.unwrap_err().to_string(), "no test was run");
        let tests = [Test { name: "[sig-node] a".into(), seconds: 1.0, failure: None }];
        assert_eq!(report(&tests, &[], Some(441)).1.unwrap_err().to_string(), "1 of 441 tests were run");
    }
}
