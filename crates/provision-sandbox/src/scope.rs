//! The cluster's place in the cgroup tree (v2) of a host that runs systemd.
//!
//! There systemd owns the tree: it decides which controllers a group has and removes groups it does not know the use of.
//! A transient scope with delegation is the place it leaves alone. It also keeps the machines out of the session or
//! service that created them, whose end would otherwise be theirs. The scope ends with its last process, and systemd
//! removes it and takes back the controllers that nobody else uses.
//!
//! ```text
//! ichor-NAME-HASH-PID.scope
//! ├─ supervisor              the supervisor and the boot processes: a group that hands controllers down has none
//! └─ machines/MACHINE
//! ```

use std::fs;
use std::path::Path;
use std::process::Command;

use ichor_provision_local::{Layout, SetupError};
use ichor_sys::cgroup::{Cgroups, Limits, MOUNT_POINT};

use crate::cgroups::Hierarchies;
use crate::layout::Paths as _;

/// What is there as long as systemd is the first process of the host.
const BOOTED: &str = "/run/systemd/system";
/// Users of `su` have no directories of the administrator in theirs.
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const SUPERVISOR: &str = "supervisor";
const MACHINES: &str = "machines";

/// The command that starts `program` in a scope of its own, where the host has such.
pub(crate) fn command(layout: &Layout, cluster: &str, program: &Path) -> Option<Command> {
    let wanted = Path::new(BOOTED).is_dir() && matches!(Hierarchies::of_host(), Ok(Hierarchies::Unified));
    wanted.then(|| {
        // The number tells it from the scope of the start before, which may still be on its way out.
        let unit = format!("{}-{}.scope", layout.group(cluster), std::process::id());
        let mut command = Command::new("systemd-run");
        command
            .env("PATH", PATH)
            .args(["--scope", "--quiet", "--collect", "--slice=-.slice"])
            .arg(format!("--unit={unit}"))
            .arg(format!("--description=Machines of the cluster {cluster}"))
            .args(["--property=Delegate=yes", "--property=TasksMax=infinity", "--"])
            .arg(program);
        command
    })
}

/// Moves this process, the supervisor, out of the way of its machines, when it is in a scope of its own; notes where
/// the cluster is. Before there are other processes.
pub(crate) fn settle(layout: &Layout, cluster: &str) -> Result<(), SetupError> {
    let path = "/proc/self/cgroup";
    let text = fs::read_to_string(path).map_err(SetupError::file("read", path))?;
    let note = layout.scope();
    let Some(scope) = own_scope(&text, &layout.group(cluster)) else {
        // What an earlier supervisor noted is not true any more.
        return match fs::remove_file(&note) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(SetupError::file("remove", note)(error))
            }
            _ => Ok(()),
        };
    };
    fs::write(&note, scope).map_err(SetupError::file("write", &note))?;
    let group = format!("{scope}/{SUPERVISOR}");
    Cgroups::detect(Path::new(MOUNT_POINT))
        .and_then(|cgroups| {
            cgroups.create(&group, &Limits::default())?;
            cgroups.add(&group, 0)
        })
        .map_err(SetupError::step("move the supervisor into a cgroup of its own"))
}

/// The group of all machines in every hierarchy.
pub(crate) fn machines(layout: &Layout, cluster: &str) -> String {
    match noted(layout) {
        Some(scope) => format!("{scope}/{MACHINES}"),
        None => layout.group(cluster),
    }
}

/// The group of the whole cluster.
pub(crate) fn whole(layout: &Layout, cluster: &str) -> String {
    noted(layout).unwrap_or_else(|| layout.group(cluster))
}

/// Whether the cluster is in a scope of systemd.
pub(crate) fn noted(layout: &Layout) -> Option<String> {
    fs::read_to_string(layout.scope()).ok().filter(|scope| !scope.is_empty())
}

/// Reads `/proc/<pid>/cgroup`: the scope that was made for this cluster, if the process is in it.
fn own_scope<'a>(text: &'a str, group: &str) -> Option<&'a str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let last = path.rsplit('/').next()?;
    let number = last.strip_prefix(group)?.strip_prefix('-')?.strip_suffix(".scope")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_the_clusters_own_only_by_its_name() {
        let find = |text| own_scope(text, "ichor-lab-0123abcd");
        assert_eq!(find("0::/ichor-lab-0123abcd-77.scope\n"), Some("ichor-lab-0123abcd-77.scope"));
        assert_eq!(
            find("0::/x.slice/ichor-lab-0123abcd-7.scope\n"),
            Some("x.slice/ichor-lab-0123abcd-7.scope")
        );
        for other in [
            "0::/user.slice/user-0.slice/session-1.scope\n",
            "0::/ichor-lab-0123abcd-2-77.scope\n",
            "0::/ichor-laboratory-0123abcd-77.scope\n",
            "0::/ichor-lab-0123abcd-77.scope/supervisor\n",
            "9:memory:/ichor-lab-0123abcd-77.scope\n0::/\n",
            "",
        ] {
            assert_eq!(find(other), None, "{other:?}");
        }
    }

    #[test]
    fn machines_are_in_the_scope_that_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(machines(&layout, "lab"), layout.group("lab"));
        fs::write(layout.scope(), "ichor-lab-0123abcd-77.scope").unwrap();
        assert_eq!(machines(&layout, "lab"), "ichor-lab-0123abcd-77.scope/machines");
        assert_eq!(whole(&layout, "lab"), "ichor-lab-0123abcd-77.scope");
    }
}
