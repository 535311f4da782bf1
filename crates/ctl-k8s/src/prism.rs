//! The local balancer in front of the Kubernetes API: where it listens and whom it may ask.

use std::collections::BTreeSet;

use ichor_config::Documents;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::cluster::Member;
use ichor_resource::k8s::{KubePrismConfig, KubePrismEndpoint, KubePrismEndpoints};

use crate::settings::is_control_plane;

const ENDPOINTS: &str = "k8s-cluster";
const CONFIG: &str = "k8s-loadbalancer-config";

/// Writes `KubePrismEndpoints/k8s-cluster`.
#[derive(Debug, Default)]
pub struct EndpointsController;

impl Controller for EndpointsController {
    const NAME: &'static str = "k8s.KubePrismEndpointsController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<Member>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubePrismEndpoints>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let members = ctx.list::<Member>()?;
        let found = members.iter().filter_map(|member| {
            let port = member.control_plane.as_ref().and_then(|plane| u32::try_from(plane.port).ok())?;
            Some(member.addresses.iter().map(move |address| (address.to_string(), port)))
        });
        let found: Vec<(String, u32)> = found.flatten().collect();
        let config = config.as_deref().filter(|config| config.kube_prism_port().is_some());
        ctx.publish(
            config.map(|config| (ENDPOINTS, KubePrismEndpoints { endpoints: endpoints(config, found) })),
        )?;
        Ok(())
    }
}

/// The endpoint of the cluster, this node's own server, and those of members; each once.
fn endpoints(config: &Documents, members: Vec<(String, u32)>) -> Vec<KubePrismEndpoint> {
    let mut all = Vec::new();
    if let Some(url) = config.cluster_endpoint() {
        all.push((url.hostname().to_owned(), url.port().parse().unwrap_or(443)));
    }
    if is_control_plane(config) {
        all.push(("localhost".to_owned(), config.api_server_port().into()));
    }
    all.extend(members);
    let mut seen = BTreeSet::new();
    all.retain(|endpoint| seen.insert(endpoint.clone()));
    all.into_iter().map(|(host, port)| KubePrismEndpoint { host, port }).collect()
}

/// Writes `KubePrismConfigs/k8s-loadbalancer-config`.
#[derive(Debug, Default)]
pub struct ConfigController;

impl Controller for ConfigController {
    const NAME: &'static str = "k8s.KubePrismConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<KubePrismEndpoints>().id(ENDPOINTS)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubePrismConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let port = config.as_deref().and_then(Documents::kube_prism_port);
        let endpoints = ctx.get::<KubePrismEndpoints>(ENDPOINTS)?.map(|found| found.endpoints.clone());
        let wanted = port.zip(endpoints).map(|(port, endpoints)| {
            (CONFIG, KubePrismConfig { host: "127.0.0.1".to_owned(), port: port.into(), endpoints })
        });
        ctx.publish(wanted)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "version: v1alpha1
machine:
  type: controlplane
  features: {kubePrism: {enabled: true}}
cluster:
  controlPlane: {endpoint: 'https://api.example:6443'}
";

    #[test]
    fn every_way_to_the_api_is_listed_once() {
        let config = Documents::load(CONFIG.as_bytes()).unwrap();
        let members = vec![("10.5.0.2".to_owned(), 6443), ("10.5.0.2".to_owned(), 6443)];
        let shown: Vec<String> = endpoints(&config, members)
            .iter()
            .map(|endpoint| format!("{}:{}", endpoint.host, endpoint.port))
            .collect();
        assert_eq!(shown, ["api.example:6443", "localhost:6443", "10.5.0.2:6443"]);
        let worker =
            Documents::load(CONFIG.replace("controlplane", "worker").replace(":6443", "").as_bytes())
                .unwrap();
        assert_eq!(
            endpoints(&worker, Vec::new()),
            [KubePrismEndpoint { host: "api.example".into(), port: 443 }]
        );
    }
}
