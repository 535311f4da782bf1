//! The first stage on a real kernel: from the initramfs to the root image.
//!
//! The archive holds this program as `/init`, the root as `/rootfs.sqsh` with layers to put over it ([`crate::layers`]) and,
//! where the kernel has them as modules, the drivers needed to mount it, numbered in load order. Firmware in
//! `/usr/lib/firmware` and what the boot loader left in `/.extra` stay and show in the new root.

use std::error::Error;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ichor_sys::mount::{self, MountError, MountFlags};
use ichor_sys::{kmsg, module, power};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use crate::layers::{self, IMAGE, LIST, ListError};

/// Where it is mounted before it becomes the root.
const ROOT: &str = "/root";
/// The program of the next stage.
const NEXT: &str = "/sbin/init";

/// Directories of the archive that the new root shows, where they exist.
const SHOWN: [&str; 2] = ["/usr/lib/firmware", "/.extra"];

/// Directories below each other in an archive; a deeper one is not ours and stays.
const DEPTH_MAX: usize = 32;

/// Time to read the message before the machine starts over.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// Why the root could not be entered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    /// A mount failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The list of layers makes no sense.
    #[error(transparent)]
    List(ListError),
    /// A layer of the root does not mount.
    #[error("mount the layer {}; is it a squashfs image?", file.display())]
    Layer {
        /// Its file in the archive.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
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

pub(crate) fn step<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, StageError> {
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
    // Before anything that could hang: what follows is fed by the next stage, or ends by it.
    crate::guard::arm_first();

    step("make /root", fs::create_dir_all(ROOT))?;
    layers::mount_root(Path::new(ROOT))?;
    for dir in SHOWN {
        if Path::new(dir).is_dir() {
            mount::bind_read_only(Path::new(dir), &Path::new(ROOT).join(&dir[1..]))?;
        }
    }
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

    // Loop devices keep the images open; everything else of the archive only holds memory.
    let device = rustix::fs::fstat(&old).map(|found| found.st_dev);
    if let Ok(device) = device {
        free(&old, Path::new("/"), device, DEPTH_MAX);
    }
    Ok(())
}

/// Whether the archive keeps this: the new root shows it, or it leads there.
fn is_kept(path: &Path) -> bool {
    let shown = SHOWN.iter().map(Path::new).chain([Path::new(LIST)]);
    shown.into_iter().any(|kept| kept.starts_with(path) || path.starts_with(kept))
}

/// Removes what is in `dir`, which was `path` of the archive, without leaving its filesystem. What cannot be removed stays,
/// and costs its memory.
fn free(dir: &OwnedFd, path: &Path, device: u64, depth: usize) {
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let path = path.join(name.to_string_lossy().as_ref());
        if name == c"."
            || name == c".."
            || (is_kept(&path) && SHOWN.iter().any(|kept| path.starts_with(kept)))
        {
            continue;
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let is_dir = matches!(entry.file_type(), FileType::Directory);
        if !is_dir {
            if !is_kept(&path) {
                let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
            }
            continue;
        }
        let Ok(below) = rustix::fs::openat(dir, name, flags, Mode::empty()) else { continue };
        if depth == 0 || rustix::fs::fstat(&below).is_ok_and(|found| found.st_dev != device) {
            continue;
        }
        free(&below, &path, device, depth - 1);
        if !is_kept(&path) {
            let _ = rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_freed_except_for_what_the_new_root_shows() {
        let old = tempfile::tempdir().unwrap();
        let at = |path: &str| old.path().join(path);
        for dir in ["modules", "usr/lib/firmware/a", "usr/lib/other", ".extra", "root"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let files = ["init", "rootfs.sqsh", "modules/000-loop.ko", "usr/lib/firmware/a/b", "usr/lib/other/x"];
        for file in files.iter().chain(&[".extra/key", "extensions.yaml"]) {
            fs::write(at(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("/", at("link")).unwrap();
        let dir = rustix::fs::open(old.path(), OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        let device = rustix::fs::fstat(&dir).unwrap().st_dev;
        free(&dir, Path::new("/"), device, DEPTH_MAX);
        let mut left: Vec<String> = walk(old.path()).iter().map(|p| p.display().to_string()).collect();
        left.sort();
        assert_eq!(left, [".extra/key", "extensions.yaml", "usr/lib/firmware/a/b"]);
        assert!(!at("modules").exists() && !at("root").exists() && !at("usr/lib/other").exists());
    }

    /// The files below a directory, relative to it.
    fn walk(top: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut pending = vec![top.to_owned()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() && !path.is_symlink() {
                    true => pending.push(path),
                    false => files.push(path.strip_prefix(top).unwrap().to_owned()),
                }
            }
        }
        files
    }
}
