//! Replacements on real files, and on a disk that fails at any step and loses power at any moment.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;

#[test]
fn a_file_is_replaced_with_its_mode_and_nothing_stays_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    for (content, mode) in [("one", 0o644), ("two", 0o600)] {
        replace(&path, content.as_bytes(), mode).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_leftover_of_an_interrupted_replacement_does_not_stop_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(dir.path().join(".a.new"), "half").unwrap();
    fs::set_permissions(dir.path().join(".a.new"), fs::Permissions::from_mode(0o400)).unwrap();
    replace(&path, b"whole", 0o600).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"whole");
}

#[test]
fn a_failed_replacement_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    replace(&path, b"good", 0o600).unwrap();
    // A directory in the way: it cannot be written to, nor removed as a file.
    fs::create_dir(dir.path().join(".a.new")).unwrap();
    replace(&path, b"bad", 0o600).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), b"good");
    let nowhere = dir.path().join("missing/a");
    assert_eq!(replace(&nowhere, b"x", 0o600).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn two_writers_do_not_mix_their_versions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut first = Draft::create(&path, 0o600).unwrap();
    first.write_all(b"first").unwrap();
    assert_eq!(replace(&path, b"second", 0o600).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    // Under a name of its own it may.
    let mut third = Draft::create_as(&path, "3", 0o600).unwrap();
    third.write_all(b"third").unwrap();
    first.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"first");
    third.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"third");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_pipe_or_link_in_the_way_is_removed_and_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, stale) = (dir.path().join("a"), dir.path().join(".a.new"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &stale, 0o600.into()).unwrap();
    replace(&path, b"one", 0o600).unwrap();
    fs::write(dir.path().join("other"), "kept").unwrap();
    std::os::unix::fs::symlink(dir.path().join("other"), &stale).unwrap();
    replace(&path, b"two", 0o600).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"kept");
}

#[test]
fn a_draft_that_is_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut draft = Draft::create(&dir.path().join("a"), 0o600).unwrap();
    draft.write_all(b"half").unwrap();
    drop(draft);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_says_the_same_stays_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    assert!(replace_if_changed(&path, b"one", 0o600, None).unwrap());
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(!replace_if_changed(&path, b"one", 0o600, None).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
    assert!(replace_if_changed(&path, b"two", 0o600, None).unwrap());
}

/// A disk that knows what would be left after a power cut: bytes that were not synced may be there in part or not at
/// all, and so may names.
#[derive(Default)]
struct Disk {
    /// Content by file: what programs see, and what is safe.
    inodes: Vec<(Vec<u8>, Vec<u8>)>,
    names: BTreeMap<PathBuf, usize>,
    /// Directories as they may be found after a cut; the last one is the present.
    past: Vec<BTreeMap<PathBuf, usize>>,
    /// Steps that still work.
    steps: usize,
}

struct FakeFiles(Mutex<Disk>);

const PATH: &str = "/state/config.yaml";

impl FakeFiles {
    /// Does a step, unless it is the one that fails or power is out.
    fn step<T>(&self, run: impl FnOnce(&mut Disk) -> T) -> io::Result<T> {
        let mut disk = self.0.lock().unwrap();
        if disk.steps == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        if disk.steps != usize::MAX {
            disk.steps -= 1;
        }
        let result = run(&mut disk);
        let names = disk.names.clone();
        disk.past.push(names);
        Ok(result)
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        replace_on(self, Path::new(PATH), content, 0o600)
    }

    fn seen(&self) -> Vec<u8> {
        let disk = self.0.lock().unwrap();
        disk.inodes[disk.names[Path::new(PATH)]].0.clone()
    }

    /// Every content that the file may have after a power cut now.
    fn after_a_cut(&self) -> Vec<Option<Vec<u8>>> {
        let disk = self.0.lock().unwrap();
        let mut found = Vec::new();
        for names in &disk.past {
            let Some(inode) = names.get(Path::new(PATH)) else {
                found.push(None);
                continue;
            };
            let (seen, safe) = &disk.inodes[*inode];
            found.push(Some(safe.clone()));
            if seen != safe {
                // Anything between: nothing, half, zeros, all of it.
                let half = seen[..seen.len() / 2].to_vec();
                found.extend([Some(Vec::new()), Some(half), Some(vec![0; seen.len()]), Some(seen.clone())]);
            }
        }
        found
    }
}

impl Files for &FakeFiles {
    type File = usize;

    fn remove_stale(&self, path: &Path) -> io::Result<()> {
        self.remove(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|disk| disk.names.remove(path))?.map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path, _mode: u32) -> io::Result<usize> {
        self.step(|disk| {
            disk.inodes.push(Default::default());
            let inode = disk.inodes.len() - 1;
            disk.names.insert(path.to_path_buf(), inode);
            inode
        })
    }

    /// In two steps: the disk may be full in between.
    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
        let (one, two) = bytes.split_at(bytes.len() / 2);
        [one, two].into_iter().try_for_each(|part| self.step(|disk| disk.inodes[*file].0.extend(part)))
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        self.step(|disk| disk.inodes[*file].1 = disk.inodes[*file].0.clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|disk| {
            let inode = disk.names.remove(from);
            disk.names.extend(inode.map(|inode| (to.to_path_buf(), inode)));
        })
    }

    fn sync_directory(&self, _of: &Path) -> io::Result<()> {
        self.step(|disk| disk.past.clear())
    }
}

/// A disk with a file, on which so many steps still work.
fn failing_after(steps: usize, leftover: bool) -> FakeFiles {
    let files = FakeFiles(Mutex::new(Disk { steps: usize::MAX, ..Disk::default() }));
    files.replace(b"old").unwrap();
    if leftover {
        let file = (&files).create(Path::new("/state/.config.yaml.new"), 0o600).unwrap();
        files.step(|disk| disk.inodes[file].0.extend(b"half")).unwrap();
        (&files).sync_directory(Path::new(PATH)).unwrap();
    }
    files.0.lock().unwrap().steps = steps;
    files
}

#[test]
fn whatever_step_fails_and_whenever_power_goes_the_file_is_whole() {
    let mut succeeded = 0;
    for leftover in [false, true] {
        for steps in 0..12 {
            let files = failing_after(steps, leftover);
            let saved = files.replace(b"a new configuration");
            for left in files.after_a_cut() {
                let left = left.expect("the file is never gone");
                let whole = left == b"old" || left == b"a new configuration";
                assert!(whole, "{steps} steps: {:?}", String::from_utf8_lossy(&left));
                assert!(saved.is_err() || left != b"old", "{steps} steps: told as saved, and lost");
            }
            let seen = files.seen();
            assert!(seen == b"old" || seen == b"a new configuration", "{steps} steps");
            assert!(saved.is_err() || seen == b"a new configuration");
            succeeded += usize::from(saved.is_ok());
            // Whatever was left behind, the next replacement works.
            files.0.lock().unwrap().steps = usize::MAX;
            files.replace(b"next").unwrap();
            assert!(files.after_a_cut().iter().all(|left| left.as_deref() == Some(b"next")), "{steps} steps");
        }
    }
    assert!((2..20).contains(&succeeded), "{succeeded} replacements were told as done");
}
