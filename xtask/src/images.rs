//! The images of a cluster as one OCI layout in `build/images`, made from what `scripts/components` built.
//!
//! Names and tags are the official ones, so that a node pulls the same references from this layout as from the
//! registries of the world. The same programs give the same bytes: owners, times and order are fixed. Layers that
//! images share, above all the one Kubernetes program, are stored once.

mod conformance;
mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use self::layout::Layout;

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
    /// A program with this text.
    Script(&'static str),
    /// A program that runs as its owner, root.
    Setuid(PathBuf),
    /// A directory with this mode; those that only lead somewhere need not be named.
    Directory(u32),
}

impl Entry {
    /// Where its bytes are, if they are somewhere.
    pub(crate) fn into_file(self) -> Option<PathBuf> {
        match self {
            Self::File(path) | Self::Setuid(path) => Some(path),
            Self::Link(_) | Self::Text(_) | Self::Script(_) | Self::Directory(_) => None,
        }
    }
}

pub(crate) type Layer = BTreeMap<String, Entry>;

/// One image to make.
struct Image {
    name: String,
    layers: Vec<&'static str>,
    entrypoint: Vec<&'static str>,
    command: Vec<&'static str>,
}

/// Builds the layout; with `--before`, that of the Kubernetes of before, and with `--conformance` together with the images of
/// the tests of Kubernetes.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let (mut before, mut tests) = ("", "");
    for arg in args {
        match arg.as_str() {
            "--before" => before = "-before",
            "--conformance" => tests = "-conformance",
            _ => bail!("images: there are --before and --conformance, and no {arg}"),
        }
    }
    let parts = root.join(format!("build/components{before}"));
    let versions =
        versions(&fs::read_to_string(root.join("components/versions")).context("read components/versions")?);
    let version =
        |name: &str| versions.get(name).cloned().with_context(|| format!("components/versions: no {name}"));
    let kubernetes = version(&format!("kubernetes{before}"))?;
    let mut images = images(&kubernetes, &version)?;
    let mut layers = layers(&parts)?;
    if !tests.is_empty() {
        let all = root.join("build/components");
        let place = all.join(format!("conformance{before}"));
        images.extend(conformance::images(&place, &kubernetes)?);
        layers.extend(conformance::layers(&place, &all)?);
    }

    let name = format!("build/images{tests}{before}");
    let out = root.join(&name);
    let fresh = root.join(format!("{name}.{}.new", std::process::id()));
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(fresh.join("blobs/sha256"))?;
    let layout = Layout { blobs: fresh.join("blobs/sha256") };

    // Packing takes a while: what was made of the same files is used again.
    let note = root.join(format!("{name}.stamp"));
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
    println!("    {name}  {} images, {} MB", images.len(), size / 1_000_000);
    Ok(())
}

/// What tells one state of a layer from another: places and bytes, and how they are packed.
fn stamp(layer: &Layer) -> Result<String> {
    let mut text = format!("{LEVEL}\n");
    for (place, entry) in layer {
        let what = match entry {
            Entry::Link(target) => format!("-> {target}"),
            Entry::Text(text) => format!("= {text}"),
            Entry::Script(text) => format!("! {text}"),
            Entry::Directory(mode) => format!("/ {mode:o}"),
            Entry::File(path) | Entry::Setuid(path) => {
                let kind = if matches!(entry, Entry::Setuid(_)) { "s " } else { "" };
                let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
                format!("{kind}{}", hex(&ichor_pki::sha256(&bytes)))
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

fn images(kubernetes: &str, version: &dyn Fn(&str) -> Result<String>) -> Result<Vec<Image>> {
    let image = |name: String, layers: &[&'static str], entrypoint| Image {
        name,
        layers: layers.to_vec(),
        entrypoint: vec![entrypoint],
        command: Vec::new(),
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

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_ldd_names() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(libraries(text), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld.so"]);
    }
}
