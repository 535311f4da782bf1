//! The administrator's kubeconfig.

use std::io;

use flate2::Compression;
use flate2::write::GzEncoder;
use ichor_ctl::Configuration;
use ichor_ctl_secrets::kubeconfig::Kubeconfig;
use ichor_pki::Leaf;
use ichor_resource::config::MachineType;
use ichor_resource::secrets::KubernetesRootSecret;
use ichor_wire::common;
use jiff::Timestamp;
use tonic::{Response, Status};

use super::reply::{Replies, chain, data, streaming};
use crate::node::Store;

/// Issues a certificate for the administrator and sends a kubeconfig around it: a packed archive with one file.
pub async fn kubeconfig(store: &Store) -> Result<Response<Replies<common::Data>>, Status> {
    let machine = store.state.find::<MachineType>("config", MachineType::ID);
    if !machine.is_some_and(|machine| machine.machine_type.is_control_plane()) {
        return Err(Status::unimplemented("kubeconfig is only available on control plane nodes"));
    }
    let root = store
        .state
        .find::<KubernetesRootSecret>("secrets", "k8s")
        .ok_or_else(|| Status::failed_precondition("root secrets are not there yet"))?;
    let (Some(authority), Some(endpoint)) = (&root.issuing_ca, &root.endpoint) else {
        return Err(Status::failed_precondition(
            "`cluster.ca` or `cluster.controlPlane.endpoint` is missing",
        ));
    };
    let config = store.config.active().and_then(|config| Configuration::of(&config).ok());
    let lifetime = config
        .as_ref()
        .and_then(|config| config.root()?.cluster.as_ref()?.admin_kubeconfig.as_ref())
        .map(|admin| admin.cert_lifetime.to_std())
        .filter(|lifetime| !lifetime.is_zero())
        .unwrap_or(Leaf::YEAR);
    let now = Timestamp::now();
    let admin = Kubeconfig {
        cluster: &root.name,
        server: &endpoint.0,
        accepted: &root.accepted_cas,
        common_name: "admin",
        organization: "system:masters",
        lifetime,
        user: "admin",
        context: "admin",
    };
    let internal = |error: &dyn std::error::Error| Status::internal(chain(error));
    let text = admin.issue(authority, now).await.map_err(|error| internal(&error))?;
    let packed = pack(text.as_bytes(), now).map_err(|error| internal(&error))?;
    Ok(streaming(futures_util::stream::iter([Ok(data(packed))])))
}

/// A packed archive with this as its only file.
fn pack(content: &[u8], now: Timestamp) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(u64::try_from(now.as_second()).unwrap_or_default());
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    archive.append_data(&mut header, "kubeconfig", content)?;
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_archive_holds_one_file_only_its_owner_reads() {
        let packed = pack(b"kind: Config\n", "2025-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed[..]));
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().unwrap().unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some("kubeconfig"));
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kind: Config\n");
        assert!(entries.next().is_none());
    }
}
