//! The socket that programs write their log to with `syslog(3)`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Bytes that wait to be read; senders wait when there are more.
const BUFFER_LEN: usize = 64 * 1024;

/// A datagram socket at `path` that everybody may write to, in the place of an earlier one. Does not block.
///
/// # Errors
/// The kernel's.
pub fn bind(path: &Path) -> io::Result<UnixDatagram> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = UnixDatagram::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_LEN)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_the_place_of_an_earlier_one_and_everybody_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        drop(bind(&path).unwrap());
        let socket = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(b"<6>hello", &path).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 8);
        assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
