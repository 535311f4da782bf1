//! Mounts made ready for a container before it starts: flags, propagation, idmapping, and filesystems of its own.
//!
//! They lie in a folder that is a small private mount itself, so nothing of them spreads and one unmount lets all go. init
//! then shows the container copies, which keep flags and idmapping.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::mount::{self, MountFlags, Propagation};

/// Directories and empty files to mount on, no more.
const FOLDER_OPTIONS: &str = "size=64k,nr_inodes=512,mode=0700";
/// How long the process lives that a user namespace is taken from, should nobody end it.
const HOLDER_SECONDS: u32 = 30;

const ATTR_RDONLY: u64 = 0x1;
const ATTR_NOSUID: u64 = 0x2;
const ATTR_NODEV: u64 = 0x4;
const ATTR_NOEXEC: u64 = 0x8;
const ATTR_ATIME: u64 = 0x70;
const ATTR_NOATIME: u64 = 0x10;
const ATTR_STRICTATIME: u64 = 0x20;
const ATTR_NODIRATIME: u64 = 0x80;
const ATTR_IDMAP: u64 = 0x10_0000;
const ATTR_NOSYMFOLLOW: u64 = 0x20_0000;

/// Options that set and clear attributes of a mount.
const ATTRIBUTES: [(&str, u64, u64); 17] = [
    ("ro", ATTR_RDONLY, 0),
    ("rw", 0, ATTR_RDONLY),
    ("nosuid", ATTR_NOSUID, 0),
    ("suid", 0, ATTR_NOSUID),
    ("nodev", ATTR_NODEV, 0),
    ("dev", 0, ATTR_NODEV),
    ("noexec", ATTR_NOEXEC, 0),
    ("exec", 0, ATTR_NOEXEC),
    ("noatime", ATTR_NOATIME, ATTR_ATIME),
    ("atime", 0, ATTR_ATIME),
    ("relatime", 0, ATTR_ATIME),
    ("norelatime", ATTR_STRICTATIME, ATTR_ATIME),
    ("strictatime", ATTR_STRICTATIME, ATTR_ATIME),
    ("nodiratime", ATTR_NODIRATIME, 0),
    ("diratime", 0, ATTR_NODIRATIME),
    ("nosymfollow", ATTR_NOSYMFOLLOW, 0),
    ("symfollow", 0, ATTR_NOSYMFOLLOW),
];

/// Options about propagation; a leading `r` makes no difference here, since all below is changed alike.
const PROPAGATIONS: [(&str, u64); 4] = [
    ("shared", libc::MS_SHARED),
    ("slave", libc::MS_SLAVE),
    ("private", libc::MS_PRIVATE),
    ("unbindable", libc::MS_UNBINDABLE),
];

/// A range of user or group ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first id on the filesystem.
    pub container_id: u32,
    /// The first id that is shown instead.
    pub host_id: u32,
    /// How many.
    pub size: u32,
}

/// Options of a mount, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// What is there already is shown, and no filesystem made.
    pub bind: bool,
    /// With all that is mounted below.
    pub recursive: bool,
    /// The idmapping is for mounts below, too.
    recursive_idmap: bool,
    set: u64,
    clear: u64,
    /// Attributes for mounts below, too.
    set_below: u64,
    clear_below: u64,
    propagation: u64,
    /// What only the filesystem understands.
    pub data: String,
}

impl MountOptions {
    /// Reads the options of a mount of this type, as container runtimes know them.
    ///
    /// # Errors
    /// Names an option that a bind mount does not have.
    pub fn parse<'a>(kind: &str, options: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut read = Self { bind: matches!(kind, "bind" | "rbind"), ..Self::default() };
        let mut data = Vec::new();
        for option in options {
            let below = option.strip_prefix('r').filter(|rest| *rest != "o" && *rest != "w");
            let attribute = |name: &str| ATTRIBUTES.iter().find(|(known, ..)| *known == name);
            let propagation = PROPAGATIONS
                .iter()
                .find(|(name, _)| option == *name || below == Some(name))
                .map(|(_, flag)| *flag);
            match option {
                "bind" => read.bind = true,
                "rbind" => (read.bind, read.recursive) = (true, true),
                "idmap" => {}
                "ridmap" => read.recursive_idmap = true,
                "defaults" | "" => {}
                _ => match (attribute(option), propagation, below.and_then(attribute)) {
                    (Some((_, set, clear)), _, _) => {
                        read.set = read.set & !clear | set;
                        read.clear = read.clear & !set | clear;
                    }
                    (_, Some(flag), _) => read.propagation = flag,
                    (_, _, Some((_, set, clear))) => {
                        read.set_below = read.set_below & !clear | set;
                        read.clear_below = read.clear_below & !set | clear;
                    }
                    (None, None, None) => data.push(option),
                },
            }
        }
        if read.bind && !data.is_empty() {
            return Err(format!("a bind mount has no option {:?}", data[0]));
        }
        read.data = data.join(",");
        Ok(read)
    }
}

/// A mount for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagedMount {
    /// What is shown, or the device.
    pub source: String,
    /// Its filesystem, `bind` for what is there already.
    pub kind: String,
    /// Options of container runtimes.
    pub options: Vec<String>,
    /// How users are shown; nothing stands for as they are.
    pub uids: Vec<IdRange>,
    /// The same of groups.
    pub gids: Vec<IdRange>,
}

/// Makes `folder` a place for staged mounts, in the stead of an earlier one.
///
/// # Errors
/// The kernel's, with the place.
pub fn open_stage(folder: &Path) -> io::Result<()> {
    close_stage(folder)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let text = |error: mount::MountError| with_text(&error.to_string(), &error.source);
    mount::mount("none", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, FOLDER_OPTIONS)
        .map_err(text)?;
    mount::set_propagation(folder, Propagation::Private).map_err(text)
}

/// Lets all staged mounts of a folder go. Copies that containers have stay.
///
/// # Errors
/// The kernel's, with the place.
pub fn close_stage(folder: &Path) -> io::Result<()> {
    match mount::is_mounted(folder) {
        true => mount::detach(folder).map_err(|error| with_text(&error.to_string(), &error.source)),
        false => Ok(()),
    }
}

impl StagedMount {
    /// Makes the mount under this name in a stage; gives its path.
    ///
    /// # Errors
    /// What is wrong with an option, or the kernel's word, with the source.
    pub fn make(&self, stage: &Path, name: &str) -> io::Result<PathBuf> {
        let failed = |error: &io::Error| with_text(&format!("mount {:?}", self.source), error);
        let options =
            MountOptions::parse(&self.kind, self.options.iter().map(String::as_str)).map_err(|text| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("mount {:?}: {text}", self.source))
            })?;
        let place = stage.join(name);
        match options.bind {
            true => self.bind(&options, &place),
            false => self.fresh(&options, &place),
        }
        .map_err(|error| failed(&error))?;
        Ok(place)
    }

    fn bind(&self, options: &MountOptions, place: &Path) -> io::Result<()> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if options.recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let tree = open_tree(CWD, &self.source, flags)?;
        match fs::metadata(&self.source)?.is_dir() {
            true => fs::create_dir(place)?,
            false => fs::write(place, "")?,
        }
        self.dress(&tree, options)?;
        move_mount(&tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(())
    }

    /// Attributes, propagation and idmapping, while nobody sees the mount.
    fn dress(&self, tree: &OwnedFd, options: &MountOptions) -> io::Result<()> {
        let propagation = if options.propagation == 0 { libc::MS_PRIVATE } else { options.propagation };
        let below = Attributes {
            set: options.set_below,
            clear: options.clear_below,
            propagation,
            ..Attributes::default()
        };
        set_attributes(tree, true, &below)?;
        let own = Attributes { set: options.set, clear: options.clear, ..Attributes::default() };
        set_attributes(tree, false, &own)?;
        if self.uids.is_empty() && self.gids.is_empty() {
            return Ok(());
        }
        let namespace = user_namespace(&self.uids, &self.gids)?;
        let mapped = Attributes {
            set: ATTR_IDMAP,
            user_namespace: namespace.as_raw_fd() as u64,
            ..Attributes::default()
        };
        set_attributes(tree, options.recursive_idmap, &mapped)
    }

    fn fresh(&self, options: &MountOptions, place: &Path) -> io::Result<()> {
        fs::create_dir(place)?;
        let flags = [
            (ATTR_RDONLY, MountFlags::RDONLY),
            (ATTR_NOSUID, MountFlags::NOSUID),
            (ATTR_NODEV, MountFlags::NODEV),
            (ATTR_NOEXEC, MountFlags::NOEXEC),
            (ATTR_NODIRATIME, MountFlags::NODIRATIME),
        ];
        let mut all = MountFlags::empty();
        for (attribute, flag) in flags {
            if options.set & attribute != 0 {
                all |= flag;
            }
        }
        match options.set & ATTR_ATIME {
            ATTR_NOATIME => all |= MountFlags::NOATIME,
            ATTR_STRICTATIME => all |= MountFlags::STRICTATIME,
            _ => {}
        }
        mount::mount(&self.source, place, &self.kind, all, &options.data).map_err(|error| error.source)
    }
}

fn with_text(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// `struct mount_attr`.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_attributes(tree: &OwnedFd, recursive: bool, attributes: &Attributes) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is empty and ends with zero; the structure lives during the call and has the size given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A user namespace with these mappings, of a process that is gone again.
fn user_namespace(uids: &[IdRange], gids: &[IdRange]) -> io::Result<fs::File> {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: as fork: without a stack of its own the child goes on with a copy of this one, and makes two system calls.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: neither allocates nor takes a lock.
        unsafe {
            libc::sleep(HOLDER_SECONDS);
            libc::_exit(0)
        }
    }
    if pid < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::ENOSPC) => with_text(
                "idmapping needs a user namespace; set machine.sysctls user.max_user_namespaces",
                &error,
            ),
            _ => with_text("make a user namespace", &error),
        });
    }
    let opened = map(pid, uids, gids);
    let pid = pid as libc::pid_t;
    // SAFETY: ends and reaps our own child, which nobody else waits for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    opened
}

fn map(pid: libc::c_long, uids: &[IdRange], gids: &[IdRange]) -> io::Result<fs::File> {
    for (file, ranges) in [("uid_map", uids), ("gid_map", gids)] {
        let text = mapping(ranges);
        fs::write(format!("/proc/{pid}/{file}"), &text)
            .map_err(|error| with_text(&format!("idmapping {:?}", text.trim_end()), &error))?;
    }
    fs::File::open(format!("/proc/{pid}/ns/user"))
}

/// The lines of a map; nothing stands for every id as it is.
fn mapping(ranges: &[IdRange]) -> String {
    let line = |range: &IdRange| format!("{} {} {}\n", range.container_id, range.host_id, range.size);
    match ranges.is_empty() {
        true => format!("0 0 {}\n", u32::MAX),
        false => ranges.iter().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn options(text: &str) -> Result<MountOptions, String> {
        MountOptions::parse("bind", text.split(',').filter(|option| !option.is_empty()))
    }

    #[test]
    fn options_are_read_and_later_ones_win() {
        let read = options("rbind,ro,noexec,nosuid,rw,rslave,noatime").unwrap();
        assert!(read.bind && read.recursive);
        assert_eq!(read.set, ATTR_NOEXEC | ATTR_NOSUID | ATTR_NOATIME);
        assert_eq!(read.clear, ATTR_RDONLY | ATTR_ATIME);
        assert_eq!(read.propagation, libc::MS_SLAVE);
        assert_eq!(options("rro,rnodev").unwrap().set_below, ATTR_RDONLY | ATTR_NODEV);
        assert_eq!(options("size=4k").unwrap_err(), "a bind mount has no option \"size=4k\"");
        let tmpfs = MountOptions::parse("tmpfs", ["nosuid", "size=4k", "mode=0700"]).unwrap();
        assert_eq!((tmpfs.bind, tmpfs.data.as_str()), (false, "size=4k,mode=0700"));
    }

    #[test]
    fn maps_have_a_line_for_each_range() {
        let ranges = [
            IdRange { container_id: 0, host_id: 1000, size: 1 },
            IdRange { container_id: 1, host_id: 2000, size: 10 },
        ];
        assert_eq!(mapping(&ranges), "0 1000 1\n1 2000 10\n");
        assert_eq!(mapping(&[]), "0 0 4294967295\n");
    }

    /// Mounts need root; the kernel that has user namespaces for others gives them to tests, too.
    fn may_mount() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_staged_mount_has_its_flags_and_goes_with_its_stage() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (stage, source) = (dir.path().join("stage"), dir.path().join("data"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "text").unwrap();
        open_stage(&stage).unwrap();
        let bind = |path: &Path, options: &[&str]| StagedMount {
            source: path.to_string_lossy().into_owned(),
            kind: "bind".into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..StagedMount::default()
        };
        let shown = bind(&source, &["rbind", "ro", "noexec", "private"]).make(&stage, "0").unwrap();
        assert_eq!(fs::read_to_string(shown.join("file")).unwrap(), "text");
        let refused = fs::write(shown.join("file"), "other").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
        let flags = rustix::fs::statvfs(&shown).unwrap().f_flag;
        assert!(flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
        let file = bind(&source.join("file"), &[]).make(&stage, "1").unwrap();
        fs::write(&file, "new").unwrap();
        assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "new");
        let tmpfs = StagedMount {
            kind: "tmpfs".into(),
            options: vec!["size=64k".into()],
            ..bind(Path::new("x"), &[])
        };
        let made = tmpfs.make(&stage, "2").unwrap();
        assert!(mount::is_mounted(&made));
        let missing = bind(Path::new("/no-such-directory"), &[]).make(&stage, "3").unwrap_err();
        assert!(missing.to_string().starts_with("mount \"/no-such-directory\": "), "{missing}");
        // A second opening begins anew.
        open_stage(&stage).unwrap();
        assert_eq!(fs::read_dir(&stage).unwrap().count(), 0);
        close_stage(&stage).unwrap();
        close_stage(&stage).unwrap();
        assert!(!mount::is_mounted(&stage));
    }

    #[test]
    fn an_idmapped_mount_shows_other_owners() {
        if !may_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (stage, source) = (dir.path().join("stage"), dir.path().join("data"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "text").unwrap();
        std::os::unix::fs::chown(source.join("file"), Some(0), Some(5)).unwrap();
        open_stage(&stage).unwrap();
        let range = |host_id| vec![IdRange { container_id: 0, host_id, size: 10 }];
        let mapped = StagedMount {
            source: source.to_string_lossy().into_owned(),
            kind: "bind".into(),
            options: vec!["bind".into()],
            uids: range(1000),
            gids: range(2000),
        };
        let made = mapped.make(&stage, "0");
        let owner = made.as_ref().ok().map(|shown| {
            let found = fs::metadata(shown.join("file")).unwrap();
            (found.uid(), found.gid())
        });
        close_stage(&stage).unwrap();
        match made {
            Ok(_) => assert_eq!(owner, Some((1000, 2005))),
            // A filesystem that cannot be idmapped, or a host without user namespaces.
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::StorageFull
                ),
                "{error}"
            ),
        }
    }
}
