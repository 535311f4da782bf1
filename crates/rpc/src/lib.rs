//! mTLS servers with reload, peer identity and roles, Unix sockets, the raw proxy.
//!
//! - Serve gRPC on a Unix socket: [`unix::bind`], then [`server::serve_unix`] with [`server::Grpc`]
//!   around [`services::Services`] and a [`gate::Gate`] with [`authorize::ByRole`].
//! - Serve gRPC over TLS: [`tls::ServerTls`], then [`server::serve_tls`].
//! - Bound what callers can make a server hold: [`server::Limits`], [`budget::BodyBudget`].
//! - Call a server: [`channel::Channel`] over a [`dial::Dialer`]; generated clients take it.
//! - Stand in front of a node: [`proxy::Proxy`].

mod activity;
pub mod authorize;
pub mod body;
pub mod budget;
pub mod caller;
pub mod channel;
pub mod daemon;
pub mod dial;
pub mod follow;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
pub mod gate;
pub mod http2;
pub mod ledger;
pub mod members;
pub mod options;
pub mod peer;
pub mod proxy;
pub mod roles;
pub mod route;
pub mod server;
pub mod services;
mod socket;
pub mod status;
pub mod tls;
mod transport;
pub mod unix;

pub use channel::Channel;
pub use dial::{Dialer, Endpoint};
pub use ichor_wire::raw::Raw;
pub use peer::PeerIdentity;
pub use tls::{ClientTls, ServerTls};
