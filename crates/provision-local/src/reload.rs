//! Machines that come and go while their cluster runs: the supervisor follows the state file.
//!
//! The address of the cluster's endpoint outlives the machine that had it: a stand-in takes the address on the bridge
//! and hands connections to the control planes that are left, until a new machine gets it.

use std::net::Ipv4Addr;

use ichor_net::{Netlink, address, arp, link};
use ichor_provision::Cluster;
use tokio::task::AbortHandle;

use crate::error::SetupError;
use crate::supervisor::{BRIDGE, Supervisor};
use crate::{Kind, forward, ipv4};

/// Who answers at the endpoint of a cluster whose machine is gone.
pub(crate) struct StandIn {
    address: Ipv4Addr,
    tasks: Vec<AbortHandle>,
}

/// The addresses that the host reaches: those of all machines, and the endpoint.
pub(crate) fn addresses(cluster: &Cluster) -> Vec<Ipv4Addr> {
    let mut addresses = ipv4::addresses(cluster.machines.iter());
    addresses.extend(ipv4::orphaned_endpoint(cluster));
    addresses
}

impl<K: Kind> Supervisor<'_, K> {
    /// Starts machines that are new in the state file, forgets those that are not in it any more.
    pub(crate) async fn reload(&mut self) -> Result<(), SetupError> {
        let next = self.layout.load()?;
        let wanted = addresses(&next);
        let bound = forward::bind_in(self.host, &self.forwards.missing(&wanted))?;
        for machine in &next.machines {
            K::make_machine(self.layout, &next, &machine.name)?;
        }
        let known: Vec<(usize, String)> =
            self.fleet.names().map(|(at, name)| (at, name.to_owned())).collect();
        for (at, name) in &known {
            if next.machine(name).is_ok() {
                continue;
            }
            if !self.fleet.remove(*at) {
                let busy = std::io::Error::other(format!("{name} runs"));
                return Err(SetupError::step("remove a machine")(busy));
            }
            K::forget(self.layout, &self.cluster, name).await;
        }
        self.forwards.start(bound)?;
        self.forwards.keep(&wanted);
        self.cluster = next;
        self.lead().await?;
        let new = self.cluster.machines.iter().map(|machine| machine.name.clone());
        let new: Vec<String> = new.filter(|name| !known.iter().any(|(_, old)| old == name)).collect();
        for name in new {
            let at = self.fleet.add(name);
            let effect = self.fleet.start(at);
            self.apply(effect);
        }
        Ok(())
    }

    /// Leads each address to its machine, and the endpoint of a machine that is gone to the control planes.
    pub(crate) async fn lead(&mut self) -> Result<(), SetupError> {
        for address in ipv4::addresses(self.cluster.machines.iter()) {
            self.forwards.lead(address, vec![address]);
        }
        let orphan = ipv4::orphaned_endpoint(&self.cluster);
        if let Some(old) = self.stand_in.take_if(|old| Some(old.address) != orphan) {
            old.tasks.iter().for_each(AbortHandle::abort);
            self.change_address(old.address, false).await?;
        }
        let Some(address) = orphan else { return Ok(()) };
        let control_planes = ipv4::addresses(self.cluster.control_planes());
        self.forwards.lead(address, control_planes);
        if self.stand_in.is_none() {
            self.change_address(address, true).await?;
            let tasks = self.forwards.stand_in(forward::bind_stand_in(address)?, address)?;
            self.stand_in = Some(StandIn { address, tasks });
        }
        Ok(())
    }

    /// Takes an address on the bridge, and says so to those who know another machine there; or gives it back.
    async fn change_address(&self, wanted: Ipv4Addr, take: bool) -> Result<(), SetupError> {
        let netlink = Netlink::open()?;
        let prefix = ipnet::Ipv4Net::new_assert(wanted, 32).into();
        if !take {
            let link_index = link::index(&netlink, BRIDGE).await?;
            let address = address::Address { link_index, ..address::Address::new(prefix) };
            return Ok(address::remove(&netlink, BRIDGE, &address).await?);
        }
        link::add_address(&netlink, BRIDGE, prefix).await?;
        if let Some(bridge) = link::find(&netlink, BRIDGE).await?
            && let Ok(hardware) = <[u8; 6]>::try_from(bridge.hardware_addr.as_slice())
        {
            // Without it they find out by themselves, some seconds later.
            let _ = arp::announce(bridge.index, hardware, wanted);
        }
        Ok(())
    }
}
