//! Device nodes of modules that are not loaded yet: opening one has the kernel load its module.
//!
//! `modules.devname` of the kernel's folder of modules lists them, as in `tun net/tun c10:200`. Without them nothing on the
//! machine could use `/dev/fuse` or `/dev/net/tun` before somebody had named the module.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

/// Kernels have a few dozen.
const NODES_MAX: usize = 512;

/// A node to be made.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    /// Below `/dev`.
    name: PathBuf,
    block: bool,
    major: u32,
    minor: u32,
}

/// The nodes of a list; lines that make no sense are left out.
fn parse(text: &str) -> Vec<Node> {
    let node = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (_, name, number) = (words.next()?, Path::new(words.next()?), words.next()?);
        let block = match number.get(..1)? {
            "c" => false,
            "b" => true,
            _ => return None,
        };
        let (major, minor) = number.get(1..)?.split_once(':')?;
        let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then_some(Node {
            name: name.to_owned(),
            block,
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(node).take(NODES_MAX).collect()
}

/// Makes the nodes of the running kernel's modules below `dev`, except those that are there.
pub(crate) fn make(dev: &Path, tell: &mut dyn FnMut(&str)) {
    let release = ichor_sys::host::uname().release;
    let list = Path::new("/usr/lib/modules").join(release).join("modules.devname");
    // A kernel without modules, or an image without the kernel's, has none.
    let Ok(text) = fs::read_to_string(list) else { return };
    for node in parse(&text) {
        if let Err(error) = make_one(dev, &node) {
            tell(&format!("make /dev/{}: {error}", node.name.display()));
        }
    }
}

fn make_one(dev: &Path, node: &Node) -> io::Result<()> {
    let path = dev.join(&node.name);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let kind = if node.block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let number = rustix::fs::makedev(node.major, node.minor);
    match rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), number) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_and_nonsense_is_left_out() {
        let text = "# Device nodes to trigger on-demand module loading.\n\
                    tun net/tun c10:200\nloop loop-control c10:237\nsd sdx b8:0\n\
                    evil ../etc/x c1:1\nevil /etc/x c1:1\nodd x d1:1\nodd x c1\nodd\n";
        let found: Vec<String> = parse(text)
            .iter()
            .map(|node| format!("{} {} {}:{}", node.name.display(), node.block, node.major, node.minor))
            .collect();
        assert_eq!(found, ["net/tun false 10:200", "loop-control false 10:237", "sdx true 8:0"]);
    }
}
