//! A cluster as its state file has it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{ClusterRequest, MachineRequest, ProvisionError};

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Provider that made it.
    pub provisioner: String,
    /// Its name.
    pub name: String,
    /// Its network.
    pub network: Network,
    /// What its machines boot, as the provider takes it.
    pub image: String,
    /// The OCI layout of container images that is served to its machines.
    #[serde(default)]
    pub images: Option<PathBuf>,
    /// What only its provider knows, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Where its Kubernetes API is, as machines see it: an address or a name. It stays when the machine behind it goes.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Its machines.
    pub machines: Vec<Machine>,
}

/// The network of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name, the cluster's.
    pub name: String,
    /// Its addresses, one network for each address family.
    #[serde(alias = "cidr", deserialize_with = "one_or_many")]
    pub cidrs: Vec<IpNet>,
    /// The gateway of each of them.
    #[serde(alias = "gateway", deserialize_with = "one_or_many")]
    pub gateways: Vec<IpAddr>,
    /// Largest packet.
    pub mtu: u32,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Control plane or worker.
    pub kind: MachineKind,
    /// Its addresses in the cluster's network, the main one first. Empty as long as nobody knows them.
    #[serde(alias = "address", deserialize_with = "one_or_many")]
    pub addresses: Vec<IpAddr>,
    /// What the provider calls it, where that is not its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// More kernel arguments.
    #[serde(default)]
    pub kernel_args: Vec<String>,
    /// How large it is.
    #[serde(default)]
    pub resources: Resources,
    /// Whether it runs; not part of the state file's truth, asked anew each time.
    #[serde(default)]
    pub status: MachineStatus,
}

/// A list, or a single value as state files of before have it.
fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
    })
}

impl Machine {
    fn new(wanted: &MachineRequest, address: IpAddr) -> Self {
        Self {
            name: wanted.name.clone(),
            kind: wanted.kind,
            addresses: vec![address],
            id: None,
            kernel_args: wanted.kernel_args.clone(),
            resources: wanted.resources,
            status: MachineStatus::Unknown,
        }
    }

    /// Its main address as text; empty when it has none yet.
    pub fn address(&self) -> String {
        self.addresses.first().map(ToString::to_string).unwrap_or_default()
    }

    /// Whether it has this address.
    pub fn has_address(&self, address: &str) -> bool {
        self.addresses.iter().any(|own| own.to_string() == address)
    }
}

/// The addresses of a network for gateways and machines. The first one of IPv6 is the anycast address of routers.
fn hosts(cidr: IpNet) -> impl Iterator<Item = IpAddr> {
    cidr.hosts().filter(move |host| *host != cidr.network())
}

fn first_control_plane(machines: &[Machine]) -> Option<String> {
    let first = machines.iter().find(|machine| machine.kind == MachineKind::ControlPlane);
    first.map(Machine::address)
}

/// What a machine may use of its host. `None` is all there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Thousandths of a processor.
    pub millicores: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
}

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineKind {
    /// Runs the control plane.
    ControlPlane,
    /// Runs workloads.
    Worker,
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ControlPlane => "controlplane",
            Self::Worker => "worker",
        })
    }
}

impl FromStr for MachineKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "controlplane" => Ok(Self::ControlPlane),
            "worker" => Ok(Self::Worker),
            _ => Err(()),
        }
    }
}

/// Whether a machine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineStatus {
    /// Nobody knows: the cluster's supervisor does not answer.
    #[default]
    Unknown,
    /// It runs.
    Running,
    /// It was stopped or switched itself off.
    Stopped,
    /// It ended by itself, neither restart nor power off.
    Crashed,
}

impl fmt::Display for MachineStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "unknown",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Crashed => "crashed",
        })
    }
}

impl Cluster {
    /// Lays out a request in one network: its first address is the gateway, those after it are for the machines, in
    /// their order.
    ///
    /// # Errors
    /// When the network has no room, two machines share a name, or a name cannot be one.
    pub fn plan(
        provisioner: &str,
        request: &ClusterRequest,
        cidr: IpNet,
        image: &str,
    ) -> Result<Self, ProvisionError> {
        crate::check_name(&request.name)?;
        let mut hosts = hosts(cidr);
        let full = || ProvisionError::NetworkTooSmall { cidr, machines: request.machines.len() };
        let gateway = hosts.next().ok_or_else(full)?;
        let mut machines: Vec<Machine> = Vec::with_capacity(request.machines.len());
        for wanted in &request.machines {
            crate::check_name(&wanted.name)?;
            if machines.iter().any(|machine| machine.name == wanted.name) {
                return Err(ProvisionError::SameMachineTwice { name: wanted.name.clone() });
            }
            let address = hosts.next().ok_or_else(full)?;
            machines.push(Machine::new(wanted, address));
        }
        Ok(Self {
            provisioner: provisioner.to_owned(),
            name: request.name.clone(),
            network: Network {
                name: request.name.clone(),
                cidrs: vec![cidr.trunc()],
                gateways: vec![gateway],
                mtu: request.mtu,
            },
            image: image.to_owned(),
            images: request.images.clone(),
            settings: request.settings.clone(),
            endpoint: first_control_plane(&machines),
            machines,
        })
    }

    /// Adds machines in the first network: the endpoint's address, if it is free, goes to a control plane; else the
    /// first free one.
    ///
    /// # Errors
    /// When the network has no room, a name is taken, or cannot be one.
    pub fn grow(&mut self, wanted: &[MachineRequest]) -> Result<(), ProvisionError> {
        let endpoint: Option<IpAddr> = self.endpoint().and_then(|host| host.parse().ok());
        let machines = self.machines.len() + wanted.len();
        let Some(cidr) = self.network.cidrs.first().copied() else { return Ok(()) };
        for wanted in wanted {
            crate::check_name(&wanted.name)?;
            if self.machines.iter().any(|machine| machine.name == wanted.name) {
                return Err(ProvisionError::SameMachineTwice { name: wanted.name.clone() });
            }
            let free = |address: &IpAddr| {
                !self.network.gateways.contains(address)
                    && !self.machines.iter().any(|machine| machine.addresses.contains(address))
            };
            let control_plane = wanted.kind == MachineKind::ControlPlane;
            let kept = endpoint.filter(|address| control_plane && free(address));
            let other = || hosts(cidr).find(|host| free(host) && Some(*host) != endpoint);
            let address = kept.or_else(other).ok_or(ProvisionError::NetworkTooSmall { cidr, machines })?;
            self.machines.push(Machine::new(wanted, address));
        }
        self.endpoint = self.endpoint.take().or_else(|| first_control_plane(&self.machines));
        Ok(())
    }

    /// The number for the next machine of this kind: above all there are.
    pub fn next_number(&self, kind: MachineKind) -> usize {
        let start = format!("{}-{kind}-", self.name);
        let number = |machine: &Machine| machine.name.strip_prefix(&start)?.parse::<usize>().ok();
        self.machines.iter().filter_map(number).max().unwrap_or(0) + 1
    }

    /// Where its Kubernetes API is. Clusters of before keep it at their first control plane.
    pub fn endpoint(&self) -> Option<String> {
        self.endpoint.clone().or_else(|| first_control_plane(&self.machines))
    }

    /// The endpoint, if it is an address and the machine that had it is gone; somebody has to stand in for it.
    pub fn orphaned_endpoint(&self) -> Option<IpAddr> {
        let address: IpAddr = self.endpoint.as_ref()?.parse().ok()?;
        (!self.machines.iter().any(|machine| machine.addresses.contains(&address))).then_some(address)
    }

    /// Its control planes.
    pub fn control_planes(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| machine.kind == MachineKind::ControlPlane)
    }

    /// A machine by name.
    pub fn machine(&self, name: &str) -> Result<&Machine, ProvisionError> {
        self.machines.iter().find(|machine| machine.name == name).ok_or_else(|| {
            ProvisionError::NoSuchMachine { cluster: self.name.clone(), name: name.to_owned() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineRequest;

    fn request(machines: &[&str]) -> ClusterRequest {
        ClusterRequest {
            name: "test".to_owned(),
            mtu: 1500,
            machines: machines
                .iter()
                .map(|name| MachineRequest {
                    name: (*name).to_owned(),
                    kind: MachineKind::Worker,
                    kernel_args: Vec::new(),
                    resources: Default::default(),
                })
                .collect(),
            ..ClusterRequest::default()
        }
    }

    fn plan(cidr: &str, machines: &[&str]) -> Result<Cluster, ProvisionError> {
        Cluster::plan("sandbox", &request(machines), cidr.parse().unwrap(), "/image")
    }

    #[track_caller]
    fn refused(cidr: &str, machines: &[&str], expect: expect_test::Expect) {
        expect.assert_eq(&plan(cidr, machines).unwrap_err().to_string());
    }

    #[test]
    fn addresses_follow_the_order_of_the_machines_in_either_family() {
        for (cidr, gateway, addresses) in [
            ("10.7.3.0/24", "10.7.3.1", ["10.7.3.2", "10.7.3.3"]),
            ("fd00:7::/64", "fd00:7::1", ["fd00:7::2", "fd00:7::3"]),
        ] {
            let cluster = plan(cidr, &["a", "b"]).unwrap();
            assert_eq!(cluster.network.gateways, [gateway.parse::<IpAddr>().unwrap()]);
            let found: Vec<_> = cluster.machines.iter().map(Machine::address).collect();
            assert_eq!(found, addresses);
        }
    }

    #[test]
    fn new_machines_take_what_is_free_and_a_control_plane_the_endpoint() {
        let mut cluster = plan("10.7.3.0/29", &["a", "b", "c"]).unwrap();
        cluster.machines[0].kind = MachineKind::ControlPlane;
        cluster.endpoint = Some(cluster.machines[0].address());
        cluster.machines.remove(0);
        assert_eq!(cluster.orphaned_endpoint().unwrap().to_string(), "10.7.3.2");
        let mut wanted = request(&["d", "e"]).machines;
        cluster.grow(&wanted[..1]).unwrap();
        assert_eq!(cluster.machines[2].address(), "10.7.3.5", "the endpoint is for control planes");
        wanted[1].kind = MachineKind::ControlPlane;
        cluster.grow(&wanted[1..]).unwrap();
        assert_eq!(cluster.machines[3].address(), "10.7.3.2");
        assert_eq!(cluster.orphaned_endpoint(), None);
        let more = request(&["f", "g"]).machines;
        assert!(matches!(cluster.grow(&more), Err(ProvisionError::NetworkTooSmall { .. })));
    }

    #[test]
    fn numbers_of_machines_that_left_are_not_given_again() {
        let names = ["test-worker-1", "test-worker-7", "test-controlplane-2"];
        let cluster = plan("10.7.3.0/24", &names).unwrap();
        assert_eq!(cluster.next_number(MachineKind::Worker), 8);
        assert_eq!(cluster.next_number(MachineKind::ControlPlane), 3);
    }

    #[test]
    fn an_endpoint_that_is_a_name_belongs_to_no_machine() {
        let mut cluster = plan("10.7.3.0/24", &["a"]).unwrap();
        cluster.endpoint = Some("k8s.example.org".to_owned());
        assert_eq!(cluster.orphaned_endpoint(), None);
        cluster.grow(&request(&["b"]).machines).unwrap();
        assert_eq!(cluster.endpoint().as_deref(), Some("k8s.example.org"));
    }

    #[test]
    fn state_files_of_before_are_read() {
        let state = r#"{
            "provisioner": "sandbox", "name": "lab",
            "network": {"name": "lab", "cidr": "10.5.0.0/24", "gateway": "10.5.0.1", "mtu": 1500},
            "image": "/image", "images": null, "endpoint": "10.5.0.2",
            "machines": [{
                "name": "lab-worker-1", "kind": "worker", "address": "10.5.0.3", "loopback": "127.5.0.3",
                "kernel_args": [], "resources": {"millicores": null, "memory": null}, "status": "running"
            }]
        }"#;
        let cluster: Cluster = serde_json::from_str(state).unwrap();
        assert_eq!(cluster.network.cidrs, ["10.5.0.0/24".parse::<IpNet>().unwrap()]);
        assert_eq!(cluster.machines[0].address(), "10.5.0.3");
        let again: Cluster = serde_json::from_str(&serde_json::to_string(&cluster).unwrap()).unwrap();
        assert_eq!(again, cluster);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        refused(
            "10.7.3.0/30",
            &["a", "b"],
            expect_test::expect![
                "network 10.7.3.0/30 has no room for 2 machines; choose a larger one with --cidr"
            ],
        );
        refused("10.7.3.0/24", &["a", "a"], expect_test::expect!["two machines are called a"]);
        refused(
            "10.7.3.0/24",
            &["../x"],
            expect_test::expect![[
                r#""../x" is not a name; use lower-case letters, digits and dashes, at most 63"#
            ]],
        );
    }
}
