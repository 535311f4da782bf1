//! What etcd is to run with: from the machine configuration and the addresses of the machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ichor_config::Documents;
use ichor_config::document::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::subnets::{filter, virtual_addresses};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::etcd::{EtcdConfig, EtcdSpec};
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::value::Ip;
use ichor_types::MachineType;

use crate::ETCD;

/// The image that goes with this system.
pub const IMAGE: &str = "registry.k8s.io/etcd:v3.6.7";

const CURRENT: &str = "current-no-k8s";
const ROUTED: &str = "routed-no-k8s";

/// Writes `EtcdConfigs/etcd`.
#[derive(Debug, Default)]
pub struct ConfigController;

impl Controller for ConfigController {
    const NAME: &'static str = "etcd.ConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EtcdConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let config = config.as_deref().filter(|config| is_control_plane(config));
        ctx.publish(config.map(|config| (ETCD, etcd_config(config))))?;
        Ok(())
    }
}

fn is_control_plane(config: &Documents) -> bool {
    config.cluster().is_some()
        && matches!(config.machine_type(), MachineType::ControlPlane | MachineType::Init)
}

/// What the configuration says about etcd.
pub fn etcd_config(config: &Documents) -> EtcdConfig {
    let etcd = config.cluster().and_then(|cluster| cluster.etcd.as_ref());
    let advertised = etcd.map(|etcd| match (etcd.advertised_subnets.is_empty(), etcd.subnet.as_str()) {
        (false, _) | (true, "") => etcd.advertised_subnets.to_vec(),
        (true, legacy) => vec![legacy.to_owned()],
    });
    let advertised = advertised.unwrap_or_default();
    let listen = etcd.map(|etcd| etcd.listen_subnets.to_vec()).filter(|listen| !listen.is_empty());
    let mut excluded: Vec<String> = config.legacy_devices().iter().flat_map(virtual_addresses).collect();
    excluded.extend(config.iter().filter_map(|document| match document {
        Document::Layer2VIPConfig(vip) => Some(vip.name.clone()),
        Document::HCloudVIPConfig(vip) => Some(vip.name.clone()),
        _ => None,
    }));
    EtcdConfig {
        listen_valid_subnets: listen.unwrap_or_else(|| advertised.clone()),
        advertise_valid_subnets: advertised,
        advertise_exclude_subnets: excluded,
        listen_exclude_subnets: Vec::new(),
        image: etcd.map(|etcd| etcd.image.clone()).filter(|image| !image.is_empty()).unwrap_or(IMAGE.into()),
        extra_args: etcd
            .and_then(|etcd| etcd.extra_args.0.as_ref())
            .map(|args| args.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
            .unwrap_or_default(),
    }
}

/// Writes `EtcdSpecs/etcd`.
#[derive(Debug, Default)]
pub struct SpecController;

impl Controller for SpecController {
    const NAME: &'static str = "etcd.SpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<EtcdConfig>().id(ETCD),
            weak::<HostnameStatus>().id("hostname"),
            weak::<NodeAddress>().id(ROUTED),
            weak::<NodeAddress>().id(CURRENT),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<EtcdSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<EtcdConfig>(ETCD)?;
        let hostname = ctx.get::<HostnameStatus>("hostname")?;
        let (routed, current) = (ctx.get::<NodeAddress>(ROUTED)?, ctx.get::<NodeAddress>(CURRENT)?);
        let (Some(config), Some(hostname), Some(routed), Some(current)) = (config, hostname, routed, current)
        else {
            return Ok(());
        };
        // A machine between two addresses keeps what it had.
        if let Some(spec) = etcd_spec(&config, &hostname.hostname, &addresses(&routed), &addresses(&current))
        {
            ctx.publish([(ETCD, spec)])?;
        }
        Ok(())
    }
}

fn addresses(found: &NodeAddress) -> Vec<IpAddr> {
    found.addresses.iter().filter_map(|prefix| prefix.get()).map(|net| net.addr()).collect()
}

/// Chooses addresses; nothing while there are none that fit.
pub fn etcd_spec(config: &EtcdConfig, name: &str, routed: &[IpAddr], current: &[IpAddr]) -> Option<EtcdSpec> {
    let rules = |valid: &[String], excluded: &[String]| {
        let excluded = excluded.iter().map(|subnet| format!("!{subnet}"));
        valid.iter().cloned().chain(excluded).collect::<Vec<_>>()
    };
    let advertised = if config.advertise_valid_subnets.is_empty() {
        let all = ["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        let mut fitting = filter(&rules(&all, &config.advertise_exclude_subnets), routed);
        fitting.truncate(1);
        fitting
    } else {
        filter(&rules(&config.advertise_valid_subnets, &config.advertise_exclude_subnets), current)
    };
    let any_v6 = routed.iter().any(IpAddr::is_ipv6);
    let (unspecified, loopback) = match any_v6 {
        true => (IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::LOCALHOST)),
        false => (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::LOCALHOST)),
    };
    let (peer, client) = if config.listen_valid_subnets.is_empty() {
        (vec![unspecified], vec![unspecified])
    } else {
        let peer = filter(&rules(&config.listen_valid_subnets, &config.listen_exclude_subnets), routed);
        let client = [loopback].into_iter().chain(peer.iter().copied()).collect();
        (peer, client)
    };
    if advertised.is_empty() || peer.is_empty() {
        return None;
    }
    let ips = |found: Vec<IpAddr>| found.into_iter().map(Ip::from).collect();
    Some(EtcdSpec {
        name: name.to_owned(),
        advertised_addresses: ips(advertised),
        listen_peer_addresses: ips(peer),
        listen_client_addresses: ips(client),
        image: config.image.clone(),
        extra_args: config.extra_args.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn found(ips: &[Ip]) -> Vec<String> {
        ips.iter().map(ToString::to_string).collect()
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn without_subnets_the_first_routed_address_that_is_not_shared_is_advertised() {
        let config =
            EtcdConfig { advertise_exclude_subnets: strings(&["10.5.0.100"]), ..EtcdConfig::default() };
        let routed = ips(&["10.5.0.100", "10.5.0.2", "10.6.0.2"]);
        let spec = etcd_spec(&config, "a", &routed, &[]).unwrap();
        assert_eq!(found(&spec.advertised_addresses), ["10.5.0.2"]);
        assert_eq!(found(&spec.listen_peer_addresses), ["0.0.0.0"]);
        assert_eq!(found(&spec.listen_client_addresses), ["0.0.0.0"]);
        let spec = etcd_spec(&config, "a", &ips(&["fd00::2"]), &[]).unwrap();
        assert_eq!(found(&spec.listen_client_addresses), ["::"]);
    }

    #[test]
    fn with_subnets_all_addresses_in_them_are_advertised_and_listened_on() {
        let config = EtcdConfig {
            advertise_valid_subnets: strings(&["10.0.0.0/8", "!10.9.0.0/16"]),
            listen_valid_subnets: strings(&["10.5.0.0/16"]),
            ..EtcdConfig::default()
        };
        let (routed, current) = (ips(&["10.5.0.2", "192.0.2.1"]), ips(&["10.5.0.2", "10.9.0.1", "10.7.0.1"]));
        let spec = etcd_spec(&config, "a", &routed, &current).unwrap();
        assert_eq!(found(&spec.advertised_addresses), ["10.5.0.2", "10.7.0.1"]);
        assert_eq!(found(&spec.listen_peer_addresses), ["10.5.0.2"]);
        assert_eq!(found(&spec.listen_client_addresses), ["127.0.0.1", "10.5.0.2"]);
    }

    #[test]
    fn nothing_is_said_while_no_address_fits() {
        let config =
            EtcdConfig { advertise_valid_subnets: strings(&["192.0.2.0/24"]), ..EtcdConfig::default() };
        assert_eq!(etcd_spec(&config, "a", &ips(&["10.5.0.2"]), &ips(&["10.5.0.2"])), None);
        assert_eq!(etcd_spec(&EtcdConfig::default(), "a", &[], &[]), None);
    }

    #[test]
    fn the_configuration_is_read_with_its_legacy_forms() {
        let text = "version: v1alpha1
machine:
  type: controlplane
  network: {interfaces: [{interface: eth0, vip: {ip: 10.5.0.100}, vlans: [{vlanId: 4, vip: {ip: 10.5.0.101}}]}]}
cluster:
  controlPlane: {endpoint: 'https://10.5.0.1:6443'}
  etcd: {subnet: 10.5.0.0/24, extraArgs: {election-timeout: '5000'}}
---
apiVersion: v1alpha1
kind: Layer2VIPConfig
name: 10.5.0.102
link: eth0
";
        let config = etcd_config(&Documents::load(text.as_bytes()).unwrap());
        assert_eq!(config.image, IMAGE);
        assert_eq!(config.advertise_valid_subnets, ["10.5.0.0/24"]);
        assert_eq!(config.listen_valid_subnets, ["10.5.0.0/24"]);
        assert_eq!(config.advertise_exclude_subnets, ["10.5.0.100", "10.5.0.101", "10.5.0.102"]);
        assert_eq!(config.extra_args["election-timeout"], "5000");
    }
}
