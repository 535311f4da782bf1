//! The HTTP/2 settings that every hop of the project shares.
//!
//! The connection window is much larger than a stream's: the window of a connection comes back only
//! when its bodies are read, so one stalled stream must not be able to use it up.

use std::time::Duration;

use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ichor_types::deadlines::PING;

/// Window of one stream.
pub const STREAM_WINDOW: u32 = 262_144;
/// Window of one connection: 64 stalled streams fill it.
pub const CONNECTION_WINDOW: u32 = 16_777_216;
/// Window of one stream of a connection within the machine, where an answer takes no time: what nobody reads
/// stays with its sender.
const LOCAL_STREAM_WINDOW: u32 = 65_536;
/// Window of a connection that carries the calls of one client only: if it stalls, it stalls that client.
const PRIVATE_CONNECTION_WINDOW: u32 = 4_194_304;
/// Streams a client may hold open at once on one connection: a thousand watches and room to call.
pub const STREAMS_MAX: u32 = 4096;
/// All headers of a request: as many targets in `nodes` as are allowed fit, also as the longest addresses.
const HEADER_LIST_MAX: u32 = 96 * 1024;
/// Bytes of one answer that wait for a peer to read them; the library's own default.
const SEND_BUFFER: usize = 400 * 1024;
/// All headers of a reply: the text of an error may be a whole list of what is wrong with a configuration.
const REPLY_HEADER_LIST_MAX: u32 = 1024 * 1024;
/// A peer that does not answer a ping for this long, once a minute, is gone.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Resets that a peer may cause before it is cut: rapid resets cost more than they look.
const RESETS_MAX: usize = 1024;

/// The largest message on any hop.
pub const MESSAGE_MAX: usize = 32 * 1024 * 1024;

/// What a peer may make a server's connection hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Streams open at once.
    pub streams: u32,
    /// Bytes of one request body that may arrive before anybody reads them.
    pub stream_window: u32,
    /// The same for all bodies of a connection. HTTP/2 allows a peer 65 535 bytes in any case.
    pub connection_window: u32,
    /// All headers of a request.
    pub headers: u32,
    /// Bytes of one answer that wait for a peer to read them.
    pub send_buffer: usize,
}

impl Default for Http2Limits {
    /// Those of a gateway, whose peers have shown a certificate.
    fn default() -> Self {
        Self {
            streams: STREAMS_MAX,
            stream_window: STREAM_WINDOW,
            connection_window: CONNECTION_WINDOW,
            headers: HEADER_LIST_MAX,
            send_buffer: SEND_BUFFER,
        }
    }
}

impl Http2Limits {
    /// For callers within the machine, where an answer takes no time: what nobody reads stays with its sender.
    pub const LOCAL: Self = Self {
        streams: STREAMS_MAX,
        stream_window: LOCAL_STREAM_WINDOW,
        connection_window: PRIVATE_CONNECTION_WINDOW,
        headers: HEADER_LIST_MAX,
        send_buffer: SEND_BUFFER,
    };
}

/// A server connection builder.
pub(crate) fn server(limits: Http2Limits) -> server::Builder<TokioExecutor> {
    let mut builder = server::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.headers)
        .max_send_buf_size(limits.send_buffer)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING)
        .auto_date_header(false);
    builder
}

/// Whom a client connection leads to, which decides what may wait in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// A process of the same machine, for one client.
    Local,
    /// Another machine.
    Remote,
    /// Another machine, for one client.
    Private,
}

impl Hop {
    fn windows(self) -> (u32, u32) {
        match self {
            Hop::Local => (LOCAL_STREAM_WINDOW, PRIVATE_CONNECTION_WINDOW),
            Hop::Remote => (STREAM_WINDOW, CONNECTION_WINDOW),
            Hop::Private => (STREAM_WINDOW, PRIVATE_CONNECTION_WINDOW),
        }
    }
}

/// A client connection builder.
pub(crate) fn client(hop: Hop) -> client::Builder<TokioExecutor> {
    let (stream, connection) = hop.windows();
    let mut builder = client::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(stream)
        .initial_connection_window_size(connection)
        .max_header_list_size(REPLY_HEADER_LIST_MAX)
        // What a peer is taken to allow before its settings arrive; our servers allow this much.
        .initial_max_send_streams(STREAMS_MAX as usize);
    builder
}
