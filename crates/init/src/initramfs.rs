//! The first stage on a real kernel: from the initramfs to the root image.
//!
//! The archive holds this program as `/init`, the root as `/rootfs.sqsh` and, where the kernel has
//! them as modules, the drivers needed to mount it, numbered in load order.

use std::error::Error;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::loopdev::LoopDevice;
use ichor_sys::mount::{self, MountError, MountFlags};
use ichor_sys::{kmsg, module, power};
use rustix::fs::{AtFlags, Mode, OFlags};

/// The root image inside the archive.
const IMAGE: &str = "/rootfs.sqsh";
/// Where it is mounted before it becomes the root.
const ROOT: &str = "/root";
/// The program of the next stage.
const NEXT: &str = "/sbin/init";

/// Time to read the message before the machine starts over.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// Why the root could not be entered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    /// A mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Anything else, with what was being done.
    #[error("{what}")]
    Io {
        /// The step.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

fn step<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, StageError> {
    result.map_err(|source| StageError::Io { what: what.into(), source })
}

/// Whether this process runs out of an initramfs with a root image in it.
pub(crate) fn is_stage() -> bool {
    std::process::id() == 1 && Path::new(IMAGE).exists()
}

/// Mounts the root image and becomes its init. A machine that cannot do that says why and starts over.
pub(crate) fn run() -> ExitCode {
    match enter() {
        Ok(never) => match never {},
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            report(3, &format!("{error}{cause}; restarting in {} s", RESTART_AFTER.as_secs()));
            std::thread::sleep(RESTART_AFTER);
            let _ = power::reboot(power::RebootCommand::Restart);
            ExitCode::FAILURE
        }
    }
}

/// Says something on the console, through the kernel log.
fn report(priority: u8, text: &str) {
    if let Ok(log) = kmsg::Writer::open() {
        let _ = log.write(priority, "[ichor] [initramfs] ", text);
    }
}

fn enter() -> Result<std::convert::Infallible, StageError> {
    for (dir, kind, flags, data) in [
        ("/dev", "devtmpfs", MountFlags::NOSUID, "mode=0755"),
        ("/proc", "proc", MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV, ""),
        ("/sys", "sysfs", MountFlags::empty(), ""),
    ] {
        step(format!("make {dir}"), fs::create_dir_all(dir))?;
        mount::mount(kind, Path::new(dir), kind, flags, data)?;
    }
    load_modules();

    step("make /root", fs::create_dir_all(ROOT))?;
    let image = step(format!("attach {IMAGE}"), LoopDevice::attach_read_only(Path::new(IMAGE)))?;
    let device = image.path().to_string_lossy().into_owned();
    mount::mount(&device, Path::new(ROOT), "squashfs", MountFlags::RDONLY, "")?;
    for dir in ["/dev", "/proc", "/sys"] {
        mount::move_mount(Path::new(dir), &Path::new(ROOT).join(&dir[1..]))?;
    }
    switch_root()?;

    step(format!("execute {NEXT}"), Err(std::process::Command::new(NEXT).env_clear().exec()))
}

/// Loads every module of the archive, in the order of their names. A driver that does not load is
/// reported; whether it matters shows when the root is mounted.
fn load_modules() {
    let mut files: Vec<PathBuf> = fs::read_dir("/modules")
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    files.sort();
    for file in files {
        if let Err(error) = module::load(&file) {
            report(4, &format!("load {}: {error}", file.display()));
        }
    }
}

/// Moves the new root over the old one and frees what the archive took, except the image itself.
fn switch_root() -> Result<(), StageError> {
    let errno = |result: rustix::io::Result<()>| result.map_err(io::Error::from);
    let old: OwnedFd = step(
        "open the initramfs",
        rustix::fs::open("/", OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from),
    )?;
    step("enter the new root", errno(rustix::process::chdir(ROOT)))?;
    mount::move_mount(Path::new("."), Path::new("/"))?;
    step("make it the root", errno(rustix::process::chroot(".")))?;
    step("enter it", errno(rustix::process::chdir("/")))?;

    // The loop device keeps the image open; everything else of the archive only holds memory.
    let _ = rustix::fs::unlinkat(&old, "init", AtFlags::empty());
    if let Ok(modules) = rustix::fs::openat(
        &old,
        "modules",
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    ) && let Ok(entries) = rustix::fs::Dir::read_from(&modules)
    {
        for entry in entries.flatten() {
            let _ = rustix::fs::unlinkat(&modules, entry.file_name(), AtFlags::empty());
        }
    }
    Ok(())
}
