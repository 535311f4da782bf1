//! Filesystems of a system disk, mounted where nobody else sees them.

use std::fs;
use std::path::{Path, PathBuf};

use ichor_sys::module;
use ichor_sys::mount::{self, MountError, MountFlags, Propagation};
use ichor_sys::namespace::{self, Namespaces};

use crate::error::InstallError;

/// Where the firmware shows its variables.
const EFIVARS: &str = "/sys/firmware/efi/efivars";
/// Modules that FAT needs besides its own; those that are built in or missing are passed over.
const FAT_NEEDS: &[&str] = &["nls_cp437", "nls_ascii", "nls_iso8859-1", "nls_utf8"];

/// Mounts that go when this does.
#[derive(Debug)]
pub struct Mounts {
    folder: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Mounts {
    /// Leaves the mounts of the machine: what is mounted from now on is seen by this process alone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn private(folder: &Path) -> Result<Self, InstallError> {
        let failed =
            |source| InstallError::Disk { what: "leave the mounts of", path: "the machine".into(), source };
        namespace::unshare(Namespaces::MOUNT).map_err(failed)?;
        mount::set_propagation(Path::new("/"), Propagation::Private)?;
        Ok(Self { folder: folder.to_owned(), mounted: Vec::new() })
    }

    /// Mounts a partition under a name. `kind` is its filesystem.
    ///
    /// # Errors
    /// The kernel's.
    pub fn mount(
        &mut self,
        node: &Path,
        name: &str,
        kind: &str,
        is_writable: bool,
    ) -> Result<PathBuf, InstallError> {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let flags = if is_writable { flags } else { flags | MountFlags::RDONLY };
        // The first inconsistency would make it read-only, and the machine could not be upgraded any more.
        let options = if kind == "vfat" { "errors=continue,umask=0077" } else { "" };
        let target = self.target(name)?;
        mount_or_load(&node.to_string_lossy(), &target, kind, flags, options)?;
        self.mounted.push(target.clone());
        Ok(target)
    }

    /// The variables of the firmware, writable; none on a machine without UEFI.
    ///
    /// # Errors
    /// The kernel's.
    pub fn variables(&mut self, is_writable: bool) -> Result<Option<PathBuf>, InstallError> {
        if !Path::new("/sys/firmware/efi").is_dir() {
            return Ok(None);
        }
        if !is_writable && mount::is_mounted(Path::new(EFIVARS)) {
            return Ok(Some(PathBuf::from(EFIVARS)));
        }
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let target = self.target("efivars")?;
        mount_or_load("efivarfs", &target, "efivarfs", flags, "")?;
        self.mounted.push(target.clone());
        // There is only one such filesystem, and elsewhere it is mounted read-only.
        mount::remount(&target, flags)?;
        Ok(Some(target))
    }

    /// Unmounts everything; what was written is on disk afterwards.
    ///
    /// # Errors
    /// The kernel's.
    pub fn release(&mut self) -> Result<(), InstallError> {
        while let Some(target) = self.mounted.pop() {
            mount::unmount(&target)?;
        }
        Ok(())
    }

    fn target(&self, name: &str) -> Result<PathBuf, InstallError> {
        let target = self.folder.join(name);
        fs::create_dir_all(&target).map_err(|source| InstallError::Disk {
            what: "make",
            path: target.clone(),
            source,
        })?;
        Ok(target)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        while let Some(target) = self.mounted.pop() {
            let _ = mount::detach(&target);
        }
    }
}

fn mount_or_load(
    source: &str,
    target: &Path,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<(), MountError> {
    let attempt = || mount::mount(source, target, kind, flags, options);
    match attempt() {
        Err(error) if error.is_unsupported() => {
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            let folder = Path::new("/usr/lib/modules").join(release);
            let needed = if kind == "vfat" { FAT_NEEDS } else { &[] };
            for name in needed.iter().chain([&kind]) {
                // The second attempt tells what is missing.
                let _ = module::load_by_name(&folder, name, "");
            }
            attempt()
        }
        done => done,
    }
}
