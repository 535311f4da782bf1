//! Resolvers and time servers: lists where a layer replaces what is below it.

use std::collections::BTreeMap;

use ichor_resource::network::{ConfigLayer, ResolverSpec, TimeServerSpec};
use ichor_resource::value::Ip;

/// Folds resolvers: equal layers join, a higher layer replaces the servers of the families it has, search
/// domains of higher layers come first.
pub(super) fn merge_resolvers(specs: Vec<ResolverSpec>) -> Option<ResolverSpec> {
    let mut layers: BTreeMap<ConfigLayer, ResolverSpec> = BTreeMap::new();
    for spec in specs {
        match layers.get_mut(&spec.layer) {
            Some(held) => {
                held.dns_servers.extend(spec.dns_servers);
                held.search_domains.extend(spec.search_domains);
            }
            None => drop(layers.insert(spec.layer, spec)),
        }
    }
    layers.into_values().reduce(|low, high| {
        let is_v4 = |ip: &Ip| ip.get().is_some_and(|ip| ip.is_ipv4());
        let has_v4 = high.dns_servers.iter().any(is_v4);
        let has_v6 = high.dns_servers.iter().any(|ip| !is_v4(ip));
        let survivors = low.dns_servers.into_iter().filter(|ip| if is_v4(ip) { !has_v4 } else { !has_v6 });
        ResolverSpec {
            dns_servers: high.dns_servers.iter().cloned().chain(survivors).collect(),
            search_domains: [high.search_domains, low.search_domains].concat(),
            layer: high.layer,
        }
    })
}

/// Folds time servers: equal layers join, a higher layer replaces.
pub(super) fn merge_time_servers(mut specs: Vec<TimeServerSpec>) -> Option<TimeServerSpec> {
    specs.sort_by_key(|s| s.layer);
    let mut specs = specs.into_iter();
    let mut merged = specs.next()?;
    for spec in specs {
        if spec.layer == merged.layer {
            merged.time_servers.extend(spec.time_servers);
        } else {
            merged = spec;
        }
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn resolver(layer: ConfigLayer, servers: &[&str], search: &[&str]) -> ResolverSpec {
        ResolverSpec {
            dns_servers: servers.iter().map(|s| s.parse().unwrap()).collect(),
            search_domains: search.iter().map(|s| (*s).to_owned()).collect(),
            layer,
        }
    }

    #[track_caller]
    fn check(specs: &[ResolverSpec], expect: Expect) {
        let merged = merge_resolvers(specs.to_vec()).unwrap();
        let servers: Vec<_> = merged.dns_servers.iter().map(ToString::to_string).collect();
        expect.assert_eq(&format!("{} / {}", servers.join(" "), merged.search_domains.join(" ")));
    }

    #[test]
    fn a_higher_layer_replaces_per_family() {
        let low = resolver(ConfigLayer::Default, &["1.1.1.1", "2606:4700::1111"], &["low"]);
        let v4 = resolver(ConfigLayer::Operator, &["10.0.0.1"], &["high"]);
        let v6 = resolver(ConfigLayer::Operator, &["fd00::1"], &[]);
        check(&[low.clone(), v4.clone()], expect!["10.0.0.1 2606:4700::1111 / high low"]);
        check(&[v6.clone(), low.clone()], expect!["fd00::1 1.1.1.1 / low"]);
        check(&[low.clone(), v4, v6], expect!["10.0.0.1 fd00::1 / high low"]);
        check(&[low, resolver(ConfigLayer::Operator, &[], &[])], expect!["1.1.1.1 2606:4700::1111 / low"]);
    }

    #[test]
    fn time_servers_of_one_layer_join_and_a_higher_one_replaces() {
        let spec = |layer, name: &str| TimeServerSpec { time_servers: vec![name.to_owned()], layer };
        let merged = merge_time_servers(vec![
            spec(ConfigLayer::Operator, "a"),
            spec(ConfigLayer::Default, "low"),
            spec(ConfigLayer::Operator, "b"),
        ]);
        assert_eq!(merged.unwrap().time_servers, ["a", "b"]);
        assert_eq!(merge_time_servers(Vec::new()), None);
    }
}
