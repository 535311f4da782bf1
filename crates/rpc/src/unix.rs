//! Unix sockets: made with the right owner and mode before anyone can see them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// A socket that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{step} the socket {path}")]
pub struct SocketError {
    path: PathBuf,
    step: &'static str,
    #[source]
    source: io::Error,
}

/// Who may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Mode bits of the socket.
    pub mode: u32,
    /// Owner, where it is not the process's own.
    pub uid: Option<u32>,
    /// Group, where it is not the process's own.
    pub gid: Option<u32>,
}

impl Access {
    /// For the process's own user alone.
    pub const PRIVATE: Access = Access { mode: 0o600, uid: None, gid: None };

    /// For one user and group.
    pub const fn owned_by(id: u32) -> Access {
        Access { mode: 0o600, uid: Some(id), gid: Some(id) }
    }
}

/// Listens on `path`, replacing a socket that an earlier process left there.
///
/// The socket is made under a name of its own and moved into place, so nobody finds it with the wrong
/// owner and nobody is refused between the old and the new one.
pub fn bind(path: &Path, access: Access) -> Result<UnixListener, SocketError> {
    let fail = |step| move |source| SocketError { path: path.to_owned(), step, source };
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    remove_socket(&fresh).map_err(fail("clear the way for"))?;
    let listener = UnixListener::bind(&fresh).map_err(fail("listen on"))?;
    fs::set_permissions(&fresh, Permissions::from_mode(access.mode)).map_err(fail("set the mode of"))?;
    if access.uid.is_some() || access.gid.is_some() {
        chown(&fresh, access.uid, access.gid).map_err(fail("set the owner of"))?;
    }
    if path.exists() && !is_socket(path) {
        let _ = fs::remove_file(&fresh);
        return Err(fail("replace")(io::ErrorKind::AlreadyExists.into()));
    }
    fs::rename(&fresh, path).map_err(fail("put in place"))?;
    Ok(listener)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn remove_socket(path: &Path) -> io::Result<()> {
    if is_socket(path) { fs::remove_file(path) } else { Ok(()) }
}
