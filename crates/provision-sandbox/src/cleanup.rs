//! Removes the cgroups of a cluster whose processes are gone, in a process of its own.
//!
//! It mounts the hierarchies in a mount namespace of its own, since the host need not show them.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ichor_provision_local::{Layout, SetupError};
use ichor_sys::cgroup::Cgroups;
use ichor_sys::mount::{self, MountFlags, Propagation};
use ichor_sys::namespace::{self, Namespaces};

use crate::cgroups::Hierarchies;
use crate::layout::Paths as _;
use crate::{cgroups as tree, scope};

/// A group stays busy for a moment after its last process was killed.
const ATTEMPTS: u32 = 1500;
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn main(dir: &Path) -> ExitCode {
    match clean(&Layout::new(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.sentence());
            ExitCode::FAILURE
        }
    }
}

fn clean(layout: &Layout) -> Result<(), SetupError> {
    let name = layout.dir().file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let group = scope::whole(layout, name);
    namespace::unshare(Namespaces::MOUNT).map_err(SetupError::step("make a mount namespace"))?;
    mount::set_propagation(Path::new("/"), Propagation::Private)?;
    // A creation killed very early has not made this yet.
    let run = layout.run();
    std::fs::create_dir_all(&run).map_err(SetupError::file("make", &run))?;
    mount::mount("ichor", &run, "tmpfs", MountFlags::empty(), "mode=0700")?;
    let hierarchies = Hierarchies::of_host()?;
    let cgroups = hierarchies.open(&layout.cgroups())?;
    // Nobody should be left; a machine that could escape its supervisor's death is killed here.
    let _ = cgroups.kill(&group);
    if let Some(unified) = hierarchies.open_unified(&layout.unified()) {
        let _ = unified.kill(&group);
        remove(&unified, &group)?;
    }
    remove(&cgroups, &group)?;
    tree::restore_controllers(&cgroups, &layout.controllers());
    Ok(())
}

fn remove(cgroups: &Cgroups, group: &str) -> Result<(), SetupError> {
    let mut attempt = 0;
    loop {
        match cgroups.remove(group) {
            Ok(()) => return Ok(()),
            Err(source) if attempt >= ATTEMPTS => {
                return Err(SetupError::Step { what: "remove the cgroups of the cluster", source });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        attempt += 1;
    }
}
