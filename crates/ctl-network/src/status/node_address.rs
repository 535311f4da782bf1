//! The addresses of this node, in several views.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::network::{
    AddressSortAlgorithm, AddressStatus, LinkStatus, NodeAddress, NodeAddressFilter,
    NodeAddressSortAlgorithm, OperationalState, Scope,
};
use ichor_resource::value::IpPrefix;
use ipnet::IpNet;

use crate::documents;
use crate::source::link::is_physical;

/// The pseudo-link of addresses that the platform knows and the kernel does not.
pub const EXTERNAL_LINK: &str = "external";
/// Byte 7 of a SideroLink address; byte 0 is that of every unique local address.
const SIDEROLINK_PURPOSES: [u8; 2] = [3, 4];

/// Publishes node addresses.
#[derive(Debug, Default)]
pub struct NodeAddressController;

/// An address that counts, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// Its link.
    pub(crate) link: String,
    /// Itself.
    pub(crate) prefix: IpNet,
    /// The link is up.
    pub(crate) up: bool,
}

/// What was published before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    /// The default address and the order it was found in.
    pub(crate) default: Option<(IpNet, AddressSortAlgorithm)>,
    /// All addresses ever seen.
    pub(crate) accumulative: Vec<IpNet>,
}

/// A named subnet filter.
pub(crate) type Filters<'a> = Vec<(&'a str, &'a NodeAddressFilter)>;

/// Compares addresses in the given order.
pub fn compare(algorithm: AddressSortAlgorithm, a: IpNet, b: IpNet) -> Ordering {
    let numeric = a.addr().cmp(&b.addr());
    match algorithm {
        AddressSortAlgorithm::V1 => numeric.then(a.prefix_len().cmp(&b.prefix_len())),
        AddressSortAlgorithm::V2 => {
            let family = a.addr().is_ipv6().cmp(&b.addr().is_ipv6());
            let inside = || match (b.contains(&a.trunc()), a.contains(&b.trunc())) {
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                _ => Ordering::Equal,
            };
            if numeric.is_eq() {
                return family.then(b.prefix_len().cmp(&a.prefix_len()));
            }
            family.then_with(inside).then(numeric)
        }
    }
}

fn is_siderolink(address: IpAddr) -> bool {
    let of_v6 = |v6: Ipv6Addr| {
        let octets = v6.octets();
        octets[0] == 0xfd && SIDEROLINK_PURPOSES.contains(&octets[7])
    };
    matches!(address, IpAddr::V6(v6) if of_v6(v6))
}

fn passes(filter: &NodeAddressFilter, address: IpAddr) -> bool {
    let inside = |nets: &[IpPrefix]| nets.iter().any(|net| net.get().is_some_and(|n| n.contains(&address)));
    let included = filter.include_subnets.is_empty() || inside(&filter.include_subnets);
    included && !inside(&filter.exclude_subnets)
}

/// All views, by id.
pub(crate) fn decide(
    mut candidates: Vec<Candidate>,
    algorithm: AddressSortAlgorithm,
    filters: &Filters<'_>,
    before: &Before,
) -> BTreeMap<String, NodeAddress> {
    candidates.sort_by(|a, b| a.link.cmp(&b.link).then(compare(algorithm, a.prefix, b.prefix)));
    let sorted = |list: Vec<IpNet>| {
        let mut list = list;
        list.sort_by(|a, b| compare(algorithm, *a, *b));
        list.dedup();
        list
    };
    let up = || candidates.iter().filter(|c| c.up || c.link == EXTERNAL_LINK);
    let current = sorted(up().map(|c| c.prefix).collect());
    let on_wire = up().filter(|c| c.link != EXTERNAL_LINK && !is_siderolink(c.prefix.addr()));
    let routed = sorted(on_wire.map(|c| c.prefix).collect());
    let accumulative = sorted(before.accumulative.iter().chain(&current).copied().collect());
    let kept = before.default.filter(|(held, order)| *order == algorithm && current.contains(held));
    let first = candidates.iter().find(|c| c.link != EXTERNAL_LINK).map(|c| c.prefix);
    let default = kept.map(|(held, _)| held).or(first);

    let mut views = BTreeMap::new();
    let mut add = |id: String, list: &mut dyn Iterator<Item = IpNet>| {
        let addresses = list.map(IpPrefix::from).collect();
        views.insert(id, NodeAddress { addresses, sort_algorithm: algorithm });
    };
    if default.is_some() {
        add("default".to_owned(), &mut default.into_iter());
    }
    for (kind, list) in [("current", &current), ("routed", &routed), ("accumulative", &accumulative)] {
        add(kind.to_owned(), &mut list.iter().copied());
        for (name, filter) in filters {
            let mut passing = list.iter().copied().filter(|net| passes(filter, net.addr()));
            add(format!("{kind}-{name}"), &mut passing);
        }
    }
    views
}

/// The address as it counts for the node; `None` for those that others cannot use.
fn candidate(status: &AddressStatus, link: Option<&LinkStatus>) -> Option<Candidate> {
    let prefix = status.address.get()?;
    let address = prefix.addr();
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let narrow = status.scope.number() >= Scope::LINK.number();
    if narrow || link_local || address.is_loopback() || address.is_multicast() {
        return None;
    }
    let up = link.is_some_and(|link| {
        let works = matches!(link.operational_state, OperationalState::Up | OperationalState::Unknown);
        works && (link.link_state || !is_physical(link))
    });
    Some(Candidate { link: status.link_name.clone(), prefix, up })
}

impl Controller for NodeAddressController {
    const NAME: &'static str = "network.NodeAddressController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<AddressStatus>(),
            weak::<LinkStatus>(),
            weak::<NodeAddressFilter>(),
            weak::<NodeAddressSortAlgorithm>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeAddress>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let addresses = ctx.list::<AddressStatus>()?;
        let links = ctx.list::<LinkStatus>()?;
        let filters = ctx.list::<NodeAddressFilter>()?;
        let algorithms = ctx.list::<NodeAddressSortAlgorithm>()?;
        let algorithm = algorithms.first().map(|spec| spec.algorithm).unwrap_or_default();

        let candidates = addresses.iter().filter_map(|status| {
            let link = links.iter().find(|link| link.index == status.link_index);
            candidate(status, link.map(|link| link.spec()))
        });
        let held = |id: &str| ctx.get::<NodeAddress>(id);
        let nets = |view: &NodeAddress| view.addresses.iter().filter_map(IpPrefix::get).collect::<Vec<_>>();
        let before = Before {
            default: held("default")?.and_then(|v| Some((v.addresses.first()?.get()?, v.sort_algorithm))),
            accumulative: held("accumulative")?.map(|v| nets(&v)).unwrap_or_default(),
        };
        let filters = filters.iter().map(|filter| (filter.id().as_str(), filter.spec())).collect();
        ctx.publish(decide(candidates.collect(), algorithm, &filters, &before))?;
        Ok(())
    }
}

/// Publishes the order of node addresses.
#[derive(Debug, Default)]
pub struct NodeAddressSortAlgorithmController;

impl Controller for NodeAddressSortAlgorithmController {
    const NAME: &'static str = "network.NodeAddressSortAlgorithmController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeAddressSortAlgorithm>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let algorithm = documents::settings(ctx)?.map(|s| s.sort_algorithm).unwrap_or_default();
        ctx.publish([("default", NodeAddressSortAlgorithm { algorithm })])?;
        Ok(())
    }
}

/// Publishes the filters that tell node addresses from those of pods and services.
#[derive(Debug, Default)]
pub struct AddressFilterController;

impl Controller for AddressFilterController {
    const NAME: &'static str = "k8s.AddressFilterController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeAddressFilter>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(settings) = documents::settings(ctx)? else {
            ctx.publish(std::iter::empty::<(&str, NodeAddressFilter)>())?;
            return Ok(());
        };
        let nets: Vec<IpPrefix> = settings.kubernetes_subnets.iter().map(|net| (*net).into()).collect();
        let no = NodeAddressFilter { exclude_subnets: nets.clone(), ..NodeAddressFilter::default() };
        let only = NodeAddressFilter { include_subnets: nets, ..NodeAddressFilter::default() };
        ctx.publish([("no-k8s", no), ("only-k8s", only)])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use ichor_resource::network::LinkType;

    use super::*;

    fn at(link: &str, prefix: &str, up: bool) -> Candidate {
        Candidate { link: link.into(), prefix: prefix.parse().unwrap(), up }
    }

    #[track_caller]
    fn check(candidates: &[Candidate], before: &Before, expect: Expect) {
        let pods = NodeAddressFilter {
            exclude_subnets: vec!["10.244.0.0/16".parse().unwrap()],
            ..NodeAddressFilter::default()
        };
        let filters = vec![("no-k8s", &pods)];
        let views = decide(candidates.to_vec(), AddressSortAlgorithm::V1, &filters, before);
        let line = |(id, view): (&String, &NodeAddress)| {
            let list: Vec<_> = view.addresses.iter().map(ToString::to_string).collect();
            format!("{id}: {}", list.join(" ")).trim_end().to_owned()
        };
        expect.assert_eq(&views.iter().map(line).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn views_differ_by_what_they_count() {
        check(
            &[
                at("eth1", "10.5.0.3/24", true),
                at("eth0", "10.6.0.2/24", true),
                at("cni0", "10.244.0.1/24", true),
                at("eth2", "10.7.0.2/24", false),
                at(EXTERNAL_LINK, "1.2.3.4/32", false),
                at("siderolink", "fdae:41e4:649b:9303::2/64", true),
            ],
            &Before::default(),
            expect![[r#"
                accumulative: 1.2.3.4/32 10.5.0.3/24 10.6.0.2/24 10.244.0.1/24 fdae:41e4:649b:9303::2/64
                accumulative-no-k8s: 1.2.3.4/32 10.5.0.3/24 10.6.0.2/24 fdae:41e4:649b:9303::2/64
                current: 1.2.3.4/32 10.5.0.3/24 10.6.0.2/24 10.244.0.1/24 fdae:41e4:649b:9303::2/64
                current-no-k8s: 1.2.3.4/32 10.5.0.3/24 10.6.0.2/24 fdae:41e4:649b:9303::2/64
                default: 10.244.0.1/24
                routed: 10.5.0.3/24 10.6.0.2/24 10.244.0.1/24
                routed-no-k8s: 10.5.0.3/24 10.6.0.2/24"#]],
        );
    }

    #[test]
    fn the_default_stays_while_it_is_there_and_nothing_is_forgotten() {
        let before = Before {
            default: Some(("10.6.0.2/24".parse().unwrap(), AddressSortAlgorithm::V1)),
            accumulative: vec!["10.9.0.9/24".parse().unwrap()],
        };
        check(
            &[at("cni0", "10.244.0.1/24", true), at("eth0", "10.6.0.2/24", true)],
            &before,
            expect![[r#"
                accumulative: 10.6.0.2/24 10.9.0.9/24 10.244.0.1/24
                accumulative-no-k8s: 10.6.0.2/24 10.9.0.9/24
                current: 10.6.0.2/24 10.244.0.1/24
                current-no-k8s: 10.6.0.2/24
                default: 10.6.0.2/24
                routed: 10.6.0.2/24 10.244.0.1/24
                routed-no-k8s: 10.6.0.2/24"#]],
        );
        check(
            &[at("cni0", "10.244.0.1/24", true)],
            &before,
            expect![[r#"
                accumulative: 10.9.0.9/24 10.244.0.1/24
                accumulative-no-k8s: 10.9.0.9/24
                current: 10.244.0.1/24
                current-no-k8s:
                default: 10.244.0.1/24
                routed: 10.244.0.1/24
                routed-no-k8s:"#]],
        );
    }

    #[test]
    fn the_second_order_puts_narrow_before_wide() {
        let mut list: Vec<IpNet> =
            ["fd00::1/128", "10.0.0.1/8", "10.0.0.1/32", "10.2.0.0/16", "10.1.0.5/24", "fd00::1/64"]
                .iter()
                .map(|s| s.parse().unwrap())
                .collect();
        list.sort_by(|a, b| compare(AddressSortAlgorithm::V2, *a, *b));
        let text: Vec<_> = list.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            ["10.0.0.1/32", "10.1.0.5/24", "10.2.0.0/16", "10.0.0.1/8", "fd00::1/128", "fd00::1/64"]
        );
    }

    #[test]
    fn only_addresses_that_others_can_use_count() {
        let status = |prefix: &str, scope| AddressStatus {
            address: prefix.parse().unwrap(),
            link_name: "eth0".into(),
            scope,
            ..AddressStatus::default()
        };
        let link = |state, carrier, kind: &str| LinkStatus {
            r#type: LinkType::ETHER,
            operational_state: state,
            link_state: carrier,
            kind: kind.into(),
            ..LinkStatus::default()
        };
        let up = link(OperationalState::Up, true, "");
        for bad in ["127.0.0.1/8", "169.254.1.1/16", "fe80::1/64", "224.0.0.1/4"] {
            assert_eq!(candidate(&status(bad, Scope::GLOBAL), Some(&up)), None, "{bad}");
        }
        assert_eq!(candidate(&status("10.0.0.1/8", Scope::LINK), Some(&up)), None);
        let is_up =
            |link: Option<&LinkStatus>| candidate(&status("10.0.0.1/8", Scope::GLOBAL), link).unwrap().up;
        assert!(is_up(Some(&up)));
        assert!(!is_up(None));
        assert!(!is_up(Some(&link(OperationalState::Unknown, false, ""))));
        assert!(is_up(Some(&link(OperationalState::Unknown, false, "dummy"))));
        assert!(!is_up(Some(&link(OperationalState::Down, true, ""))));
    }
}
