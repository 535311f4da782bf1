//! What the kernel wrote down when it crashed: records that survive a reboot.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::mount::{self, MountFlags};

/// Where the kernel shows them.
pub const FOLDER: &str = "/sys/fs/pstore";
/// Records looked at, and bytes of each.
const RECORDS_MAX: usize = 32;
const RECORD_LEN_MAX: u64 = 256 * 1024;
/// A watchdog that restarted the machine has this bit.
const CARD_RESET: u64 = 0x20;

/// Mounts the records where they are not yet. A kernel without them is fine.
///
/// # Errors
/// The kernel's.
pub fn show() -> io::Result<()> {
    let folder = Path::new(FOLDER);
    if !folder.is_dir() || mount::is_mounted(folder) {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount::mount("pstore", folder, "pstore", flags, "") {
        Err(error) if !error.is_unsupported() => Err(error.source),
        _ => Ok(()),
    }
}

/// The records of kernel messages in a folder, newest first.
pub fn read(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("dmesg-"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.iter().take(RECORDS_MAX).filter_map(|(_, path)| text(path)).collect()
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(RECORD_LEN_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Removes all records: they have little room, and the next crash needs it.
pub fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // One that cannot be removed is found again, and told again.
        let _ = fs::remove_file(entry.path());
    }
}

/// Whether a watchdog says that it restarted the machine; `class` is `/sys/class/watchdog`.
pub fn watchdog_fired(class: &Path) -> bool {
    let number = |text: String| match text.trim().strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.trim().parse().ok(),
    };
    let fired = |device: fs::DirEntry| {
        let status = fs::read_to_string(device.path().join("bootstatus")).ok().and_then(number);
        status.is_some_and(|status| status & CARD_RESET != 0)
    };
    fs::read_dir(class).into_iter().flatten().flatten().any(fired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_newest_first_and_cleared() {
        let dir = tempfile::tempdir().unwrap();
        for (name, seconds) in [("dmesg-ramoops-0", 10), ("dmesg-ramoops-1", 20), ("console-ramoops-0", 30)] {
            let path = dir.path().join(name);
            fs::write(&path, name).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(read(dir.path()), ["dmesg-ramoops-1", "dmesg-ramoops-0"]);
        clear(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(read(&dir.path().join("nothing")), [""; 0]);
    }

    #[test]
    fn a_watchdog_that_fired_is_told_from_one_that_did_not() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("watchdog0");
        fs::create_dir(&device).unwrap();
        assert!(!watchdog_fired(dir.path()));
        for (status, fired) in
            [("0\n", false), ("32\n", true), ("0x20\n", true), ("0x8\n", false), ("odd", false)]
        {
            fs::write(device.join("bootstatus"), status).unwrap();
            assert_eq!(watchdog_fired(dir.path()), fired, "{status}");
        }
    }
}
