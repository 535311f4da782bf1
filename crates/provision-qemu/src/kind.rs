//! What makes a machine one of QEMU: what it boots, its disks, its number, and what its network serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_provision::{Cluster, ClusterRequest, ProvisionError, Setting};
use ichor_provision_local::{Kind, Layout, SetupError, images};

use crate::options::{Boot, Options, SETTINGS};
use crate::{HIDDEN, disk, host, serve, start};

/// Machines of QEMU.
#[derive(Clone, Debug)]
pub enum Virtual {}

impl Kind for Virtual {
    const NAME: &'static str = "qemu";
    const HIDDEN: &'static str = HIDDEN;
    const SETTINGS: &'static [Setting] = SETTINGS;
    // An emulated machine at work takes its time.
    const ACCEPTS_WITHIN: Duration = Duration::from_secs(2);
    const STOP_WAIT: Duration = Duration::from_secs(180);

    fn resolve(request: &ClusterRequest, cluster: &mut Cluster) -> Result<(), ProvisionError> {
        let options = host::resolve(&mut cluster.settings)?;
        let booted = match &options.boot {
            Some(Boot::Kernel { initrd: path, .. } | Boot::Uki(path) | Boot::Iso(path)) => path.clone(),
            Some(Boot::Usb(path) | Boot::DiskImage(path)) => path.clone(),
            Some(Boot::Ipxe(url)) => PathBuf::from(url),
            None => PathBuf::new(),
        };
        cluster.images = images(request.images.as_deref(), booted.parent().unwrap_or(Path::new("/")))?;
        cluster.image = booted.to_string_lossy().into_owned();
        Ok(())
    }

    fn patches(_: &Cluster) -> Vec<String> {
        Vec::new()
    }

    fn make_machine(layout: &Layout, cluster: &Cluster, machine: &str) -> Result<(), SetupError> {
        let options = Options::parse(&cluster.settings)?;
        let dir = layout.machine(machine);
        fs::create_dir_all(&dir).map_err(SetupError::file("make", &dir))?;
        let number = uuid_file(layout, machine);
        if !number.exists() {
            let random = "/proc/sys/kernel/random/uuid";
            let uuid = fs::read_to_string(random).map_err(SetupError::file("read", random))?;
            fs::write(&number, uuid.trim()).map_err(SetupError::file("write", &number))?;
        }
        let kind = cluster.machine(machine)?.kind;
        for (number, wanted) in start::disks(&options, kind).iter().enumerate() {
            let path = start::disk_file(&dir, number, &options);
            let first_of = options.boot.as_ref().filter(|_| number == 0);
            disk::make(&path, *wanted, options.format, first_of)?;
        }
        if let Some(uefi) = &options.uefi {
            let own = vars_file(layout, machine);
            if !own.exists() {
                fs::copy(&uefi.vars, &own).map_err(SetupError::file("copy", &uefi.vars))?;
            }
        }
        Ok(())
    }

    async fn serve(layout: &Layout, cluster: &Cluster) -> Result<(), SetupError> {
        serve::start(layout, cluster).await
    }
}

/// The number that tells a machine from all others.
pub(crate) fn uuid_file(layout: &Layout, machine: &str) -> PathBuf {
    layout.machine(machine).join("uuid")
}

/// Its own variables of UEFI.
pub(crate) fn vars_file(layout: &Layout, machine: &str) -> PathBuf {
    layout.machine(machine).join("uefi-vars.fd")
}
