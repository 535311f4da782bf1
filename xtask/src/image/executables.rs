//! Which programs an image may hold: a list in the tree that every image is checked against when it is built.
//!
//! A node has no shell, no interpreter and nothing that installs packages. What is new must be entered in the list, where a
//! reader sees it; scripts are refused whatever the list says, for nothing on a node could run them.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use ichor_image::elf;
use ichor_image::squashfs::{Entry, Tree as Content};

/// The list: one path on each line.
const LIST: &str = include_str!("../../executables.txt");

/// Programs that must never be in an image, whatever the list says.
const REFUSED: &[&str] = &[
    "apt", "ash", "awk", "bash", "busybox", "dash", "dpkg", "lua", "node", "perl", "python", "python3",
    "rpm", "ruby", "sh", "tclsh", "toybox", "zsh",
];

/// What the list names.
pub(super) fn listed() -> BTreeSet<&'static str> {
    LIST.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Checks what can be executed against the list. With `complete` all of the list has to be there.
///
/// # Errors
/// Names what is not on the list, or is and should not be, or is missing.
pub(super) fn check(content: &Content, listed: &BTreeSet<&str>, complete: bool) -> Result<()> {
    let mut found = BTreeSet::new();
    for (place, entry) in content {
        let Entry::File { mode, bytes } = entry else { continue };
        let name = place.rsplit('/').next().unwrap_or(place);
        if bytes.starts_with(b"#!") {
            bail!("{place} is a script; a node has nothing to run it with");
        }
        if REFUSED.contains(&name) {
            bail!("{place} has no place on a node");
        }
        // A library is loaded by a program; it cannot be started.
        let is_library = name.contains(".so") && *mode & 0o111 == 0;
        if *mode & 0o111 != 0 || (elf::is_elf(bytes) && !is_library) {
            found.insert(place.as_str());
        }
    }
    let new: Vec<&str> = found.difference(listed).copied().collect();
    if !new.is_empty() {
        bail!("not in xtask/executables.txt: {}; is it needed on a node?", new.join(", "));
    }
    let missing: Vec<&str> = listed.difference(&found).copied().collect();
    if complete && !missing.is_empty() {
        bail!("in xtask/executables.txt and not in the image: {}", missing.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(entries: &[(&str, u16, &[u8])]) -> Content {
        entries
            .iter()
            .map(|(place, mode, bytes)| {
                ((*place).to_owned(), Entry::File { mode: *mode, bytes: bytes.to_vec() })
            })
            .collect()
    }

    #[track_caller]
    fn refused(entries: &[(&str, u16, &[u8])], complete: bool, told: &str) {
        let error =
            check(&content(entries), &BTreeSet::from(["usr/bin/a"]), complete).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn what_is_listed_passes_and_what_is_new_is_named() {
        let listed = BTreeSet::from(["usr/bin/a"]);
        check(&content(&[("usr/bin/a", 0o755, b"\x7fELF"), ("etc/x", 0o644, b"text")]), &listed, true)
            .unwrap();
        refused(&[("usr/bin/b", 0o755, b"")], false, "usr/bin/b; is it needed");
        refused(&[("usr/lib/hidden", 0o644, b"\x7fELF")], false, "usr/lib/hidden");
        refused(&[("usr/lib/libx.so.1", 0o755, b"\x7fELF")], false, "usr/lib/libx.so.1");
        check(&content(&[("usr/lib/libx.so.1", 0o644, b"\x7fELF")]), &listed, false).unwrap();
        refused(&[], true, "not in the image: usr/bin/a");
    }

    #[test]
    fn scripts_and_shells_are_refused_even_when_listed() {
        refused(&[("usr/bin/a", 0o644, b"#!/bin/sh\n")], false, "is a script");
        let listed = BTreeSet::from(["usr/bin/sh"]);
        assert!(check(&content(&[("usr/bin/sh", 0o755, b"")]), &listed, false).is_err());
    }

    #[test]
    fn the_list_is_sorted_and_names_no_shell() {
        let lines: Vec<&str> = LIST.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(lines.is_sorted(), "keep xtask/executables.txt sorted");
        assert!(listed().iter().all(|place| !REFUSED.contains(&place.rsplit('/').next().unwrap_or(place))));
    }
}
