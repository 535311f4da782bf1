//! TCP options: small writes leave at once, dead peers are noticed.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tracing::debug;

/// Sets the options of a connection. A failure costs latency, not correctness, so it is only noted.
pub(crate) fn tune(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    let socket = SockRef::from(stream);
    if let Err(error) = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive)) {
        debug!(%error, "TCP options not set");
    }
}
