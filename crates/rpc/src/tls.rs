//! TLS for servers and clients: certificates that can be replaced while connections run, and the
//! node API's rules on who may connect.

mod client;
mod seen;
mod server;

pub use client::{ClientTls, ClientTlsError};
pub use server::ServerTls;

/// The one protocol spoken inside TLS.
const ALPN: &[u8] = b"h2";
