//! Assigns addresses to links and takes them away.

use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, strong};
use ichor_net::address::{Address, broadcast_of};
use ichor_net::link::Link;
use ichor_net::watch::Topics;
use ichor_resource::network::{AddressFlags, AddressSpec};

use super::{Held, hold, release};
use crate::link_name;
use crate::ports::Kernel;

/// Flags that the kernel sets as it sees fit.
const KERNEL_FLAGS: u32 = AddressFlags::TEMPORARY.0
    | AddressFlags::OPTIMISTIC.0
    | AddressFlags::DAD_FAILED.0
    | AddressFlags::DEPRECATED.0
    | AddressFlags::TENTATIVE.0
    | AddressFlags::STABLE_PRIVACY.0;

/// Assigns addresses.
#[derive(Debug)]
pub struct AddressSpecController<K> {
    /// The kernel.
    pub kernel: K,
}

/// One step towards what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take it away from the named link.
    Remove(String, Address),
    /// Give it to the link, and tell the neighbours.
    Add { link: Box<Link>, address: Address, announce: bool },
}

/// The steps for one wanted address; none while its link is missing.
pub(crate) fn plan_wanted(spec: &AddressSpec, links: &[Link], have: &[Address]) -> Vec<Step> {
    let (Some(prefix), Some(link)) = (spec.address.get(), link_name::find(links, &spec.link_name)) else {
        return Vec::new();
    };
    let wanted = Address {
        link_index: link.index,
        scope: u8::try_from(spec.scope.number()).unwrap_or(0),
        flags: spec.flags.0,
        broadcast: broadcast_of(prefix).map(IpAddr::V4),
        priority: spec.priority,
        ..Address::new(prefix)
    };
    let mut steps = Vec::new();
    if let Some(held) = have.iter().find(|a| a.link_index == link.index && a.prefix == prefix) {
        let same = held.scope == wanted.scope
            && held.flags & !KERNEL_FLAGS == wanted.flags & !KERNEL_FLAGS
            && held.priority == wanted.priority;
        if same {
            return steps;
        }
        steps.push(Step::Remove(link.name.clone(), held.clone()));
    }
    let announce = spec.announce_with_arp && prefix.addr().is_ipv4();
    steps.push(Step::Add { link: Box::new(link.clone()), address: wanted, announce });
    steps
}

/// The steps for an address that is not wanted any more.
pub(crate) fn plan_unwanted(spec: &AddressSpec, links: &[Link], have: &[Address]) -> Vec<Step> {
    let (Some(prefix), Some(link)) = (spec.address.get(), link_name::find(links, &spec.link_name)) else {
        return Vec::new();
    };
    have.iter()
        .filter(|a| a.link_index == link.index && a.prefix == prefix)
        .map(|a| Step::Remove(link.name.clone(), a.clone()))
        .collect()
}

impl<K: Kernel> AddressSpecController<K> {
    async fn run(&self, step: &Step) -> Result<(), ControllerError> {
        match step {
            Step::Remove(link, address) => match self.kernel.remove_address(link, address).await {
                Err(error) if error.is_missing() => {}
                result => {
                    result?;
                    tracing::info!(link, address = %address.prefix, "removed address");
                }
            },
            Step::Add { link, address, announce } => {
                match self.kernel.add_address(&link.name, address).await {
                    // The link went since it was listed; its coming back wakes us.
                    Err(error) if error.is_missing() => return Ok(()),
                    Err(error) if error.is_exists() => {}
                    result => {
                        result?;
                        tracing::info!(link = link.name, address = %address.prefix, "assigned address");
                    }
                }
                if let (true, IpAddr::V4(ip)) = (*announce, address.prefix.addr())
                    && let Err(error) = self.kernel.announce(link, ip)
                {
                    tracing::warn!(link = link.name, address = %ip, %error, "address not announced");
                }
            }
        }
        Ok(())
    }
}

impl<K: Kernel> Controller for AddressSpecController<K> {
    const NAME: &'static str = "network.AddressSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<AddressSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS | Topics::ADDRESSES, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<AddressSpec>(ctx)?;
        let links = self.kernel.links().await?;
        let have = self.kernel.addresses().await?;
        // One address that the kernel refuses must not keep the others from theirs.
        let mut failed = None;
        for spec in &ending {
            let mut undone = true;
            for step in plan_unwanted(spec, &links, &have) {
                if let Err(error) = self.run(&step).await {
                    undone = false;
                    failed = Some(error);
                }
            }
            if undone {
                release(ctx, spec)?;
            }
        }
        for step in running.iter().flat_map(|spec| plan_wanted(spec, &links, &have)) {
            if let Err(error) = self.run(&step).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::{ConfigLayer, Scope};

    use super::*;
    use crate::source::cmdline::address_spec;

    fn links() -> Vec<Link> {
        vec![Link { index: 2, name: "eth0".into(), alias: "lan".into(), ..Link::default() }]
    }

    fn spec(link: &str, prefix: &str) -> AddressSpec {
        address_spec(link, prefix.parse().unwrap(), 0, ConfigLayer::Cmdline)
    }

    fn held(prefix: &str) -> Address {
        Address { link_index: 2, ..Address::new(prefix.parse().unwrap()) }
    }

    fn show(steps: &[Step]) -> Vec<String> {
        let show = |step: &Step| match step {
            Step::Remove(link, a) => format!("- {} {link}", a.prefix),
            Step::Add { link, address, .. } => format!("+ {} {}", address.prefix, link.name),
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn a_missing_address_is_added_and_a_present_one_left_alone() {
        let spec = spec("eth0", "10.5.0.2/24");
        assert_eq!(show(&plan_wanted(&spec, &links(), &[])), ["+ 10.5.0.2/24 eth0"]);
        assert_eq!(plan_wanted(&spec, &links(), &[held("10.5.0.2/24")]), []);
        let secondary = Address { flags: 0x81, ..held("10.5.0.2/24") };
        assert_eq!(plan_wanted(&spec, &links(), &[secondary]), [], "the kernel decides who is secondary");
    }

    #[test]
    fn a_link_is_found_by_its_alias_and_waited_for() {
        assert_eq!(show(&plan_wanted(&spec("lan", "10.5.0.2/24"), &links(), &[])), ["+ 10.5.0.2/24 eth0"]);
        assert_eq!(plan_wanted(&spec("eth9", "10.5.0.2/24"), &links(), &[]), []);
    }

    #[test]
    fn other_scope_or_metric_means_anew() {
        let mut wanted = spec("eth0", "10.5.0.2/24");
        wanted.priority = 100;
        let steps = plan_wanted(&wanted, &links(), &[held("10.5.0.2/24")]);
        assert_eq!(show(&steps), ["- 10.5.0.2/24 eth0", "+ 10.5.0.2/24 eth0"]);
        wanted.priority = 0;
        wanted.scope = Scope::LINK;
        assert_eq!(plan_wanted(&wanted, &links(), &[held("10.5.0.2/24")]).len(), 2);
    }

    #[test]
    fn the_same_address_with_another_prefix_length_is_another_address() {
        let steps = plan_wanted(&spec("eth0", "10.5.0.2/24"), &links(), &[held("10.5.0.2/16")]);
        assert_eq!(show(&steps), ["+ 10.5.0.2/24 eth0"]);
    }

    #[test]
    fn an_unwanted_address_goes_from_its_link_only() {
        let elsewhere = Address { link_index: 3, ..held("10.5.0.2/24") };
        let have = [elsewhere, held("10.5.0.2/24"), held("10.5.0.3/24")];
        let steps = plan_unwanted(&spec("eth0", "10.5.0.2/24"), &links(), &have);
        assert_eq!(show(&steps), ["- 10.5.0.2/24 eth0"]);
    }
}
