//! The client certificate of a control plane's own kubelet.
//!
//! A control plane holds the key of the Kubernetes CA. It signs the first certificate of its kubelet itself, as the
//! controller manager would: no signing request waits for an API server, an approver and a leader. From then on the
//! kubelet renews it through the API like any other.

use ichor_pki::{Authority, Leaf};
use ichor_resource::secrets::KubernetesRootSecret;
use ichor_resource::value::PemCertificateAndKey;
use tracing::warn;

/// The link to the certificate in use; the kubelet insists that it is one.
pub(super) const CURRENT: &str = "kubelet-client-current.pem";

/// What a certificate for this node's kubelet is signed with.
#[derive(Debug, Clone)]
pub(super) struct Issuer {
    pair: PemCertificateAndKey,
}

impl Issuer {
    /// None on workers, which have no key of the CA.
    pub(super) fn of(root: Option<&KubernetesRootSecret>) -> Option<Self> {
        let pair = root?.issuing_ca.clone()?;
        (!pair.key.is_empty()).then_some(Self { pair })
    }

    /// A certificate for `nodename` with its key.
    ///
    /// A CA that cannot sign is no reason to keep the kubelet from starting: it requests one through the API then.
    pub(super) fn issue(&self, nodename: &str, now: jiff::Timestamp) -> Option<String> {
        let leaf =
            Leaf::client(format!("system:node:{nodename}"), ["system:nodes"]).with_lifetime(Leaf::YEAR);
        let issued = Authority::from_pem(&self.pair.crt, &self.pair.key)
            .and_then(|authority| authority.issue(&leaf, now));
        match issued {
            Ok(pair) => Some(format!("{}{}", pair.crt, pair.key)),
            Err(error) => {
                warn!(%error, "kubelet client certificate not signed locally; the kubelet requests one");
                None
            }
        }
    }
}
