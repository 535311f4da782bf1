//! What is asked of a provider, and what it makes of that before anything is changed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::{Cluster, MachineKind, ProvisionError, Resources};

/// A cluster to create.
#[derive(Clone, Debug, Default)]
pub struct ClusterRequest {
    /// Its name; lower-case letters, digits and dashes.
    pub name: String,
    /// The networks of its machines; without any the provider chooses.
    pub cidrs: Vec<IpNet>,
    /// Largest packet.
    pub mtu: u32,
    /// What machines boot, as the provider takes it: a file, a name, an id. Without one its own default.
    pub image: Option<String>,
    /// An OCI layout of container images that the provider serves to the machines. Without one its own default.
    pub images: Option<PathBuf>,
    /// The machines, in the order of their addresses.
    pub machines: Vec<MachineRequest>,
    /// What only this provider knows, by name; see [`crate::Provider::settings`].
    pub settings: BTreeMap<String, String>,
}

/// A machine to create.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    /// Its name, also its host name.
    pub name: String,
    /// Control plane or worker.
    pub kind: MachineKind,
    /// More kernel arguments.
    pub kernel_args: Vec<String>,
    /// How large it is.
    pub resources: Resources,
}

/// Machine configurations by machine name. A machine without one waits for it.
pub type Configs = BTreeMap<String, Vec<u8>>;

/// A request as the provider will carry it out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cluster as it will be. What the provider only learns by making machines, such as leased addresses, is missing.
    pub cluster: Cluster,
    /// The machines that will be made.
    pub new: Vec<NewMachine>,
    /// Where machines find the container images of the request, a URL.
    pub registry: Option<String>,
    /// Patches that the configurations of machines of this provider need.
    pub patches: Vec<String>,
}

/// A machine that will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMachine {
    /// Its name.
    pub name: String,
    /// Names and addresses that its certificates must hold beside those the machine knows itself.
    pub sans: Vec<String>,
}

/// Something that only one provider can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
}

/// Refuses settings that a provider does not have.
pub fn check_settings(request: &ClusterRequest, known: &[Setting]) -> Result<(), ProvisionError> {
    let unknown = request.settings.keys().find(|name| !known.iter().any(|setting| setting.name == *name));
    match unknown {
        None => Ok(()),
        Some(name) => Err(ProvisionError::UnknownSetting {
            name: name.clone(),
            known: known.iter().map(|setting| setting.name).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_another_provider_are_refused_by_name() {
        let mut request = ClusterRequest::default();
        let known = [Setting { name: "region", about: "where machines are" }];
        request.settings.insert("region".into(), "eu-central-1".into());
        assert!(check_settings(&request, &known).is_ok());
        let refused = |known: &[Setting]| check_settings(&request, known).unwrap_err().to_string();
        assert_eq!(refused(&[]), "there is no setting region; this provider has none");
        let other = [Setting { name: "zone", about: "" }, Setting { name: "pool", about: "" }];
        assert_eq!(refused(&other), "there is no setting region; this provider has zone, pool");
    }
}
