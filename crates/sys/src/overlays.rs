//! Directories of the read-only image that can be written to: overlays whose upper half is kept in `/var`.

use std::path::{Path, PathBuf};

use crate::mount::{self, MountFlags};

/// Directories of the image that can be written to; what is written lies in `/var` and outlives the boot.
pub const WRITABLE: [&str; 4] = ["/etc/cni", "/etc/kubernetes", "/opt", "/usr/libexec/kubernetes"];

/// Where what is written to them is kept.
const KEPT: &str = "/var/system/overlays";

/// What an overlay of `target` is made of.
struct Overlay {
    upper: String,
    work: String,
    options: String,
}

fn overlay(target: &str) -> Overlay {
    let name = target.trim_start_matches('/').replace('/', "-");
    let (upper, work) = (format!("{KEPT}/{name}-diff"), format!("{KEPT}/{name}-workdir"));
    let options = format!("lowerdir={target},upperdir={upper},workdir={work}");
    Overlay { upper, work, options }
}

/// Makes the directories writable that are not yet. A machine whose kernel has no overlays runs on without.
pub fn mount_missing(tell: &mut dyn FnMut(&str)) {
    for target in WRITABLE {
        let path = Path::new(target);
        if mount::is_mounted(path) {
            continue;
        }
        let Overlay { upper, work, options } = overlay(target);
        let made = [&upper, &work].into_iter().try_for_each(std::fs::create_dir_all);
        if let Err(error) = made {
            tell(&format!("make {upper}: {error}"));
            continue;
        }
        if let Err(error) = mount::mount("overlay", path, "overlay", MountFlags::NODEV, &options) {
            tell(&format!("{error}: {}", error.source));
        }
    }
}

/// Takes the overlays away. What uses them keeps them until it ends.
pub fn detach(tell: &mut dyn FnMut(&str)) {
    for target in WRITABLE.map(PathBuf::from) {
        while mount::is_mounted(&target) {
            if let Err(error) = mount::detach(&target) {
                tell(&format!("{error}: {}", error.source));
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_is_kept_under_the_name_of_its_place() {
        assert_eq!(
            overlay("/usr/libexec/kubernetes").options,
            "lowerdir=/usr/libexec/kubernetes,upperdir=/var/system/overlays/usr-libexec-kubernetes-diff,\
             workdir=/var/system/overlays/usr-libexec-kubernetes-workdir"
        );
    }
}
