//! TCP options: small writes leave at once, dead peers are noticed.

use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tracing::debug;

/// Sets the options of a connection, or of a listener: what it accepts inherits them. A failure costs latency, not
/// correctness, so it is only noted.
pub(crate) fn tune(socket: &impl AsFd) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    let socket = SockRef::from(socket);
    if let Err(error) = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive)) {
        debug!(%error, "TCP options not set");
    }
}
