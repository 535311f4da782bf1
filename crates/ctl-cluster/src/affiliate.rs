//! This node as others see it, and others as this node hears of them.

use std::collections::BTreeMap;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::cluster::{Affiliate, ControlPlane, DiscoveryConfig, Identity};
use ichor_resource::config::MachineType as MachineTypeSpec;
use ichor_resource::k8s::{APIServerConfig, Nodename};
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::value::Ip;
use ichor_types::MachineType;

use crate::config;

/// Where finds lie before they are merged.
pub const RAW: &str = "cluster-raw";
const CLUSTER: &str = "cluster";
/// The addresses a node is reached at: not those of pods and services.
const ADDRESSES: &str = "routed-no-k8s";

/// Writes `Affiliates/<this node>`.
#[derive(Debug)]
pub struct LocalAffiliateController {
    system: String,
}

impl LocalAffiliateController {
    /// A node of this version.
    pub fn new(version: &str) -> Self {
        // The name is the original's: others may look at it.
        Self { system: format!("Talos ({version})") }
    }
}

impl Controller for LocalAffiliateController {
    const NAME: &'static str = "cluster.LocalAffiliateController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<DiscoveryConfig>().id(config::ID),
            weak::<Identity>().id("local"),
            weak::<HostnameStatus>().id("hostname"),
            weak::<Nodename>().id("nodename"),
            weak::<NodeAddress>().id(ADDRESSES),
            weak::<MachineTypeSpec>().id(MachineTypeSpec::ID),
            weak::<APIServerConfig>().id("kube-apiserver"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Affiliate>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let local = self.local(ctx)?;
        ctx.publish(local.map(|affiliate| (affiliate.node_id.clone(), affiliate)))?;
        Ok(())
    }
}

impl LocalAffiliateController {
    /// This node, once all that belongs to it is known.
    fn local(&self, ctx: &Context) -> Result<Option<Affiliate>, ControllerError> {
        let on = ctx.get::<DiscoveryConfig>(config::ID)?.is_some_and(|config| config.discovery_enabled);
        let (Some(identity), Some(hostname), Some(nodename), Some(addresses), Some(kind)) = (
            ctx.get::<Identity>("local")?,
            ctx.get::<HostnameStatus>("hostname")?,
            ctx.get::<Nodename>("nodename")?,
            ctx.get::<NodeAddress>(ADDRESSES)?,
            ctx.get::<MachineTypeSpec>(MachineTypeSpec::ID)?,
        ) else {
            return Ok(None);
        };
        if !on {
            return Ok(None);
        }
        let server = ctx.get::<APIServerConfig>("kube-apiserver")?;
        let control_plane = matches!(kind.machine_type, MachineType::ControlPlane | MachineType::Init);
        Ok(Some(Affiliate {
            node_id: identity.node_id.clone(),
            addresses: addresses
                .addresses
                .iter()
                .filter_map(|net| net.get())
                .map(|net| Ip::from(net.addr()))
                .collect(),
            hostname: match hostname.domainname.as_str() {
                "" => hostname.hostname.clone(),
                domain => format!("{}.{domain}", hostname.hostname),
            },
            nodename: nodename.nodename.clone(),
            operating_system: self.system.clone(),
            machine_type: kind.machine_type,
            control_plane: server
                .filter(|_| control_plane)
                .map(|server| ControlPlane { port: server.local_port }),
            ..Affiliate::default()
        }))
    }
}

/// Writes `Affiliates/<other nodes>`.
#[derive(Debug, Default)]
pub struct AffiliateMergeController;

impl Controller for AffiliateMergeController {
    const NAME: &'static str = "cluster.AffiliateMergeController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Affiliate>().in_ns(RAW)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Affiliate>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut merged: BTreeMap<String, Affiliate> = BTreeMap::new();
        for raw in ctx.list_in::<Affiliate>(RAW)? {
            merge(merged.entry(raw.node_id.clone()).or_default(), &raw);
        }
        ctx.publish_in(CLUSTER, merged)?;
        Ok(())
    }
}

/// Adds what one source says of a node to what others said: lists grow, later words win.
fn merge(into: &mut Affiliate, from: &Affiliate) {
    fn text(into: &mut String, from: &str) {
        if !from.is_empty() {
            from.clone_into(into);
        }
    }
    fn union<T: Clone + PartialEq>(into: &mut Vec<T>, from: &[T]) {
        for item in from {
            if !into.contains(item) {
                into.push(item.clone());
            }
        }
    }
    text(&mut into.node_id, &from.node_id);
    text(&mut into.hostname, &from.hostname);
    text(&mut into.nodename, &from.nodename);
    text(&mut into.operating_system, &from.operating_system);
    union(&mut into.addresses, &from.addresses);
    if from.machine_type != MachineType::Unknown {
        into.machine_type = from.machine_type;
    }
    if from.control_plane.is_some() {
        into.control_plane.clone_from(&from.control_plane);
    }
    text(&mut into.kubespan.public_key, &from.kubespan.public_key);
    if !from.kubespan.address.is_unset() {
        into.kubespan.address = from.kubespan.address.clone();
    }
    union(&mut into.kubespan.additional_addresses, &from.kubespan.additional_addresses);
    union(&mut into.kubespan.endpoints, &from.kubespan.endpoints);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Ip {
        Ip::from(text.parse::<std::net::IpAddr>().unwrap())
    }

    #[test]
    fn sources_complete_each_other() {
        let mut node = Affiliate { node_id: "n".into(), hostname: "old".into(), ..Default::default() };
        node.addresses = vec![address("10.0.0.1")];
        let more = Affiliate {
            hostname: "new".into(),
            addresses: vec![address("10.0.0.1"), address("10.0.0.2")],
            machine_type: MachineType::Worker,
            ..Default::default()
        };
        merge(&mut node, &more);
        assert_eq!((node.node_id.as_str(), node.hostname.as_str()), ("n", "new"));
        assert_eq!(node.addresses.len(), 2);
        assert_eq!(node.machine_type, MachineType::Worker);
    }
}
