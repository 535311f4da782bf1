//! What this machine knows of itself and a rendering needs.

use std::net::IpAddr;

use ichor_cosi::State;
use ichor_ctl_network::documents::Selected;
use ichor_ctl_network::source::link::is_physical;
use ichor_render::Facts;
use ichor_resource::TypedSpec;
use ichor_resource::cluster::Identity;
use ichor_resource::network::{DeviceConfigSpec, HostnameStatus, LinkStatus, NodeAddress};

use crate::families;
use crate::node::Node;

/// The facts of a node. What it does not know yet stays a stand-in.
pub(crate) fn gather(node: &Node) -> Facts {
    let kubelet = families::kubelet_host(node);
    of_state(
        &node.store.state,
        Facts {
            platform: node.host.platform.name.clone(),
            architecture: crate::version::ARCHITECTURE.to_owned(),
            cmdline: node.host.cmdline.to_string(),
            own_kernel: ichor_sys::power::in_first_pid_namespace(),
            cgroup_root: kubelet.cgroup_root,
            protect_kernel: kubelet.protect_kernel,
            cgroup_v1: kubelet.cgroup_v1,
            shared: kubelet.shared,
            ..Facts::default()
        },
    )
}

/// Adds what resources say.
fn of_state(state: &State, mut facts: Facts) -> Facts {
    if let Some(name) = state.find::<HostnameStatus>("network", "hostname") {
        facts.hostname = name.hostname.clone();
        facts.domain = name.domainname.clone();
    }
    if let Some(addresses) = addresses(state, "routed-no-k8s") {
        facts.routed = addresses;
    }
    if let Some(addresses) = addresses(state, "current-no-k8s") {
        facts.current = addresses;
    }
    facts.default_address = addresses(state, "default").and_then(|found| found.first().copied());
    facts.node_id = state.find::<Identity>("cluster", "local").map(|identity| identity.node_id.clone());
    let links = state.list::<LinkStatus>("network");
    let physical = links.iter().filter(|link| is_physical(link)).map(|link| link.id().to_string());
    facts.links = physical.collect();
    let devices = state.list::<DeviceConfigSpec>(DeviceConfigSpec::definition().default_namespace);
    let selected = Selected::of(devices.iter().map(|device| (device.id().as_str(), device.spec())));
    facts.selected_links = selected.links;
    facts.selected_members = selected.members;
    facts
}

fn addresses(state: &State, id: &str) -> Option<Vec<IpAddr>> {
    let found = state.find::<NodeAddress>("network", id)?;
    Some(found.addresses.iter().filter_map(|prefix| prefix.get()).map(|net| net.addr()).collect())
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::LinkType;

    use super::*;

    #[test]
    fn a_machine_tells_what_it_has_and_stand_ins_for_the_rest() {
        let (state, _clock) = ichor_testkit::state();
        assert_eq!(of_state(&state, Facts::default()).hostname, Facts::default().hostname);
        let name = HostnameStatus { hostname: "cp-1".into(), domainname: "example.org".into() };
        state.create("network", "hostname", name, "").unwrap();
        let routed =
            NodeAddress { addresses: vec!["10.5.0.2/24".parse().unwrap()], ..NodeAddress::default() };
        state.create("network", "routed-no-k8s", routed, "").unwrap();
        for (name, kind) in [("eth0", ""), ("bond0", "bond")] {
            let link = LinkStatus { r#type: LinkType::ETHER, kind: kind.to_owned(), ..LinkStatus::default() };
            state.create("network", name, link, "").unwrap();
        }
        let facts = of_state(&state, Facts::default());
        assert_eq!((facts.hostname.as_str(), facts.domain.as_str()), ("cp-1", "example.org"));
        assert_eq!(facts.routed, ["10.5.0.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(facts.links, ["eth0"], "what is made is made from the configuration");
        assert_eq!(facts.current, Facts::default().current);
    }
}
