//! Why the network does not carry: addresses, routes, gateways, resolvers, the control plane.

use std::net::IpAddr;

use ichor_resource::files::EtcFileStatus;
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::{
    AddressStatus, DNSUpstream, HostnameStatus, LinkStatus, NetworkStatus, OperationalState, Operator,
    OperatorSpec, ProbeStatus, ResolverStatus, RouteSpec, RouteStatus, RoutingTable,
};

use crate::finding::{Cause, Reason, listed};
use crate::snapshot::Snapshot;

/// Why the network is not ready; `None` when it is.
pub(crate) fn not_ready(snapshot: &Snapshot) -> Option<Cause> {
    let status = snapshot.get::<NetworkStatus>("status").cloned().unwrap_or_default();
    if !status.address_ready {
        let cause = link_down(snapshot).or_else(|| dhcp(snapshot)).unwrap_or_else(|| {
            Cause::new(
                "network",
                "no address",
                "give the link an address or `dhcp: true` in `machine.network.interfaces`",
            )
            .step("nothing gives this machine an address", "AddressSpecs, OperatorSpecs: none")
        });
        return Some(
            cause.behind("the machine has no address", "NetworkStatuses/status: addressReady=false"),
        );
    }
    if !status.connectivity_ready {
        let cause = probe(snapshot)
            .or_else(|| link_down(snapshot))
            .or_else(|| routes(snapshot).into_iter().next().map(|(_, cause)| cause))
            .unwrap_or_else(|| {
                let advice = "add a default route (`machine.network.interfaces[].routes`, or DHCP)";
                Cause::new("route", "no default route", advice)
                    .step("no default route is there or asked for", "RouteStatuses: none without destination")
            });
        let evidence = "NetworkStatuses/status: connectivityReady=false";
        return Some(cause.behind("the machine cannot reach other networks", evidence));
    }
    if !status.hostname_ready {
        let advice = "set `machine.network.hostname`, or let DHCP give one";
        let cause = Cause::new("network", "hostname", advice)
            .step("the machine has no name", "HostnameStatuses: none");
        return snapshot.get::<HostnameStatus>("hostname").is_none().then_some(cause);
    }
    if !status.etc_files_ready {
        let missing: Vec<&str> = ["hosts", "resolv.conf"]
            .into_iter()
            .filter(|file| snapshot.get::<EtcFileStatus>(file).is_none())
            .collect();
        let advice = "look at `ichorctl logs controller-runtime`: a file under /etc cannot be written";
        return Some(
            Cause::new("network", "etc files", advice)
                .step(format!("/etc/{} is not written", listed(&missing)), "EtcFileStatuses"),
        );
    }
    None
}

/// A link that should be up and is not.
pub(crate) fn link_down(snapshot: &Snapshot) -> Option<Cause> {
    let wanted = |name: &str| {
        snapshot.list::<OperatorSpec>().any(|(_, spec)| spec.link_name == name)
            || snapshot.list::<RouteSpec>().any(|(_, spec)| spec.out_link_name == name)
            || snapshot.list::<ichor_resource::network::AddressSpec>().any(|(_, spec)| spec.link_name == name)
    };
    let (name, status) =
        snapshot.list::<LinkStatus>().find(|(name, status)| is_down(status) && wanted(name))?;
    let advice = format!("check the cable or switch port of {name}, and `up`/`ignore` of its configuration");
    Some(Cause::new("link", format!("link {name}"), advice).step(
        format!("link {name} is down"),
        format!("LinkStatuses/{name}: operationalState={}", state(status)),
    ))
}

fn is_down(status: &LinkStatus) -> bool {
    matches!(
        status.operational_state,
        OperationalState::Down | OperationalState::LowerLayerDown | OperationalState::NotPresent
    )
}

fn state(status: &LinkStatus) -> &'static str {
    match status.operational_state {
        OperationalState::LowerLayerDown => "lowerLayerDown",
        OperationalState::NotPresent => "notPresent",
        _ => "down",
    }
}

/// DHCP that was asked for and gave nothing.
fn dhcp(snapshot: &Snapshot) -> Option<Cause> {
    let (id, spec) = snapshot.list::<OperatorSpec>().find(|(_, spec)| {
        spec.operator != Operator::Vip
            && !snapshot.list::<AddressStatus>().any(|(_, status)| status.link_name == spec.link_name)
    })?;
    let advice = format!("check that a DHCP server answers on {}, or set a static address", spec.link_name);
    Some(Cause::new("dhcp", format!("dhcp {}", spec.link_name), advice).step(
        format!("no DHCP server has given {} an address", spec.link_name),
        format!("OperatorSpecs/{id}; no AddressStatuses on {}", spec.link_name),
    ))
}

/// A probe that fails.
pub(crate) fn probe(snapshot: &Snapshot) -> Option<Cause> {
    let (id, status) = snapshot.list::<ProbeStatus>().find(|(_, status)| !status.success)?;
    let advice = "check that the target of the probe is up and reachable, or correct the probe";
    Some(Cause::new("probe", format!("probe {id}"), advice).step(
        format!("probe {id} fails: {}", status.last_error),
        format!("ProbeStatuses/{id}: success=false"),
    ))
}

/// Every route that is wanted and not in the kernel, or there and of no use: what to say, and why.
pub(crate) fn routes(snapshot: &Snapshot) -> Vec<(String, Cause)> {
    let mut found = Vec::new();
    for (id, spec) in snapshot.list::<RouteSpec>() {
        if snapshot.list::<RouteStatus>().any(|(_, status)| is_same(spec, status)) {
            continue;
        }
        let name = route_name(spec.dst.get().map(|net| net.to_string()), spec.gateway.get());
        let cause = not_installed(snapshot, id, spec).unwrap_or_else(|| {
            let complaint = snapshot.controller("network.RouteSpecController").and_then(|c| c.complaint());
            let advice =
                "correct it in the machine configuration, or look at `ichorctl logs controller-runtime`";
            Cause::new("route", format!("route {id}"), advice)
                .step(complaint.unwrap_or("the kernel has not taken it yet"), "network.RouteSpecController")
        });
        found.push((
            format!("{name} is not installed"),
            cause.behind(
                "it is wanted, and the kernel does not have it",
                format!("RouteSpecs/{id}, layer {}; not in RouteStatuses", layer(spec)),
            ),
        ));
    }
    for (id, status) in snapshot.list::<RouteStatus>() {
        let Some(gateway) = status.gateway.get() else { continue };
        if let Some(reason) = silent(snapshot, gateway, &status.out_link_name) {
            let name = route_name(status.dst.get().map(|net| net.to_string()), Some(gateway));
            let advice =
                format!("correct the gateway {gateway} in the machine configuration, or bring it up");
            let cause = Cause::new("route", format!("gateway {gateway}"), advice)
                .step("it is installed", format!("RouteStatuses/{id}"))
                .step(reason.text, reason.evidence);
            found.push((format!("{name} leads nowhere"), cause));
        }
    }
    found
}

fn layer(spec: &RouteSpec) -> &'static str {
    use ichor_resource::network::ConfigLayer;
    match spec.layer {
        ConfigLayer::Default => "default",
        ConfigLayer::Cmdline => "kernel command line",
        ConfigLayer::Platform => "platform",
        ConfigLayer::Operator => "DHCP",
        ConfigLayer::Configuration => "machine configuration",
    }
}

fn route_name(destination: Option<String>, gateway: Option<IpAddr>) -> String {
    let to = destination.map_or_else(|| "the default route".to_owned(), |net| format!("the route to {net}"));
    gateway.map_or_else(|| to.clone(), |gateway| format!("{to} via {gateway}"))
}

fn is_same(spec: &RouteSpec, status: &RouteStatus) -> bool {
    let table = if spec.table == RoutingTable::UNSPEC { RoutingTable::MAIN } else { spec.table };
    spec.dst.get().map(|net| net.trunc()) == status.dst.get()
        && spec.gateway == status.gateway
        && table == status.table
        && (spec.out_link_name.is_empty() || links_agree(spec, status))
}

/// The names differ where the configuration uses an alias.
fn links_agree(spec: &RouteSpec, status: &RouteStatus) -> bool {
    spec.out_link_name == status.out_link_name || !status.out_link_name.is_empty()
}

fn not_installed(snapshot: &Snapshot, id: &str, spec: &RouteSpec) -> Option<Cause> {
    let root = format!("route {id}");
    let link = &spec.out_link_name;
    let status = snapshot
        .list::<LinkStatus>()
        .find(|(name, status)| name == link || status.alias == *link || status.alt_names.contains(link));
    if !link.is_empty() {
        let Some((_, status)) = status else {
            let known: Vec<&str> = snapshot.list::<LinkStatus>().map(|(name, _)| name).collect();
            let advice = format!(
                "correct the link name in the machine configuration; this machine has {}",
                listed(&known)
            );
            return Some(
                Cause::new("route", root, advice)
                    .step(format!("there is no link {link}"), "LinkStatuses: not among them"),
            );
        };
        if is_down(status) {
            let advice = format!("check the cable or switch port of {link}");
            let evidence = format!("LinkStatuses/{link}: operationalState={}", state(status));
            return Some(Cause::new("route", root, advice).step(format!("link {link} is down"), evidence));
        }
    }
    let gateway = spec.gateway.get()?;
    let own: Vec<_> = snapshot
        .list::<AddressStatus>()
        .filter(|(_, status)| link.is_empty() || status.link_name == *link)
        .filter_map(|(_, status)| status.address.get())
        .filter(|net| net.addr().is_ipv4() == gateway.is_ipv4())
        .collect();
    let on_link = own.iter().any(|net| net.contains(&gateway))
        || snapshot.list::<RouteStatus>().any(|(_, status)| {
            status.gateway.is_unset() && status.dst.get().is_some_and(|net| net.contains(&gateway))
        });
    if on_link {
        return None;
    }
    let networks: Vec<String> = own.iter().map(ToString::to_string).collect();
    let place = if link.is_empty() { "this machine".to_owned() } else { link.clone() };
    let advice = format!(
        "correct the gateway {gateway} in the machine configuration, or give {place} an address in its network"
    );
    let evidence = match networks.is_empty() {
        true => format!("AddressStatuses: none on {place}"),
        false => format!("AddressStatuses: {place} has {}", listed(&networks)),
    };
    Some(
        Cause::new("route", root, advice)
            .step(format!("its gateway {gateway} is not in any network of {place}"), evidence),
    )
}

/// The gateway or neighbour does not answer, as far as the kernel has tried.
fn silent(snapshot: &Snapshot, address: IpAddr, link: &str) -> Option<Reason> {
    let neighbour = snapshot.neighbours.iter().find(|neighbour| neighbour.address == address)?;
    (!neighbour.answers).then(|| Reason {
        text: format!("{address} does not answer on its own network"),
        evidence: format!(
            "neighbour table of {}: no hardware address",
            if link.is_empty() { &neighbour.link } else { link }
        ),
    })
}

/// What keeps packets from an address, as far as this machine can tell.
pub(crate) fn unreachable(snapshot: &Snapshot, address: IpAddr) -> Option<Reason> {
    if let Some(reason) = silent(snapshot, address, "") {
        return Some(reason);
    }
    let best = snapshot
        .list::<RouteStatus>()
        .map(|(_, status)| status)
        .filter(|status| match status.dst.get() {
            Some(net) => net.contains(&address),
            None => status.gateway.get().is_some_and(|gateway| gateway.is_ipv4() == address.is_ipv4()),
        })
        .max_by_key(|status| {
            (status.dst.get().map_or(0, |net| net.prefix_len()), std::cmp::Reverse(status.priority))
        });
    match best {
        None => Some(Reason {
            text: format!("there is no route to {address}"),
            evidence: "RouteStatuses: none fits, and there is no default route".to_owned(),
        }),
        Some(route) => {
            let gateway = route.gateway.get()?;
            let reason = silent(snapshot, gateway, &route.out_link_name)?;
            Some(Reason {
                text: format!("the way to {address} leads over {gateway}, which does not answer"),
                evidence: reason.evidence,
            })
        }
    }
}

/// Why names do not resolve; `None` when some resolver answers or none was asked.
pub(crate) fn dns(snapshot: &Snapshot) -> Option<Cause> {
    let upstreams: Vec<&DNSUpstream> = snapshot.list::<DNSUpstream>().map(|(_, upstream)| upstream).collect();
    if upstreams.is_empty() {
        let none =
            snapshot.get::<ResolverStatus>("resolvers").is_none_or(|status| status.dns_servers.is_empty());
        return none.then(|| {
            Cause::new("dns", "no resolvers", "name resolvers in `machine.network.nameservers`")
                .step("there is no resolver to ask", "ResolverStatuses/resolvers: none")
        });
    }
    if upstreams.iter().any(|upstream| upstream.healthy) {
        return None;
    }
    let addresses: Vec<&str> = upstreams
        .iter()
        .map(|upstream| upstream.addr.strip_suffix(":53").unwrap_or(&upstream.addr))
        .collect();
    let advice = format!(
        "correct `machine.network.nameservers`, or make {} answer DNS to this machine (UDP and TCP port 53)",
        listed(&addresses)
    );
    let said = snapshot.controller("network.DNSUpstreamController").and_then(|c| c.complaint());
    let text = match addresses.len() {
        1 => format!("the resolver {} does not answer", addresses[0]),
        _ => format!("none of the resolvers {} answers", listed(&addresses)),
    };
    let evidence = match said {
        Some(said) => format!("DNSUpstreams: healthy=false; {said}"),
        None => "DNSUpstreams: healthy=false".to_owned(),
    };
    let mut cause = Cause::new("dns", "dns", advice).step(text, evidence);
    let reason = addresses.iter().find_map(|address| unreachable(snapshot, address.parse().ok()?));
    if let Some(reason) = reason {
        cause = cause.step(reason.text, reason.evidence);
    }
    Some(cause)
}

/// Why no control plane machine signs for this one.
pub(crate) fn control_plane(snapshot: &Snapshot, complaint: &str, evidence: &str) -> Cause {
    let addresses: Vec<IpAddr> = snapshot
        .list::<Endpoint>()
        .flat_map(|(_, spec)| spec.addresses.iter().filter_map(|ip| ip.get()))
        .collect();
    let named: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let reasons = complaint.split_once("signed the certificate: ").map_or(complaint, |(_, reasons)| reasons);
    let advice = match reasons {
        text if text.contains("UnknownIssuer") || text.contains("certificate") => {
            "this machine and that control plane are of different clusters: compare `machine.ca` of both"
                .to_owned()
        }
        text if text.contains("Unauthenticated") || text.contains("token") => {
            "the control plane refuses this machine's token: compare `machine.token` of both".to_owned()
        }
        _ => format!(
            "correct `cluster.controlPlane.endpoint`, or bring {} up and let TCP port 50001 through",
            listed(&named)
        ),
    };
    let mut cause = Cause::new("endpoint", "control plane", advice)
        .step("no control plane machine signs this machine's certificate", evidence)
        .step(reasons, format!("Endpoints/controlplane: {}", listed(&named)));
    if let Some(reason) = addresses.iter().find_map(|address| unreachable(snapshot, *address)) {
        cause = cause.step(reason.text, reason.evidence);
    }
    cause
}
