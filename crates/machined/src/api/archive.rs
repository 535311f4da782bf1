//! Makes a gzip-compressed tar of a tree, a bounded piece at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use super::walk::{Found, Walk};

/// File bytes packed in one step.
const STEP: usize = 256 * 1024;

/// Tar works in blocks of this size.
const BLOCK: usize = 512;

/// Files of `/proc` claim to be empty; this much is read to see what is in them.
const UNSIZED_MAX: usize = 4096;

/// Names longer than this get an entry of their own.
const NAME_MAX: usize = 100;

/// `O_NONBLOCK`: opening must not wait for the other end of a pipe.
pub const NONBLOCK: i32 = 0o4000;

/// An archive in progress.
pub struct Archive {
    walk: Walk,
    current: Option<(File, u64)>,
    encoder: GzEncoder<Vec<u8>>,
    errors: Vec<String>,
    done: bool,
}

/// What one step gave.
pub enum Step {
    /// More of the archive.
    Data(Vec<u8>),
    /// The end; what went wrong on the way.
    End(Vec<u8>, Vec<String>),
}

impl Archive {
    /// An archive of `root`, with names from there on.
    pub fn new(root: PathBuf) -> Self {
        Self {
            walk: Walk::new(root, None),
            current: None,
            encoder: GzEncoder::new(Vec::new(), Compression::fast()),
            errors: Vec::new(),
            done: false,
        }
    }

    /// Packs some more. Blocks on the disk, not on the client.
    ///
    /// # Errors
    /// Only when the encoder itself fails.
    pub fn step(&mut self) -> io::Result<Step> {
        let mut packed = 0;
        while packed < STEP && !self.done {
            packed += match self.current.take() {
                Some((file, left)) => self.content(file, left)?,
                None => match self.walk.next() {
                    Some(found) => self.entry(&found)?,
                    None => {
                        self.done = true;
                        self.encoder.write_all(&[0; BLOCK * 2])?;
                        self.encoder.try_finish()?;
                        0
                    }
                },
            };
        }
        let data = std::mem::take(self.encoder.get_mut());
        Ok(if self.done { Step::End(data, std::mem::take(&mut self.errors)) } else { Step::Data(data) })
    }

    fn complain(&mut self, path: &Path, error: &io::Error) {
        /// Errors told at the end; more would only repeat.
        const ERRORS_MAX: usize = 32;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(format!("{}: {error}", path.display()));
        }
    }

    fn entry(&mut self, found: &Found) -> io::Result<usize> {
        let metadata = match &found.metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                self.complain(&found.path, error);
                return Ok(0);
            }
        };
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        let kind = metadata.file_type();
        let mut name = found.relative.to_string_lossy().into_owned();
        // A single file goes by its own name.
        if name == "." && !kind.is_dir() {
            name = found.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.header(&mut header, &format!("{name}/"))?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = std::fs::read_link(&found.path).unwrap_or_default();
            if header.set_link_name(&target).is_ok() {
                self.header(&mut header, &name)?;
            }
        } else if kind.is_file() {
            header.set_entry_type(EntryType::Regular);
            match open(&found.path) {
                Ok(file) if metadata.len() > 0 => {
                    header.set_size(metadata.len());
                    self.header(&mut header, &name)?;
                    self.current = Some((file, metadata.len()));
                }
                Ok(file) => {
                    let content = unsized_content(file);
                    header.set_size(content.len() as u64);
                    self.header(&mut header, &name)?;
                    self.encoder.write_all(&content)?;
                    self.pad(content.len() as u64)?;
                }
                Err(error) => self.complain(&found.path, &error),
            }
        }
        // Devices, pipes and sockets have no content worth carrying.
        Ok(BLOCK)
    }

    fn header(&mut self, header: &mut Header, name: &str) -> io::Result<()> {
        if name.len() > NAME_MAX {
            let mut long = Header::new_gnu();
            long.set_entry_type(EntryType::GNULongName);
            long.set_path("././@LongLink")?;
            long.set_mode(0o644);
            long.set_size(name.len() as u64 + 1);
            long.set_cksum();
            self.encoder.write_all(long.as_bytes())?;
            self.encoder.write_all(name.as_bytes())?;
            self.encoder.write_all(&[0])?;
            self.pad(name.len() as u64 + 1)?;
        }
        let mut cut = name.len().min(NAME_MAX);
        while !name.is_char_boundary(cut) {
            cut -= 1;
        }
        let field = &mut header.as_old_mut().name;
        field.fill(0);
        field[..cut].copy_from_slice(&name.as_bytes()[..cut]);
        header.set_cksum();
        self.encoder.write_all(header.as_bytes())
    }

    /// Packs more of a file; one that shrank meanwhile is filled up with zeros, since its size is out.
    fn content(&mut self, mut file: File, left: u64) -> io::Result<usize> {
        let want = usize::try_from(left).unwrap_or(STEP).min(STEP);
        let mut buffer = vec![0; want];
        let mut have = 0;
        while have < want {
            match file.read(&mut buffer[have..]) {
                Ok(0) => break,
                Ok(len) => have += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let gone = have < want;
        self.encoder.write_all(&buffer)?;
        let rest = left - want as u64;
        if rest > 0 {
            self.current = Some((if gone { File::open("/dev/null")? } else { file }, rest));
        } else {
            // Full steps are whole blocks, so the last piece alone decides the padding.
            self.pad(want as u64)?;
        }
        Ok(want)
    }

    fn pad(&mut self, len: u64) -> io::Result<()> {
        let over = usize::try_from(len % BLOCK as u64).unwrap_or(0);
        match over {
            0 => Ok(()),
            over => self.encoder.write_all(&[0; BLOCK][over..]),
        }
    }
}

/// Opens a regular file without waiting and without following surprises.
pub fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(NONBLOCK).open(path)
}

fn unsized_content(file: File) -> Vec<u8> {
    let mut content = Vec::new();
    let read = file.take(UNSIZED_MAX as u64 + 1).read_to_end(&mut content);
    if read.is_err() || content.len() > UNSIZED_MAX {
        content.clear();
    }
    content
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn unpack(root: &Path) -> BTreeMap<String, usize> {
        let mut archive = Archive::new(root.to_path_buf());
        let mut packed = Vec::new();
        loop {
            match archive.step().unwrap() {
                Step::Data(data) => packed.extend(data),
                Step::End(data, errors) => {
                    packed.extend(data);
                    assert!(errors.is_empty(), "{errors:?}");
                    break;
                }
            }
        }
        let plain = flate2::read::GzDecoder::new(&packed[..]);
        let mut out = BTreeMap::new();
        for entry in tar::Archive::new(plain).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert!(content.iter().all(|byte| *byte == b'x'));
            out.insert(entry.path().unwrap().display().to_string(), content.len());
        }
        out
    }

    #[test]
    fn a_tree_survives_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let long = "n".repeat(150);
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for (name, len) in [("empty", 0), ("odd", 700), ("sub/big", STEP * 2 + 10), (&long, 5)] {
            std::fs::write(dir.path().join(name), vec![b'x'; len]).unwrap();
        }
        std::os::unix::fs::symlink("odd", dir.path().join("link")).unwrap();
        let found = unpack(dir.path());
        assert_eq!(found["empty"], 0);
        assert_eq!(found["odd"], 700);
        assert_eq!(found["sub/big"], STEP * 2 + 10);
        assert_eq!(found[&long], 5);
        assert!(found.contains_key("link") && found.contains_key("sub/"));
    }

    #[test]
    fn a_single_file_goes_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        std::fs::write(&path, "xx").unwrap();
        assert_eq!(unpack(&path), BTreeMap::from([("one".to_owned(), 2)]));
    }
}
