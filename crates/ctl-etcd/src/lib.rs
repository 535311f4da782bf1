//! Controllers of the etcd member on a control plane: what it is to run with, its certificates on disk, who it is in its
//! cluster, and what is wrong with it.

pub mod client;
pub mod member;
pub mod pki;
pub mod spec;

use ichor_cosi::{RegisterError, Runtime};

/// The id of almost everything here.
pub const ETCD: &str = "etcd";

/// User and group of etcd.
pub const UID: u32 = 60;

/// Adds the family to a runtime.
pub fn register(runtime: &Runtime) -> Result<(), RegisterError> {
    runtime.register(spec::ConfigController)?;
    runtime.register(spec::SpecController)?;
    runtime.register(pki::PkiController::new(client::SECRETS, Some(UID)))?;
    runtime.register(member::MemberController)?;
    runtime.register(member::AdvertisedPeerController)?;
    runtime.register(member::AlarmController)?;
    Ok(())
}
