//! The kernel as an input: a bare image, or a Debian package with its modules.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::{Arch, Content, Error};

/// Offsets of the x86 boot protocol.
const SETUP_MAGIC: usize = 0x202;
const SETUP_VERSION: usize = 0x20e;
const SETUP_BASE: usize = 0x200;
/// The setup code of an x86 kernel is at most this long.
const SETUP_MAX: u64 = 64 * 512;
/// `ARM\x64` in the header of an arm64 kernel.
const ARM64_MAGIC: usize = 0x38;

/// Longest release that `uname` can show.
const RELEASE_MAX: usize = 64;

const AR_MAGIC: &[u8] = b"!<arch>\n";
/// More than any kernel package unpacks to.
const PACKAGE_MAX: u64 = 4 << 30;

/// A kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The image that boot loaders start.
    pub image: Content,
    /// What `uname -r` will say, where the image tells.
    pub release: Option<String>,
}

impl Kernel {
    /// Takes a kernel image for `arch`.
    pub fn open(path: &Path, arch: Arch) -> Result<Self, Error> {
        let image = Content::file(path)?;
        let mut head = Vec::new();
        let failed = |source| Error::Read { path: path.to_owned(), source };
        image.reader().take(SETUP_MAX).read_to_end(&mut head).map_err(failed)?;
        let found = if head.get(SETUP_MAGIC..SETUP_MAGIC + 4) == Some(b"HdrS") {
            Some(Arch::Amd64)
        } else if head.get(ARM64_MAGIC..ARM64_MAGIC + 4) == Some(b"ARM\x64") {
            Some(Arch::Arm64)
        } else {
            None
        };
        let bad = |reason: String| Err(Error::bad(path.display().to_string(), reason));
        match found {
            Some(found) if found == arch => {}
            Some(found) => {
                return bad(format!(
                    "a kernel for {found}, not for {arch}; give another one or --arch {found}"
                ));
            }
            None => return bad("no kernel image; give a vmlinuz or a linux-image package".to_owned()),
        }
        Ok(Self { image, release: release(&head) })
    }
}

/// The release that the setup header of an x86 kernel points to.
pub fn release(head: &[u8]) -> Option<String> {
    if head.get(SETUP_MAGIC..SETUP_MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let offset = head.get(SETUP_VERSION..SETUP_VERSION + 2)?;
    let offset = usize::from(u16::from_le_bytes([offset[0], offset[1]]));
    if offset == 0 {
        return None;
    }
    let text = head.get(SETUP_BASE + offset..)?;
    let end = text.iter().take(RELEASE_MAX + 1).position(|byte| *byte == b' ' || *byte == 0)?;
    let plain = text[..end].iter().all(|byte| byte.is_ascii_graphic());
    (end > 0 && plain).then(|| String::from_utf8_lossy(&text[..end]).into_owned())
}

/// True for a Debian package.
pub fn is_package(path: &Path) -> bool {
    let mut magic = [0; AR_MAGIC.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok_and(|()| magic == *AR_MAGIC)
}

/// Unpacks the kernel and the modules of a Debian package into `dir`; returns the path of the kernel image.
pub fn unpack(package: &Path, dir: &Path) -> Result<PathBuf, Error> {
    let failed = |source| Error::Read { path: package.to_owned(), source };
    let mut file = File::open(package).map_err(failed)?;
    let (name, data) = data_member(&mut file).map_err(failed)?;
    let data: Box<dyn Read> = match name.as_str() {
        "data.tar" => Box::new(data),
        "data.tar.xz" => Box::new(liblzma::read::XzDecoder::new(data)),
        "data.tar.zst" => Box::new(zstd::Decoder::new(data).map_err(failed)?),
        "data.tar.gz" => Box::new(flate2::read::GzDecoder::new(data)),
        other => {
            return Err(Error::bad(
                package.display().to_string(),
                format!("{other} is compressed in an unknown way"),
            ));
        }
    };
    let image = unpack_tree(data.take(PACKAGE_MAX), dir).map_err(failed)?;
    image.ok_or_else(|| {
        Error::bad(package.display().to_string(), "no boot/vmlinuz-* in it; give a linux-image package")
    })
}

/// The member of an `ar` archive that holds the files of a package.
fn data_member(file: &mut File) -> io::Result<(String, io::Take<&mut File>)> {
    let mut magic = [0; AR_MAGIC.len()];
    file.read_exact(&mut magic)?;
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "not a Debian package");
    if magic != AR_MAGIC {
        return Err(bad());
    }
    // A package has three members; a few more do no harm.
    for _ in 0..8 {
        let mut header = [0; 60];
        file.read_exact(&mut header)?;
        let text = |range: std::ops::Range<usize>| {
            std::str::from_utf8(&header[range]).map(|text| text.trim_end().trim_end_matches('/').to_owned())
        };
        let name = text(0..16).map_err(|_| bad())?;
        let len: u64 = text(48..58).ok().and_then(|len| len.parse().ok()).ok_or_else(bad)?;
        if name.starts_with("data.tar") {
            return Ok((name, file.take(len)));
        }
        let padded = len.next_multiple_of(2);
        if io::copy(&mut (&mut *file).take(padded), &mut io::sink())? != padded {
            return Err(bad());
        }
    }
    Err(bad())
}

/// Writes kernel and modules of a package's tree; links and everything else stay out.
fn unpack_tree(data: impl Read, dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut image = None;
    for entry in tar::Archive::new(data).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let parts: Vec<_> = path
            .components()
            .filter_map(|part| match part {
                Component::Normal(name) => Some(name.to_owned()),
                _ => None,
            })
            .collect();
        let clean: PathBuf = parts.iter().collect();
        let is_image = clean.parent() == Some(Path::new("boot"))
            && clean.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
        let is_module = clean.starts_with("lib/modules") || clean.starts_with("usr/lib/modules");
        if !entry.header().entry_type().is_file() || !(is_image || is_module) {
            continue;
        }
        let target = dir.join(clean);
        fs::create_dir_all(target.parent().unwrap_or(dir))?;
        io::copy(&mut entry, &mut File::create(&target)?)?;
        if is_image {
            image = Some(target);
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_setup_header() {
        let mut head = vec![0; 0x300];
        head[SETUP_MAGIC..SETUP_MAGIC + 4].copy_from_slice(b"HdrS");
        assert_eq!(release(&head), None);
        head[SETUP_VERSION] = 0x20;
        head[0x220..0x22e].copy_from_slice(b"6.1.0-44 (x@y)");
        assert_eq!(release(&head).as_deref(), Some("6.1.0-44"));
        head.truncate(0x224);
        assert_eq!(release(&head), None, "cut off");
    }

    #[test]
    fn something_else_is_no_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vmlinuz");
        fs::write(&file, "text").unwrap();
        let error = Kernel::open(&file, Arch::Amd64).unwrap_err().to_string();
        assert!(error.ends_with("no kernel image; give a vmlinuz or a linux-image package"), "{error}");
        let mut head = vec![0; 0x40];
        head[ARM64_MAGIC..].copy_from_slice(b"ARM\x64\0\0\0\0");
        fs::write(&file, head).unwrap();
        let error = Kernel::open(&file, Arch::Amd64).unwrap_err().to_string();
        assert!(
            error.ends_with("a kernel for arm64, not for amd64; give another one or --arch arm64"),
            "{error}"
        );
    }
}
