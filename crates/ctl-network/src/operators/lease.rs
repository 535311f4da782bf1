//! What a DHCP lease provides, as specs. Pure.

use std::net::IpAddr;

use ichor_net::dhcp4::Lease;
use ichor_net::dhcp6;
use ichor_resource::network::{
    ConfigLayer, Family, LinkSpec, ResolverSpec, RouteProtocol, RouteSpec, RouteType, RoutingTable,
    TimeServerSpec,
};
use ichor_resource::value::{Ip, IpPrefix};
use ipnet::IpNet;

use super::OperatorSpecs;
use crate::ids;
use crate::source::cmdline::{address_spec, way_to};
use crate::source::hostname::spec_of;

/// Reads a lease for a link. `take_hostname` is false where names of servers are not wanted.
pub(super) fn specs(link: &str, lease: &Lease, metric: u32, take_hostname: bool) -> OperatorSpecs {
    let layer = ConfigLayer::Operator;
    let mut found = OperatorSpecs {
        addresses: vec![address_spec(link, lease.address.into(), metric, layer)],
        routes: routes(link, lease, metric),
        ..OperatorSpecs::default()
    };
    if let Some(mtu) = lease.mtu {
        // No layer: a packet size that anybody else names counts more.
        let spec = LinkSpec { name: link.to_owned(), up: true, mtu: mtu.into(), ..LinkSpec::default() };
        found.links.push(spec);
    }
    if let Some(name) = lease.hostname.as_ref().filter(|_| take_hostname)
        && let Ok(mut spec) = spec_of(name, layer)
    {
        if let Some(domain) = &lease.domain {
            spec.domainname.clone_from(domain);
        }
        found.hostnames.push(spec);
    }
    if !lease.dns.is_empty() {
        let search = if lease.search.is_empty() {
            lease.domain.iter().cloned().collect()
        } else {
            lease.search.clone()
        };
        found.resolvers.push(ResolverSpec {
            dns_servers: lease.dns.iter().map(|ip| (*ip).into()).collect(),
            search_domains: search,
            layer,
        });
    }
    if !lease.ntp.is_empty() {
        let time_servers = lease.ntp.iter().map(ToString::to_string).collect();
        found.time_servers.push(TimeServerSpec { time_servers, layer });
    }
    found
}

/// Reads a DHCPv6 lease for a link. It brings no routes: those come from router advertisements.
pub(super) fn specs6(link: &str, lease: &dhcp6::Lease, metric: u32, take_hostname: bool) -> OperatorSpecs {
    let layer = ConfigLayer::Operator;
    let prefix = IpNet::from(IpAddr::V6(lease.address));
    let mut found = OperatorSpecs {
        addresses: vec![address_spec(link, prefix, metric, layer)],
        ..OperatorSpecs::default()
    };
    let name = lease.hostname.as_ref().filter(|_| take_hostname);
    found.hostnames.extend(name.and_then(|name| spec_of(name, layer).ok()));
    if !lease.dns.is_empty() {
        found.resolvers.push(ResolverSpec {
            dns_servers: lease.dns.iter().map(|ip| (*ip).into()).collect(),
            search_domains: Vec::new(),
            layer,
        });
    }
    if !lease.ntp.is_empty() {
        found.time_servers.push(TimeServerSpec { time_servers: lease.ntp.clone(), layer });
    }
    found
}

fn routes(link: &str, lease: &Lease, metric: u32) -> Vec<RouteSpec> {
    let route = |destination: IpPrefix, gateway: Ip| {
        let mut spec = RouteSpec {
            family: Family::INET4,
            dst: destination,
            src: lease.address.addr().into(),
            gateway,
            out_link_name: link.to_owned(),
            table: RoutingTable::MAIN,
            priority: metric,
            r#type: RouteType::UNICAST,
            protocol: RouteProtocol::BOOT,
            layer: ConfigLayer::Operator,
            ..RouteSpec::default()
        };
        ids::normalize(&mut spec);
        spec
    };
    if !lease.routes.is_empty() {
        let named = lease.routes.iter().map(|(net, gateway)| route((*net).into(), (*gateway).into()));
        return named.collect();
    }
    let mut routes = Vec::new();
    for router in &lease.routers {
        let default = route(IpPrefix::UNSET, (*router).into());
        if !lease.address.contains(router) {
            routes.push(way_to(IpAddr::V4(*router), &default));
        }
        routes.push(default);
    }
    routes
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};

    use super::*;

    fn lease() -> Lease {
        Lease {
            address: "10.5.0.9/24".parse().unwrap(),
            server: None,
            routers: vec!["10.5.0.1".parse().unwrap()],
            routes: Vec::new(),
            dns: Vec::new(),
            domain: None,
            search: Vec::new(),
            hostname: None,
            ntp: Vec::new(),
            mtu: None,
            duration: Duration::from_secs(60),
            renew_after: Duration::from_secs(30),
            rebind_after: Duration::from_secs(50),
        }
    }

    #[track_caller]
    fn check_routes(lease: &Lease, expect: Expect) {
        let routes = routes("eth0", lease, 1024);
        let text: Vec<_> =
            routes.iter().map(|r| format!("{} {} from {}", ids::route_spec(r), r.scope, r.src)).collect();
        expect.assert_eq(&text.join("\n"));
    }

    #[test]
    fn routers_become_default_routes_and_ways_to_them() {
        let mut lease = lease();
        lease.routers.push("192.168.1.1".parse().unwrap());
        check_routes(
            &lease,
            expect![[r#"
                inet4/10.5.0.1//1024 global from 10.5.0.9
                inet4//192.168.1.1/32/1024 link from 10.5.0.9
                inet4/192.168.1.1//1024 global from 10.5.0.9"#]],
        );
    }

    #[test]
    fn classless_routes_replace_routers() {
        let mut lease = lease();
        lease.routes = vec![
            ("0.0.0.0/0".parse().unwrap(), "10.5.0.7".parse().unwrap()),
            ("10.9.0.0/16".parse().unwrap(), "0.0.0.0".parse().unwrap()),
        ];
        check_routes(
            &lease,
            expect![[r#"
                inet4/10.5.0.7//1024 global from 10.5.0.9
                inet4//10.9.0.0/16/1024 link from 10.5.0.9"#]],
        );
    }

    #[test]
    fn names_are_taken_only_where_wanted() {
        let mut lease = lease();
        lease.hostname = Some("node-1.old.example".to_owned());
        lease.domain = Some("example.org".to_owned());
        lease.mtu = Some(1400);
        let found = specs("eth0", &lease, 1024, true);
        assert_eq!(found.hostnames[0].hostname, "node-1");
        assert_eq!(found.hostnames[0].domainname, "example.org");
        assert_eq!((found.links[0].mtu, found.links[0].layer), (1400, ConfigLayer::Default));
        assert!(specs("eth0", &lease, 1024, false).hostnames.is_empty());
        assert_eq!(found.addresses[0].priority, 1024);
    }
}
