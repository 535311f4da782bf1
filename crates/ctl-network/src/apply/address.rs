//! Assigns addresses to links and takes them away; notices when a neighbour has one of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, strong};
use ichor_net::address::{Address, FLAG_DAD_FAILED, broadcast_of};
use ichor_net::link::{Link, TYPE_ETHER};
use ichor_net::watch::Topics;
use ichor_resource::network::{AddressFlags, AddressSpec, ConfigLayer};
use ichor_types::HardwareAddr;
use tokio::time::Instant;

use super::{Held, hold, release};
use crate::link_name;
use crate::ports::{Kernel, Running};
use crate::trouble::Troubles;

/// Flags that the kernel sets as it sees fit.
const KERNEL_FLAGS: u32 = AddressFlags::TEMPORARY.0
    | AddressFlags::OPTIMISTIC.0
    | AddressFlags::DAD_FAILED.0
    | AddressFlags::DEPRECATED.0
    | AddressFlags::TENTATIVE.0
    | AddressFlags::STABLE_PRIVACY.0;

/// How often neighbours are asked again about an address that one of them has.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Assigns addresses.
#[derive(Debug)]
pub struct AddressSpecController<K> {
    kernel: K,
    troubles: Troubles,
    wake: Option<Wake>,
    /// What neighbours say, by link and address.
    asked: BTreeMap<(u32, Ipv4Addr), Asked>,
}

/// A question to the neighbours.
#[derive(Debug)]
struct Asked {
    at: Instant,
    owner: Arc<Mutex<Option<[u8; 6]>>>,
    _task: Running,
}

impl Asked {
    fn owner(&self) -> Option<[u8; 6]> {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> AddressSpecController<K> {
    /// Assigns addresses in this kernel.
    pub fn new(kernel: K) -> Self {
        Self { kernel, troubles: Troubles::default(), wake: None, asked: BTreeMap::new() }
    }
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

/// Addresses whose neighbours are worth asking: static ones, on ethernet links with a carrier. A DHCP client
/// asks about its own.
fn worth_asking<'a>(spec: &AddressSpec, links: &'a [Link]) -> Option<(&'a Link, Ipv4Addr)> {
    let link = link_name::find(links, &spec.link_name)?;
    let wire = link.hardware_type == TYPE_ETHER && link.carrier && link.is_up();
    match spec.address.get()?.addr() {
        IpAddr::V4(address) if wire && spec.layer != ConfigLayer::Operator => Some((link, address)),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

impl<K: Kernel> AddressSpecController<K> {
    /// True when the step is done.
    async fn run(&mut self, step: &Step) -> bool {
        let result = match step {
            Step::Remove(link, address) => match self.kernel.remove_address(link, address).await {
                Err(error) if error.is_missing() => Ok(()),
                Ok(()) => {
                    tracing::info!(link, address = %address.prefix, "removed address");
                    Ok(())
                }
                result => result,
            },
            Step::Add { link, address, announce } => {
                let added = match self.kernel.add_address(&link.name, address).await {
                    // The link went since it was listed; its coming back wakes us.
                    Err(error) if error.is_missing() => return false,
                    Err(error) if error.is_exists() => Ok(()),
                    Ok(()) => {
                        tracing::info!(link = link.name, address = %address.prefix, "assigned address");
                        Ok(())
                    }
                    result => result,
                };
                if let (true, Ok(()), IpAddr::V4(ip)) = (*announce, &added, address.prefix.addr())
                    && let Err(error) = self.kernel.announce(link, ip)
                {
                    tracing::warn!(link = link.name, address = %ip, %error, "address not announced");
                }
                added
            }
        };
        result.map_err(|error| self.troubles.refused(error)).is_ok()
    }

    /// Asks neighbours about new addresses, and again about those that one of them has.
    fn ask(&mut self, wanted: &[(&Link, Ipv4Addr)]) {
        self.asked.retain(|key, _| wanted.iter().any(|(link, address)| *key == (link.index, *address)));
        for (link, address) in wanted {
            let held = self.asked.get(&(link.index, *address));
            let owner = match held {
                Some(asked) if asked.owner().is_none() || asked.at.elapsed() < ASK_AGAIN => continue,
                Some(asked) => asked.owner.clone(),
                None => Arc::default(),
            };
            let (kernel, wake) = (self.kernel.clone(), self.wake.clone());
            let (link, address, slot) = ((*link).clone(), *address, owner.clone());
            let key = (link.index, address);
            let task = Running::task(tokio::spawn(async move {
                let found = match kernel.probe(&link, address).await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::debug!(link = link.name, %address, %error, "neighbours not asked");
                        return;
                    }
                };
                let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
                let changed = *held != found;
                *held = found;
                drop(held);
                if let Some(wake) = wake.filter(|_| changed) {
                    wake.wake();
                }
            }));
            self.asked.insert(key, Asked { at: Instant::now(), owner, _task: task });
        }
    }

    /// Tells of addresses that another machine has, as its answer or the kernel says.
    fn tell_conflicts(&mut self, wanted: &[(&Link, Ipv4Addr)], links: &[Link], have: &[Address]) {
        for (link, address) in wanted {
            let owner = self.asked.get(&(link.index, *address)).and_then(Asked::owner);
            if let Some(owner) = owner {
                let owner = HardwareAddr(owner.to_vec());
                let text = format!("address {address} on {} is in use by {owner}", link.name);
                self.troubles.refused(ControllerError::new(text));
            }
        }
        for address in have.iter().filter(|address| address.flags & FLAG_DAD_FAILED != 0) {
            let link = links.iter().find(|link| link.index == address.link_index);
            let name = link.map_or("?", |link| &link.name);
            let text = format!("address {} on {name} is in use by another machine", address.prefix.addr());
            self.troubles.refused(ControllerError::new(text));
        }
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
        self.wake = Some(wake.clone());
        self.kernel.watch(Topics::LINKS | Topics::ADDRESSES, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<AddressSpec>(ctx)?;
        let links = self.kernel.links().await?;
        let have = self.kernel.addresses().await?;
        // One address that the kernel refuses must not keep the others from theirs.
        for spec in &ending {
            let mut undone = true;
            for step in plan_unwanted(spec, &links, &have) {
                undone &= self.run(&step).await;
            }
            if undone {
                release(ctx, spec)?;
            }
        }
        for spec in &running {
            if link_name::find(&links, &spec.link_name).is_none() {
                self.troubles.waits(format!("address {}: there is no link {}", spec.address, spec.link_name));
            }
            for step in plan_wanted(spec, &links, &have) {
                self.run(&step).await;
            }
        }
        let wanted: Vec<_> = running.iter().filter_map(|spec| worth_asking(spec, &links)).collect();
        self.ask(&wanted);
        self.tell_conflicts(&wanted, &links, &have);
        self.troubles.show(ctx);
        Ok(())
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
