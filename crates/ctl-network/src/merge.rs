//! Folds the specs of all layers into one per id. The rules are pure; the controller is the same for all.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, destroy_ready, shared, weak};
use ichor_resource::network::{
    AddressSpec, ConfigLayer, HostnameSpec, LinkSpec, OperatorSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use ichor_resource::{Phase, TypedSpec};

use crate::ids;

mod link;
mod list;

/// A spec that comes in layers.
pub trait Layered: TypedSpec {
    /// The name of its merge controller.
    const CONTROLLER: &'static str;

    /// Folds all unmerged specs, given in the order of their ids.
    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self>;
}

/// Keeps, for each id, the spec of the highest layer; among equals the last.
fn highest<T>(
    specs: Vec<T>,
    layer: impl Fn(&T) -> ConfigLayer,
    id: impl Fn(&T) -> String,
) -> BTreeMap<String, T> {
    let mut merged: BTreeMap<String, T> = BTreeMap::new();
    for spec in specs {
        let id = id(&spec);
        match merged.get(&id) {
            Some(held) if layer(held) > layer(&spec) => {}
            Some(_) | None => drop(merged.insert(id, spec)),
        }
    }
    merged
}

impl Layered for AddressSpec {
    const CONTROLLER: &'static str = "AddressMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        highest(specs, |s| s.layer, |s| ids::address(&s.link_name, s.address))
    }
}

impl Layered for RouteSpec {
    const CONTROLLER: &'static str = "RouteMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        highest(specs, |s| s.layer, ids::route_spec)
    }
}

impl Layered for OperatorSpec {
    const CONTROLLER: &'static str = "OperatorMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        highest(specs, |s| s.layer, ids::operator_spec)
    }
}

impl Layered for HostnameSpec {
    const CONTROLLER: &'static str = "HostnameMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        // The first of the highest layer: `rev` because `max_by_key` takes the last.
        let best = specs.into_iter().rev().max_by_key(|s| s.layer);
        best.map(|spec| (ids::HOSTNAME.to_owned(), spec)).into_iter().collect()
    }
}

impl Layered for LinkSpec {
    const CONTROLLER: &'static str = "LinkMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        link::merge(specs)
    }
}

impl Layered for ResolverSpec {
    const CONTROLLER: &'static str = "ResolverMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        let merged = list::merge_resolvers(specs);
        merged.map(|spec| (ids::RESOLVERS.to_owned(), spec)).into_iter().collect()
    }
}

impl Layered for TimeServerSpec {
    const CONTROLLER: &'static str = "TimeServerMergeControllers.net.talos.dev";

    fn merge(specs: Vec<Self>) -> BTreeMap<String, Self> {
        let merged = list::merge_time_servers(specs);
        merged.map(|spec| (ids::TIME_SERVERS.to_owned(), spec)).into_iter().collect()
    }
}

/// Merges one kind of spec from `network-config` into `network`.
#[derive(Debug, Default)]
pub struct MergeController<T>(PhantomData<fn() -> T>);

impl<T: Layered> MergeController<T> {
    /// The merge controller of `T`.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Layered> Controller for MergeController<T> {
    const NAME: &'static str = T::CONTROLLER;

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<T>().in_ns(ids::CONFIG_NAMESPACE), destroy_ready::<T>().in_ns(ids::NAMESPACE)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<T>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let sources = ctx.list_in::<T>(ids::CONFIG_NAMESPACE)?;
        let running = sources.iter().filter(|s| s.meta().phase() == Phase::Running);
        let mut merged = T::merge(running.map(|s| s.spec().clone()).collect());
        // One that somebody still takes down comes back when it is gone; its end wakes us.
        for held in ctx.list_in::<T>(ids::NAMESPACE)? {
            if held.meta().phase() == Phase::TearingDown && !held.meta().is_destroy_ready() {
                merged.remove(held.id().as_str());
            }
        }
        ctx.publish_in(ids::NAMESPACE, merged.iter().map(|(id, spec)| (id.as_str(), spec.clone())))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::Operator;

    use super::*;

    fn hostname(name: &str, layer: ConfigLayer) -> HostnameSpec {
        HostnameSpec { hostname: name.into(), layer, ..HostnameSpec::default() }
    }

    #[test]
    fn the_hostname_of_the_highest_layer_wins_and_the_first_among_equals() {
        let merged = HostnameSpec::merge(vec![
            hostname("cmdline", ConfigLayer::Cmdline),
            hostname("first", ConfigLayer::Operator),
            hostname("second", ConfigLayer::Operator),
            hostname("auto", ConfigLayer::Default),
        ]);
        assert_eq!(merged["hostname"].hostname, "first");
        assert!(HostnameSpec::merge(Vec::new()).is_empty());
    }

    #[test]
    fn an_address_of_a_higher_layer_replaces_the_lower_one_whatever_the_order() {
        let spec = |priority, layer| AddressSpec {
            address: "10.5.0.2/24".parse().unwrap(),
            link_name: "eth0".into(),
            priority,
            layer,
            ..AddressSpec::default()
        };
        for specs in [
            vec![spec(1, ConfigLayer::Cmdline), spec(2, ConfigLayer::Configuration)],
            vec![spec(2, ConfigLayer::Configuration), spec(1, ConfigLayer::Cmdline)],
        ] {
            let merged = AddressSpec::merge(specs);
            assert_eq!(merged.len(), 1);
            assert_eq!(merged["eth0/10.5.0.2/24"].priority, 2);
        }
    }

    #[test]
    fn virtual_addresses_of_one_link_stay_apart() {
        let vip = |ip: &str| OperatorSpec {
            operator: Operator::Vip,
            link_name: "eth0".into(),
            vip: ichor_resource::network::VIPOperatorSpec { ip: ip.parse().unwrap(), ..Default::default() },
            ..OperatorSpec::default()
        };
        let dhcp = OperatorSpec { link_name: "eth0".into(), ..OperatorSpec::default() };
        let merged = OperatorSpec::merge(vec![vip("10.5.0.9"), vip("10.5.0.8"), dhcp]);
        let ids: Vec<_> = merged.keys().map(String::as_str).collect();
        assert_eq!(ids, ["dhcp4/eth0", "vip/eth0/10.5.0.8", "vip/eth0/10.5.0.9"]);
    }
}
