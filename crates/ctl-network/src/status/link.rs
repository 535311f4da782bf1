//! Shows the links the kernel has, and the first device's hardware address.

use std::collections::HashMap;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, strong, weak};
use ichor_net::link::Link;
use ichor_net::watch::Topics;
use ichor_resource::network::{
    Duplex, HardwareAddress, LinkFlags, LinkSpec, LinkStatus, LinkType, OperationalState, Port, VLANProtocol,
};
use ichor_types::HardwareAddr;

use crate::gate::DevicesGate;
use crate::ports::{Kernel, LinkHardware};
use crate::source::link::is_physical;

/// Publishes link statuses.
#[derive(Debug)]
pub struct LinkStatusController<K> {
    kernel: K,
    gate: DevicesGate,
    /// Drivers are asked again only when a link's flags change: each question is a system call or two.
    hardware: HashMap<u32, (u32, LinkHardware)>,
}

impl<K: Kernel> LinkStatusController<K> {
    /// Shows the links of this kernel.
    pub fn new(kernel: K, gate: DevicesGate) -> Self {
        Self { kernel, gate, hardware: HashMap::new() }
    }
}

fn status_of(link: &Link, hardware: &LinkHardware) -> LinkStatus {
    let address = |bytes: &[u8]| HardwareAddr(bytes.to_vec());
    let mut status = LinkStatus {
        alias: link.alias.clone(),
        alt_names: link.alt_names.clone(),
        index: link.index,
        r#type: LinkType(link.hardware_type.into()),
        link_index: link.parent_index,
        flags: LinkFlags(link.flags),
        hardware_addr: address(&link.hardware_addr),
        permanent_addr: match link.permanent_addr.as_slice() {
            [] => address(&link.hardware_addr),
            permanent => address(permanent),
        },
        broadcast_addr: address(&link.broadcast_addr),
        mtu: link.mtu,
        queue_disc: link.qdisc.clone(),
        master_index: link.master_index,
        operational_state: OperationalState::from_number(link.oper_state.into()).unwrap_or_default(),
        kind: link.kind.clone(),
        slave_kind: link.slave_kind.clone(),
        link_state: link.carrier,
        port: Port::OTHER,
        duplex: Duplex::UNKNOWN,
        ..LinkStatus::default()
    };
    if let Some(driver) = &hardware.driver {
        status.driver.clone_from(&driver.name);
        status.driver_version.clone_from(&driver.version);
        status.firmware_version.clone_from(&driver.firmware);
        status.bus_path.clone_from(&driver.bus_path);
    }
    if let Some(mode) = hardware.mode {
        status.speed_mbit = mode.speed_mbit.into();
        status.port = Port(mode.port.into());
        status.duplex = Duplex(mode.duplex.into());
    }
    if let Some((vendor, device)) = hardware.pci {
        status.pci_id = format!("{vendor:04X}:{device:04X}");
        status.vendor_id = format!("0x{vendor:04x}");
        status.product_id = format!("0x{device:04x}");
    }
    if let Some(vlan) = link.vlan {
        status.vlan.vlan_id = vlan.id;
        status.vlan.vlan_protocol = VLANProtocol(vlan.protocol.into());
    }
    if let Some(bridge) = link.bridge {
        status.bridge_master.stp.enabled = bridge.stp;
        status.bridge_master.vlan.filtering_enabled = bridge.vlan_filtering;
    }
    status
}

impl<K: Kernel> Controller for LinkStatusController<K> {
    const NAME: &'static str = "network.LinkStatusController";

    fn inputs(&self) -> Vec<Input> {
        self.gate.inputs(vec![strong::<LinkSpec>()])
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<LinkStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.gate.is_open(ctx)? {
            return Ok(());
        }
        let links = self.kernel.links().await?;
        self.hardware.retain(|index, _| links.iter().any(|link| link.index == *index));
        let mut statuses = Vec::with_capacity(links.len());
        for link in &links {
            let known = self.hardware.get(&link.index).is_some_and(|(flags, _)| *flags == link.flags);
            if !known {
                let hardware = self.kernel.hardware(&link.name);
                self.hardware.insert(link.index, (link.flags, hardware));
            }
            let status = status_of(link, &self.hardware[&link.index].1);
            statuses.push((link.name.as_str(), status));
        }
        ctx.publish(statuses)?;
        Ok(())
    }
}

/// Publishes the hardware address of the first device.
#[derive(Debug, Default)]
pub struct HardwareAddrController;

impl Controller for HardwareAddrController {
    const NAME: &'static str = "network.HardwareAddrController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<LinkStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<HardwareAddress>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let links = ctx.list::<LinkStatus>()?;
        let first = links.iter().find(|link| is_physical(link) && !link.hardware_addr.0.is_empty());
        let spec = first.map(|link| HardwareAddress {
            name: link.id().to_string(),
            hardware_addr: link.hardware_addr.clone(),
        });
        ctx.publish(spec.map(|spec| ("first", spec)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_physical_link_gives_the_address_of_the_machine() {
        let (state, _) = ichor_testkit::state();
        let link = |kind: &str, address: &str| LinkStatus {
            r#type: LinkType::ETHER,
            kind: kind.to_owned(),
            hardware_addr: address.parse().unwrap(),
            ..LinkStatus::default()
        };
        for (name, kind, address) in [
            ("br0", "bridge", "02:00:00:00:00:01"),
            ("eth0", "", "02:00:00:00:00:02"),
            ("eth1", "", "02:00:00:00:00:03"),
        ] {
            state.create("network", name, link(kind, address), "").unwrap();
        }
        let mut harness = ichor_testkit::Harness::new(&state, HardwareAddrController).unwrap();
        harness.reconcile().await.unwrap();
        let first = state.get::<HardwareAddress>("network", "first").unwrap();
        assert_eq!(
            (first.name.as_str(), first.hardware_addr.to_string().as_str()),
            ("eth0", "02:00:00:00:00:02")
        );
        state.destroy::<LinkStatus>("network", "eth0", "").unwrap();
        state.destroy::<LinkStatus>("network", "eth1", "").unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.get::<HardwareAddress>("network", "first").is_err());
    }
}
