//! Clients of etcd with the node's own certificate.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ichor_etcd::{CLIENT_PORT, Client, Tls};
use ichor_rpc::Endpoint;
use ichor_rpc::tls::ClientTlsError;

/// Where the certificates are.
pub const SECRETS: &str = "/system/secrets/etcd";

/// There is no client without certificates.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// They are not there yet.
    #[error("read {file} of etcd: {source}")]
    Read {
        /// The file.
        file: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// They are of no use.
    #[error("certificates of etcd: {0}")]
    Tls(#[from] ClientTlsError),
}

/// A client of the member on this machine.
pub fn local() -> Result<Client, ClientError> {
    // One of them is listened on, whatever subnets are configured.
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    Ok(Client::connect(loopback.into_iter().map(endpoint), &tls()?)?)
}

/// A client of all members at `addresses`, tried in this order.
pub fn cluster(addresses: impl IntoIterator<Item = IpAddr>) -> Result<Client, ClientError> {
    Ok(Client::connect(addresses.into_iter().map(endpoint), &tls()?)?.require_leader())
}

fn endpoint(address: IpAddr) -> Endpoint {
    Endpoint::new(address.to_string(), CLIENT_PORT)
}

fn tls() -> Result<Tls, ClientError> {
    let read = |file: &'static str| {
        std::fs::read(Path::new(SECRETS).join(file)).map_err(|source| ClientError::Read { file, source })
    };
    Ok(Tls { ca: read("ca.crt")?, cert: read("admin.crt")?, key: read("admin.key")? })
}
