//! The machines of a cluster: which there are, how they are reached and what they are for.

use serde_json::Value;

use crate::objects;

/// What a machine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs etcd and the control plane of Kubernetes.
    ControlPlane,
    /// Runs the workloads.
    Worker,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The address it is asked at.
    pub address: String,
    /// All addresses it is known by, that one included.
    pub addresses: Vec<String>,
    /// What it is for.
    pub kind: Kind,
}

impl Machine {
    /// A machine known by one address.
    pub fn at(address: impl Into<String>, kind: Kind) -> Self {
        let address = address.into();
        Self { addresses: vec![address.clone()], address, kind }
    }
}

/// The machines of a cluster, control planes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    machines: Vec<Machine>,
}

impl Topology {
    /// A cluster of these machines.
    pub fn new(mut machines: Vec<Machine>) -> Self {
        machines.sort_by_key(|machine| machine.kind != Kind::ControlPlane);
        Self { machines }
    }

    /// A cluster of machines that were named one by one.
    pub fn named(control_planes: &[String], workers: &[String]) -> Self {
        let all = |addresses: &[String], kind| {
            addresses.iter().map(move |address| Machine::at(address, kind)).collect::<Vec<_>>()
        };
        Self::new([all(control_planes, Kind::ControlPlane), all(workers, Kind::Worker)].concat())
    }

    /// A cluster of discovered members: their specs, in the order of their ids. Members without an address
    /// cannot be asked and are left out.
    pub fn discovered<'a>(members: impl IntoIterator<Item = &'a Value>) -> Self {
        let machine = |spec: &Value| {
            let addresses = objects::texts(&spec["addresses"]);
            let kind = match spec["machineType"].as_str() {
                Some("controlplane" | "init") => Kind::ControlPlane,
                _ => Kind::Worker,
            };
            Some(Machine { address: addresses.first()?.clone(), addresses, kind })
        };
        Self::new(members.into_iter().filter_map(machine).collect())
    }

    /// A cluster of the nodes of Kubernetes. Nodes without an address cannot be asked and are left out.
    pub fn of_nodes(nodes: &[Value]) -> Self {
        let machine = |node: &Value| {
            let addresses = objects::node_addresses(node);
            let kind = if objects::is_control_plane(node) { Kind::ControlPlane } else { Kind::Worker };
            Some(Machine { address: addresses.first()?.clone(), addresses, kind })
        };
        Self::new(nodes.iter().filter_map(machine).collect())
    }

    /// All machines.
    pub fn all(&self) -> &[Machine] {
        &self.machines
    }

    /// The machines of the control plane.
    pub fn control_planes(&self) -> &[Machine] {
        let end = self.machines.partition_point(|machine| machine.kind == Kind::ControlPlane);
        &self.machines[..end]
    }

    /// The workers.
    pub fn workers(&self) -> &[Machine] {
        &self.machines[self.control_planes().len()..]
    }
}
