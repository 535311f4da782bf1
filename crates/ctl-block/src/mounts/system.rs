//! Mounts on the machine this runs on.

mod carry;

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_resource::block::FilesystemType;
use ichor_sys::detached::DetachedMount;
use ichor_sys::{mount, mountinfo, overlays, swap};
use tracing::{info, warn};

use super::plan::{MountPlan, MountSource, With};
use super::port::{MountError, MountPort};
use crate::volumes::ProgramPort;

/// A device that is not there yet, or still in use, may be in a moment.
const RETRY_MAX: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Who uses a mount may be about to let it go.
const UNMOUNT_MAX: Duration = Duration::from_secs(2);
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);
/// A call to a disk that does not answer; what hangs in it is left behind.
const CALL_MAX: Duration = Duration::from_secs(60);
/// A tool that repairs or grows the filesystem of a slow disk.
const TOOL_MAX: Duration = Duration::from_secs(600);

/// The kernel says that a filesystem has to be repaired.
const EUCLEAN: i32 = 117;
const EBADMSG: i32 = 74;
const ENXIO: i32 = 6;
const EINVAL: i32 = 22;

/// The machine's own mounts.
#[derive(Debug)]
pub struct SystemMounts<R> {
    programs: R,
}

/// Why a filesystem was not mounted.
#[derive(Debug)]
enum Failure {
    /// It is damaged; a repair may help.
    Damaged(io::Error),
    /// Anything else.
    Other(io::Error),
}

impl<R: ProgramPort> SystemMounts<R> {
    /// Mounts whose filesystems are repaired and grown with these programs.
    pub fn new(programs: R) -> Self {
        Self { programs }
    }

    /// Repairs a filesystem that does not mount. Only what its own tool thinks safe: a journal that was not replayed is
    /// not thrown away.
    async fn repair(&self, device: &str, filesystem: FilesystemType) -> Result<(), String> {
        let (program, args): (&str, &[&str]) = match filesystem {
            FilesystemType::Xfs => ("xfs_repair", &[]),
            FilesystemType::Ext4 => ("e2fsck", &["-f", "-p"]),
            FilesystemType::None | FilesystemType::Vfat | FilesystemType::Iso9660 | FilesystemType::Swap => {
                return Err(format!("{filesystem} is not repaired"));
            }
        };
        warn!(device, %filesystem, "the filesystem is damaged; repairing it");
        let args = args.iter().map(|arg| (*arg).to_owned()).chain([device.to_owned()]).collect();
        self.programs.run(program, args, TOOL_MAX).await
    }

    async fn mount_filesystem(
        &self,
        plan: &MountPlan,
        device: &str,
        filesystem: FilesystemType,
    ) -> Result<(), MountError> {
        let failed = |reason: &dyn std::fmt::Display| {
            MountError::new(format!("mount {device} on {}: {reason}", plan.target.display()))
        };
        let attempt = || async {
            let work = plan.clone();
            let name = device.to_owned();
            blocking(move || attempt(&work, &name, filesystem)).await.map_err(|error| failed(&error))
        };
        match attempt().await? {
            Ok(()) => return Ok(()),
            Err(Failure::Other(error)) => return Err(failed(&error)),
            Err(Failure::Damaged(error)) => {
                if let Err(reason) = self.repair(device, filesystem).await {
                    return Err(failed(&format!(
                        "{error}; not repaired: {reason}; nothing was changed: save what is on it, then wipe {device}"
                    )));
                }
            }
        }
        match attempt().await? {
            Ok(()) => {
                info!(device, "filesystem repaired");
                Ok(())
            }
            Err(Failure::Damaged(error) | Failure::Other(error)) => {
                Err(failed(&format!("{error}, also after a repair")))
            }
        }
    }

    /// Makes a filesystem as large as its device. One that stays small is still of use.
    async fn grow(&self, plan: &MountPlan, filesystem: FilesystemType) {
        if filesystem != FilesystemType::Xfs {
            return;
        }
        let target = plan.target.to_string_lossy().into_owned();
        let args = vec!["-d".to_owned(), target];
        if let Err(reason) = self.programs.run("xfs_growfs", args, TOOL_MAX).await {
            warn!(volume = plan.volume, reason, "filesystem not grown");
        }
    }
}

impl<R: ProgramPort> MountPort for SystemMounts<R> {
    async fn mount(&self, plan: &MountPlan) -> Result<(), MountError> {
        match &plan.source {
            MountSource::Swap { device } => {
                let node = PathBuf::from(device);
                let done = blocking(move || match swap::on(&node) {
                    // A manager before this one did.
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
                    done => done,
                });
                let done = done.await.and_then(|done| done.map_err(|error| error.to_string()));
                done.map_err(|reason| MountError::new(format!("swap to {device}: {reason}")))
            }
            MountSource::Directory { is_bound } => {
                let (work, is_bound) = (plan.clone(), *is_bound);
                let done = blocking(move || directory(&work, is_bound)).await;
                let done = done.and_then(|done| done.map_err(|error| error.to_string()));
                done.map_err(|reason| MountError::new(format!("{}: {reason}", plan.target.display())))
            }
            MountSource::Filesystem { device, filesystem, grow } => {
                self.mount_filesystem(plan, device, *filesystem).await?;
                if *grow && !plan.read_only {
                    self.grow(plan, *filesystem).await;
                }
                Ok(())
            }
        }
    }

    async fn unmount(&self, plan: &MountPlan, by_force: bool) -> Result<(), MountError> {
        let (work, target) = (plan.clone(), plan.target.display().to_string());
        let what = match &plan.source {
            MountSource::Swap { device } => device.clone(),
            MountSource::Directory { .. } | MountSource::Filesystem { .. } => target,
        };
        let done = blocking(move || end(&work, by_force)).await;
        let done = done.and_then(|done| done.map_err(|error| error.to_string()));
        done.map_err(|reason| MountError::new(format!("unmount {what}: {reason}")))
    }
}

/// Runs work that may hang, and waits for it no longer than is reasonable.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    match tokio::time::timeout(CALL_MAX, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer from the disk within {} s", CALL_MAX.as_secs())),
    }
}

/// Tries for a while, where trying again may help.
fn attempt(plan: &MountPlan, device: &str, filesystem: FilesystemType) -> Result<(), Failure> {
    let until = Instant::now() + RETRY_MAX;
    loop {
        match mount_once(plan, device, filesystem) {
            Ok(()) => return Ok(()),
            Err(error) if is_transient(&error) && Instant::now() < until => std::thread::sleep(RETRY_PAUSE),
            Err(error) if matches!(error.raw_os_error(), Some(EUCLEAN | EBADMSG)) => {
                return Err(Failure::Damaged(error));
            }
            Err(error) => return Err(Failure::Other(error)),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::NotFound)
        || error.raw_os_error() == Some(ENXIO)
}

fn mount_once(plan: &MountPlan, device: &str, filesystem: FilesystemType) -> io::Result<()> {
    std::fs::create_dir_all(&plan.target)?;
    let mut say = |text: &str| warn!(volume = plan.volume, "{text}");
    if is_there(plan, device)? {
        if plan.with == With::Overlays {
            overlays::mount_missing(&mut say);
        }
        return Ok(());
    }
    let options: &[&str] = if plan.quota && filesystem == FilesystemType::Xfs { &["prjquota"] } else { &[] };
    let detached = DetachedMount::open(device, &filesystem.to_string(), options, plan.read_only)?;
    if !plan.read_only {
        prepare(&detached.root(), plan.mode, plan.owner)?;
    }
    match plan.with {
        With::Nothing => detached.attach(&plan.target),
        With::CarriedFiles => carry::attach(detached, &plan.target),
        With::Overlays => {
            detached.attach(&plan.target)?;
            // Those of the start keep what is written to them in memory.
            overlays::detach(&mut say);
            overlays::mount_missing(&mut say);
            Ok(())
        }
    }
}

/// Whether the device is mounted there already: by a manager before this one.
fn is_there(plan: &MountPlan, device: &str) -> io::Result<bool> {
    let mounts = mountinfo::mounts()?;
    // The last one is what is seen.
    let seen = mounts.iter().rfind(|mount| Path::new(&mount.target) == plan.target);
    Ok(seen.is_some_and(|mount| mount.source == device))
}

/// Gives a directory its mode and owner.
fn prepare(path: &Path, mode: u32, (uid, gid): (u32, u32)) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if mode != 0 && found.permissions().mode() & 0o7777 != mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    if (found.uid(), found.gid()) != (uid, gid) {
        chown(path, Some(uid), Some(gid))?;
    }
    Ok(())
}

fn directory(plan: &MountPlan, is_bound: bool) -> io::Result<()> {
    std::fs::create_dir_all(&plan.target)?;
    prepare(&plan.target, plan.mode, plan.owner)?;
    if is_bound && !mount::is_mounted(&plan.target) {
        mount::bind(&plan.target, &plan.target, false).map_err(|error| error.source)?;
        if plan.read_only {
            mount::remount_bind(&plan.target, mount::MountFlags::RDONLY).map_err(|error| error.source)?;
        }
    }
    Ok(())
}

/// Ends a mount, whatever it is.
fn end(plan: &MountPlan, by_force: bool) -> io::Result<()> {
    match &plan.source {
        MountSource::Swap { device } => match swap::off(Path::new(device)) {
            Err(error) if error.raw_os_error() == Some(EINVAL) => Ok(()),
            done => done,
        },
        MountSource::Directory { is_bound: false } => Ok(()),
        MountSource::Directory { is_bound: true } => unmount(&plan.target, by_force),
        MountSource::Filesystem { .. } => {
            if plan.with == With::Overlays {
                overlays::detach(&mut |text: &str| warn!(volume = plan.volume, "{text}"));
            }
            unmount(&plan.target, by_force)
        }
    }
}

fn unmount(target: &Path, by_force: bool) -> io::Result<()> {
    if !mount::is_mounted(target) {
        return Ok(());
    }
    // What is not written now is written by the unmount.
    let _ = mount::sync(target);
    let until = Instant::now() + UNMOUNT_MAX;
    loop {
        let done = if by_force { mount::unmount_by_force(target) } else { mount::unmount(target) };
        match done.map_err(|error| error.source) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(UNMOUNT_PAUSE);
            }
            // Somebody else did.
            Err(error) if error.raw_os_error() == Some(EINVAL) && !mount::is_mounted(target) => return Ok(()),
            done => return done,
        }
    }
}
