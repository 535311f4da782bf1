//! Unified kernel images: a systemd stub with the kernel, the initramfs, the command line and a second profile that
//! resets the machine, as one PE file.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ichor_boot::cmdline::merge;
use ichor_types::cmdline::Cmdline;

use crate::pe::{self, Headers, PeError};
use crate::{Content, Error, cmdline};

/// The first stub that knows profiles. An older one takes the last section of a name, which is the command line that
/// wipes the disk: it must never see a second one.
const PROFILES_SINCE: u32 = 257;

/// Sections that the installer reads into memory are not larger than this.
const TEXT_MAX: u64 = 64 * 1024;

/// The second profile of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// On media: the whole system disk is wiped.
    Disk,
    /// On disk: the machine returns to maintenance mode.
    Maintenance,
}

impl Reset {
    fn profile(self) -> &'static str {
        match self {
            Self::Disk => "ID=reset\nTITLE=Reset system disk\n",
            Self::Maintenance => "ID=reset-maintenance\nTITLE=Reset to maintenance mode\n",
        }
    }

    /// The argument that makes the machine do it.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Disk => "talos.experimental.wipe=system",
            Self::Maintenance => "talos.experimental.wipe=system:EPHEMERAL,STATE",
        }
    }
}

/// What a unified kernel image is made of.
#[derive(Debug, Clone)]
pub struct Uki {
    /// The systemd stub.
    pub stub: Vec<u8>,
    /// The text of `os-release`.
    pub os_release: String,
    /// The command line.
    pub cmdline: Cmdline,
    /// The release of the kernel, where it is known.
    pub uname: Option<String>,
    /// The kernel.
    pub kernel: Content,
    /// The initramfs.
    pub initramfs: Content,
    /// The second profile.
    pub reset: Reset,
}

impl Uki {
    /// Whether the stub can tell profiles apart; if not, the image has only the main one.
    pub fn has_profiles(&self) -> bool {
        stub_version(&self.stub).is_some_and(|version| version >= PROFILES_SINCE)
    }

    /// The image.
    pub fn build(&self) -> Result<Content, Error> {
        cmdline::check(&self.cmdline)?;
        let text = |text: String| Content::bytes(text.into_bytes());
        let mut sections =
            vec![(".osrel", text(self.os_release.clone())), (".cmdline", text(self.cmdline.to_string()))];
        if let Some(uname) = &self.uname {
            sections.push((".uname", text(uname.clone())));
        }
        sections.push((".linux", self.kernel.clone()));
        sections.push((".initrd", self.initramfs.clone()));
        if self.has_profiles() {
            let mut reset = self.cmdline.clone();
            merge(&mut reset, &[self.reset.argument()]);
            sections.push((".profile", text("ID=main\n".to_owned())));
            sections.push((".profile", text(self.reset.profile().to_owned())));
            sections.push((".cmdline", text(reset.to_string())));
        }
        pe::add_sections(&self.stub, sections)
            .map_err(|source| Error::Pe { what: "build the unified kernel image".to_owned(), source })
    }
}

/// The version that a stub says it is of: `#### LoaderInfo: systemd-stub 257.9-1 ####` in its section `.sdmagic`.
pub fn stub_version(stub: &[u8]) -> Option<u32> {
    const KEY: &[u8] = b"systemd-stub ";
    let headers = Headers::parse(stub, stub.len() as u64).ok()?;
    let range = headers.section(".sdmagic").ok()?.content();
    let section = stub.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)?;
    let at = section.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let digits: String =
        section[at..].iter().take(5).map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Where the first section with this name is in an image.
pub fn section(image: &Content, name: &str) -> Result<Range<u64>, Error> {
    let failed = |source| Error::Read { path: PathBuf::from("unified kernel image"), source };
    let mut head = Vec::new();
    image.reader().take(pe::HEADERS_MAX as u64).read_to_end(&mut head).map_err(failed)?;
    let headers = Headers::parse(&head, image.len());
    let range = headers.and_then(|headers| Ok(headers.section(name)?.content()));
    range.map_err(|source| Error::Pe { what: "read the unified kernel image".to_owned(), source })
}

/// What a unified kernel image holds, for boot loaders that start kernels themselves.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The kernel.
    pub kernel: Content,
    /// The initramfs.
    pub initramfs: Content,
    /// The command line of the main profile.
    pub cmdline: String,
    /// The text of `os-release`.
    pub os_release: String,
}

impl Parts {
    /// Finds the parts of an image in a file. The kernel and the initramfs stay in the file until they are read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let bad = |source| Error::Pe { what: format!("read {}", path.display()), source };
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut head = Vec::new();
        file.take(pe::HEADERS_MAX as u64).read_to_end(&mut head).map_err(failed)?;
        let headers = Headers::parse(&head, len).map_err(bad)?;
        let part = |name: &str| {
            let range = headers.section(name).map_err(bad)?.content();
            Ok::<_, Error>(Content::file_part(path, range.start, range.end - range.start))
        };
        let text = |name: &str| {
            let bytes = part(name)?.read(TEXT_MAX)?;
            let text = String::from_utf8(bytes)
                .map_err(|_| Error::bad(path.display().to_string(), format!("section {name} is no text")))?;
            Ok::<_, Error>(text.trim_end_matches('\0').to_owned())
        };
        let (kernel, initramfs) = (part(".linux")?, part(".initrd")?);
        if kernel.is_empty() || initramfs.is_empty() {
            return Err(bad(PeError::Missing(".linux or .initrd with content".to_owned())));
        }
        Ok(Self { kernel, initramfs, cmdline: text(".cmdline")?, os_release: text(".osrel")? })
    }
}
