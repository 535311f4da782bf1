//! Carries out the plans of `ichor-boot` on mounted filesystems and efivarfs, and reads back what they go by.
//!
//! What `ichor_boot::plan` promises about power cuts is kept here: BOOT is frozen and thawed so that GRUB, which does not
//! read the log of XFS, sees what was written; a file on FAT loses its name before its space; `grub.cfg` is exchanged and
//! never replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ichor_boot::grub::{self, EnvBlock, GrubConfig, GrubError};
use ichor_boot::plan::disk::{GrubFiles, Loader, SdBootFiles};
use ichor_boot::plan::{Asset, Content, Port, Step, Volume};
use ichor_boot::sdboot::variable::{self, Variable};
use ichor_boot::sdboot::{self, UkiName};
use rustix::fs::{Advice, CWD, IFlags, RenameFlags};

/// `FIFREEZE`: read and write an `int`, group `X`, number 119.
const FREEZE: libc::c_ulong = 0xc004_5877;
/// `FITHAW`: read and write an `int`, group `X`, number 120.
const THAW: libc::c_ulong = 0xc004_5878;
/// What `statfs` calls XFS.
const XFS: u64 = 0x5846_5342;
/// No file that is read whole here is longer.
const TEXT_MAX: u64 = 1 << 20;

/// What a plan changes besides files and variables.
pub trait Outside {
    /// Sets a value of META; it is on disk when this returns.
    ///
    /// # Errors
    /// The disk's.
    fn set_meta(&mut self, key: u8, value: &[u8]) -> io::Result<()>;

    /// Deletes a value of META, which need not be there.
    ///
    /// # Errors
    /// The disk's.
    fn delete_meta(&mut self, key: u8) -> io::Result<()>;

    /// Clears the partition with this label.
    ///
    /// # Errors
    /// The disk's.
    fn wipe(&mut self, label: &str) -> io::Result<()>;
}

/// Opens the bytes of a part of a new system.
type OpenSource = Arc<dyn Fn() -> io::Result<Box<dyn Read>> + Send + Sync>;

/// A part of a new system: a file, or anything else that can be read twice, to write it and to compare.
#[derive(Clone)]
pub struct AssetSource {
    len: u64,
    open: OpenSource,
}

impl AssetSource {
    /// These many bytes, read from the beginning each time.
    pub fn new(len: u64, open: impl Fn() -> io::Result<Box<dyn Read>> + Send + Sync + 'static) -> Self {
        Self { len, open: Arc::new(open) }
    }

    /// A whole file.
    ///
    /// # Errors
    /// When it is not there.
    pub fn file(path: &Path) -> io::Result<Self> {
        let (path, len) = (path.to_owned(), fs::metadata(path)?.len());
        Ok(Self::new(len, move || Ok(Box::new(File::open(&path)?))))
    }
}

impl std::fmt::Debug for AssetSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AssetSource").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Where things are. A volume that is not mounted is none.
#[derive(Debug, Clone, Default)]
pub struct BootPaths {
    /// Where the EFI partition is mounted.
    pub efi: Option<PathBuf>,
    /// Where the BOOT partition is mounted.
    pub boot: Option<PathBuf>,
    /// Where efivarfs is mounted; none on a machine without UEFI.
    pub variables: Option<PathBuf>,
    /// The parts of the new system.
    pub assets: BTreeMap<Asset, AssetSource>,
}

/// Why a step could not be done.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The filesystem, or the firmware behind its variables.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What was read back is not what was written.
    #[error("{path}: what was read back differs from what was written; the disk is not to be trusted")]
    Differs {
        /// Which file.
        path: PathBuf,
    },
    /// The plan is for another machine.
    #[error("{0} is needed for this step and is not there")]
    Missing(String),
    /// META or a partition.
    #[error("{what}: {source}")]
    Outside {
        /// What was to be done.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// GRUB's configuration is there and cannot be read.
    #[error(transparent)]
    Grub(#[from] GrubError),
}

/// Carries out plans.
#[derive(Debug)]
pub struct BootPort<O> {
    paths: BootPaths,
    outside: O,
}

impl<O: Outside> BootPort<O> {
    /// A port to these places.
    pub fn new(paths: BootPaths, outside: O) -> Self {
        Self { paths, outside }
    }

    /// META and partitions.
    pub fn outside(&self) -> &O {
        &self.outside
    }

    fn path(&self, volume: Volume, path: &str) -> Result<PathBuf, BootError> {
        Ok(self.paths.root(volume)?.join(path))
    }

    fn asset(&self, asset: Asset) -> Result<&AssetSource, BootError> {
        self.paths.assets.get(&asset).ok_or_else(|| BootError::Missing(format!("{asset:?}")))
    }

    fn write(&self, path: &Path, content: &Content) -> Result<(), BootError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| BootError::Io { path, source }
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(path).map_err(at(path))?;
        match content {
            Content::Bytes(bytes) => file.write_all(bytes).map_err(at(path))?,
            Content::Asset(asset) => {
                let source = self.asset(*asset)?;
                let mut reader = (source.open)().map_err(at(path))?;
                let copied = io::copy(&mut reader, &mut file).map_err(at(path))?;
                if copied != source.len {
                    return Err(at(path)(io::ErrorKind::UnexpectedEof.into()));
                }
            }
        }
        file.sync_all().map_err(at(path))
    }

    fn verify(&self, path: &Path, asset: Asset) -> Result<(), BootError> {
        let source = self.asset(asset)?;
        match same(path, source).map_err(|source| BootError::Io { path: path.to_owned(), source })? {
            true => Ok(()),
            false => Err(BootError::Differs { path: path.to_owned() }),
        }
    }
}

impl<O: Outside> Port for BootPort<O> {
    type Error = BootError;

    fn carry_out(&mut self, step: &Step) -> Result<(), BootError> {
        let io = |path: PathBuf| move |source| BootError::Io { path, source };
        match step {
            Step::Write { volume, path, content } => self.write(&self.path(*volume, path)?, content),
            Step::Overwrite { volume, path, bytes } => {
                let path = self.path(*volume, path)?;
                overwrite(&path, bytes).map_err(io(path))
            }
            Step::Verify { volume, path, asset } => self.verify(&self.path(*volume, path)?, *asset),
            Step::Exchange { volume, path, with } => {
                let (path, with) = (self.path(*volume, path)?, self.path(*volume, with)?);
                let done = rustix::fs::renameat_with(CWD, &path, CWD, &with, RenameFlags::EXCHANGE);
                done.map_err(|error| BootError::Io { path, source: error.into() })
            }
            Step::Delete { volume, path } => {
                let path = self.path(*volume, path)?;
                delete(&path).map_err(io(path))
            }
            Step::Flush { volume } => {
                let root = self.paths.root(*volume)?.to_owned();
                flush(&root).map_err(io(root))
            }
            Step::SetVariable { variable, bytes } => {
                let path = self.paths.variable(*variable)?;
                set_variable(&path, bytes).map_err(io(path))
            }
            Step::DeleteVariable { variable } => {
                let path = self.paths.variable(*variable)?;
                delete_variable(&path).map_err(io(path))
            }
            Step::SetMeta { key, value } => {
                let done = self.outside.set_meta(*key, value);
                done.map_err(|source| BootError::Outside { what: format!("set META 0x{key:02x}"), source })
            }
            Step::DeleteMeta { key } => {
                let done = self.outside.delete_meta(*key);
                done.map_err(|source| BootError::Outside { what: format!("delete META 0x{key:02x}"), source })
            }
            Step::Wipe { label } => {
                let done = self.outside.wipe(label);
                done.map_err(|source| BootError::Outside { what: format!("wipe {label}"), source })
            }
        }
    }
}

impl BootPaths {
    fn root(&self, volume: Volume) -> Result<&Path, BootError> {
        let (path, name) = match volume {
            Volume::Efi => (&self.efi, "the EFI partition"),
            Volume::Boot => (&self.boot, "the BOOT partition"),
        };
        path.as_deref().ok_or_else(|| BootError::Missing(name.to_owned()))
    }

    fn variable(&self, variable: Variable) -> Result<PathBuf, BootError> {
        let folder = self.variables.as_ref();
        Ok(folder.ok_or_else(|| BootError::Missing("efivarfs".to_owned()))?.join(variable.file()))
    }

    /// The text of a variable; none when it is not there.
    pub fn variable_text(&self, variable: Variable) -> Option<String> {
        variable::decode_text(&fs::read(self.variables.as_ref()?.join(variable.file())).ok()?)
    }

    /// Finds the boot loader of a disk and reads what it goes by: GRUB first, as the original does, then systemd-boot.
    ///
    /// # Errors
    /// When a file is there and cannot be read.
    pub fn probe(&self) -> Result<Option<Loader>, BootError> {
        if let Some(files) = self.probe_grub()? {
            return Ok(Some(Loader::Grub(files)));
        }
        Ok(self.probe_sd_boot()?.map(Loader::SdBoot))
    }

    fn probe_grub(&self) -> Result<Option<GrubFiles>, BootError> {
        let Some(boot) = &self.boot else { return Ok(None) };
        let Some(config) = read(&boot.join(grub::CONFIG_PATH))? else { return Ok(None) };
        let config = Some(GrubConfig::parse(&String::from_utf8_lossy(&config))?);
        // One that a power cut left in pieces is made anew.
        let env = read(&boot.join(grub::ENV_PATH))?.and_then(|bytes| EnvBlock::parse(&bytes).ok());
        Ok(Some(GrubFiles { config, env }))
    }

    fn probe_sd_boot(&self) -> Result<Option<SdBootFiles>, BootError> {
        let (Some(efi), Some(_)) = (&self.efi, &self.variables) else { return Ok(None) };
        let has_loader = ["amd64", "arm64"]
            .into_iter()
            .filter_map(sdboot::loader_path)
            .any(|path| efi.join(path).is_file());
        let images = images(&efi.join(sdboot::UKI_FOLDER))?;
        if !has_loader || images.is_empty() {
            return Ok(None);
        }
        let conf = read(&efi.join(sdboot::CONF_PATH))?;
        Ok(Some(SdBootFiles {
            images,
            default: self.variable_text(Variable::EntryDefault),
            one_shot: self.variable_text(Variable::EntryOneShot),
            conf: conf.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        }))
    }
}

fn images(folder: &Path) -> Result<Vec<UkiName>, BootError> {
    let io = |source| BootError::Io { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut images = Vec::new();
    for entry in entries {
        images.extend(entry.map_err(io)?.file_name().to_str().and_then(UkiName::parse));
    }
    images.sort();
    Ok(images)
}

/// A whole small file; none when it is not there.
fn read(path: &Path) -> Result<Option<Vec<u8>>, BootError> {
    let io = |source| BootError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Vec::new();
    file.take(TEXT_MAX).read_to_end(&mut bytes).map_err(io)?;
    Ok(Some(bytes))
}

/// Writes over the beginning of a file, where it is.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

/// Deletes a file, its name first: its space is free only when no name on the disk refers to it.
fn delete(path: &Path) -> io::Result<()> {
    let held = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    fs::remove_file(path)?;
    rustix::fs::syncfs(&held)?;
    drop(held);
    Ok(())
}

/// Whether two files hold the same; the first is read from the disk and not from memory.
fn same(path: &Path, source: &AssetSource) -> io::Result<bool> {
    let file = File::open(path)?;
    if file.metadata()?.len() != source.len {
        return Ok(false);
    }
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    let (mut file, mut source) = (BufReader::new(file), BufReader::new((source.open)()?));
    let (mut one, mut other) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let len = file.read(&mut one)?;
        if len == 0 {
            return Ok(true);
        }
        source.read_exact(&mut other[..len])?;
        if one[..len] != other[..len] {
            return Ok(false);
        }
    }
}

/// Puts everything of a filesystem where a boot loader reads it. XFS is frozen for a moment: that empties its log.
fn flush(root: &Path) -> io::Result<()> {
    let folder = File::open(root)?;
    rustix::fs::syncfs(&folder)?;
    if rustix::fs::fstatfs(&folder)?.f_type as u64 != XFS {
        return Ok(());
    }
    let call = |request: libc::c_ulong| {
        let mut unused: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the pointer is to an `int` that lives through the call.
        let answer = unsafe { libc::ioctl(folder.as_raw_fd(), request as _, &raw mut unused) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    call(FREEZE)?;
    call(THAW)
}

/// Writes a variable in one call, as efivarfs wants it. One that has this value already is left alone: firmware wears.
fn set_variable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::read(path) {
        Ok(old) if old == bytes => return Ok(()),
        Ok(_) => make_mutable(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    match file.write(bytes)? {
        len if len == bytes.len() => Ok(()),
        len => Err(io::Error::other(format!("the firmware took {len} of {} bytes", bytes.len()))),
    }
}

fn delete_variable(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    make_mutable(path)?;
    fs::remove_file(path)
}

/// efivarfs protects variables it does not know from being deleted by mistake.
fn make_mutable(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let flags = match rustix::fs::ioctl_getflags(&file) {
        Ok(flags) => flags,
        // A filesystem without such flags protects nothing.
        Err(rustix::io::Errno::NOTTY | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if flags.contains(IFlags::IMMUTABLE) {
        rustix::fs::ioctl_setflags(&file, flags - IFlags::IMMUTABLE)?;
    }
    Ok(())
}
