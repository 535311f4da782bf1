//! The layers of a root: the image, the modules of the kernel, and system extensions, laid over each other read-only.
//!
//! `/extensions.yaml` lists extensions, the last one winning; modules of the kernel lie right above the image. A machine
//! with a layer that does not mount would run something else than was asked for, so it does not run at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ichor_sys::loopdev::LoopDevice;
use ichor_sys::mount::{self, MountFlags};

use crate::initramfs::{StageError, step};

/// The root image inside the archive.
pub(crate) const IMAGE: &str = "/rootfs.sqsh";
/// The kernel's modules, where they are not in the root image.
pub(crate) const MODULES: &str = "/modules.sqsh";
/// The list of extensions.
pub(crate) const LIST: &str = "/extensions.yaml";

/// Where single layers are mounted while the root is put together.
const BELOW: &str = "/layers";

/// Layers above the image; the kernel takes no more than 500 in one overlay.
const LAYERS_MAX: usize = 128;

/// A longer list is not one of ours.
const LIST_LEN_MAX: u64 = 1 << 20;

/// Why a list of layers cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ListError {
    /// It is not YAML, or too long to be read.
    #[error("{LIST}: {reason}")]
    Unreadable {
        /// What is wrong.
        reason: String,
    },
    /// A layer whose name is not that of a file beside the list.
    #[error("{LIST}: layer {index} has the image {image:?}, which is not the name of a file")]
    Name {
        /// Its number.
        index: usize,
        /// What it says.
        image: String,
    },
    /// More than an overlay can have.
    #[error("{LIST}: {count} layers; there can be {LAYERS_MAX}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// The images that a list names, in its order.
pub(crate) fn parse(text: &str) -> Result<Vec<String>, ListError> {
    let documents =
        ichor_yaml::parse(text).map_err(|error| ListError::Unreadable { reason: error.to_string() })?;
    let layers = documents.first().and_then(|document| document.root.get("layers")?.as_seq());
    let layers = layers.unwrap_or_default();
    if layers.len() > LAYERS_MAX {
        return Err(ListError::TooMany { count: layers.len() });
    }
    let name = |(index, layer): (usize, &ichor_yaml::Node)| {
        let image = layer.get("image").and_then(ichor_yaml::Node::as_str).unwrap_or_default();
        match image.is_empty() || image.contains(['/', '\0']) || image.starts_with('.') {
            true => Err(ListError::Name { index, image: image.to_owned() }),
            false => Ok(image.to_owned()),
        }
    };
    layers.iter().enumerate().map(name).collect()
}

/// Every layer above the image, the lowest first.
fn above(modules: bool, extensions: &[String]) -> Vec<PathBuf> {
    let modules = modules.then(|| PathBuf::from(MODULES));
    modules.into_iter().chain(extensions.iter().map(|name| Path::new("/").join(name))).collect()
}

/// The layers as an overlay wants them: the highest first. `count` are above the image.
fn lower_dirs(count: usize) -> Vec<String> {
    let layers = (0..count).rev().map(|index| format!("{BELOW}/layer{index}"));
    layers.chain([format!("{BELOW}/root")]).collect()
}

/// Mounts the root image, with all layers over it, at `root`.
pub(crate) fn mount_root(root: &Path) -> Result<(), StageError> {
    let extensions = match read_list()? {
        Some(text) => parse(&text).map_err(StageError::List)?,
        None => Vec::new(),
    };
    let layers = above(Path::new(MODULES).exists(), &extensions);
    if layers.is_empty() {
        return mount_image(Path::new(IMAGE), root);
    }
    let base = Path::new(BELOW);
    mount_image(Path::new(IMAGE), &base.join("root"))?;
    for (index, layer) in layers.iter().enumerate() {
        mount_image(layer, &base.join(format!("layer{index}")))?;
    }
    let lower = lower_dirs(layers.len());
    mount::overlay_read_only(&lower, root)?;
    // The overlay holds what it is made of.
    for dir in &lower {
        mount::detach(Path::new(dir))?;
    }
    if !extensions.is_empty() {
        mount::bind_read_only(Path::new(LIST), &root.join("etc/extensions.yaml"))?;
    }
    Ok(())
}

fn read_list() -> Result<Option<String>, StageError> {
    let found = match fs::metadata(LIST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => step(format!("read {LIST}"), found)?,
    };
    if found.len() > LIST_LEN_MAX {
        let reason = format!("{} bytes are too long for a list of layers", found.len());
        return Err(StageError::List(ListError::Unreadable { reason }));
    }
    step(format!("read {LIST}"), fs::read_to_string(LIST)).map(Some)
}

/// Mounts a squashfs file, read-only.
fn mount_image(file: &Path, target: &Path) -> Result<(), StageError> {
    let layer = |source: io::Error| StageError::Layer { file: file.to_owned(), source };
    fs::create_dir_all(target).map_err(layer)?;
    let device = LoopDevice::attach_read_only(file).map_err(layer)?;
    let path = device.path().to_string_lossy().into_owned();
    mount::mount(&path, target, "squashfs", MountFlags::RDONLY, "").map_err(|error| layer(error.source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_taken_in_the_order_of_the_list() {
        let text =
            "layers:\n  - image: 000.hello.sqsh\n    metadata:\n      name: hello\n  - image: 001.sqsh\n";
        assert_eq!(parse(text).unwrap(), ["000.hello.sqsh", "001.sqsh"]);
        for empty in ["", "layers:\n", "layers: []\n", "layers: 7\n"] {
            assert!(parse(empty).unwrap().is_empty(), "{empty:?}");
        }
    }

    #[test]
    fn a_layer_that_is_no_file_beside_the_list_is_refused() {
        for image in ["", "../x.sqsh", "/etc/x", ".", "a/b"] {
            let text = format!("layers:\n  - image: ok.sqsh\n  - image: {image:?}\n");
            let error = parse(&text).unwrap_err();
            assert_eq!(error, ListError::Name { index: 1, image: image.to_owned() }, "{image:?}");
        }
        assert!(matches!(parse("layers: [{}]"), Err(ListError::Name { .. })));
        assert!(matches!(parse("layers: ["), Err(ListError::Unreadable { .. })));
        let many = format!("layers:\n{}", "  - image: a.sqsh\n".repeat(LAYERS_MAX + 1));
        assert_eq!(parse(&many), Err(ListError::TooMany { count: LAYERS_MAX + 1 }));
    }

    #[test]
    fn later_extensions_lie_above_earlier_ones_and_modules_right_above_the_image() {
        let extensions = ["a.sqsh".to_owned(), "b.sqsh".to_owned()];
        assert_eq!(above(true, &extensions), ["/modules.sqsh", "/a.sqsh", "/b.sqsh"].map(PathBuf::from));
        assert_eq!(lower_dirs(3), ["/layers/layer2", "/layers/layer1", "/layers/layer0", "/layers/root"]);
        assert!(above(false, &[]).is_empty());
    }
}
