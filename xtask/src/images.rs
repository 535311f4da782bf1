//! The images of a cluster as one OCI layout in `build/images`, made from what `scripts/components` built.
//!
//! Names and tags are the official ones, so that a node pulls the same references from this layout as from the
//! registries of the world. The same programs give the same bytes: owners, times and order are fixed. Layers that
//! images share, above all the one Kubernetes program, are stored once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A fair trade of time for size: seconds, not minutes, for the 136 MB of Kubernetes.
const LEVEL: i32 = 9;

/// What a layer holds, by path without the leading slash.
pub(crate) enum Entry {
    /// A program or library, copied from here.
    File(PathBuf),
    /// A symbolic link to there.
    Link(String),
    /// A file with this text.
    Text(&'static str),
}

impl Entry {
    /// Where its bytes are, if they are somewhere.
    pub(crate) fn into_file(self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Link(_) | Self::Text(_) => None,
        }
    }
}

pub(crate) type Layer = BTreeMap<String, Entry>;

/// One image to make.
struct Image {
    name: String,
    layers: Vec<&'static str>,
    entrypoint: &'static str,
}

/// Builds the layout; with `--before`, that of the Kubernetes of before, for the test of an upgrade.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let before = match args {
        [] => "",
        [flag] if flag == "--before" => "-before",
        _ => bail!("images: there is --before, and nothing else"),
    };
    let parts = root.join(format!("build/components{before}"));
    let versions =
        versions(&fs::read_to_string(root.join("components/versions")).context("read components/versions")?);
    let version =
        |name: &str| versions.get(name).cloned().with_context(|| format!("components/versions: no {name}"));
    let images = images(&|name: &str| match name {
        "kubernetes" => version(&format!("kubernetes{before}")),
        _ => version(name),
    })?;
    let layers = layers(&parts)?;

    let out = root.join(format!("build/images{before}"));
    let fresh = root.join(format!("build/images{before}.{}.new", std::process::id()));
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(fresh.join("blobs/sha256"))?;
    let layout = Layout { blobs: fresh.join("blobs/sha256") };

    // Packing takes a while: what was made of the same files is used again.
    let note = root.join(format!("build/images{before}.stamp"));
    let held: Value =
        fs::read(&note).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let mut stamps = serde_json::Map::new();
    let mut built = BTreeMap::new();
    for name in images.iter().flat_map(|image| &image.layers).collect::<BTreeSet<_>>() {
        let layer = layers.get(name).with_context(|| format!("no layer {name}"))?;
        let stamp = stamp(layer)?;
        let written = match held.get(*name).and_then(|held| layout.again(held, &stamp, &out)) {
            Some(written) => written,
            None => layout.layer(layer).with_context(|| format!("layer {name}"))?,
        };
        stamps.insert((*name).to_owned(), written.held(&stamp));
        built.insert(*name, written);
    }
    let manifests: Vec<Value> =
        images.iter().map(|image| layout.image(image, &built)).collect::<Result<_>>()?;
    fs::write(fresh.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
    fs::write(fresh.join("index.json"), index.to_string())?;

    let _ = fs::remove_dir_all(&out);
    fs::rename(&fresh, &out).with_context(|| format!("put {} in place", out.display()))?;
    fs::write(&note, Value::Object(stamps).to_string())?;
    let size: u64 =
        fs::read_dir(out.join("blobs/sha256"))?.map(|e| Ok(e?.metadata()?.len())).sum::<Result<u64>>()?;
    println!("    build/images{before}  {} images, {} MB", images.len(), size / 1_000_000);
    Ok(())
}

/// What tells one state of a layer from another: places and bytes, and how they are packed.
fn stamp(layer: &Layer) -> Result<String> {
    let mut text = format!("{LEVEL}\n");
    for (place, entry) in layer {
        let what = match entry {
            Entry::Link(target) => format!("-> {target}"),
            Entry::Text(text) => format!("= {text}"),
            Entry::File(path) => {
                let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
                hex(&ichor_pki::sha256(&bytes))
            }
        };
        text += &format!("{place} {what}\n");
    }
    Ok(hex(&ichor_pki::sha256(text.as_bytes())))
}

/// `name=version` lines.
fn versions(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, version)| (name.into(), version.into()))
        .collect()
}

fn images(version: &dyn Fn(&str) -> Result<String>) -> Result<Vec<Image>> {
    let kubernetes = version("kubernetes")?;
    let image = |name: String, layers: &[&'static str], entrypoint| Image {
        name,
        layers: layers.to_vec(),
        entrypoint,
    };
    let mut images = Vec::new();
    for (program, entrypoint) in [
        ("kube-apiserver", "/usr/local/bin/kube-apiserver"),
        ("kube-controller-manager", "/usr/local/bin/kube-controller-manager"),
        ("kube-scheduler", "/usr/local/bin/kube-scheduler"),
    ] {
        images.push(image(format!("registry.k8s.io/{program}:{kubernetes}"), &["kube"], entrypoint));
    }
    images.extend([
        image(
            format!("registry.k8s.io/kube-proxy:{kubernetes}"),
            &["kube", "nft"],
            "/usr/local/bin/kube-proxy",
        ),
        image(
            format!("ghcr.io/siderolabs/kubelet:{kubernetes}"),
            &["kube", "mount"],
            "/usr/local/bin/kubelet",
        ),
        image(format!("registry.k8s.io/etcd:{}", version("etcd")?), &["etcd"], "/usr/local/bin/etcd"),
        image(format!("registry.k8s.io/coredns/coredns:{}", version("coredns")?), &["coredns"], "/coredns"),
        image(
            format!("ghcr.io/siderolabs/flannel:{}", version("flannel")?),
            &["flannel"],
            "/opt/bin/flanneld",
        ),
        image(format!("registry.k8s.io/pause:{}", version("pause")?), &["pause"], "/pause"),
    ]);
    Ok(images)
}

fn layers(parts: &Path) -> Result<BTreeMap<&'static str, Layer>> {
    let own = |name: &str| Entry::File(parts.join(name));
    let link = |target: &str| Entry::Link(target.to_owned());
    let bin = |name: &str| format!("usr/local/bin/{name}");
    let mut kube = Layer::from([(bin("kube"), own("kube"))]);
    for name in
        ["kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"]
    {
        kube.insert(bin(name), link("kube"));
    }
    let mut mount = host_programs(&["mount", "umount"])?;
    // The machine's own `/run` is put in the place of `/var/run`; both names lead there.
    mount.insert("run".to_owned(), link("var/run"));
    // Where kubelet looks for users of its own before it lets pods have some.
    mount.insert("etc/passwd".to_owned(), Entry::Text("root:x:0:0:root:/root:/sbin/nologin\n"));
    mount.insert("etc/group".to_owned(), Entry::Text("root:x:0:\n"));
    Ok(BTreeMap::from([
        ("kube", kube),
        (
            "etcd",
            Layer::from([
                (bin("etcd"), own("etcd")),
                (bin("etcdctl"), link("etcd")),
                (bin("etcdutl"), link("etcd")),
            ]),
        ),
        ("coredns", Layer::from([("coredns".to_owned(), own("coredns"))])),
        ("pause", Layer::from([("pause".to_owned(), own("pause"))])),
        (
            "flannel",
            Layer::from([
                ("opt/bin/flanneld".to_owned(), own("flannel")),
                ("bin/cp".to_owned(), link("../opt/bin/flanneld")),
                ("flannel".to_owned(), link("opt/bin/flanneld")),
            ]),
        ),
        ("nft", host_programs(&["nft"])?),
        ("mount", mount),
    ]))
}

/// Programs of the build machine with the libraries they need, at the paths the loader looks for them.
pub(crate) fn host_programs(names: &[&str]) -> Result<Layer> {
    let mut layer = Layer::new();
    for name in names {
        let path = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .map(|dir| Path::new(dir).join(name))
            .find(|path| path.exists())
            .with_context(|| format!("no {name} on this machine; scripts/components installs it"))?;
        let output = Command::new("ldd").arg(&path).output().context("run ldd")?;
        ensure!(output.status.success(), "ldd {} failed", path.display());
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            let at = library.trim_start_matches('/').to_owned();
            layer.insert(
                at,
                Entry::File(fs::canonicalize(&library).with_context(|| format!("find {library}"))?),
            );
        }
        layer.insert(format!("usr/sbin/{name}"), Entry::File(path));
    }
    Ok(layer)
}

/// The files `ldd` names.
fn libraries(text: &str) -> Vec<String> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(str::to_owned).collect()
}

/// A written layer: its digest, size and the digest of its uncompressed bytes.
struct Written {
    digest: String,
    size: usize,
    plain: String,
}

impl Written {
    /// As it is noted for the next time.
    fn held(&self, stamp: &str) -> Value {
        json!({ "stamp": stamp, "digest": self.digest, "size": self.size, "plain": self.plain })
    }
}

/// The directory blobs are written to.
struct Layout {
    blobs: PathBuf,
}

impl Layout {
    fn blob(&self, bytes: &[u8]) -> Result<String> {
        let digest = hex(&ichor_pki::sha256(bytes));
        fs::write(self.blobs.join(&digest), bytes)?;
        Ok(format!("sha256:{digest}"))
    }

    /// A layer as it was packed before into the layout at `old`, if it was, and of the same files.
    fn again(&self, held: &Value, stamp: &str, old: &Path) -> Option<Written> {
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

    fn layer(&self, layer: &Layer) -> Result<Written> {
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
    fn image(&self, image: &Image, layers: &BTreeMap<&str, Written>) -> Result<Value> {
        let layers: Vec<&Written> = image.layers.iter().map(|name| &layers[name]).collect();
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": [image.entrypoint],
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
    let mut directories = BTreeSet::new();
    for path in layer.keys() {
        directories.extend(
            Path::new(path).ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).map(Path::to_owned),
        );
    }
    for directory in directories {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        builder.append_data(&mut header, directory.join(""), std::io::empty())?;
    }
    for (path, entry) in layer {
        match entry {
            Entry::File(source) => {
                let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
                let mut header = header(tar::EntryType::Regular, 0o755, bytes.len() as u64);
                builder.append_data(&mut header, path, &bytes[..])?;
            }
            Entry::Text(text) => {
                let mut header = header(tar::EntryType::Regular, 0o644, text.len() as u64);
                builder.append_data(&mut header, path, text.as_bytes())?;
            }
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

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
        assert_eq!(names, ["usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/a", "usr/local/bin/b"]);
    }

    #[test]
    fn libraries_are_the_paths_ldd_names() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(libraries(text), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld.so"]);
    }

    #[test]
    fn an_image_names_its_layers_by_digest() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { blobs: dir.path().to_owned() };
        let written = layout.layer(&Layer::from([("x".to_owned(), Entry::Link("y".to_owned()))])).unwrap();
        let digest = written.digest.clone();
        let image = Image { name: "example.org/a/b:v1".into(), layers: vec!["l"], entrypoint: "/x" };
        let entry = layout.image(&image, &BTreeMap::from([("l", written)])).unwrap();
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "v1");
        let manifest =
            fs::read(dir.path().join(entry["digest"].as_str().unwrap().trim_start_matches("sha256:")))
                .unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert_eq!(manifest["layers"][0]["digest"], digest.as_str());
    }
}
