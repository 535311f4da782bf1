//! A cluster as its state file has it.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{ClusterRequest, MachineRequest, ProvisionError};

/// The port of the registry, at the gateway.
const REGISTRY_PORT: u16 = 5000;

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Provider that made it.
    pub provisioner: String,
    /// Its name.
    pub name: String,
    /// Its network.
    pub network: Network,
    /// The root image its machines run.
    pub image: PathBuf,
    /// The OCI layout of container images that is served to its machines.
    #[serde(default)]
    pub images: Option<PathBuf>,
    /// Where its Kubernetes API is: the address of its first control plane. It stays when that machine goes.
    #[serde(default)]
    pub endpoint: Option<Ipv4Addr>,
    /// Its machines.
    pub machines: Vec<Machine>,
}

/// The network of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name, the cluster's.
    pub name: String,
    /// Its addresses.
    pub cidr: Ipv4Net,
    /// The first address, where the host side is.
    pub gateway: Ipv4Addr,
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
    /// Its address in the cluster's network.
    pub address: Ipv4Addr,
    /// The address on the host's own loopback that leads to it.
    pub loopback: Ipv4Addr,
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

impl Machine {
    fn new(wanted: &MachineRequest, address: Ipv4Addr) -> Self {
        Self {
            name: wanted.name.clone(),
            kind: wanted.kind,
            address,
            loopback: loopback(address),
            kernel_args: wanted.kernel_args.clone(),
            resources: wanted.resources,
            status: MachineStatus::Unknown,
        }
    }
}

fn first_control_plane(machines: &[Machine]) -> Option<Ipv4Addr> {
    let first = machines.iter().find(|machine| machine.kind == MachineKind::ControlPlane);
    first.map(|machine| machine.address)
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
    /// Lays out a request: addresses from the second of the network on, in the order of the machines.
    ///
    /// # Errors
    /// When the network has no room, two machines share a name, or a name cannot be one.
    pub fn plan(provisioner: &str, request: &ClusterRequest) -> Result<Self, ProvisionError> {
        crate::check_name(&request.name)?;
        let mut hosts = request.cidr.hosts();
        let full =
            || ProvisionError::NetworkTooSmall { cidr: request.cidr, machines: request.machines.len() };
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
                cidr: request.cidr.trunc(),
                gateway,
                mtu: request.mtu,
            },
            image: request.image.clone(),
            images: request.images.clone(),
            endpoint: first_control_plane(&machines),
            machines,
        })
    }

    /// Adds machines: the endpoint's address, if it is free, goes to a control plane; else the first free one.
    ///
    /// # Errors
    /// When the network has no room, a name is taken, or cannot be one.
    pub fn grow(&mut self, wanted: &[MachineRequest]) -> Result<(), ProvisionError> {
        let endpoint = self.endpoint();
        let machines = self.machines.len() + wanted.len();
        for wanted in wanted {
            crate::check_name(&wanted.name)?;
            if self.machines.iter().any(|machine| machine.name == wanted.name) {
                return Err(ProvisionError::SameMachineTwice { name: wanted.name.clone() });
            }
            let free = |address: &Ipv4Addr| {
                *address != self.network.gateway
                    && !self.machines.iter().any(|machine| machine.address == *address)
            };
            let control_plane = wanted.kind == MachineKind::ControlPlane;
            let kept = endpoint.filter(|address| control_plane && free(address));
            let other = || self.network.cidr.hosts().find(|host| free(host) && Some(*host) != endpoint);
            let address = kept
                .or_else(other)
                .ok_or(ProvisionError::NetworkTooSmall { cidr: self.network.cidr, machines })?;
            self.machines.push(Machine::new(wanted, address));
        }
        self.endpoint = endpoint.or_else(|| first_control_plane(&self.machines));
        Ok(())
    }

    /// The number for the next machine of this kind: above all there are.
    pub fn next_number(&self, kind: MachineKind) -> usize {
        let start = format!("{}-{kind}-", self.name);
        let number = |machine: &Machine| machine.name.strip_prefix(&start)?.parse::<usize>().ok();
        self.machines.iter().filter_map(number).max().unwrap_or(0) + 1
    }

    /// Where its Kubernetes API is. Clusters of before keep it at their first control plane.
    pub fn endpoint(&self) -> Option<Ipv4Addr> {
        self.endpoint.or_else(|| first_control_plane(&self.machines))
    }

    /// The endpoint, if the machine that had this address is gone; somebody has to stand in for it.
    pub fn orphaned_endpoint(&self) -> Option<Ipv4Addr> {
        self.endpoint.filter(|address| !self.machines.iter().any(|machine| machine.address == *address))
    }

    /// Its control planes.
    pub fn control_planes(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| machine.kind == MachineKind::ControlPlane)
    }

    /// Where its machines find the registry of container images, if it has one.
    pub fn registry(&self) -> Option<SocketAddrV4> {
        self.images.as_ref().map(|_| SocketAddrV4::new(self.network.gateway, REGISTRY_PORT))
    }

    /// A machine by name.
    pub fn machine(&self, name: &str) -> Result<&Machine, ProvisionError> {
        self.machines.iter().find(|machine| machine.name == name).ok_or_else(|| {
            ProvisionError::NoSuchMachine { cluster: self.name.clone(), name: name.to_owned() }
        })
    }
}

/// The loopback address that stands for a machine's: `10.5.0.2` is `127.5.0.2`.
pub fn loopback(address: Ipv4Addr) -> Ipv4Addr {
    let [_, second, third, fourth] = address.octets();
    Ipv4Addr::new(127, second, third, fourth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineRequest;

    fn request(cidr: &str, machines: &[&str]) -> ClusterRequest {
        ClusterRequest {
            name: "test".to_owned(),
            cidr: cidr.parse().unwrap(),
            mtu: 1500,
            image: "/image".into(),
            images: None,
            machines: machines
                .iter()
                .map(|name| MachineRequest {
                    name: (*name).to_owned(),
                    kind: MachineKind::Worker,
                    config: None,
                    kernel_args: Vec::new(),
                    resources: Default::default(),
                })
                .collect(),
        }
    }

    #[track_caller]
    fn refused(cidr: &str, machines: &[&str], expect: expect_test::Expect) {
        expect.assert_eq(&Cluster::plan("sandbox", &request(cidr, machines)).unwrap_err().to_string());
    }

    #[test]
    fn addresses_follow_the_order_of_the_machines() {
        let cluster = Cluster::plan("sandbox", &request("10.7.3.0/24", &["a", "b"])).unwrap();
        assert_eq!(cluster.network.gateway, Ipv4Addr::new(10, 7, 3, 1));
        let addresses: Vec<_> = cluster.machines.iter().map(|m| (m.address, m.loopback)).collect();
        assert_eq!(
            addresses,
            [
                (Ipv4Addr::new(10, 7, 3, 2), Ipv4Addr::new(127, 7, 3, 2)),
                (Ipv4Addr::new(10, 7, 3, 3), Ipv4Addr::new(127, 7, 3, 3)),
            ]
        );
    }

    #[test]
    fn new_machines_take_what_is_free_and_a_control_plane_the_endpoint() {
        let mut cluster = Cluster::plan("sandbox", &request("10.7.3.0/29", &["a", "b", "c"])).unwrap();
        cluster.machines[0].kind = MachineKind::ControlPlane;
        cluster.endpoint = Some(cluster.machines[0].address);
        cluster.machines.remove(0);
        assert_eq!(cluster.orphaned_endpoint(), Some(Ipv4Addr::new(10, 7, 3, 2)));
        let mut wanted = request("10.7.3.0/29", &["d", "e"]).machines;
        cluster.grow(&wanted[..1]).unwrap();
        assert_eq!(
            cluster.machines[2].address,
            Ipv4Addr::new(10, 7, 3, 5),
            "the endpoint is for control planes"
        );
        wanted[1].kind = MachineKind::ControlPlane;
        cluster.grow(&wanted[1..]).unwrap();
        assert_eq!(cluster.machines[3].address, Ipv4Addr::new(10, 7, 3, 2));
        assert_eq!(cluster.orphaned_endpoint(), None);
        let more = request("10.7.3.0/29", &["f", "g"]).machines;
        assert!(matches!(cluster.grow(&more), Err(ProvisionError::NetworkTooSmall { .. })));
    }

    #[test]
    fn numbers_of_machines_that_left_are_not_given_again() {
        let names = ["test-worker-1", "test-worker-7", "test-controlplane-2"];
        let cluster = Cluster::plan("sandbox", &request("10.7.3.0/24", &names)).unwrap();
        assert_eq!(cluster.next_number(MachineKind::Worker), 8);
        assert_eq!(cluster.next_number(MachineKind::ControlPlane), 3);
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
