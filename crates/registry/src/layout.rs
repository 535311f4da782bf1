//! An OCI layout on disk: which images there are, and their blobs. A blob is checked against its digest before the
//! first byte of it is given away; what was checked is remembered until the file changes.

mod flat;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value;

/// Larger index and manifest files than this are not read.
const DOCUMENT_MAX: u64 = 4 << 20;

/// Why a layout cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A file is missing or unreadable.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path}: {what}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// A manifest of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// `sha256:…`
    pub digest: String,
    /// Its media type.
    pub media_type: String,
}

/// A layout that was read.
#[derive(Debug)]
pub struct Layout {
    blobs: PathBuf,
    /// What stands before the digest in the name of a blob's file.
    prefix: &'static str,
    /// Manifests whose files lie elsewhere, by the hexadecimal of their digest.
    files: HashMap<String, PathBuf>,
    /// Full reference with tag (`registry/name:tag`) → manifest.
    images: BTreeMap<String, Manifest>,
    /// Media types of manifests by digest, those inside an index included.
    manifests: HashMap<String, String>,
    checked: Mutex<HashMap<String, Identity>>,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// A blob that is what its digest says.
#[derive(Debug)]
pub struct Blob {
    /// The open file, at its start.
    pub file: fs::File,
    /// Its size.
    pub size: u64,
}

/// What can happen when a blob is asked for.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// There is none.
    #[error("there is no blob {0}")]
    Missing(String),
    /// The file is not what its name says.
    #[error("the blob {0} on disk does not have that digest; build or import the images again")]
    Corrupt(String),
    /// It cannot be read.
    #[error("the blob {digest} cannot be read: {error}")]
    Read {
        /// The blob.
        digest: String,
        /// What the system said.
        error: io::Error,
    },
}

impl Layout {
    /// Reads the index of a layout.
    pub fn open(dir: &Path) -> Result<Self, LayoutError> {
        let marker = dir.join("oci-layout");
        let version = document(&marker)?["imageLayoutVersion"].as_str().unwrap_or_default().to_owned();
        if version != "1.0.0" {
            let what = format!("the layout has version {version:?}; only 1.0.0 is known");
            return Err(LayoutError::Invalid { path: marker, what });
        }
        let path = dir.join("index.json");
        let index = document(&path)?;
        let mut layout = Self {
            blobs: dir.join("blobs/sha256"),
            prefix: "",
            files: HashMap::new(),
            images: BTreeMap::new(),
            manifests: HashMap::new(),
            checked: Mutex::default(),
        };
        for entry in index["manifests"].as_array().into_iter().flatten() {
            let manifest = layout.manifest(&path, entry)?;
            let note = |key: &str| entry["annotations"][key].as_str();
            // Some tools write the full name into the short annotation.
            let name = note("io.containerd.image.name").or_else(|| note("org.opencontainers.image.ref.name"));
            let Some(name) = name.filter(|name| name.contains('/') && name.contains(':')) else { continue };
            layout.images.insert(name.to_owned(), manifest);
        }
        Ok(layout)
    }

    /// Takes note of a manifest, and of those it lists when it is an index (one level, as layouts have it).
    fn manifest(&mut self, path: &Path, entry: &Value) -> Result<Manifest, LayoutError> {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let manifest = Manifest { digest: text("digest"), media_type: text("mediaType") };
        let hex = manifest.digest.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let what = format!("a manifest has the digest {:?}", manifest.digest);
            return Err(LayoutError::Invalid { path: path.to_owned(), what });
        }
        self.manifests.insert(manifest.digest.clone(), manifest.media_type.clone());
        if manifest.media_type.contains("index") || manifest.media_type.contains("manifest.list") {
            // A layout may leave out platforms; what is not there is found missing when it is asked for.
            if let Ok(inner) = document(&self.blobs.join(hex)) {
                for child in inner["manifests"].as_array().into_iter().flatten() {
                    if let (Some(digest), Some(kind)) =
                        (child["digest"].as_str(), child["mediaType"].as_str())
                    {
                        self.manifests.insert(digest.to_owned(), kind.to_owned());
                    }
                }
            }
        }
        Ok(manifest)
    }

    /// The full references of all images.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        self.images.keys().map(String::as_str)
    }

    /// The manifest of a tag or digest. Without a registry the name must be one in a single registry only.
    pub fn find(&self, registry: Option<&str>, name: &str, reference: &str) -> Option<Manifest> {
        if let Some(media_type) = self.manifests.get(reference) {
            return Some(Manifest { digest: reference.to_owned(), media_type: media_type.clone() });
        }
        let wanted = format!("{name}:{reference}");
        let mut found = self.images.iter().filter(|(image, _)| belongs(image, registry, &wanted));
        let (_, manifest) = found.next()?;
        found.all(|(_, other)| other == manifest).then(|| manifest.clone())
    }

    /// The tags of a repository.
    pub fn tags(&self, registry: Option<&str>, name: &str) -> BTreeSet<&str> {
        let split = self.images.keys().filter_map(|image| image.rsplit_once(':'));
        split.filter(|(repository, _)| belongs(repository, registry, name)).map(|(_, tag)| tag).collect()
    }

    /// Opens a blob, checked. Reads the whole file the first time, so call it where blocking is allowed.
    pub fn blob(&self, digest: &str) -> Result<Blob, BlobError> {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(digest.to_owned()),
            _ => BlobError::Read { digest: digest.to_owned(), error },
        };
        if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BlobError::Missing(digest.to_owned()));
        }
        let mut file = fs::File::open(self.file(hex)).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        let identity = Identity {
            inode: metadata.ino(),
            size: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        let known = self.checked.lock().unwrap_or_else(|e| e.into_inner()).get(digest) == Some(&identity);
        if !known {
            let digest_of_file = ichor_pki::sha256_reader(&mut file).map_err(fail)?;
            if !digest_of_file
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .eq(hex.as_bytes().chunks(2).map(lower))
            {
                return Err(BlobError::Corrupt(digest.to_owned()));
            }
            io::Seek::rewind(&mut file).map_err(fail)?;
            self.checked.lock().unwrap_or_else(|e| e.into_inner()).insert(digest.to_owned(), identity);
        }
        Ok(Blob { file, size: identity.size })
    }
}

impl Layout {
    fn file(&self, hex: &str) -> PathBuf {
        let elsewhere = self.files.get(hex).cloned();
        elsewhere.unwrap_or_else(|| self.blobs.join(format!("{}{hex}", self.prefix)))
    }
}

fn lower(pair: &[u8]) -> String {
    String::from_utf8_lossy(pair).to_ascii_lowercase()
}

/// Whether `image` is `wanted` in this registry, or in any.
fn belongs(image: &str, registry: Option<&str>, wanted: &str) -> bool {
    image
        .split_once('/')
        .is_some_and(|(host, rest)| rest == wanted && registry.is_none_or(|registry| registry == host))
}

fn document(path: &Path) -> Result<Value, LayoutError> {
    let read = |error| LayoutError::Read { path: path.to_owned(), error };
    let invalid = |what: String| LayoutError::Invalid { path: path.to_owned(), what };
    let size = fs::metadata(path).map_err(read)?.len();
    if size > DOCUMENT_MAX {
        return Err(invalid(format!("{size} bytes; at most {DOCUMENT_MAX} are read")));
    }
    let bytes = fs::read(path).map_err(read)?;
    serde_json::from_slice(&bytes).map_err(|error| invalid(format!("not JSON: {error}")))
}
