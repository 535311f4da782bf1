//! Shows the addresses the kernel has.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, shared};
use ichor_net::address::Address;
use ichor_net::watch::Topics;
use ichor_resource::network::{AddressFlags, AddressStatus, Scope};

use crate::ids;
use crate::ports::Kernel;

/// Publishes address statuses.
#[derive(Debug)]
pub struct AddressStatusController<K> {
    /// The kernel.
    pub kernel: K,
}

fn status_of(address: &Address, link_name: &str) -> AddressStatus {
    let ip = |address: Option<std::net::IpAddr>| address.map(Into::into).unwrap_or_default();
    AddressStatus {
        address: address.prefix.into(),
        local: ip(address.local),
        broadcast: ip(address.broadcast),
        anycast: ip(address.anycast),
        multicast: ip(address.multicast),
        link_index: address.link_index,
        link_name: link_name.to_owned(),
        family: ids::family_of(address.prefix.addr()),
        scope: Scope(address.scope.into()),
        flags: AddressFlags(address.flags),
        priority: address.priority,
    }
}

impl<K: Kernel> Controller for AddressStatusController<K> {
    const NAME: &'static str = "network.AddressStatusController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<AddressStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS | Topics::ADDRESSES, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let links = self.kernel.links().await?;
        let addresses = self.kernel.addresses().await?;
        let statuses = addresses.iter().filter_map(|address| {
            let link = links.iter().find(|link| link.index == address.link_index)?;
            let status = status_of(address, &link.name);
            Some((ids::address(&link.name, status.address), status))
        });
        ctx.publish(statuses)?;
        Ok(())
    }
}
