//! Files of the person who runs the command: read whole, written whole or not at all.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use ichor_sys::file::Draft;

use crate::failure::{Context, Failure};

/// The largest file that is read into memory; configurations are far smaller.
const READ_MAX: u64 = 64 * 1024 * 1024;

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    read_large(path, READ_MAX)
}

/// Reads a file of at most `max` bytes.
pub fn read_large(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let doing = || format!("open {}", path.display());
    let file = fs::File::open(path).map_err(|error| {
        let failure = Failure::new(format!("{}: {}", doing(), go_error(&error)));
        match error.kind() {
            io::ErrorKind::NotFound => failure.hint("check the path; it is taken from the current directory"),
            _ => failure,
        }
    })?;
    limited(file, max).context(doing())
}

/// Reads standard input for `-`, else the file.
pub fn read_or_stdin(path: &str) -> Result<Vec<u8>, Failure> {
    if path == "-" {
        limited(io::stdin(), READ_MAX).context("read standard input")
    } else {
        read(Path::new(path))
    }
}

fn limited(source: impl io::Read, max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    source.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max {
        return Err(io::Error::other(format!("larger than {} MiB", max >> 20)));
    }
    Ok(content)
}

/// Writes a file that must not exist yet, unless `force`.
pub fn write_new(path: &Path, content: &[u8], mode: u32, force: bool) -> Result<(), Failure> {
    check_absent(path, force)?;
    write(path, content, mode)
}

/// Fails when the file exists and may not be replaced.
pub fn check_absent(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.exists() {
        return Err(Failure::new(format!(
            "file \"{}\" already exists, use --force to overwrite",
            path.display()
        )));
    }
    Ok(())
}

/// Fails when the directory of a file is not there; a misspelt one is not to be made.
pub fn check_parent(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return Err(Failure::new(format!("open {}: no such file or directory", path.display()))
            .hint("make the directory first"));
    }
    Ok(())
}

/// Replaces a file durably: a reader sees the old one or the new one.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), Failure> {
    settle(path, stage(path, content, mode)?)
}

/// Writes several files; when one cannot be written, none is changed.
pub fn write_together(contents: &[(PathBuf, Vec<u8>)], mode: u32) -> Result<(), Failure> {
    let staged: Vec<(&Path, Draft)> = contents
        .iter()
        .map(|(path, content)| Ok((path.as_path(), stage(path, content, mode)?)))
        .collect::<Result<_, Failure>>()?;
    staged.into_iter().try_for_each(|(path, draft)| settle(path, draft))
}

fn settle(path: &Path, draft: Draft) -> Result<(), Failure> {
    draft.commit().context(format!("write {}", path.display()))
}

fn stage(path: &Path, content: &[u8], mode: u32) -> Result<Draft, Failure> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).context(format!("create {}", parent.display()))?;
    }
    let draft = || {
        // It is replaced by renaming, which a directory would not stand in the way of until then.
        if path.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        // Several commands may write the same file at the same time.
        let mut draft = Draft::create_as(path, &format!("{}.tmp", std::process::id()), mode)?;
        draft.write_all(content)?;
        // On disk before the first of several is put in place.
        draft.file().sync_all()?;
        Ok(draft)
    };
    draft().context(format!("write {}", path.display()))
}

/// The text of an error without the number behind it.
pub fn go_error(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().to_string() + chars.as_str()).unwrap_or_default()
}
