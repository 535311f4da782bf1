//! The root image: a read-only squashfs with the node program, the programs containers need and the directories a
//! node expects.
//!
//! The container programs are those of `build/components`; without them, or with `--bare`, the image is small and its
//! node runs everything but Kubernetes.
//!
//! The same input gives the same bytes: owners and times are fixed and entries come in a fixed order.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use backhand::compression::Compressor;
use backhand::{FilesystemCompressor, FilesystemWriter, NodeHeader};

/// Names the one program answers to.
const PROGRAMS: &[&str] = &["apid", "init", "machined", "poweroff", "reboot", "shutdown", "trustd"];

/// Programs of `build/components` that run on the node itself, and where they lie there. What runs in containers comes
/// in images.
const COMPONENTS: &[(&str, &str)] = &[
    ("cni/bridge", "opt/cni/bin/bridge"),
    ("cni/firewall", "opt/cni/bin/firewall"),
    ("cni/host-local", "opt/cni/bin/host-local"),
    ("cni/loopback", "opt/cni/bin/loopback"),
    ("cni/portmap", "opt/cni/bin/portmap"),
    ("containerd", "usr/bin/containerd"),
    ("containerd-shim-runc-v2", "usr/bin/containerd-shim-runc-v2"),
    ("flannel", "opt/cni/bin/flannel"),
    ("runc", "usr/bin/runc"),
];

/// Directories, parents first. Most are places to mount on.
const DIRECTORIES: &[&str] = &[
    ".extra",
    "boot",
    "boot/EFI",
    "dev",
    "etc",
    "etc/cni",
    "etc/cni/net.d",
    "etc/containerd",
    "etc/cri",
    "etc/cri/conf.d",
    "etc/cri/conf.d/hosts",
    "etc/iscsi",
    "etc/kubernetes",
    "etc/kubernetes/manifests",
    "etc/lvm",
    "etc/nvme",
    "etc/selinux",
    "etc/selinux/targeted",
    "etc/selinux/targeted/contexts",
    "etc/selinux/targeted/contexts/files",
    "etc/ssl",
    "etc/ssl/certs",
    "mnt",
    "opt",
    "opt/cni",
    "opt/cni/bin",
    "opt/containerd",
    "opt/containerd/bin",
    "opt/containerd/lib",
    "proc",
    "root",
    "run",
    "sys",
    "system",
    "tmp",
    "usr",
    "usr/bin",
    "usr/etc",
    "usr/lib",
    "usr/lib/firmware",
    "usr/lib/modules",
    "usr/lib/udev",
    "usr/libexec",
    "usr/libexec/kubernetes",
    "usr/local",
    "usr/local/bin",
    "usr/local/etc",
    "usr/local/lib",
    "usr/local/lib/kubelet",
    "usr/local/lib/kubelet/credentialproviders",
    "usr/local/sbin",
    "usr/local/share",
    "usr/share",
    "var",
];

/// Empty files to bind the real ones on.
const BIND_TARGETS: &[&str] = &[
    "etc/cri/conf.d/01-registries.part",
    "etc/cri/conf.d/02-host.part",
    "etc/cri/conf.d/20-customization.part",
    "etc/cri/conf.d/base-spec.json",
    "etc/cri/conf.d/cri.toml",
    "etc/extensions.yaml",
    "etc/hostname",
    "etc/hosts",
    "etc/iscsi/initiatorname.iscsi",
    "etc/machine-id",
    "etc/nvme/hostid",
    "etc/nvme/hostnqn",
    "etc/resolv.conf",
    "etc/selinux/targeted/contexts/files/file_contexts",
    "etc/ssl/certs/ca-certificates.crt",
];

const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("etc/ca-certificates", "ssl"),
    ("etc/localtime", "/usr/share/zoneinfo/UTC"),
    ("etc/mtab", "/proc/self/mounts"),
    ("etc/pki", "ssl"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib"),
    ("sbin", "usr/bin"),
    ("usr/lib64", "lib"),
    ("usr/local/share/ca-certificates", "/etc/ssl"),
    ("usr/sbin", "bin"),
    ("usr/share/ca-certificates", "/etc/ssl"),
];

/// The container runtime's own file; all that may change is in the one it names.
const CRI: &str = "\
version = 3

disabled_plugins = [
    'io.containerd.differ.v1.erofs',
    'io.containerd.internal.v1.tracing',
    'io.containerd.snapshotter.v1.blockfile',
    'io.containerd.snapshotter.v1.erofs',
    'io.containerd.tracing.processor.v1.otlp',
]

imports = ['/etc/cri/conf.d/cri.toml']

[debug]
  format = 'json'
  level = 'info'
";

/// The first part of what the runtime is told: pods keep what they unpacked, not what they downloaded.
const CRI_BASE: &str = "\
version = 3

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    discard_unpacked_layers = true
    use_local_image_pull = true

  [plugins.'io.containerd.cri.v1.runtime']
    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          base_runtime_spec = '/etc/cri/conf.d/base-spec.json'

  [plugins.'io.containerd.nri.v1.nri']
    disable = true
";

/// Files with content. Users are those that services run as; nobody can log in.
const FILES: &[(&str, &str)] = &[
    ("etc/cri/conf.d/00-base.part", CRI_BASE),
    ("etc/cri/containerd.toml", CRI),
    ("etc/group", "root:x:0:\ntty:x:5:\napid:x:50:\ntrustd:x:51:\netcd:x:60:\nnogroup:x:65534:\n"),
    ("etc/nfsmount.conf", "[ NFSMount_Global_Options ]\nnolock=true\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    (
        "etc/passwd",
        "root:x:0:0:root:/:/nologin\napid:x:50:50:apid:/:/nologin\ntrustd:x:51:51:trustd:/:/nologin\n\
         etcd:x:60:60:etcd:/:/nologin\nnobody:x:65534:65534:nobody:/:/nologin\n",
    ),
    (
        "etc/ssl/certs/ca-certificates",
        "# No certificate authority is trusted: the package ca-certificates was missing when the image was built,\n\
         # and no bundle was named (cargo xtask image --ca-bundle FILE).\n",
    ),
];

/// Where the package ca-certificates keeps the authorities that browsers trust, a file each.
const AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";

/// What goes into an image, and where it comes out.
struct Options {
    binary: PathBuf,
    components: Option<PathBuf>,
    ca_bundle: Option<PathBuf>,
    out: PathBuf,
}

/// Builds `build/rootfs.squashfs` from `build/ichor` and `build/components`; options say otherwise.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let options = parse(root, args)?;
    let binary = read(&options.binary).context("build the node first: `make build` does both")?;
    let bundle = match &options.ca_bundle {
        Some(file) => Some(read(file)?),
        None => authorities(Path::new(AUTHORITIES))?,
    };
    let mut programs = programs(options.components.as_deref())?;
    if !programs.is_empty() {
        programs.extend(called()?);
    }
    // Compressing takes seconds; the same content is the same image.
    let stamp_file = options.out.with_extension("stamp");
    let stamp = stamp(&binary, bundle.as_deref(), &programs);
    if options.out.exists() && fs::read_to_string(&stamp_file).is_ok_and(|held| held == stamp) {
        return Ok(());
    }
    let image = build(&binary, bundle.as_deref(), &programs)?;
    if let Some(dir) = options.out.parent() {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    // A running machine keeps the old image, so it is replaced and never written into.
    let part = options.out.with_extension("part");
    fs::write(&part, image).with_context(|| format!("write {}", part.display()))?;
    fs::rename(&part, &options.out).with_context(|| format!("write {}", options.out.display()))?;
    fs::write(&stamp_file, stamp).with_context(|| format!("write {}", stamp_file.display()))
}

/// A digest of everything that goes into an image.
fn stamp(binary: &[u8], ca_bundle: Option<&[u8]>, programs: &[Program]) -> String {
    let digest = |bytes: &[u8]| crate::images::hex(&ichor_pki::sha256(bytes));
    let mut text = format!("{DIRECTORIES:?}{BIND_TARGETS:?}{FILES:?}{LINKS:?}{PROGRAMS:?}");
    text += &os_release(env!("CARGO_PKG_VERSION"));
    text += &digest(binary);
    text += &ca_bundle.map(digest).unwrap_or_default();
    for (place, bytes) in programs {
        text += &format!("{place}{}", digest(bytes));
    }
    digest(text.as_bytes())
}

/// One file of all authorities in `dir`, in the order of their names; nothing without them.
fn authorities(dir: &Path) -> Result<Option<Vec<u8>>> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(None) };
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "crt"));
    files.sort();
    let mut bundle = b"# Bundle of CA Root Certificates\n".to_vec();
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        bundle.extend_from_slice(format!("\n# {name}\n").as_bytes());
        bundle.extend(read(file)?);
    }
    Ok((!files.is_empty()).then_some(bundle))
}

fn parse(root: &Path, args: &[String]) -> Result<Options> {
    let mut options = Options {
        binary: root.join("build/ichor"),
        components: Some(root.join("build/components")),
        ca_bundle: None,
        out: root.join("build/rootfs.squashfs"),
    };
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        if flag == "--bare" {
            options.components = None;
            continue;
        }
        let value = args.next().with_context(|| format!("{flag} needs a path"))?;
        match flag.as_str() {
            "--binary" => options.binary = value.into(),
            "--ca-bundle" => options.ca_bundle = Some(value.into()),
            "--components" => options.components = Some(value.into()),
            "--out" => options.out = value.into(),
            other => bail!(
                "unknown option {other}; there are --bare, --binary, --ca-bundle, --components and --out"
            ),
        }
    }
    Ok(options)
}

/// A program and its place in the image.
type Program = (String, Vec<u8>);

/// The container programs: all that are to be there, or none when they were not built.
fn programs(dir: Option<&Path>) -> Result<Vec<Program>> {
    let Some(dir) = dir.filter(|dir| COMPONENTS.iter().any(|(name, _)| dir.join(name).exists())) else {
        return Ok(Vec::new());
    };
    COMPONENTS
        .iter()
        .map(|(name, place)| {
            Ok(((*place).to_owned(), read(&dir.join(name)).context("`make components` builds them all")?))
        })
        .collect()
}

/// What the container programs call: `portmap` programs ports of the node through `nft`.
fn called() -> Result<Vec<Program>> {
    let files = crate::images::host_programs(&["nft"])?.into_iter().filter_map(|(place, entry)| {
        let name = place.rsplit('/').next().unwrap_or_default();
        let dir = if name == "nft" { "usr/bin" } else { "usr/lib" };
        Some((format!("{dir}/{name}"), entry.into_file()?))
    });
    files.map(|(place, source)| Ok((place, read(&source)?))).collect()
}

/// The bytes of the image.
fn build(binary: &[u8], ca_bundle: Option<&[u8]>, programs: &[Program]) -> Result<Vec<u8>> {
    let mut image = FilesystemWriter::default();
    image.set_compressor(FilesystemCompressor::new(Compressor::Zstd, None)?);
    image.set_time(0);
    image.set_root_mode(0o755);
    image.set_only_root_id();

    let header = |mode: u16| NodeHeader::new(mode, 0, 0, 0);
    for path in DIRECTORIES {
        image.push_dir(path, header(0o755)).with_context(|| format!("directory {path}"))?;
    }
    for path in BIND_TARGETS {
        image.push_file(Cursor::new(Vec::new()), path, header(0o644))?;
    }
    for (path, text) in FILES {
        let bytes = match (ca_bundle, *path) {
            (Some(bundle), "etc/ssl/certs/ca-certificates") => bundle.to_vec(),
            _ => text.as_bytes().to_vec(),
        };
        image.push_file(Cursor::new(bytes), path, header(0o644))?;
    }
    let release = os_release(env!("CARGO_PKG_VERSION"));
    image.push_file(Cursor::new(release.into_bytes()), "etc/os-release", header(0o644))?;
    for (path, target) in LINKS {
        image.push_symlink(target, path, header(0o777))?;
    }
    image.push_file(Cursor::new(binary.to_vec()), "usr/bin/ichor", header(0o755))?;
    for (place, bytes) in programs {
        image.push_file(Cursor::new(bytes.as_slice()), place, header(0o755))?;
    }
    for name in PROGRAMS {
        image.push_symlink("ichor", format!("usr/bin/{name}"), header(0o777))?;
    }

    let mut out = Cursor::new(Vec::new());
    image.write(&mut out)?;
    Ok(out.into_inner())
}

/// Scripts written for the original look for `ID=talos`: the variant says so without claiming the name.
fn os_release(version: &str) -> String {
    format!(
        "NAME=\"Ichor\"\nID=ichor\nID_LIKE=talos\nVARIANT_ID=talos\nVERSION_ID=v{version}\nPRETTY_NAME=\"Ichor (v{version})\"\n\
         VENDOR_NAME=\"Ichor\"\n"
    )
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use backhand::{FilesystemReader, InnerNode};

    use super::*;

    fn tree(image: Vec<u8>) -> Vec<String> {
        let reader = FilesystemReader::from_reader(BufReader::new(Cursor::new(image))).unwrap();
        let mut lines = Vec::new();
        for node in reader.files() {
            let path = node.fullpath.display();
            lines.push(match &node.inner {
                InnerNode::File(file) => {
                    let mut bytes = Vec::new();
                    reader.file(file).reader().read_to_end(&mut bytes).unwrap();
                    format!("{path} {:o} {} bytes", node.header.permissions, bytes.len())
                }
                InnerNode::Symlink(link) => format!("{path} -> {}", link.link.display()),
                InnerNode::Dir(_) => format!("{path}/"),
                _ => format!("{path} ?"),
            });
        }
        lines
    }

    #[test]
    fn authorities_are_bundled_in_order_and_by_name() {
        let dir = tempfile::tempdir().unwrap();
        assert!(authorities(dir.path()).unwrap().is_none());
        assert!(authorities(&dir.path().join("none")).unwrap().is_none());
        for (name, text) in [("b.crt", "two\n"), ("a.crt", "one\n"), ("README", "no\n")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let bundle = authorities(dir.path()).unwrap().unwrap();
        let text = String::from_utf8(bundle).unwrap();
        assert_eq!(text, "# Bundle of CA Root Certificates\n\n# a\none\n\n# b\ntwo\n");
    }

    #[test]
    fn the_node_program_is_there_under_all_its_names() {
        let lines = tree(build(b"the program", None, &[]).unwrap());
        assert!(lines.contains(&"/usr/bin/ichor 755 11 bytes".to_owned()), "{lines:#?}");
        for name in PROGRAMS {
            assert!(lines.contains(&format!("/usr/bin/{name} -> ichor")), "{name}");
        }
        assert!(lines.contains(&"/sbin -> usr/bin".to_owned()));
        for place in ["/dev/", "/proc/", "/sys/", "/run/", "/system/", "/tmp/", "/var/"] {
            assert!(lines.contains(&place.to_owned()), "{place}");
        }
    }

    #[test]
    fn the_same_input_gives_the_same_image() {
        assert_eq!(build(b"x", None, &[]).unwrap(), build(b"x", None, &[]).unwrap());
        assert_ne!(build(b"x", None, &[]).unwrap(), build(b"y", None, &[]).unwrap());
    }

    #[test]
    fn a_given_bundle_replaces_the_placeholder() {
        let lines = tree(build(b"x", Some(b"bundle"), &[]).unwrap());
        assert!(lines.contains(&"/etc/ssl/certs/ca-certificates 644 6 bytes".to_owned()));
    }

    #[test]
    fn an_unknown_option_is_named() {
        let error = parse(Path::new("/"), &["--nope".to_owned(), "x".to_owned()]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "unknown option --nope; there are --bare, --binary, --ca-bundle, --components and --out"
        );
    }

    #[test]
    fn container_programs_are_there_all_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        assert!(programs(Some(dir.path())).unwrap().is_empty());
        assert!(programs(None).unwrap().is_empty());
        fs::write(dir.path().join("runc"), "runc").unwrap();
        assert!(programs(Some(dir.path())).unwrap_err().to_string().contains("make components"));
        fs::create_dir(dir.path().join("cni")).unwrap();
        for (name, _) in COMPONENTS {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let lines = tree(build(b"x", None, &programs(Some(dir.path())).unwrap()).unwrap());
        assert!(lines.contains(&"/usr/bin/runc 755 4 bytes".to_owned()), "{lines:#?}");
        assert!(lines.contains(&"/opt/cni/bin/loopback 755 12 bytes".to_owned()), "{lines:#?}");
    }
}
