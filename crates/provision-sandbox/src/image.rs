//! The root image of the machines: where it is found, how it is mounted, and how the host gets rid of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ichor_provision::{Cluster, ProvisionError};
use ichor_provision_local::{Layout, SetupError};
use ichor_sys::loopdev::{self, LoopDevice};
use ichor_sys::mount::{self, MountFlags};

use crate::layout::Paths as _;

/// Names the root image where a request does not.
const IMAGE_VARIABLE: &str = "ICHOR_IMAGE";
/// Where the root image lies beside the program.
const IMAGE_PLACES: [&str; 3] =
    ["rootfs.squashfs", "../build/rootfs.squashfs", "../share/ichor/rootfs.squashfs"];
/// The program that all first-party processes of a machine are, in its image.
const PROGRAM: &str = "usr/bin/ichor";
/// How long the kernel may take to free the image's loop device.
const LOOP_WAIT: Duration = Duration::from_secs(30);

/// The image that a request means.
pub(crate) fn find(named: Option<&str>) -> Result<PathBuf, ProvisionError> {
    let named = image(named);
    let found = fs::canonicalize(&named).ok();
    let found = found.filter(|path| path.is_file() && File::open(path).is_ok() && path.to_str().is_some());
    found.ok_or(ProvisionError::NoImage { path: named })
}

/// The root image: as named, else what lies near the program.
fn image(named: Option<&str>) -> PathBuf {
    let named = named.map(PathBuf::from);
    if let Some(path) = named.or_else(|| std::env::var_os(IMAGE_VARIABLE).map(PathBuf::from)) {
        return std::path::absolute(&path).unwrap_or(path);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let found = IMAGE_PLACES.iter().map(|place| beside.join(place)).find(|path| path.exists());
    let path = found.unwrap_or_else(|| PathBuf::from("build/rootfs.squashfs"));
    path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path)
}

/// Mounts the image where all machines of the fleet find it.
pub(crate) fn mount(layout: &Layout, cluster: &Cluster) -> Result<(), SetupError> {
    let target = layout.image();
    fs::create_dir_all(&target).map_err(SetupError::file("make", &target))?;
    let device = LoopDevice::attach_read_only(Path::new(&cluster.image))
        .map_err(SetupError::file("make a loop device of", &cluster.image))?;
    let note = layout.loop_device();
    let text = format!("{} {}", device.number(), if device.created() { "created" } else { "found" });
    fs::write(&note, text).map_err(SetupError::file("write", &note))?;
    let path = device.path().to_string_lossy().into_owned();
    mount::mount(&path, &target, "squashfs", MountFlags::RDONLY | MountFlags::NODEV, "")?;
    warm(target.join(PROGRAM));
    Ok(())
}

/// Unpacks the program of all machines into memory while their network is made; else each page would be waited for
/// when a machine starts. An image without it is found out soon enough.
fn warm(program: PathBuf) {
    std::thread::spawn(move || {
        if let Ok(file) = File::open(&program) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
    });
}

/// Waits until the kernel has let the image go, which it does in its own time, and takes the device away if it
/// was made for us. Best effort: a free device too many harms nobody.
pub(crate) fn release(layout: &Layout, cluster: Option<&Cluster>) {
    let Ok(note) = fs::read_to_string(layout.loop_device()) else { return };
    let Some((number, origin)) = note.split_once(' ') else { return };
    let Ok(number) = number.parse() else { return };
    let ours = || {
        let backing = loopdev::backing_file(number);
        backing.is_some()
            && cluster.is_none_or(|cluster| backing.as_deref() == Some(Path::new(&cluster.image)))
    };
    let deadline = Instant::now() + LOOP_WAIT;
    while ours() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    if origin == "created" {
        let _ = loopdev::remove(number);
    }
}
