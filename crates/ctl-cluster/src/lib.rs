//! Controllers of who else is in the cluster: what this node tells of itself, whom it hears of, and who of them are
//! control planes.

pub mod affiliate;
pub mod config;
pub mod member;
pub mod service;

use ichor_cosi::{RegisterError, Runtime};

pub use service::Connect;

/// Adds the family to a runtime. `version` is the one the node tells; `connect` reaches discovery services.
pub fn register(runtime: &Runtime, version: &str, connect: Connect) -> Result<(), RegisterError> {
    runtime.register(config::ConfigController)?;
    runtime.register(affiliate::LocalAffiliateController::new(version))?;
    runtime.register(affiliate::AffiliateMergeController)?;
    runtime.register(member::MemberController)?;
    runtime.register(member::EndpointController::default())?;
    runtime.register(service::DiscoveryServiceController::new(version, connect))?;
    Ok(())
}
