//! Holds the machine configuration against the node: every key of every document is read by a file named in
//! `xtask/config-readers.txt`, or listed in `ichor_config::ignored` as accepted and not applied. The list in
//! `docs/status.md` is written from that table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ichor_config::describe;
use ichor_config::ignored::{ARGUMENTS, PLATFORM_REASON, PLATFORMS, RULES, When};

const READERS: &str = "xtask/config-readers.txt";
const STATUS: &str = "docs/status.md";
const BEGIN: &str =
    "<!-- ignored: begin, written by `cargo xtask compat` from crates/config/src/ignored.rs -->\n";
const END: &str = "<!-- ignored: end -->\n";

/// Who reads a key and what is below it.
#[derive(Debug, PartialEq, Eq)]
enum Reader {
    /// Files of the node.
    Files(Vec<String>),
    /// Nobody has to; the reason is in the file.
    Nobody,
}

/// Readers by `kind path`.
fn parse(text: &str) -> Result<BTreeMap<String, Reader>> {
    let mut readers = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{READERS}:{}", number + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (head, reason) = line.split_once(" | ").unwrap_or((line, ""));
        let words: Vec<&str> = head.split_whitespace().collect();
        let [kind, path, files @ ..] = &words[..] else {
            bail!("{}: a line reads `<kind> <path> <file>...` or `<kind> <path> nobody | <reason>`", place());
        };
        let reader = match files {
            [] => bail!("{}: no file is named", place()),
            ["nobody"] if reason.is_empty() => bail!("{}: say why nobody reads it", place()),
            ["nobody"] => Reader::Nobody,
            files => Reader::Files(files.iter().map(|file| (*file).to_owned()).collect()),
        };
        let old = readers.insert(format!("{kind} {path}"), reader);
        ensure!(old.is_none(), "{}: {kind} {path} is listed twice", place());
    }
    Ok(readers)
}

/// True if `path` is `prefix` or lies below it; `*` is above everything.
fn is_below(path: &str, prefix: &str) -> bool {
    prefix == "*"
        || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
}

/// Whether a table of the configuration says that the node ignores a key.
fn is_ignored(kind: &str, path: &str) -> bool {
    RULES.iter().any(|rule| rule.kind == kind && (rule.path.is_empty() || is_below(path, rule.path)))
}

/// The reader of the longest path that a key is below.
fn reader<'r>(
    readers: &'r BTreeMap<String, Reader>,
    kind: &str,
    path: &str,
) -> Option<(&'r str, &'r Reader)> {
    let of_kind = readers.iter().filter_map(|(key, reader)| {
        let (found, prefix) = key.split_once(' ')?;
        (found == kind && is_below(path, prefix)).then_some((prefix, key.as_str(), reader))
    });
    let longest = of_kind.max_by_key(|(prefix, ..)| if *prefix == "*" { 0 } else { prefix.len() });
    longest.map(|(_, key, reader)| (key, reader))
}

/// True if the text mentions a name as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(part) && !text[at + name.len()..].starts_with(part))
}

/// Everything that is wrong, one line each.
pub(crate) fn complaints(root: &Path) -> Result<Vec<String>> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let readers = parse(&read(READERS)?)?;
    let mut sources = BTreeMap::new();
    for reader in readers.values() {
        let Reader::Files(files) = reader else { continue };
        for file in files {
            let text = read(file)?;
            let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
            sources.insert(file.as_str(), code);
        }
    }
    let mut wrong = Vec::new();
    let mut used = std::collections::BTreeSet::new();
    for (kind, object, _) in describe::all_kinds() {
        for (path, field) in describe::walk(object) {
            let section = describe::object_of(&(field.shape)()).is_some();
            if is_ignored(kind, &path)
                && reader(&readers, kind, &path).is_none_or(|(_, found)| *found == Reader::Nobody)
            {
                continue;
            }
            let Some((key, found)) = reader(&readers, kind, &path) else {
                if !section && !is_ignored(kind, &path) {
                    wrong.push(format!(
                        "{kind} {path}: nothing reads it; name the file that does in {READERS}, or list it in \
                         crates/config/src/ignored.rs"
                    ));
                }
                continue;
            };
            used.insert(key);
            let Reader::Files(files) = found else { continue };
            let name = field.field.trim_start_matches("r#");
            let read =
                files.iter().any(|file| sources.get(file.as_str()).is_some_and(|code| mentions(code, name)));
            if !section && !read && !is_ignored(kind, &path) {
                wrong.push(format!("{kind} {path}: `{name}` does not appear in {}", files.join(", ")));
            }
        }
    }
    wrong.extend(
        readers
            .keys()
            .filter(|key| !used.contains(key.as_str()))
            .map(|key| format!("{READERS}: no key is at or below `{key}`")),
    );
    Ok(wrong)
}

/// The part of the page about what is ignored.
fn section() -> String {
    let mut text = String::from("\n| Document | Field | Reported when | Effect |\n|---|---|---|---|\n");
    for rule in RULES {
        let when = match rule.when {
            When::Set => "set".to_owned(),
            When::True => "`true`".to_owned(),
            When::Enabled => "`enabled: true`".to_owned(),
            When::False => "`false`".to_owned(),
            When::Installed => "set, on machines with disks to install on".to_owned(),
            When::Contained => "set, in a container".to_owned(),
            When::OtherThan(known) => format!("other than {}", known.join(", ")),
        };
        let path = if rule.path.is_empty() { "all of it".to_owned() } else { format!("`{}`", rule.path) };
        writeln!(text, "| {} | {path} | {when} | {} |", rule.kind, rule.reason).expect("a string takes all");
    }
    text.push_str("\n| Kernel argument | Effect |\n|---|---|\n");
    for rule in ARGUMENTS {
        let value = if rule.value.is_empty() { String::new() } else { format!("={}…", rule.value) };
        writeln!(text, "| `{}{value}` | {} |", rule.name, rule.reason).expect("a string takes all");
    }
    let known = PLATFORMS.join("`, `");
    writeln!(text, "| `talos.platform` other than `{known}` | {PLATFORM_REASON} |")
        .expect("a string takes all");
    text.push('\n');
    text
}

/// Splits the page at the marks: before, between, after.
fn split(page: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("{STATUS}: no line {BEGIN}"))?;
    let (between, after) = rest.split_once(END).with_context(|| format!("{STATUS}: no line {END}"))?;
    Ok((before, between, after))
}

/// Writes the list into the page.
pub(crate) fn run(root: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(STATUS)).with_context(|| format!("read {STATUS}"))?;
    let (before, _, after) = split(&page)?;
    let page = format!("{before}{BEGIN}{}{END}{after}", section());
    std::fs::write(root.join(STATUS), page).with_context(|| format!("write {STATUS}"))
}

/// Checks the page and the readers.
pub(crate) fn check(root: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(STATUS)).with_context(|| format!("read {STATUS}"))?;
    ensure!(split(&page)?.1 == section(), "{STATUS} is out of date; run `cargo xtask compat`");
    let wrong = complaints(root)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn every_key_is_read_or_listed_as_ignored() {
        let wrong = complaints(root()).unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn the_list_of_ignored_fields_is_up_to_date() {
        check(root()).unwrap();
    }

    #[test]
    fn a_key_belongs_to_the_longest_path_above_it() {
        let readers = parse("v1alpha1 machine a.rs\nv1alpha1 machine.kubelet b.rs\nX * c.rs\n").unwrap();
        let of = |kind, path| reader(&readers, kind, path).map(|(key, _)| key);
        assert_eq!(of("v1alpha1", "machine.kubelet.extraMounts[].type"), Some("v1alpha1 machine.kubelet"));
        assert_eq!(of("v1alpha1", "machine.kubeletty"), Some("v1alpha1 machine"));
        assert_eq!(of("v1alpha1", "cluster"), None);
        assert_eq!(of("X", "anything.at[].all"), Some("X *"));
        assert!(mentions("let a = config.files;", "files") && !mentions("profiles", "files"));
    }

    #[test]
    fn nobody_needs_a_reason() {
        assert!(parse("v1alpha1 version nobody").is_err());
        assert!(parse("v1alpha1 version nobody | a constant").is_ok());
        assert!(parse("v1alpha1 version").is_err());
    }
}
