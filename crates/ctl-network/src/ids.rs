//! Ids of network resources, and the normal form of routes that they rest on.

use std::net::IpAddr;

use ichor_resource::network::{ConfigLayer, Family, Operator, OperatorSpec, RouteSpec, RoutingTable, Scope};
use ichor_resource::value::{Ip, IpPrefix};
use ipnet::IpNet;

/// Where sources put their specs, unmerged.
pub(crate) const CONFIG_NAMESPACE: &str = "network-config";
/// Where merged specs and statuses live.
pub(crate) const NAMESPACE: &str = "network";
/// The id of the hostname resources.
pub(crate) const HOSTNAME: &str = "hostname";
/// The id of the resolver resources.
pub(crate) const RESOLVERS: &str = "resolvers";
/// The id of the time server resources.
pub(crate) const TIME_SERVERS: &str = "timeservers";
/// The metric of default routes whose source does not name one.
pub(crate) const DEFAULT_METRIC: u32 = 1024;

/// The id of an unmerged spec.
pub(crate) fn layered(layer: ConfigLayer, id: &str) -> String {
    format!("{layer}/{id}")
}

/// The id of an address on a link.
pub(crate) fn address(link: &str, prefix: IpPrefix) -> String {
    format!("{link}/{prefix}")
}

/// The id of a route.
pub(crate) fn route(
    table: RoutingTable,
    family: Family,
    destination: IpPrefix,
    gateway: &Ip,
    link: &str,
    metric: u32,
) -> String {
    let mut id = String::new();
    if table != RoutingTable::MAIN {
        id.push_str(&format!("{table}/"));
    }
    if family == Family::INET6 {
        id.push_str(&format!("{link}/"));
    }
    id.push_str(&format!("{family}/{gateway}/{destination}/{metric}"));
    id
}

/// The id of a wanted route.
pub(crate) fn route_spec(spec: &RouteSpec) -> String {
    route(spec.table, spec.family, spec.dst, &spec.gateway, &spec.out_link_name, spec.priority)
}

/// The id of an operator on a link.
pub(crate) fn operator(operator: Operator, link: &str) -> String {
    format!("{operator}/{link}")
}

/// The id of a wanted operator: virtual addresses of one link stay apart.
pub(crate) fn operator_spec(spec: &OperatorSpec) -> String {
    match spec.vip.ip.get() {
        Some(ip) => format!("{}/{}/{ip}", spec.operator, spec.link_name),
        None => operator(spec.operator, &spec.link_name),
    }
}

/// The family of an address.
pub(crate) fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::INET4 } else { Family::INET6 }
}

/// Brings a route into its normal form: "everywhere" is no destination, and the scope follows from what
/// the route says.
pub(crate) fn normalize(route: &mut RouteSpec) {
    if route.dst.get().is_some_and(|net| net.prefix_len() == 0) {
        route.dst = IpPrefix::UNSET;
    }
    if route.gateway.get().is_some_and(|gateway| gateway.is_unspecified()) {
        route.gateway = Ip::UNSET;
    }
    if route.src.get().is_some_and(|source| source.is_unspecified()) {
        route.src = Ip::UNSET;
    }
    route.scope = match route.dst.get() {
        Some(destination) if destination.addr().is_loopback() => Scope::HOST,
        Some(_) if route.gateway.is_unset() => Scope::LINK,
        Some(_) | None => Scope::GLOBAL,
    };
}

/// The prefix of one address alone.
pub(crate) fn host_prefix(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::{RouteProtocol, RouteType};

    use super::*;

    #[track_caller]
    fn check(link: &str, dst: &str, gateway: &str, table: RoutingTable, expect: &str) {
        let gateway: Ip = gateway.parse().unwrap();
        let dst: IpPrefix = dst.parse().unwrap();
        let v6 = gateway.get().is_some_and(|g| g.is_ipv6()) || dst.get().is_some_and(|d| d.addr().is_ipv6());
        let mut spec = RouteSpec {
            family: if v6 { Family::INET6 } else { Family::INET4 },
            dst,
            gateway,
            out_link_name: link.to_owned(),
            table,
            priority: 1024,
            r#type: RouteType::UNICAST,
            protocol: RouteProtocol::STATIC,
            ..RouteSpec::default()
        };
        normalize(&mut spec);
        assert_eq!(format!("{} {}", route_spec(&spec), spec.scope), expect);
    }

    #[test]
    fn route_ids_hold_table_and_link_only_where_they_matter() {
        let main = RoutingTable::MAIN;
        check("eth0", "", "10.5.0.1", main, "inet4/10.5.0.1//1024 global");
        check("eth0", "0.0.0.0/0", "10.5.0.1", main, "inet4/10.5.0.1//1024 global");
        check("eth0", "::/0", "fd00::1", main, "eth0/inet6/fd00::1//1024 global");
        check("eth0", "10.0.0.0/8", "", main, "inet4//10.0.0.0/8/1024 link");
        check("eth0", "10.0.0.0/8", "0.0.0.0", main, "inet4//10.0.0.0/8/1024 link");
        check("lo", "127.0.0.0/8", "", RoutingTable::LOCAL, "local/inet4//127.0.0.0/8/1024 host");
        check(
            "eth0",
            "10.0.0.0/8",
            "10.5.0.1",
            RoutingTable(180),
            "180/inet4/10.5.0.1/10.0.0.0/8/1024 global",
        );
    }
}
