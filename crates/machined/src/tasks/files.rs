//! Writes the files of the configuration (`machine.files`).
//!
//! What lies in `/var` is written there. A file elsewhere cannot be changed, for the root is read-only: its new content is
//! kept below `/var` and shown in its place. Files that do not exist cannot be shown, so nothing is created outside of `/var`.

use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tracing::info;

use ichor_config::v1alpha1::machine::MachineFile;
use ichor_cosi::State;
use ichor_resource::files::EtcFileSpec;
use ichor_sys::mount;

use super::{config, failed};
use crate::sequencer::TaskError;

/// Where files can be made.
const WRITABLE: &str = "/var";
/// Written as they are: the kubelet looks there.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// A part of the container runtime's configuration; a controller takes it from here.
const CRI_PART: &str = "/etc/cri/conf.d/20-customization.part";
/// The file that has to hold it.
const CRI_MERGED: &str = "cri/conf.d/cri.toml";
/// For the controllers to merge it.
const CRI_WAIT_MAX: Duration = Duration::from_secs(60);
/// A file that is appended to is read whole.
const LEN_MAX: u64 = 16 << 20;

/// A file of the configuration that cannot be written.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("machine.files: {path:?} is no absolute path without `..`")]
    Path { path: String },
    #[error("machine.files: unknown operation {op:?} for {path}; there are create, overwrite and append")]
    Operation { path: String, op: String },
    #[error("machine.files: {path} cannot be created; only files in /var can")]
    CreateOutside { path: String },
    #[error("machine.files: {op} {path}")]
    Io {
        op: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("machine.files: show {path}")]
    Show {
        path: String,
        #[source]
        source: mount::MountError,
    },
}

impl FileError {
    /// The error with its causes.
    fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Overwrite,
    Append,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::Append => "append to",
        }
    }
}

/// What is to be done for a file.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// It is merged into the configuration of the container runtime.
    Merge,
    /// It is written.
    Write {
        operation: Operation,
        /// Where the configuration wants it.
        path: PathBuf,
        /// Where its content goes.
        at: PathBuf,
        /// Whether it has to be shown in its place.
        shown: bool,
    },
}

/// Decides what to do for a file, without looking at the disk.
fn plan(file: &MachineFile) -> Result<Plan, FileError> {
    let path = || file.path.clone();
    let given = Path::new(&file.path);
    let plain = given.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !given.is_absolute() || !plain || given == Path::new("/") || file.path.contains('\0') {
        return Err(FileError::Path { path: path() });
    }
    let operation = match file.op.as_str() {
        "create" => Operation::Create,
        "overwrite" => Operation::Overwrite,
        "append" => Operation::Append,
        other => return Err(FileError::Operation { path: path(), op: other.to_owned() }),
    };
    // Without repeated slashes.
    let wanted: PathBuf = given.components().collect();
    if wanted == Path::new(CRI_PART) {
        return Ok(Plan::Merge);
    }
    let as_it_is = wanted.starts_with(WRITABLE) || wanted.parent() == Some(Path::new(MANIFESTS));
    if as_it_is {
        return Ok(Plan::Write { operation, at: wanted.clone(), path: wanted, shown: false });
    }
    if operation == Operation::Create {
        return Err(FileError::CreateOutside { path: path() });
    }
    let at = Path::new(WRITABLE).join(wanted.strip_prefix("/").unwrap_or(&wanted));
    Ok(Plan::Write { operation, path: wanted, at, shown: true })
}

/// Writes every file of the configuration. One that cannot be written does not keep the others from it.
pub(super) async fn write_all(state: State) -> Result<(), TaskError> {
    let config = config::active(&state);
    let machine = config.as_ref().and_then(|config| config.machine());
    let files: Vec<MachineFile> =
        machine.map(|machine| machine.files.iter().cloned().collect()).unwrap_or_default();
    if files.is_empty() {
        return Ok(());
    }
    let merged = files.iter().filter(|file| matches!(plan(file), Ok(Plan::Merge)));
    let merged: Vec<&str> = merged.map(|file| file.content.as_str()).collect();
    let merged = (!merged.is_empty()).then(|| merged.join("\n"));
    let written = tokio::task::spawn_blocking(move || {
        let results = files.iter().map(|file| write(Path::new("/"), file, &show));
        results.filter_map(Result::err).map(|error| error.chain()).collect::<Vec<_>>()
    });
    let mut errors = written.await.map_err(failed)?;
    if let Some(part) = merged
        && let Err(error) = wait_merged(&state, &part).await
    {
        errors.push(error);
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(failed(errors.join("; "))),
    }
}

/// Waits until the container runtime's configuration holds the part: it notes the sum of each.
async fn wait_merged(state: &State, part: &str) -> Result<(), String> {
    let sum: String = ichor_pki::sha256(part.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let source = format!("talos.dev/source-file:{CRI_PART}");
    let holds = state.wait_for::<EtcFileSpec>("files", CRI_MERGED, |found| {
        found.meta().annotation(&source) == Some(sum.as_str())
    });
    match tokio::time::timeout(CRI_WAIT_MAX, holds).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            Err(format!("machine.files: /etc/{CRI_MERGED} does not hold {CRI_PART}; is it valid TOML?"))
        }
    }
}

/// Shows one file in the place of another.
fn show(source: &Path, target: &Path) -> Result<(), mount::MountError> {
    // A second start must not pile up mounts.
    if mount::is_mounted(target) {
        mount::detach(target)?;
    }
    mount::bind_read_only(source, target)
}

type Show<'a> = &'a dyn Fn(&Path, &Path) -> Result<(), mount::MountError>;

/// Does what the plan of a file says, below `root`.
fn write(root: &Path, file: &MachineFile, show: Show<'_>) -> Result<(), FileError> {
    let Plan::Write { operation, path, at, shown } = plan(file)? else { return Ok(()) };
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let (target, at) = (below(&path), below(&at));
    let fail = |source| FileError::Io { op: operation.as_str(), path: file.path.clone(), source };
    let content = match operation {
        Operation::Create => file.content.clone().into_bytes(),
        Operation::Overwrite => {
            existing(&target).map_err(fail)?;
            file.content.clone().into_bytes()
        }
        // A file that was shown by an earlier start already ends with what is to be appended.
        Operation::Append => appended(existing(&target).map_err(fail)?, &file.content),
    };
    replace(&at, &content, file.permissions.0).map_err(fail)?;
    if shown {
        show(&at, &target).map_err(|source| FileError::Show { path: file.path.clone(), source })?;
    }
    info!(path = file.path, "file of the configuration written");
    Ok(())
}

/// The content of a regular file.
fn existing(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if found.len() > LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large to be changed"));
    }
    fs::read(path)
}

/// Old content, a line break and what is added; added once, however often it is asked for.
fn appended(mut old: Vec<u8>, more: &str) -> Vec<u8> {
    let more = format!("\n{more}");
    if !old.ends_with(more.as_bytes()) {
        old.extend(more.into_bytes());
    }
    old
}

/// Puts the content in place at once, with these permissions.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    use io::Write;
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let part = dir.join(format!(".{name}.part"));
    let _ = fs::remove_file(&part);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))?;
    file.sync_all()?;
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_config::values::FileMode;

    use super::*;

    fn file(op: &str, path: &str, content: &str) -> MachineFile {
        MachineFile {
            op: op.to_owned(),
            path: path.to_owned(),
            content: content.to_owned(),
            permissions: FileMode(0o640),
        }
    }

    #[track_caller]
    fn check(op: &str, path: &str, expect: Expect) {
        let text = match plan(&file(op, path, "")) {
            Ok(Plan::Merge) => "merge".to_owned(),
            Ok(Plan::Write { operation, at, shown, .. }) => {
                let shown = if shown { ", shown" } else { "" };
                format!("{} {}{shown}", operation.as_str(), at.display())
            }
            Err(error) => format!("error: {error}"),
        };
        expect.assert_eq(&text);
    }

    #[test]
    fn files_go_to_var_or_are_shown_from_there() {
        check("create", "/var/etc/a.conf", expect!["create /var/etc/a.conf"]);
        check("create", "/var//etc/a.conf", expect!["create /var/etc/a.conf"]);
        check("overwrite", "/etc/nfsmount.conf", expect!["overwrite /var/etc/nfsmount.conf, shown"]);
        check("append", "/etc/nfsmount.conf", expect!["append to /var/etc/nfsmount.conf, shown"]);
        check(
            "create",
            "/etc/kubernetes/manifests/pod.yaml",
            expect!["create /etc/kubernetes/manifests/pod.yaml"],
        );
        check("create", CRI_PART, expect!["merge"]);
    }

    #[test]
    fn bad_files_are_refused_with_what_to_do() {
        check(
            "create",
            "/etc/new",
            expect!["error: machine.files: /etc/new cannot be created; only files in /var can"],
        );
        check(
            "create",
            "/variable/x",
            expect!["error: machine.files: /variable/x cannot be created; only files in /var can"],
        );
        check(
            "delete",
            "/var/a",
            expect![[
                r#"error: machine.files: unknown operation "delete" for /var/a; there are create, overwrite and append"#
            ]],
        );
        for path in ["var/a", "", "/", "/var/../etc/passwd"] {
            let error = plan(&file("create", path, "")).unwrap_err().to_string();
            assert!(error.contains("is no absolute path without"), "{path}: {error}");
        }
    }

    #[test]
    fn contents_and_permissions_are_those_of_the_configuration() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let never: Show<'_> = &|_, _| panic!("nothing is shown");
        write(root.path(), &file("create", "/var/a/b", "one"), never).unwrap();
        assert_eq!(fs::read_to_string(at("var/a/b")).unwrap(), "one");
        assert_eq!(fs::metadata(at("var/a/b")).unwrap().permissions().mode() & 0o7777, 0o640);
        write(root.path(), &file("overwrite", "/var/a/b", "two"), never).unwrap();
        write(root.path(), &file("append", "/var/a/b", "three"), never).unwrap();
        // The machine starts again.
        write(root.path(), &file("append", "/var/a/b", "three"), never).unwrap();
        assert_eq!(fs::read_to_string(at("var/a/b")).unwrap(), "two\nthree");
        let error = write(root.path(), &file("overwrite", "/var/none", ""), never).unwrap_err().chain();
        assert!(error.starts_with("machine.files: overwrite /var/none: No such file"), "{error}");
        let error = write(root.path(), &file("append", "/var/a", ""), never).unwrap_err().chain();
        assert_eq!(error, "machine.files: append to /var/a: not a regular file");
        assert_eq!(fs::read_dir(at("var/a")).unwrap().count(), 1, "nothing half-written stays");
    }

    #[test]
    fn a_file_of_the_root_is_shown_from_var() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/x"), "old").unwrap();
        let seen = std::cell::RefCell::new(Vec::new());
        let note: Show<'_> = &|source, target| {
            seen.borrow_mut().push((source.to_owned(), target.to_owned()));
            Ok(())
        };
        write(root.path(), &file("append", "/etc/x", "new"), note).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("var/etc/x")).unwrap(), "old\nnew");
        assert_eq!(fs::read_to_string(root.path().join("etc/x")).unwrap(), "old");
        assert_eq!(seen.take(), [(root.path().join("var/etc/x"), root.path().join("etc/x"))]);
    }
}
