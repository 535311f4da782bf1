//! What makes a machine a sandbox: its image, its control groups, its place on the host.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ichor_provision::{Cluster, ClusterRequest, ProvisionError};
use ichor_provision_local::{Kind, Layout, SetupError, images};
use ichor_sys::cgroup::{Cgroups, Limits};

use crate::cgroups::{self, Hierarchies};
use crate::layout::Paths as _;
use crate::{HIDDEN, bridge_filter, image, rootfs, scope};

/// Machines share the disk of this host: a kubelet that wants a tenth of it free would evict all pods on a full one.
const SHARED_DISK: &str = "machine: {kubelet: {extraConfig: {evictionHard: {memory.available: 100Mi, \
    nodefs.available: 1Gi, imagefs.available: 1Gi}, imageGCHighThresholdPercent: 100}}}";

/// A group stays busy for a moment after its last process was killed.
const GROUP_ATTEMPTS: u32 = 100;
const GROUP_PAUSE: Duration = Duration::from_millis(20);

/// Machines made of namespaces.
#[derive(Clone, Debug)]
pub enum Namespaced {}

impl Kind for Namespaced {
    const NAME: &'static str = "sandbox";
    const HIDDEN: &'static str = HIDDEN;
    const ACCEPTS_WITHIN: Duration = Duration::from_millis(50);
    const STOP_WAIT: Duration = Duration::from_secs(60);

    fn resolve(request: &ClusterRequest, cluster: &mut Cluster) -> Result<(), ProvisionError> {
        let image = image::find(request.image.as_deref())?;
        cluster.images = images(request.images.as_deref(), &image)?;
        cluster.image = image.to_string_lossy().into_owned();
        Ok(())
    }

    fn patches(_: &Cluster) -> Vec<String> {
        vec![SHARED_DISK.to_owned()]
    }

    fn make_machine(layout: &Layout, _: &Cluster, machine: &str) -> Result<(), SetupError> {
        rootfs::make_persistent(layout, machine)
    }

    fn launcher(layout: &Layout, cluster: &str, program: &Path) -> Option<Command> {
        // Where the supervisor before this one was.
        let _ = fs::remove_file(layout.scope());
        scope::command(layout, cluster, program)
    }

    fn launched(layout: &Layout) -> bool {
        scope::noted(layout).is_some()
    }

    fn prepare_host(layout: &Layout, cluster: &Cluster) -> Result<(), SetupError> {
        bridge_filter::load();
        scope::settle(layout, &cluster.name)
    }

    fn prepare_fleet(layout: &Layout, cluster: &Cluster) -> Result<(), SetupError> {
        image::mount(layout, cluster)?;
        let hierarchies = Hierarchies::of_host()?;
        let cgroups = hierarchies.open(&layout.cgroups())?;
        let group = scope::machines(layout, &cluster.name);
        if hierarchies == Hierarchies::Unified && scope::noted(layout).is_none() {
            cgroups::note_controllers(&cgroups, &layout.controllers())?;
        }
        make_group(&cgroups, &group)?;
        if let Some(unified) = hierarchies.open_unified(&layout.unified()) {
            make_group(&unified, &group)?;
        }
        Ok(())
    }

    async fn forget(layout: &Layout, cluster: &Cluster, machine: &str) {
        let group = format!("{}/{machine}", scope::machines(layout, &cluster.name));
        let unified = Hierarchies::of_host().ok().and_then(|all| all.open_unified(&layout.unified()));
        let split = Cgroups::detect(&layout.cgroups()).ok();
        for cgroups in unified.iter().chain(&split) {
            let _ = cgroups.kill(&group);
            for _ in 0..GROUP_ATTEMPTS {
                if cgroups.remove(&group).is_ok() {
                    break;
                }
                tokio::time::sleep(GROUP_PAUSE).await;
            }
        }
        if let Some(place) = layout.root(machine).parent() {
            let _ = fs::remove_dir_all(place);
        }
    }

    fn clean(layout: &Layout) -> Result<(), ProvisionError> {
        let failed = |text: String| ProvisionError::Failed { text };
        let done = Command::new("/proc/self/exe")
            .args([HIDDEN, "cleanup"])
            .arg(layout.dir())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed(format!("start the clean-up: {error}")))?;
        if !done.status.success() {
            return Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
        }
        image::release(layout, layout.load().ok().as_ref());
        Ok(())
    }
}

fn make_group(cgroups: &Cgroups, group: &str) -> Result<(), SetupError> {
    cgroups.create(group, &Limits::default()).map_err(SetupError::step("make a cgroup"))
}
