//! The controller families of a node, with their ports chosen for the real machine.

use std::sync::Arc;

use crate::node::Node;
use crate::trust::{SystemResolver, TrustClient};

/// A family could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum FamilyError {
    /// A controller was refused; a bug.
    #[error("register a controller")]
    Register(#[from] ichor_cosi::RegisterError),
    /// The kernel's network cannot be reached.
    #[error("open the network")]
    Network(#[from] ichor_net::NetError),
}

/// Adds all families to the node's runtime.
pub fn register(node: &Arc<Node>) -> Result<(), FamilyError> {
    let runtime = &node.controllers;
    secrets(runtime)?;
    ichor_ctl_network::register(runtime, ichor_ctl_network::Ports::system(&node.cmdline)?)?;
    Ok(())
}

fn secrets(runtime: &ichor_cosi::Runtime) -> Result<(), FamilyError> {
    use ichor_ctl_secrets as secrets;
    runtime.register(secrets::RootOs::default())?;
    runtime.register(secrets::RootEtcd::default())?;
    runtime.register(secrets::RootKubernetes::default())?;
    runtime.register(secrets::Kubelet::default())?;
    runtime.register(secrets::ApiCertSans)?;
    runtime.register(secrets::MaintenanceCertSans)?;
    runtime.register(secrets::KubernetesCertSans)?;
    runtime.register(secrets::Api::new(TrustClient))?;
    runtime.register(secrets::Trustd::default())?;
    runtime.register(secrets::MaintenanceRoot)?;
    runtime.register(secrets::Maintenance::default())?;
    runtime.register(secrets::StaticEndpoint::new(SystemResolver))?;
    Ok(())
}
