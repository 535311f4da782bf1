//! What stands in the place of a machine's runc: it takes the host's settings out of the reach of privileged
//! containers, then becomes the real one.
//!
//! A machine sees the host's `/proc` and `/sys` with protections over them; a container gets fresh ones, and when it is
//! privileged nothing is put over those. The guard adds it again.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

/// The name it answers to.
pub(crate) const NAME: &str = "runc";

/// Where the real one is, in a machine; the directory below `/system`.
const REAL: &str = "/system/sandbox/bin/runc";
pub(crate) const REAL_DIR: &str = "sandbox/bin";

/// Parts of `/proc` that are the whole host's, beside settings.
const OTHERS: [&str; 7] = ["acpi", "bus", "fs", "irq", "mtrr", "scsi", "sysrq-trigger"];

/// Whether this process was started as runc, and if so, all it does.
pub(crate) fn main() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let called = args.next()?;
    if Path::new(&called).file_name() != Some(OsStr::new(NAME)) {
        return None;
    }
    let args: Vec<OsString> = args.collect();
    if let Some(bundle) = bundle(&args)
        && let Err(error) = edit(&bundle.join("config.json"))
    {
        eprintln!("cannot protect the host from the container: {error}");
        return Some(ExitCode::FAILURE);
    }
    let error = Command::new(REAL).arg0(NAME).args(&args).exec();
    eprintln!("{REAL}: {error}");
    Some(ExitCode::FAILURE)
}

/// The bundle of a call that makes a container.
fn bundle(args: &[OsString]) -> Option<PathBuf> {
    let makes = |arg: &OsString| arg == "create" || arg == "run";
    let at = args.iter().position(makes)?;
    let mut rest = args[at + 1..].iter();
    while let Some(arg) = rest.next() {
        if arg == "--bundle" || arg == "-b" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--bundle=")) {
            return Some(path.into());
        }
    }
    Some(".".into())
}

fn edit(path: &Path) -> std::io::Result<()> {
    let mut config: Value = serde_json::from_slice(&fs::read(path)?)?;
    let settings = fs::read_dir("/proc/sys")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    if protect(&mut config, settings) {
        fs::write(path, serde_json::to_vec(&config)?)?;
    }
    Ok(())
}

/// Puts the protections into a container's description; false when it has them.
fn protect(config: &mut Value, settings: impl Iterator<Item = String>) -> bool {
    let Some(linux) = config.get_mut("linux").and_then(Value::as_object_mut) else { return false };
    let paths = linux.entry("readonlyPaths").or_insert(Value::Null);
    if !paths.is_array() {
        *paths = json!([]);
    }
    let Some(paths) = paths.as_array_mut() else { return false };
    let before = paths.len();
    let whole = paths.contains(&json!("/proc/sys"));
    // Those of the network belong to the pod or the machine.
    let settings = settings.filter(|name| !whole && name != "net").map(|name| format!("/proc/sys/{name}"));
    for path in settings.chain(OTHERS.map(|name| format!("/proc/{name}"))) {
        if !paths.contains(&json!(path)) {
            paths.push(json!(path));
        }
    }
    let mut changed = paths.len() != before;
    let mounts = config.get_mut("mounts").and_then(Value::as_array_mut);
    for mount in mounts.into_iter().flatten().filter(|mount| mount["type"] == "sysfs") {
        let options = match mount.get_mut("options").and_then(Value::as_array_mut) {
            Some(options) => options,
            None => continue,
        };
        if !options.contains(&json!("ro")) {
            options.retain(|option| option != "rw");
            options.push(json!("ro"));
            changed = true;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privileged_container_gets_its_protections_back() {
        let mut config = json!({
            "mounts": [
                { "destination": "/proc", "type": "proc" },
                { "destination": "/sys", "type": "sysfs", "options": ["nosuid", "rw"] },
            ],
            "linux": {},
        });
        let settings = || ["kernel", "net", "vm"].map(str::to_owned).into_iter();
        assert!(protect(&mut config, settings()));
        let paths = config["linux"]["readonlyPaths"].to_string();
        assert!(
            paths.contains("\"/proc/sys/kernel\"") && paths.contains("\"/proc/sysrq-trigger\""),
            "{paths}"
        );
        assert!(!paths.contains("/proc/sys/net"), "{paths}");
        assert_eq!(config["mounts"][1]["options"], json!(["nosuid", "ro"]));
        assert!(!protect(&mut config, settings()), "what is protected stays as it is");
    }

    #[test]
    fn an_ordinary_container_keeps_all_settings_read_only() {
        let mut config = json!({ "linux": { "readonlyPaths": ["/proc/sys"] } });
        protect(&mut config, ["kernel"].map(str::to_owned).into_iter());
        let paths = config["linux"]["readonlyPaths"].to_string();
        assert!(paths.contains("\"/proc/sys\"") && !paths.contains("/proc/sys/kernel"), "{paths}");
    }

    #[test]
    fn the_bundle_is_found_in_calls_that_make_containers() {
        let find = |line: &str| bundle(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let made = find("--root /r --log l create --bundle /b --pid-file p id");
        assert_eq!(made, Some("/b".into()));
        assert_eq!(find("run -b /b id"), Some("/b".into()));
        assert_eq!(find("run --bundle=/b id"), Some("/b".into()));
        assert_eq!(find("create id"), Some(".".into()));
        assert_eq!(find("--root /r start id"), None);
        assert_eq!(find("--version"), None);
    }
}
