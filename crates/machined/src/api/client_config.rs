//! Client configurations: a certificate with the roles asked for, ready to use.

use std::time::Duration;

use jiff::Timestamp;
use tonic::{Response, Status};

use ichor_config::talosconfig::{ClientConfig, Context};
use ichor_ctl::Configuration;
use ichor_pki::{Authority, Leaf, RoleSet};
use ichor_resource::network::NodeAddress;
use ichor_resource::secrets::OSRootSecret;
use ichor_wire::machine;

use super::machine::ApiMode;
use crate::node::Store;

/// Issues a client certificate and a ready configuration around it.
pub async fn generate_client_configuration(
    store: &Store,
    mode: ApiMode,
    request: machine::GenerateClientConfigurationRequest,
) -> Result<Response<machine::GenerateClientConfigurationResponse>, Status> {
    if mode == ApiMode::Maintenance {
        return Err(Status::unimplemented(
            "client configuration (talosconfig) can't be generated in the maintenance mode",
        ));
    }
    let lifetime = lifetime(request.crt_ttl.as_ref())?;
    let roles = RoleSet::parse(&request.roles);
    if let Some(unknown) = roles.unknown().first() {
        return Err(Status::invalid_argument(format!("unknown role {unknown:?}")));
    }
    if roles.is_empty() {
        return Err(Status::invalid_argument("no roles given"));
    }
    let secrets = store
        .state
        .find::<OSRootSecret>("secrets", "os")
        .ok_or_else(|| Status::failed_precondition("root secrets are not there yet"))?;
    let pair = secrets.issuing_ca.as_ref().filter(|pair| !pair.key.is_empty()).ok_or_else(|| {
        Status::failed_precondition("client configuration can't be generated on worker nodes")
    })?;
    let internal = |error: ichor_pki::PkiError| Status::internal(format!("issue a certificate: {error}"));
    let authority = Authority::from_pem(&pair.crt, &pair.key).map_err(internal)?;
    let leaf = Leaf::client("", roles.iter()).with_lifetime(lifetime);
    let issued = authority.issue(&leaf, Timestamp::now()).map_err(internal)?;

    let (name, endpoints) = cluster(store);
    let ca: Vec<u8> = match secrets.accepted_cas.is_empty() {
        true => pair.crt.to_vec(),
        false => secrets.accepted_cas.iter().flat_map(|ca| ca.crt.to_vec()).collect(),
    };
    let context = Context::new(&endpoints, &String::from_utf8_lossy(&ca), &issued.crt, &issued.key);
    let talosconfig = ClientConfig::single(&context_name(&roles, &name), context).to_yaml();
    let message = machine::GenerateClientConfiguration {
        metadata: None,
        ca,
        crt: issued.crt.into_bytes(),
        key: issued.key.into_bytes(),
        talosconfig: talosconfig.into_bytes(),
    };
    Ok(Response::new(machine::GenerateClientConfigurationResponse { messages: vec![message] }))
}

fn lifetime(asked: Option<&prost_types::Duration>) -> Result<Duration, Status> {
    /// No certificate outlives the authorities of a cluster.
    const MAX: Duration = Authority::TEN_YEARS;
    let refused = || Status::invalid_argument("crt_ttl must be positive and at most ten years");
    let time = Duration::try_from(*asked.ok_or_else(refused)?).map_err(|_| refused())?;
    if time.is_zero() || time > MAX { Err(refused()) } else { Ok(time) }
}

/// A context is named after the cluster, and after the role if there is just one.
fn context_name(roles: &RoleSet, cluster: &str) -> String {
    let mut names = roles.iter();
    match (names.next(), names.next()) {
        (Some(role), None) => format!("{}@{cluster}", role.strip_prefix("os:").unwrap_or(role)),
        _ => cluster.to_owned(),
    }
}

/// The cluster's name, and where this node is reached.
fn cluster(store: &Store) -> (String, Vec<String>) {
    let name =
        store.config.active().and_then(|config| Configuration::of(&config).ok()).and_then(|documents| {
            documents.root()?.cluster.as_ref().map(|cluster| cluster.cluster_name.clone())
        });
    let addresses = store.state.find::<NodeAddress>("network", "current-no-k8s");
    let addresses = addresses.or_else(|| store.state.find::<NodeAddress>("network", "current"));
    let endpoints = addresses
        .map(|found| {
            found.addresses.iter().filter_map(|prefix| Some(prefix.get()?.addr().to_string())).collect()
        })
        .unwrap_or_default();
    (name.unwrap_or_default(), endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_carry_a_single_role() {
        let roles = |names: &[&str]| RoleSet::parse(names);
        assert_eq!(context_name(&roles(&["os:reader"]), "c"), "reader@c");
        assert_eq!(context_name(&roles(&["os:etcd:backup"]), "c"), "etcd:backup@c");
        assert_eq!(context_name(&roles(&["os:reader", "os:admin"]), "c"), "c");
    }
}
