//! The host's cgroup hierarchies as a fleet sees them.
//!
//! They are mounted once more in the fleet's own mount namespace, so that it does not matter where, or whether,
//! the host shows them; and again inside each machine, where the cgroup namespace makes them the machine's own.

use std::fs;
use std::path::Path;

use ichor_provision_local::SetupError;
use ichor_sys::cgroup::{Cgroups, Layout};
use ichor_sys::mount::{self, MountError, MountFlags};
use ichor_sys::mountinfo::{self, Mount};

use crate::error::CgroupError;

const FLAGS: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC).union(MountFlags::RELATIME);

/// What to mount.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    /// One tree.
    Unified,
    /// A tree per line: directory and mount options.
    Split(Vec<(String, String)>),
}

impl Hierarchies {
    /// Those in use on this host.
    pub(crate) fn of_host() -> Result<Self, SetupError> {
        let path = "/proc/self/cgroup";
        let text = fs::read_to_string(path).map_err(SetupError::file("read", path))?;
        Ok(Self::parse(&text).ok_or(CgroupError::NoCgroups)?)
    }

    /// Reads `/proc/<pid>/cgroup`. As soon as one controller is bound to a v1 tree, v2 has none worth having.
    fn parse(text: &str) -> Option<Self> {
        let mut split = Vec::new();
        let (mut unified, mut controllers) = (false, false);
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, names) = (fields.next()?, fields.next()?);
            if names.is_empty() {
                unified = true;
            } else if let Some(name) = names.strip_prefix("name=") {
                split.push((name.to_owned(), format!("none,{names}")));
            } else {
                controllers = true;
                split.push((names.to_owned(), names.to_owned()));
            }
        }
        split.sort();
        match (controllers, unified) {
            (true, _) => Some(Self::Split(split)),
            (false, true) => Some(Self::Unified),
            (false, false) => None,
        }
    }

    /// Mounts them at `target`, an existing directory.
    pub(crate) fn mount(&self, target: &Path) -> Result<(), SetupError> {
        match self {
            Self::Unified => mount_unified(target)?,
            Self::Split(trees) => {
                mount::mount("cgroup", target, "tmpfs", FLAGS, "mode=0755")?;
                for (name, options) in trees {
                    let place = target.join(name);
                    fs::create_dir(&place).map_err(SetupError::file("make", &place))?;
                    mount::mount("cgroup", &place, "cgroup", FLAGS, options)?;
                }
            }
        }
        Ok(())
    }

    /// The unified tree of a split host, which has no controllers but can hold programs.
    pub(crate) fn open_unified(&self, target: &Path) -> Option<Cgroups> {
        match self {
            Self::Unified => None,
            Self::Split(_) => {
                fs::create_dir_all(target).ok()?;
                if !mount::is_mounted(target) {
                    mount_unified(target).ok()?;
                }
                Cgroups::detect(target).ok()
            }
        }
    }

    /// Mounts them at `target` and opens them.
    pub(crate) fn open(&self, target: &Path) -> Result<Cgroups, SetupError> {
        fs::create_dir_all(target).map_err(SetupError::file("make", target))?;
        self.mount(target)?;
        Cgroups::detect(target).map_err(SetupError::file("read", target))
    }
}

/// Mounts the unified tree with the options it has: there is one such filesystem, and in the first cgroup namespace
/// every mount of it sets its options anew, for the host too.
fn mount_unified(target: &Path) -> Result<(), MountError> {
    let options = unified_options(&mountinfo::mounts().unwrap_or_default());
    mount::mount("cgroup2", target, "cgroup2", FLAGS, &options)
}

fn unified_options(mounts: &[Mount]) -> String {
    let Some(found) = mounts.iter().find(|mount| mount.kind == "cgroup2") else { return String::new() };
    let options: Vec<&str> =
        found.super_options.split(',').filter(|option| !matches!(*option, "rw" | "ro")).collect();
    options.join(",")
}

/// What a node cannot do without.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// Whether the kubelet will find the controllers it needs, on a unified tree.
pub(crate) fn check_controllers(cgroups: &Cgroups, group: &str) -> Result<(), SetupError> {
    let Some(root) = cgroups.roots().first().filter(|_| cgroups.layout() == Layout::Unified) else {
        return Ok(());
    };
    let file = root.join(group).join("cgroup.controllers");
    let text = fs::read_to_string(&file).map_err(SetupError::file("read", &file))?;
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !has(&text, name)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => {
            Err(CgroupError::NoControllers { group: format!("/{group}"), missing: missing.join(", ") }.into())
        }
    }
}

fn has(controllers: &str, name: &str) -> bool {
    controllers.split_whitespace().any(|own| own == name)
}

/// Notes which controllers the root hands down, once for each cluster.
pub(crate) fn note_controllers(cgroups: &Cgroups, note: &Path) -> Result<(), SetupError> {
    if note.exists() {
        return Ok(());
    }
    let Some(root) = cgroups.roots().first() else { return Ok(()) };
    let file = root.join(CONTROL);
    let text = fs::read_to_string(&file).map_err(SetupError::file("read", &file))?;
    fs::write(note, text).map_err(SetupError::file("write", note))
}

/// Takes back what the root hands down beyond what was noted. What another cluster needs, the kernel keeps.
pub(crate) fn restore_controllers(cgroups: &Cgroups, note: &Path) {
    let (Ok(before), Some(root)) = (fs::read_to_string(note), cgroups.roots().first()) else { return };
    let file = root.join(CONTROL);
    let now = fs::read_to_string(&file).unwrap_or_default();
    for name in now.split_whitespace().filter(|name| !has(&before, name)) {
        let _ = fs::write(&file, format!("-{name}"));
    }
}

const CONTROL: &str = "cgroup.subtree_control";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_mount_keeps_the_options_of_the_first() {
        let text =
            "22 21 0:20 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        assert_eq!(unified_options(&mountinfo::parse(text)), "nsdelegate,memory_recursiveprot");
        let plain =
            "22 21 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n23 1 0:9 / /proc rw - proc proc rw\n";
        assert_eq!(unified_options(&mountinfo::parse(plain)), "");
        assert_eq!(unified_options(&[]), "");
    }

    /// A directory that looks like a unified tree.
    fn tree(dir: &Path, controllers: &str, handed_down: &str) -> Cgroups {
        for (file, text) in
            [("cgroup.procs", ""), ("cgroup.controllers", controllers), (CONTROL, handed_down)]
        {
            fs::write(dir.join(file), text).unwrap();
        }
        Cgroups::detect(dir).unwrap()
    }

    #[test]
    fn a_missing_controller_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = tree(dir.path(), "", "");
        fs::create_dir(dir.path().join("m")).unwrap();
        let file = dir.path().join("m/cgroup.controllers");
        fs::write(&file, "cpuset cpu io memory pids\n").unwrap();
        assert!(check_controllers(&cgroups, "m").is_ok());
        fs::write(&file, "cpuset pids\n").unwrap();
        let text = check_controllers(&cgroups, "m").unwrap_err().sentence();
        assert!(text.starts_with("cgroup /m has no controller cpu, memory: "), "{text}");
    }

    #[test]
    fn controllers_are_taken_back_as_they_were_at_first() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("note");
        let cgroups = tree(dir.path(), "cpu memory pids", "memory pids\n");
        note_controllers(&cgroups, &note).unwrap();
        fs::write(dir.path().join(CONTROL), "cpu memory pids\n").unwrap();
        note_controllers(&cgroups, &note).unwrap();
        assert_eq!(fs::read_to_string(&note).unwrap(), "memory pids\n", "a restart does not note its own");
        restore_controllers(&cgroups, &note);
        // The file of a real tree takes commands; here the last one stays.
        assert_eq!(fs::read_to_string(dir.path().join(CONTROL)).unwrap(), "-cpu");
    }

    #[track_caller]
    fn check(text: &str, expect: expect_test::Expect) {
        expect.assert_eq(&format!("{:?}", Hierarchies::parse(text)));
    }

    #[test]
    fn a_host_is_split_as_soon_as_a_controller_is() {
        check(
            "9:name=systemd:/\n2:cpu,cpuacct:/\n4:memory:/a/b\n0::/\n",
            expect_test::expect![[
                r#"Some(Split([("cpu,cpuacct", "cpu,cpuacct"), ("memory", "memory"), ("systemd", "none,name=systemd")]))"#
            ]],
        );
        check("0::/user.slice\n", expect_test::expect!["Some(Unified)"]);
        check("1:name=systemd:/\n0::/\n", expect_test::expect!["Some(Unified)"]);
        check("", expect_test::expect!["None"]);
    }
}
