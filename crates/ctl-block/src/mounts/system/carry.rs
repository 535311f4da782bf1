//! Files that were kept in memory before their volume was there go to the volume.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ichor_sys::detached::DetachedMount;
use ichor_sys::file;
use tracing::info;

/// Files that are carried at most, and bytes of one; a configuration is never larger.
const FILES_MAX: usize = 64;
const BYTES_MAX: u64 = 32 << 20;
/// META of a machine without a partition for it; it moves by itself.
const LEFT_BEHIND: &str = "meta";

/// Files by name, with their mode.
type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// Shows the volume at `target`, with the files that are there now: what was written since the start is newer than what
/// the volume holds. They are on disk before anybody sees the volume, and then leave memory.
pub(super) fn attach(volume: DetachedMount, target: &Path) -> io::Result<()> {
    // The directory in memory, which cannot be reached by its path afterwards.
    let memory = File::open(target)?;
    let memory = (PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd())), memory);
    let carried = read(target)?;
    write(&carried, &volume.root())?;
    volume.attach(target)?;
    // What was written to memory in between.
    let late = read(&memory.0)?;
    let changed = late.iter().filter(|(name, file)| carried.get(*name) != Some(*file));
    write(&changed.map(|(name, file)| (name.clone(), file.clone())).collect(), target)?;
    for name in late.keys() {
        fs::remove_file(memory.0.join(name))?;
    }
    if !late.is_empty() {
        let names: Vec<&str> = late.keys().map(String::as_str).collect();
        info!(files = names.join(", "), target = %target.display(), "files moved from memory to the volume");
    }
    Ok(())
}

fn read(from: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata()?;
        // Names with a dot are files in the making.
        if !metadata.is_file() || name == LEFT_BEHIND || name.starts_with('.') {
            continue;
        }
        if files.len() >= FILES_MAX || metadata.len() > BYTES_MAX {
            return Err(io::Error::other(format!("{name}: too large or one too many to be moved")));
        }
        files.insert(name, (fs::read(entry.path())?, metadata.permissions().mode() & 0o7777));
    }
    Ok(files)
}

fn write(files: &Files, to: &Path) -> io::Result<()> {
    files.iter().try_for_each(|(name, (bytes, mode))| file::replace(&to.join(name), bytes, *mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_carried_with_their_mode_and_drafts_stay() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("config.yaml"), "new").unwrap();
        fs::set_permissions(from.path().join("config.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
        for name in [".config.yaml.new", "meta"] {
            fs::write(from.path().join(name), "x").unwrap();
        }
        fs::create_dir(from.path().join("folder")).unwrap();
        fs::write(to.path().join("config.yaml"), "old").unwrap();
        fs::write(to.path().join("node-identity.yaml"), "kept").unwrap();
        write(&read(from.path()).unwrap(), to.path()).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.yaml", "node-identity.yaml"]);
        assert_eq!(fs::read_to_string(to.path().join("config.yaml")).unwrap(), "new");
        let mode = fs::metadata(to.path().join("config.yaml")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
