//! What a listening socket waits for.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Connections are handed over with their first bytes, so that a server is woken once for both; those that stay silent
/// come after `most`, in whole seconds.
///
/// # Errors
///
/// When this is no TCP socket.
pub fn accept_with_data(listener: &impl AsFd, most: Duration) -> io::Result<()> {
    let seconds = libc::c_int::try_from(most.as_secs()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads one number, which lives on this stack; the descriptor is borrowed.
    let done = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_connection_comes_with_its_first_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        accept_with_data(&listener, Duration::from_secs(5)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let refused = listener.accept().map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "it said nothing yet");
        client.write_all(b"a").unwrap();
        assert!(crate::poll::readable(&listener, Duration::from_secs(5)).unwrap());
        listener.accept().unwrap();
    }

    #[test]
    fn other_sockets_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(accept_with_data(&listener, Duration::from_secs(1)).is_err());
    }
}
