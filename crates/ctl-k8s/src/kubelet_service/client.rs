//! The first client certificate of the kubelet, where the node provides it.
//!
//! A control plane holds the key of the Kubernetes CA. It signs the first certificate of its kubelet itself, as the
//! controller manager would: no signing request waits for an API server, an approver and a leader. From then on the
//! kubelet renews it through the API like any other.

use std::fs;
use std::io;
use std::path::Path;

use ichor_pki::{Authority, Leaf};
use ichor_resource::secrets::KubernetesRootSecret;
use ichor_resource::value::PemCertificateAndKey;
use tracing::warn;

use super::{KubeletServiceError, at, put};

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

    /// Writes a certificate for `nodename` into `pki` where there is none; says whether it did.
    ///
    /// A CA that cannot sign is no reason to keep the kubelet from starting: it asks through the API then.
    pub(super) fn provide(
        &self,
        pki: &Path,
        nodename: &str,
        now: jiff::Timestamp,
    ) -> Result<bool, KubeletServiceError> {
        let current = pki.join(CURRENT);
        if nodename.is_empty() || fs::symlink_metadata(&current).is_ok() {
            return Ok(false);
        }
        let leaf =
            Leaf::client(format!("system:node:{nodename}"), ["system:nodes"]).with_lifetime(Leaf::YEAR);
        let issued = Authority::from_pem(&self.pair.crt, &self.pair.key)
            .and_then(|authority| authority.issue(&leaf, now));
        let pair = match issued {
            Ok(pair) => pair,
            Err(error) => {
                warn!(%error, "kubelet client certificate not signed locally; the kubelet requests one");
                return Ok(false);
            }
        };
        install(pki, &format!("{}{}", pair.crt, pair.key), now)?;
        Ok(true)
    }
}

/// Puts certificate and key where the kubelet looks for them and renews them.
pub(super) fn install(pki: &Path, pem: &str, now: jiff::Timestamp) -> Result<(), KubeletServiceError> {
    let current = pki.join(CURRENT);
    at("create", pki, fs::create_dir_all(pki))?;
    let file = pki.join(now.strftime("kubelet-client-%Y-%m-%d-%H-%M-%S.pem").to_string());
    put(&file, pem.as_bytes(), 0o600)?;
    // The kubelet sees the directory under the same path.
    let target = Path::new("/").join(super::OWN).join("pki").join(file.file_name().unwrap_or_default());
    match std::os::unix::fs::symlink(&target, &current) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => at("link", &current, Err(error))?,
        _ => {}
    }
    Ok(())
}
