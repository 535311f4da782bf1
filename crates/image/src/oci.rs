//! Container images in the OCI layout, with one layer of given files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::{Arch, Content, Error, hex};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Kernel images are compressed inside already.
const LEVEL: i32 = 3;

/// A file of the layer.
#[derive(Debug, Clone)]
pub struct LayerFile {
    /// Its permissions.
    pub mode: u32,
    /// Its bytes.
    pub content: Content,
}

/// An image of one layer.
#[derive(Debug, Clone)]
pub struct Image {
    /// The kind of processor.
    pub arch: Arch,
    /// The full name with its tag.
    pub reference: String,
    /// What is started.
    pub entrypoint: Vec<String>,
    /// Labels of the configuration.
    pub labels: BTreeMap<String, String>,
    /// Files by path, without a slash in front.
    pub files: BTreeMap<String, LayerFile>,
}

impl Image {
    /// Writes the image as an OCI layout into `dir`, which is new or empty.
    pub fn write_layout(&self, dir: &Path) -> Result<(), Error> {
        let blobs = dir.join("blobs/sha256");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        fs::create_dir_all(&blobs).map_err(failed(&blobs))?;
        let layer = self.layer(&blobs).map_err(failed(&blobs))?;
        let blob = |bytes: &[u8]| {
            let digest = hex(&ichor_pki::sha256(bytes));
            fs::write(blobs.join(&digest), bytes).map_err(failed(&blobs))?;
            Ok::<_, Error>(format!("sha256:{digest}"))
        };
        let config = json!({
            "architecture": self.arch.to_string(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": self.labels,
            },
            "rootfs": { "type": "layers", "diff_ids": [layer.plain] },
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": { "mediaType": CONFIG, "digest": blob(config.as_bytes())?, "size": config.len() },
            "layers": [{ "mediaType": LAYER, "digest": layer.digest, "size": layer.size }],
        })
        .to_string();
        let tag = self.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [{
                "mediaType": MANIFEST,
                "digest": blob(manifest.as_bytes())?,
                "size": manifest.len(),
                "platform": { "architecture": self.arch.to_string(), "os": "linux" },
                "annotations": { "io.containerd.image.name": self.reference, "org.opencontainers.image.ref.name": tag },
            }],
        });
        for (name, text) in [("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })), ("index.json", index)]
        {
            let path = dir.join(name);
            fs::write(&path, text.to_string()).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Writes the layer's blob in one pass.
    fn layer(&self, blobs: &Path) -> io::Result<Layer> {
        let part = blobs.join("layer.part");
        let mut packed = zstd::Encoder::new(File::create(&part)?, LEVEL)?;
        self.archive(&mut packed)?;
        packed.finish()?.flush()?;
        let digest = hex(&ichor_pki::sha256_reader(&mut File::open(&part)?)?);
        let size = fs::metadata(&part)?.len();
        fs::rename(&part, blobs.join(&digest))?;
        // The digest of the uncompressed bytes is taken from what was written: they are never all in memory.
        let mut unpacked = zstd::Decoder::new(File::open(blobs.join(&digest))?)?;
        let plain = hex(&ichor_pki::sha256_reader(&mut unpacked)?);
        Ok(Layer { digest: format!("sha256:{digest}"), plain: format!("sha256:{plain}"), size })
    }

    /// A tar of the files: directories before what is in them, everything root's and of no age.
    fn archive(&self, out: &mut impl Write) -> io::Result<()> {
        let mut builder = tar::Builder::new(out);
        let above = |path: &String| -> Vec<PathBuf> {
            Path::new(path)
                .ancestors()
                .skip(1)
                .filter(|path| !path.as_os_str().is_empty())
                .map(Path::to_owned)
                .collect()
        };
        let directories: BTreeSet<PathBuf> = self.files.keys().flat_map(above).collect();
        for directory in directories {
            let mut header = header(tar::EntryType::Directory, 0o755, 0);
            builder.append_data(&mut header, directory.join(""), io::empty())?;
        }
        for (path, file) in &self.files {
            let mut header = header(tar::EntryType::Regular, file.mode, file.content.len());
            builder.append_data(&mut header, path, file.content.reader())?;
        }
        builder.finish()
    }
}

/// Writes a layout as an archive, as tools exchange images.
pub fn archive_layout(dir: &Path, out: &mut File) -> io::Result<()> {
    let mut blobs: Vec<PathBuf> =
        fs::read_dir(dir.join("blobs/sha256"))?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    blobs.sort();
    let mut builder = tar::Builder::new(out);
    for directory in ["blobs/", "blobs/sha256/"] {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        builder.append_data(&mut header, directory, io::empty())?;
    }
    for path in blobs.into_iter().chain(["index.json", "oci-layout"].map(|name| dir.join(name))) {
        let file = File::open(&path)?;
        let mut header = header(tar::EntryType::Regular, 0o644, file.metadata()?.len());
        let name = path.strip_prefix(dir).map_err(io::Error::other)?;
        builder.append_data(&mut header, name, file)?;
    }
    builder.finish()
}

struct Layer {
    digest: String,
    plain: String,
    size: u64,
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
