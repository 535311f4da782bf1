//! The resources the gateway lives on, turned into its settings.

use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::secrets::ApiCertificate;
use ichor_rpc::ServerTls;
use ichor_rpc::proxy::Proxy;
use ichor_rpc::route::Facts;
use ichor_rpc::tls::{ClientTls, ClientTlsError};

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCertificates {
    #[error("there is no server certificate")]
    NoServer,
    #[error("accepted authorities")]
    Accepted(#[source] ichor_pki::PkiError),
    #[error("server certificate")]
    Server(#[source] ichor_pki::PkiError),
    #[error("client certificate")]
    Client(#[source] ClientTlsError),
}

/// Puts new certificates to use. What is bad changes nothing.
pub(crate) fn apply_certificates(
    certificates: &ApiCertificate,
    tls: &ServerTls,
    proxy: &Proxy,
) -> Result<(), BadCertificates> {
    let server = certificates.server.as_ref().ok_or(BadCertificates::NoServer)?;
    let mut accepted = Vec::new();
    for authority in &certificates.accepted_cas {
        accepted.extend_from_slice(&authority.crt);
        accepted.push(b'\n');
    }
    // A worker has no client certificate, and so forwards nothing.
    let client = certificates.client.as_ref().filter(|pair| !pair.crt.is_empty() && !pair.key.is_empty());
    let identity = client
        .map(|pair| ClientTls::verified(&accepted, Some((&pair.crt, &pair.key))))
        .transpose()
        .map_err(BadCertificates::Client)?;
    tls.set_accepted(&accepted).map_err(BadCertificates::Accepted)?;
    tls.set_certificate(&server.crt, &server.key).map_err(BadCertificates::Server)?;
    proxy.set_identity(identity);
    Ok(())
}

/// What the node is called, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) addresses: NodeAddress,
    pub(crate) host: HostnameStatus,
}

impl Names {
    /// The node's own addresses, host name and full name.
    pub(crate) fn facts(&self) -> Facts {
        let addresses = self.addresses.addresses.iter().filter_map(|prefix| prefix.get());
        let host = self.host.hostname.clone();
        let full = match self.host.domainname.as_str() {
            "" => host.clone(),
            domain => format!("{host}.{domain}"),
        };
        Facts::new(addresses.map(|net| net.addr()), [host, full])
    }
}
