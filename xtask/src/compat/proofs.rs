//! The tests of the tree by name: what the page of compatibility calls a proof has to be one of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

/// Where tests are.
const PLACES: [&str; 3] = ["crates", "tests", "xtask"];

/// Tests by name, with the files that have one of that name.
#[derive(Debug, Default)]
pub(super) struct Tests(BTreeMap<String, Vec<String>>);

impl Tests {
    /// Reads the sources below `root`.
    pub(super) fn find(root: &Path) -> Result<Self> {
        let mut tests = Self::default();
        for place in PLACES {
            tests.visit(root, &root.join(place))?;
        }
        Ok(tests)
    }

    /// The files that have a test of this name; empty if there is none.
    pub(super) fn files(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    fn visit(&mut self, root: &Path, dir: &Path) -> Result<()> {
        let list = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
        let mut paths: Vec<_> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.visit(root, &path)?;
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let found = match name.as_str() {
                name if name.ends_with(".rs") => rust_tests as fn(&str) -> Vec<String>,
                name if name.ends_with("_test.go") => go_tests,
                _ => continue,
            };
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            for test in found(&text) {
                self.0.entry(test).or_default().push(file.clone());
            }
        }
        Ok(())
    }
}

/// Functions behind `#[test]` or `#[tokio::test…]` that are not ignored.
fn rust_tests(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            is_ignored |= line.starts_with("#[ignore");
            continue;
        }
        let function = line.trim_start_matches("pub ").trim_start_matches("async ").strip_prefix("fn ");
        if let Some(name) = function.and_then(|rest| rest.split(['(', '<']).next())
            && is_test
            && !is_ignored
        {
            found.push(name.to_owned());
        }
        // Attributes may have comments and docs between them and the function.
        if !line.starts_with("//") {
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

/// Functions `TestX` of one parameter.
fn go_tests(text: &str) -> Vec<String> {
    let functions =
        text.lines().filter_map(|line| line.strip_prefix("func Test")?.split_once("(t *testing.T)"));
    functions.map(|(name, _)| format!("Test{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_run_are_found() {
        let text = "#[test]\n// why\n#[should_panic]\nfn one() {}\n#[test]\n#[ignore]\nfn two() {}\nfn three() {}\n\
                    #[tokio::test(start_paused = true)]\nasync fn four() {}\n";
        assert_eq!(rust_tests(text), ["one", "four"]);
        assert_eq!(go_tests("func TestOne(t *testing.T) {\nfunc TestMain(m *testing.M) {\n"), ["TestOne"]);
    }
}
