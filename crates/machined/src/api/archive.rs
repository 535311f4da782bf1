//! Makes a gzip-compressed tar of a tree, a bounded piece at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

use super::reply::io_text;
use super::walk::{Found, Walk};

/// File bytes packed in one step. Smaller files are read before their size is told, so that files of the
/// kernel, whose size says nothing, arrive whole.
const STEP: usize = 256 * 1024;

/// Tar works in blocks of this size.
const BLOCK: usize = 512;

/// The kernel's memory: it claims the size of the address space.
const KERNEL_MEMORY: &str = "/proc/kcore";

/// Names longer than this get an entry of their own.
const NAME_MAX: usize = 100;

/// `O_NONBLOCK`: opening must not wait for the other end of a pipe.
const NONBLOCK: i32 = 0o4000;

/// `O_NOFOLLOW`: a link put in the place of a file is an error.
const NOFOLLOW: i32 = 0o400_000;

/// A file being packed.
struct Current {
    path: PathBuf,
    /// Nothing is left of a file that shrank.
    file: Option<File>,
    left: u64,
}

/// An archive in progress.
pub struct Archive {
    walk: Walk,
    current: Option<Current>,
    encoder: GzEncoder<Vec<u8>>,
    errors: Vec<String>,
    done: bool,
}

/// What one step gave.
pub enum Step {
    /// More of the archive.
    Data(Vec<u8>),
    /// The end; what went wrong on the way, in one text.
    End(Vec<u8>, Option<String>),
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
                Some(current) => self.content(current)?,
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
        Ok(if self.done { Step::End(data, summary(&self.errors)) } else { Step::Data(data) })
    }

    fn complain(&mut self, path: &Path, reason: &str) {
        /// Errors told at the end; more would only repeat.
        const ERRORS_MAX: usize = 64;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(format!("skipping {:?}: {reason}", path.display().to_string()));
        }
    }

    fn entry(&mut self, found: &Found) -> io::Result<usize> {
        let metadata = match &found.metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                self.complain(&found.path, &io_text("lstat", &found.path, error));
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
        // The directory itself is not told: clients make it before they unpack and fail to make it twice.
        if name == "." && kind.is_dir() {
            return Ok(0);
        }
        // A single file goes by its own name.
        if name == "." && !kind.is_dir() {
            name = found.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        }
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.header(&mut header, &format!("{name}/"))?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.link(&mut header, &name, &found.path)?;
        } else if kind.is_file() {
            header.set_entry_type(EntryType::Regular);
            return self.file(&mut header, &name, &found.path, metadata.len());
        } else if kind.is_char_device() || kind.is_block_device() {
            header.set_entry_type(if kind.is_char_device() { EntryType::Char } else { EntryType::Block });
            let device = metadata.rdev();
            header.set_device_major(ichor_sys::device::major(device))?;
            header.set_device_minor(ichor_sys::device::minor(device))?;
            self.header(&mut header, &name)?;
        } else if kind.is_fifo() {
            header.set_entry_type(EntryType::Fifo);
            self.header(&mut header, &name)?;
        } else {
            self.complain(&found.path, "archive/tar: sockets not supported");
        }
        Ok(BLOCK)
    }

    fn link(&mut self, header: &mut Header, name: &str, path: &Path) -> io::Result<()> {
        let target = match std::fs::read_link(path) {
            Ok(target) => target.to_string_lossy().into_owned(),
            Err(error) => {
                self.complain(path, &io_text("readlink", path, &error));
                return Ok(());
            }
        };
        if target.len() > NAME_MAX {
            self.long(EntryType::GNULongLink, &target)?;
        }
        let cut = cut(&target);
        let field = &mut header.as_old_mut().linkname;
        field.fill(0);
        field[..cut].copy_from_slice(&target.as_bytes()[..cut]);
        self.header(header, name)
    }

    /// Begins a regular file; small ones are read first, so that their true size can be told.
    fn file(&mut self, header: &mut Header, name: &str, path: &Path, len: u64) -> io::Result<usize> {
        let file = match open_again(path) {
            _ if path == Path::new(KERNEL_MEMORY) => Err(io::Error::from(io::ErrorKind::Unsupported)),
            Ok(file) if len >= STEP as u64 => {
                header.set_size(len);
                self.header(header, name)?;
                self.current = Some(Current { path: path.to_path_buf(), file: Some(file), left: len });
                return Ok(BLOCK);
            }
            opened => opened,
        };
        match file.and_then(|file| small_content(file, len)) {
            Ok(content) => {
                header.set_size(content.len() as u64);
                self.header(header, name)?;
                self.encoder.write_all(&content)?;
                self.pad(content.len() as u64)?;
                Ok(BLOCK + content.len())
            }
            Err(error) => {
                self.complain(path, &io_text("open", path, &error));
                Ok(BLOCK)
            }
        }
    }

    /// A name or a link too long for its field, in an entry of its own.
    fn long(&mut self, kind: EntryType, text: &str) -> io::Result<()> {
        let mut long = Header::new_gnu();
        long.set_entry_type(kind);
        long.set_path("././@LongLink")?;
        long.set_mode(0o644);
        long.set_size(text.len() as u64 + 1);
        long.set_cksum();
        self.encoder.write_all(long.as_bytes())?;
        self.encoder.write_all(text.as_bytes())?;
        self.encoder.write_all(&[0])?;
        self.pad(text.len() as u64 + 1)
    }

    fn header(&mut self, header: &mut Header, name: &str) -> io::Result<()> {
        if name.len() > NAME_MAX {
            self.long(EntryType::GNULongName, name)?;
        }
        let cut = cut(name);
        let field = &mut header.as_old_mut().name;
        field.fill(0);
        field[..cut].copy_from_slice(&name.as_bytes()[..cut]);
        header.set_cksum();
        self.encoder.write_all(header.as_bytes())
    }

    /// Packs more of a file; one that shrank meanwhile is filled up with zeros, since its size is out.
    fn content(&mut self, mut current: Current) -> io::Result<usize> {
        let want = usize::try_from(current.left).unwrap_or(STEP).min(STEP);
        let mut buffer = vec![0; want];
        let mut have = 0;
        let mut failure = None;
        while let Some(file) = current.file.as_mut().filter(|_| have < want) {
            match file.read(&mut buffer[have..]) {
                Ok(0) => failure = Some("the file shrank while it was read".to_owned()),
                Ok(len) => have += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => failure = Some(io_text("read", &current.path, &error)),
            }
            if let Some(reason) = failure.take() {
                self.complain(&current.path, &reason);
                current.file = None;
            }
        }
        self.encoder.write_all(&buffer)?;
        current.left -= want as u64;
        if current.left > 0 {
            self.current = Some(current);
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

/// Opens a file without waiting.
pub fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(NONBLOCK).open(path)
}

/// Opens what was a regular file a moment ago, if it still is one.
fn open_again(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(NONBLOCK | NOFOLLOW).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("no longer a regular file")),
    }
}

/// What a small file holds. One of the kernel may hold more than it says; one that holds far more is
/// taken for empty, as is one that cannot be read at all in this way.
fn small_content(file: File, len: u64) -> io::Result<Vec<u8>> {
    /// `EINVAL`: a file that is only for writing.
    const INVALID: i32 = 22;
    let mut content = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    match file.take(STEP as u64 + 1).read_to_end(&mut content) {
        Ok(_) if content.len() > STEP => Ok(Vec::new()),
        Ok(_) => Ok(content),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(content),
        Err(error) if error.raw_os_error() == Some(INVALID) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// How much of a text fits into a field of a header, in whole characters.
fn cut(text: &str) -> usize {
    text.floor_char_boundary(NAME_MAX)
}

/// Several errors in one text.
fn summary(errors: &[String]) -> Option<String> {
    let count = match errors.len() {
        0 => return None,
        1 => "1 error".to_owned(),
        count => format!("{count} errors"),
    };
    let lines: String = errors.iter().map(|error| format!("\t* {error}\n")).collect();
    Some(format!("{count} occurred:\n{lines}\n"))
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
                    assert_eq!(errors, None);
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

    fn entries(root: &Path) -> (Vec<(String, EntryType, String)>, Option<String>) {
        let mut archive = Archive::new(root.to_path_buf());
        let Step::End(packed, errors) = archive.step().unwrap() else { panic!("one step is enough") };
        let plain = flate2::read::GzDecoder::new(&packed[..]);
        let entry = |entry: io::Result<tar::Entry<'_, _>>| {
            let entry = entry.unwrap();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            (
                entry.path().unwrap().display().to_string(),
                entry.header().entry_type(),
                link.unwrap_or_default(),
            )
        };
        (tar::Archive::new(plain).entries().unwrap().map(entry).collect(), errors)
    }

    #[test]
    fn sockets_are_named_as_left_out_and_long_links_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let target = "t".repeat(300);
        std::os::unix::fs::symlink(&target, dir.path().join("long")).unwrap();
        let (found, errors) = entries(dir.path());
        assert_eq!(found[0], ("long".to_owned(), EntryType::Symlink, target));
        assert_eq!(found.len(), 1);
        let socket = dir.path().join("s");
        assert_eq!(
            errors.unwrap(),
            format!(
                "1 error occurred:\n\t* skipping \"{}\": archive/tar: sockets not supported\n\n",
                socket.display()
            )
        );
    }

    #[test]
    fn devices_go_by_their_numbers_and_are_not_opened() {
        let (found, errors) = entries(Path::new("/dev/null"));
        assert_eq!((found.len(), errors), (1, None));
        assert_eq!(found[0].0, "null");
        assert_eq!(found[0].1, EntryType::Char);
    }

    #[test]
    fn a_file_of_the_kernel_has_its_content_and_its_memory_is_left_alone() {
        assert_eq!(ichor_sys::host::uname().release.len() + 1, {
            let mut archive = Archive::new("/proc/sys/kernel/osrelease".into());
            let Step::End(packed, None) = archive.step().unwrap() else { panic!("one step is enough") };
            let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
            let size = archive.entries().unwrap().next().unwrap().unwrap().size();
            usize::try_from(size).unwrap()
        });
        if Path::new(KERNEL_MEMORY).exists() {
            let (found, errors) = entries(Path::new(KERNEL_MEMORY));
            assert!(found.is_empty() && errors.is_some());
        }
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
