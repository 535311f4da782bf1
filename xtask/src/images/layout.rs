//! Layers, manifests and configurations of images as blobs of an OCI layout.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Entry, Image, LEVEL, Layer, hex};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A written layer: its digest, size and the digest of its uncompressed bytes.
pub(super) struct Written {
    digest: String,
    size: usize,
    plain: String,
}

impl Written {
    /// As it is noted for the next time.
    pub(super) fn held(&self, stamp: &str) -> Value {
        json!({ "stamp": stamp, "digest": self.digest, "size": self.size, "plain": self.plain })
    }
}

/// The directory blobs are written to.
pub(super) struct Layout {
    pub(super) blobs: PathBuf,
}

impl Layout {
    fn blob(&self, bytes: &[u8]) -> Result<String> {
        let digest = hex(&ichor_pki::sha256(bytes));
        fs::write(self.blobs.join(&digest), bytes)?;
        Ok(format!("sha256:{digest}"))
    }

    /// A layer as it was packed before into the layout at `old`, if it was, and of the same files.
    pub(super) fn again(&self, held: &Value, stamp: &str, old: &Path) -> Option<Written> {
        let text = |key: &str| held.get(key)?.as_str().map(str::to_owned);
        let (digest, plain) = (text("digest")?, text("plain")?);
        let size = usize::try_from(held.get("size")?.as_u64()?).ok()?;
        let name = digest.strip_prefix("sha256:")?;
        let source = old.join("blobs/sha256").join(name);
        let same = text("stamp")? == stamp && fs::metadata(&source).ok()?.len() == size as u64;
        (same && fs::hard_link(&source, self.blobs.join(name)).is_ok()).then_some(Written {
            digest,
            size,
            plain,
        })
    }

    pub(super) fn layer(&self, layer: &Layer) -> Result<Written> {
        let plain = archive(layer)?;
        let mut encoder = zstd::Encoder::new(Vec::new(), LEVEL)?;
        encoder.include_contentsize(true)?;
        encoder.write_all(&plain)?;
        let packed = encoder.finish()?;
        Ok(Written {
            digest: self.blob(&packed)?,
            size: packed.len(),
            plain: format!("sha256:{}", hex(&ichor_pki::sha256(&plain))),
        })
    }

    /// Writes configuration and manifest, and gives back the entry for the index.
    pub(super) fn image(&self, image: &Image, layers: &BTreeMap<&str, Written>) -> Result<Value> {
        let layers: Vec<&Written> = image.layers.iter().map(|name| &layers[name]).collect();
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": image.entrypoint,
                "Cmd": image.command,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|layer| &layer.plain).collect::<Vec<_>>() },
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": { "mediaType": CONFIG, "digest": self.blob(config.as_bytes())?, "size": config.len() },
            "layers": layers
                .iter()
                .map(|layer| json!({ "mediaType": LAYER, "digest": layer.digest, "size": layer.size }))
                .collect::<Vec<_>>(),
        })
        .to_string();
        let tag = image.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        Ok(json!({
            "mediaType": MANIFEST,
            "digest": self.blob(manifest.as_bytes())?,
            "size": manifest.len(),
            "platform": { "architecture": "amd64", "os": "linux" },
            "annotations": { "io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": tag },
        }))
    }
}

/// A tar of the layer: directories before what is in them, everything root's and of no age.
fn archive(layer: &Layer) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut directories = BTreeMap::new();
    for (path, entry) in layer {
        let above = Path::new(path).ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
        for directory in above {
            directories.entry(directory.to_owned()).or_insert(0o755);
        }
        if let Entry::Directory(mode) = entry {
            directories.insert(PathBuf::from(path), *mode);
        }
    }
    for (directory, mode) in directories {
        let mut header = header(tar::EntryType::Directory, mode, 0);
        builder.append_data(&mut header, directory.join(""), std::io::empty())?;
    }
    for (path, entry) in layer {
        match entry {
            Entry::File(source) | Entry::Setuid(source) => {
                let mode = if matches!(entry, Entry::Setuid(_)) { 0o4755 } else { 0o755 };
                let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
                let mut header = header(tar::EntryType::Regular, mode, bytes.len() as u64);
                builder.append_data(&mut header, path, &bytes[..])?;
            }
            Entry::Text(text) | Entry::Script(text) => {
                let mode = if matches!(entry, Entry::Script(_)) { 0o755 } else { 0o644 };
                let mut header = header(tar::EntryType::Regular, mode, text.len() as u64);
                builder.append_data(&mut header, path, text.as_bytes())?;
            }
            Entry::Directory(_) => {}
            Entry::Link(target) => {
                let mut header = header(tar::EntryType::Symlink, 0o777, 0);
                builder.append_link(&mut header, path, target)?;
            }
        }
    }
    Ok(builder.into_inner()?)
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_lists_directories_before_their_content_and_is_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "bytes").unwrap();
        let layer = || {
            Layer::from([
                ("usr/local/bin/a".to_owned(), Entry::File(file.clone())),
                ("usr/local/bin/b".to_owned(), Entry::Link("a".to_owned())),
                ("tmp".to_owned(), Entry::Directory(0o1777)),
            ])
        };
        let bytes = archive(&layer()).unwrap();
        assert_eq!(bytes, archive(&layer()).unwrap());
        let mut archive = tar::Archive::new(&bytes[..]);
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(
            names,
            ["tmp/", "usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/a", "usr/local/bin/b"]
        );
    }

    #[test]
    fn an_image_names_its_layers_by_digest() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { blobs: dir.path().to_owned() };
        let written = layout.layer(&Layer::from([("x".to_owned(), Entry::Link("y".to_owned()))])).unwrap();
        let digest = written.digest.clone();
        let image = Image {
            name: "example.org/a/b:v1".into(),
            layers: vec!["l"],
            entrypoint: vec!["/x"],
            command: Vec::new(),
        };
        let entry = layout.image(&image, &BTreeMap::from([("l", written)])).unwrap();
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "v1");
        let manifest =
            fs::read(dir.path().join(entry["digest"].as_str().unwrap().trim_start_matches("sha256:")))
                .unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["layers"][0]["digest"], digest.as_str());
    }
}
