//! The host's cgroup hierarchies as a fleet sees them.
//!
//! They are mounted once more in the fleet's own mount namespace, so that it does not matter where, or whether,
//! the host shows them; and again inside each machine, where the cgroup namespace makes them the machine's own.

use std::fs;
use std::path::Path;

use ichor_sys::cgroup::Cgroups;
use ichor_sys::mount::{self, MountFlags};

use crate::error::SetupError;

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
        Self::parse(&text).ok_or(SetupError::NoCgroups)
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
            Self::Unified => mount::mount("cgroup2", target, "cgroup2", FLAGS, "nsdelegate")
                // Options of the unified tree can be given in the first cgroup namespace only.
                .or_else(|_| mount::mount("cgroup2", target, "cgroup2", FLAGS, ""))?,
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
                    mount::mount("cgroup2", target, "cgroup2", FLAGS, "").ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
