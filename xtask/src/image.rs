//! The root image: a read-only squashfs with the node program, the programs containers need and the directories a
//! node expects.
//!
//! The container programs are those of `build/components`; without them, or with `--bare`, the image is small and its
//! node runs everything but Kubernetes. What a machine with disks needs beside them are programs of Debian ([`tools`]).
//!
//! What can be executed is checked against a list ([`executables`]).
//!
//! The same input gives the same bytes: owners and times are fixed and entries come in a fixed order.

mod executables;
mod layout;
mod tools;

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use ichor_image::squashfs::{self, Entry, Packing, Tree as Content, digest, header, tree_digest};
use layout::{BIND_TARGETS, COMPONENTS, DIRECTORIES, FILES, LINKS, PROGRAMS};

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
    let tree = options.components.as_deref().map(|dir| dir.join("tools")).filter(|dir| dir.is_dir());
    let bundle = match (&options.ca_bundle, &tree) {
        (Some(file), _) => Some(read(file)?),
        (None, Some(tree)) => authorities(&tools::authorities(tree))?,
        (None, None) => authorities(Path::new(AUTHORITIES))?,
    };
    let mut content = programs(options.components.as_deref())?;
    let has_runtime = !content.is_empty();
    match &tree {
        Some(tree) => content.extend(tools::collect(tree)?),
        None if has_runtime => content.extend(called()?),
        None => {}
    }
    content.insert("usr/bin/ichor".to_owned(), Entry::program(binary));
    if tree.is_some() || !has_runtime {
        executables::check(&content, &executables::listed(), has_runtime)?;
    }
    // Compressing takes seconds; the same content is the same image.
    let stamp_file = options.out.with_extension("stamp");
    let stamp = stamp(bundle.as_deref(), &content);
    if options.out.exists() && fs::read_to_string(&stamp_file).is_ok_and(|held| held == stamp) {
        return Ok(());
    }
    let image = build(bundle.as_deref(), &content)?;
    squashfs::replace(&options.out, &image)?;
    fs::write(&stamp_file, stamp).with_context(|| format!("write {}", stamp_file.display()))
}

/// A digest of everything that goes into an image.
fn stamp(ca_bundle: Option<&[u8]>, content: &Content) -> String {
    let mut text =
        format!("{DIRECTORIES:?}{BIND_TARGETS:?}{FILES:?}{LINKS:?}{PROGRAMS:?}{:?}", Packing::USUAL);
    text += &ichor_image::os_release(env!("CARGO_PKG_VERSION"));
    text += &ca_bundle.map(digest).unwrap_or_default();
    text += &tree_digest(content);
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

/// The container programs: all that are to be there, or none when they were not built.
fn programs(dir: Option<&Path>) -> Result<Content> {
    let Some(dir) = dir.filter(|dir| COMPONENTS.iter().any(|(name, _)| dir.join(name).exists())) else {
        return Ok(Content::new());
    };
    COMPONENTS
        .iter()
        .map(|(name, place)| {
            let bytes = read(&dir.join(name)).context("`make components` builds them all")?;
            Ok(((*place).to_owned(), Entry::program(bytes)))
        })
        .collect()
}

/// What the container programs call where the tools of Debian are missing: `portmap` programs ports of the node through `nft`.
fn called() -> Result<Content> {
    let files = crate::images::host_programs(&["nft"])?.into_iter().filter_map(|(place, entry)| {
        let name = place.rsplit('/').next().unwrap_or_default();
        let dir = if name == "nft" { "usr/bin" } else { "usr/lib" };
        Some((format!("{dir}/{name}"), entry.into_file()?))
    });
    files.map(|(place, source)| Ok((place, Entry::program(read(&source)?)))).collect()
}

/// The bytes of the image.
fn build(ca_bundle: Option<&[u8]>, content: &Content) -> Result<Vec<u8>> {
    let mut image = squashfs::new(Packing::USUAL)?;
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
    let release = ichor_image::os_release(env!("CARGO_PKG_VERSION"));
    image.push_file(Cursor::new(release.into_bytes()), "etc/os-release", header(0o644))?;
    for (path, target) in LINKS {
        image.push_symlink(target, path, header(0o777))?;
    }
    squashfs::push(&mut image, content, DIRECTORIES)?;
    for name in PROGRAMS {
        image.push_symlink("ichor", format!("usr/bin/{name}"), header(0o777))?;
    }
    Ok(squashfs::bytes(image)?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use backhand::{FilesystemReader, InnerNode};

    use super::*;

    /// An image with this node program.
    fn with(binary: &[u8], ca_bundle: Option<&[u8]>, mut content: Content) -> Vec<u8> {
        content.insert("usr/bin/ichor".to_owned(), Entry::program(binary.to_vec()));
        build(ca_bundle, &content).unwrap()
    }

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
        let lines = tree(with(b"the program", None, Content::new()));
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
        let image = |binary: &[u8]| with(binary, None, Content::new());
        assert_eq!(image(b"x"), image(b"x"));
        assert_ne!(image(b"x"), image(b"y"));
    }

    #[test]
    fn a_given_bundle_replaces_the_placeholder() {
        let lines = tree(with(b"x", Some(b"bundle"), Content::new()));
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
        let lines = tree(with(b"x", None, programs(Some(dir.path())).unwrap()));
        assert!(lines.contains(&"/usr/bin/runc 755 4 bytes".to_owned()), "{lines:#?}");
        assert!(lines.contains(&"/opt/cni/bin/loopback 755 12 bytes".to_owned()), "{lines:#?}");
    }
}
