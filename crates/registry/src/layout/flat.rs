//! The flat layout of image caches: `blob/sha256-…`, and manifests by registry, repository and reference.
//!
//! ```text
//! blob/sha256-<hex>
//! manifests/<registry>/<repository>/reference/<tag>
//! manifests/<registry>/<repository>/digest/sha256-<hex>
//! ```
//!
//! A port of a registry is written `host_port_`, since some filesystems know no colons.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::{Layout, LayoutError, Manifest, document};

/// Directories below each other that are looked into; names of repositories have fewer parts.
const DEPTH_MAX: usize = 16;
/// Files that are looked at.
const FILES_MAX: usize = 100_000;
/// A manifest that does not say what it is.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

impl Layout {
    /// Reads a flat layout.
    ///
    /// # Errors
    /// When it is none, or a file cannot be read.
    pub fn open_flat(dir: &Path) -> Result<Self, LayoutError> {
        let mut layout = Self {
            blobs: dir.join("blob"),
            prefix: "sha256-",
            files: HashMap::new(),
            images: BTreeMap::new(),
            manifests: HashMap::new(),
            checked: Mutex::default(),
        };
        let root = dir.join("manifests");
        let mut found = Vec::new();
        walk(&root, 0, &mut found)?;
        for path in found {
            layout.take(&root, &path)?;
        }
        Ok(layout)
    }

    fn take(&mut self, root: &Path, path: &Path) -> Result<(), LayoutError> {
        let relative = path.strip_prefix(root).unwrap_or(path);
        let parts: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
        let [registry, repository @ .., kind, name] = parts.as_slice() else { return Ok(()) };
        if repository.is_empty() {
            return Ok(());
        }
        let content = document(path)?;
        let media_type = match content["mediaType"].as_str() {
            Some(named) => named.to_owned(),
            None if content["manifests"].is_array() => INDEX.to_owned(),
            None => MANIFEST.to_owned(),
        };
        let bytes = fs::read(path).map_err(|error| LayoutError::Read { path: path.to_owned(), error })?;
        let hex: String = ichor_pki::sha256(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = format!("sha256:{hex}");
        self.files.insert(hex, path.to_owned());
        self.manifests.insert(digest.clone(), media_type.clone());
        if *kind == "reference" {
            let image = format!("{}/{}:{name}", host(registry), repository.join("/"));
            self.images.insert(image, Manifest { digest, media_type });
        }
        Ok(())
    }
}

/// The registry behind the name of its directory.
fn host(directory: &str) -> String {
    let port = directory.strip_suffix('_').and_then(|rest| rest.rsplit_once('_'));
    match port {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !port.is_empty() => {
            format!("{host}:{port}")
        }
        _ => directory.to_owned(),
    }
}

fn walk(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), LayoutError> {
    let read = |error| LayoutError::Read { path: dir.to_owned(), error };
    for entry in fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        let kind = entry.file_type().map_err(read)?;
        if kind.is_dir() && depth < DEPTH_MAX {
            walk(&entry.path(), depth + 1, found)?;
        } else if kind.is_file() {
            if found.len() == FILES_MAX {
                return Err(LayoutError::Invalid {
                    path: dir.to_owned(),
                    what: format!("more than {FILES_MAX} manifests"),
                });
            }
            found.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_a_flat_layout_are_found_by_tag_and_digest() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("manifests/localhost_5000_/team/app");
        fs::create_dir_all(place.join("reference")).unwrap();
        fs::create_dir_all(dir.path().join("blob")).unwrap();
        let manifest = br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}"#;
        fs::write(place.join("reference/v1"), manifest).unwrap();
        let hex: String = ichor_pki::sha256(b"layer").iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(dir.path().join(format!("blob/sha256-{hex}")), b"layer").unwrap();
        let layout = Layout::open_flat(dir.path()).unwrap();
        assert_eq!(layout.images().collect::<Vec<_>>(), ["localhost:5000/team/app:v1"]);
        let found = layout.find(Some("localhost:5000"), "team/app", "v1").unwrap();
        assert_eq!(layout.blob(&found.digest).unwrap().size, manifest.len() as u64);
        assert_eq!(layout.blob(&format!("sha256:{hex}")).unwrap().size, 5);
        assert!(Layout::open_flat(&dir.path().join("nothing")).is_err());
    }
}
