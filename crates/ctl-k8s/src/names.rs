//! The node's name and addresses in Kubernetes.

use std::net::IpAddr;

use ichor_config::Documents;
use ichor_config::v1alpha1::machine::MachineConfig;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::subnets::{filter, virtual_addresses};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::k8s::{NodeIP, NodeIPConfig, Nodename};
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::value::Ip;
use ipnet::IpNet;

/// The id of everything about the kubelet.
const KUBELET: &str = "kubelet";

/// No name is left of a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the host name {0:?} has no character a node name may have; set another host name")]
pub struct NoName(String);

/// A host name as Kubernetes takes it: lower case letters, digits, dots and dashes, neither dot nor dash at the ends.
pub fn nodename(hostname: &str) -> Result<String, NoName> {
    let letter = |letter: char| match letter.to_ascii_lowercase() {
        '_' => Some('-'),
        letter
            if letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '.' =>
        {
            Some(letter)
        }
        _ => None,
    };
    let name: String = hostname.chars().filter_map(letter).collect();
    match name.trim_matches(['-', '.']) {
        "" => Err(NoName(hostname.to_owned())),
        name => Ok(name.to_owned()),
    }
}

/// The node name of a machine with this host name, in the form the configuration asks for.
pub(crate) fn configured_nodename(
    machine: &MachineConfig,
    hostname: &str,
    domain: &str,
) -> Result<String, NoName> {
    let full = machine.kubelet.as_ref().and_then(|kubelet| kubelet.register_with_fqdn).unwrap_or(false);
    match (full, domain) {
        (false, _) | (true, "") => nodename(hostname),
        (true, domain) => nodename(&format!("{hostname}.{domain}")),
    }
}

/// Writes `Nodenames/nodename`.
#[derive(Debug, Default)]
pub struct NodenameController;

impl Controller for NodenameController {
    const NAME: &'static str = "k8s.NodenameController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<HostnameStatus>().id("hostname")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<Nodename>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let machine = config.as_deref().and_then(Documents::machine);
        let hostname = ctx.get::<HostnameStatus>("hostname")?;
        let (Some(machine), Some(hostname)) = (machine, hostname) else {
            return Ok(ctx.publish::<Nodename>([] as [(&str, Nodename); 0])?);
        };
        let kubelet = machine.kubelet.as_ref();
        let spec = Nodename {
            nodename: configured_nodename(machine, &hostname.hostname, &hostname.domainname)?,
            hostname_version: hostname.meta().version().to_string(),
            skip_node_registration: kubelet
                .and_then(|kubelet| kubelet.skip_node_registration)
                .unwrap_or(false),
        };
        ctx.publish([("nodename", spec)])?;
        Ok(())
    }
}

/// Writes `NodeIPConfigs/kubelet`: which addresses may become the node's.
#[derive(Debug, Default)]
pub struct NodeIpConfigController;

impl Controller for NodeIpConfigController {
    const NAME: &'static str = "k8s.NodeIPConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeIPConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let config =
            config.as_deref().filter(|config| config.machine().is_some() && config.cluster().is_some());
        ctx.publish(config.map(|config| (KUBELET, node_ip_config(config))))?;
        Ok(())
    }
}

pub(crate) fn node_ip_config(config: &Documents) -> NodeIPConfig {
    let kubelet = config.machine().and_then(|machine| machine.kubelet.as_ref());
    let given =
        kubelet.and_then(|kubelet| kubelet.node_ip.as_ref()).map(|node_ip| node_ip.valid_subnets.to_vec());
    let services = config.service_subnets();
    let all = |net: &IpNet| if net.addr().is_ipv4() { "0.0.0.0/0".to_owned() } else { "::/0".to_owned() };
    let mut excluded: Vec<String> =
        config.pod_subnets().iter().chain(&services).map(IpNet::to_string).collect();
    excluded.extend(config.legacy_devices().iter().flat_map(virtual_addresses));
    NodeIPConfig {
        valid_subnets: given
            .filter(|given| !given.is_empty())
            .unwrap_or_else(|| services.iter().map(all).collect()),
        exclude_subnets: excluded,
    }
}

/// Writes `NodeIPs/kubelet`.
#[derive(Debug, Default)]
pub struct NodeIpController;

impl Controller for NodeIpController {
    const NAME: &'static str = "k8s.NodeIPController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<NodeIPConfig>().id(KUBELET), weak::<NodeAddress>().id("routed-no-k8s")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<NodeIP>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<NodeIPConfig>(KUBELET)?;
        let addresses = ctx.get::<NodeAddress>("routed-no-k8s")?;
        let (Some(config), Some(addresses)) = (config, addresses) else { return Ok(()) };
        let candidates: Vec<IpAddr> =
            addresses.addresses.iter().filter_map(|prefix| prefix.get()).map(|net| net.addr()).collect();
        let chosen = node_ips(&config, &candidates);
        if chosen.is_empty() {
            tracing::warn!(
                "no address of this node fits the subnets of its kubelet: {}",
                config.valid_subnets.join(", ")
            );
            return Ok(());
        }
        ctx.publish([(KUBELET, NodeIP { addresses: chosen.into_iter().map(Ip::from).collect() })])?;
        Ok(())
    }
}

/// The first fitting address of each family, in the order of the subnets.
pub(crate) fn node_ips(config: &NodeIPConfig, candidates: &[IpAddr]) -> Vec<IpAddr> {
    let excluded = config.exclude_subnets.iter().map(|subnet| format!("!{subnet}"));
    let rules: Vec<String> = config.valid_subnets.iter().cloned().chain(excluded).collect();
    let fitting = filter(&rules, candidates);
    let mut chosen: Vec<IpAddr> = Vec::new();
    for address in fitting {
        if !chosen.iter().any(|have| have.is_ipv4() == address.is_ipv4()) {
            chosen.push(address);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned() {
        for (hostname, want) in
            [("Node_1", "node-1"), ("a.b.C", "a.b.c"), ("-x-.", "x"), ("wörk", "wrk"), ("UPPER", "upper")]
        {
            assert_eq!(nodename(hostname).unwrap(), want);
        }
        assert!(nodename("...").unwrap_err().to_string().contains("\"...\""));
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_address_of_each_family_is_chosen_in_the_order_of_the_services() {
        let config = NodeIPConfig {
            valid_subnets: vec!["0.0.0.0/0".into(), "::/0".into()],
            exclude_subnets: vec!["10.244.0.0/16".into(), "10.5.0.100".into()],
        };
        let candidates = addresses(&["fd00::2", "10.244.3.1", "10.5.0.100", "10.5.0.2", "10.6.0.2"]);
        assert_eq!(node_ips(&config, &candidates), addresses(&["10.5.0.2", "fd00::2"]));
        assert!(
            node_ips(&NodeIPConfig { valid_subnets: vec!["192.0.2.0/24".into()], ..config }, &candidates)
                .is_empty()
        );
    }

    #[test]
    fn rules_apply_in_order() {
        let rules = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let candidates = addresses(&["10.0.0.1", "10.0.1.1"]);
        assert_eq!(filter(&rules(&["10.0.0.0/8", "!10.0.1.0/24"]), &candidates), addresses(&["10.0.0.1"]));
        assert_eq!(filter(&rules(&["!10.0.1.0/24", "10.0.0.0/8"]), &candidates), candidates);
        assert_eq!(
            filter(&rules(&["10.0.1.1", "10.0.0.0/8", "nonsense"]), &candidates),
            addresses(&["10.0.1.1", "10.0.0.1"])
        );
    }
}
