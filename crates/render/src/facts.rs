//! What is known of a machine besides its configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a machine knows of itself. Whoever is not told one of them uses a stand-in, the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Facts {
    /// `metal`, `nocloud` and so on.
    pub platform: String,
    /// `amd64` or `arm64`.
    pub architecture: String,
    /// The kernel command line.
    pub cmdline: String,
    /// Whether the kernel is the machine's alone.
    pub own_kernel: bool,
    /// The host name it has now.
    pub hostname: String,
    /// The domain of that.
    pub domain: String,
    /// The identity of the node.
    pub node_id: Option<String>,
    /// The address that a host name is made from where nobody names one.
    pub default_address: Option<IpAddr>,
    /// Its routed addresses, without those of pods and services, in order.
    pub routed: Vec<IpAddr>,
    /// All its addresses, without those of pods and services, in order.
    pub current: Vec<IpAddr>,
    /// Names of its network devices.
    pub links: Vec<String>,
    /// Devices that selectors of `machine.network.interfaces` have chosen, by the position of the entry.
    pub selected_links: BTreeMap<usize, Vec<String>>,
    /// Members of bonds that selectors have chosen, by the name of the bond.
    pub selected_members: BTreeMap<String, Vec<String>>,
    /// Where the tree of cgroups begins.
    pub cgroup_root: String,
    /// Whether the kubelet may insist on kernel settings.
    pub protect_kernel: bool,
    /// Whether cgroups are of the first version.
    pub cgroup_v1: bool,
    /// Whether disks and memory are shared with others.
    pub shared: bool,
}

impl Default for Facts {
    fn default() -> Self {
        let address = IpAddr::from([192, 0, 2, 1]);
        Self {
            platform: "metal".to_owned(),
            architecture: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }.to_owned(),
            cmdline: String::new(),
            own_kernel: true,
            hostname: "node".to_owned(),
            domain: String::new(),
            node_id: None,
            default_address: Some(address),
            routed: vec![address],
            current: vec![address],
            links: vec!["eth0".to_owned()],
            selected_links: BTreeMap::new(),
            selected_members: BTreeMap::new(),
            cgroup_root: "/".to_owned(),
            protect_kernel: true,
            cgroup_v1: false,
            shared: false,
        }
    }
}

/// Facts that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the facts of the machine are not JSON as `upgrade` passes it on")]
pub struct BadFacts(#[from] serde_json::Error);

impl Facts {
    /// Reads facts. Those that are not there have stand-ins; those that this version does not know are left out.
    ///
    /// # Errors
    /// When it is not JSON, or a fact is of another kind.
    pub fn from_json(bytes: &[u8]) -> Result<Self, BadFacts> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// The facts as JSON.
    pub fn to_json(&self) -> String {
        // Names and texts only: nothing that JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_way_and_unknown_ones_are_left_out() {
        let facts = Facts {
            hostname: "cp-1".to_owned(),
            routed: vec!["fd00::2".parse().unwrap()],
            selected_links: BTreeMap::from([(3, vec!["eth1".to_owned()])]),
            ..Facts::default()
        };
        assert_eq!(Facts::from_json(facts.to_json().as_bytes()).unwrap(), facts);
        let newer = br#"{"hostname": "cp-1", "somethingNew": [1, 2]}"#;
        let expected = Facts { hostname: "cp-1".to_owned(), ..Facts::default() };
        assert_eq!(Facts::from_json(newer).unwrap(), expected);
        assert!(Facts::from_json(b"hostname: x").is_err());
    }
}
