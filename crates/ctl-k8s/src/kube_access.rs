//! Access to the node API from pods: whether it is given, and the service through which pods find it.

use std::net::IpAddr;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_kube::{Client, Delete, Error, Kind, Target, Write};
use ichor_resource::k8s::Endpoint;
use ichor_resource::kubeaccess::KubernetesAccessConfig;
use ichor_resource::secrets::KubernetesSecret;
use serde_json::{Value, json};
use tracing::info;

use crate::api::{Pace, Ports, Way};
use crate::settings;

/// The id of the settings.
pub(crate) const CONFIG: &str = "config";
/// Where the service lives, and its name.
const NAMESPACE: &str = "default";
const NAME: &str = "talos";
/// Name and port of the node API.
const PORT_NAME: &str = "apid";
const PORT: u16 = 50000;
/// Who we are to the cluster.
const MANAGER: &str = "talos";
/// Longest wait between two attempts.
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// Writes `KubernetesAccessConfigs/config`.
#[derive(Debug, Default)]
pub struct ConfigController;

impl Controller for ConfigController {
    const NAME: &'static str = "kubeaccess.ConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubernetesAccessConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let config = config.as_deref().filter(|config| settings::is_control_plane(config));
        let wanted = config.map(|config| {
            let access = config.kubernetes_api_access();
            let (roles, namespaces) = access.unwrap_or_default();
            let spec = KubernetesAccessConfig {
                enabled: access.is_some(),
                allowed_api_roles: roles.to_vec(),
                allowed_kubernetes_namespaces: namespaces.to_vec(),
            };
            (CONFIG, spec)
        });
        ctx.publish(wanted)?;
        Ok(())
    }
}

/// Keeps the service `default/talos` and its addresses.
#[derive(Debug)]
pub struct EndpointController {
    ports: Ports,
    pace: Pace,
    /// The kubeconfig and the addresses that are in place.
    done: Option<(String, Vec<IpAddr>)>,
}

impl EndpointController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, pace: Pace::default(), done: None }
    }
}

impl Controller for EndpointController {
    const NAME: &'static str = "kubeaccess.EndpointController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<KubernetesAccessConfig>().id(CONFIG),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<Endpoint>().id("kube-apiserver"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !ctx.get::<KubernetesAccessConfig>(CONFIG)?.is_some_and(|config| config.enabled) {
            self.done = None;
            return Ok(());
        }
        let endpoint = ctx.get::<Endpoint>("kube-apiserver")?;
        let (Some(endpoint), Some(secrets)) = (endpoint, ctx.get::<KubernetesSecret>("k8s-certs")?) else {
            return Ok(());
        };
        let addresses: Vec<IpAddr> = endpoint.addresses.iter().filter_map(|address| address.get()).collect();
        let wanted = (secrets.localhost_admin_kubeconfig.clone(), addresses);
        if wanted.1.is_empty() || self.done.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let client = (self.ports.connect)(Way::Kubeconfig(&wanted.0))?;
        match bring(&client, &wanted.1).await {
            Ok(()) => {
                self.pace.reset();
                self.done = Some(wanted);
            }
            Err(error) => {
                ctx.trouble(error.chain());
                ctx.requeue_after(self.pace.next(AGAIN_MAX));
            }
        }
        Ok(())
    }
}

fn labels() -> Value {
    json!({ "provider": "talos.dev", "component": PORT_NAME })
}

async fn bring(client: &Client, addresses: &[IpAddr]) -> Result<(), Error> {
    // First the service: the slices of no service are cleared away.
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": NAME, "namespace": NAMESPACE, "labels": labels() },
        "spec": { "ports": [{ "name": PORT_NAME, "port": PORT, "protocol": "TCP", "targetPort": PORT }] },
    });
    if client.find(&Target::new(Kind::SERVICES, NAMESPACE, NAME)).await?.is_none() {
        match client.create(&Kind::SERVICES, NAMESPACE, &service, Write::by(MANAGER)).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => {}
        }
    }
    for (family, wanted) in [
        ("IPv4", addresses.iter().filter(|address| address.is_ipv4()).collect::<Vec<_>>()),
        ("IPv6", addresses.iter().filter(|address| address.is_ipv6()).collect()),
    ] {
        slice(client, family, &wanted).await?;
    }
    // What older versions left behind.
    match client.delete(&Target::new(Kind::ENDPOINTS, NAMESPACE, NAME), Delete::default()).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

async fn slice(client: &Client, family: &str, addresses: &[&IpAddr]) -> Result<(), Error> {
    let name = format!("{NAME}-{}", family.to_ascii_lowercase());
    let target = Target::new(Kind::ENDPOINT_SLICES, NAMESPACE, &name);
    let live = client.find(&target).await?;
    if addresses.is_empty() {
        return match live {
            Some(_) => client.delete(&target, Delete::default()).await,
            None => Ok(()),
        };
    }
    let endpoint = |address: &&IpAddr| {
        json!({
            "addresses": [address.to_string()],
            "conditions": { "ready": true, "serving": true, "terminating": false },
        })
    };
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    let ports = json!([{ "name": PORT_NAME, "port": PORT, "protocol": "TCP" }]);
    let Some(mut live) = live else {
        let mut labels = labels();
        labels["kubernetes.io/service-name"] = NAME.into();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
            "addressType": family,
            "endpoints": endpoints,
            "ports": ports,
        });
        client.create(&Kind::ENDPOINT_SLICES, NAMESPACE, &slice, Write::by(MANAGER)).await?;
        info!(family, "addresses of the node API are in Kubernetes");
        return Ok(());
    };
    if live["endpoints"] == Value::from(endpoints.clone()) && live["ports"] == ports {
        return Ok(());
    }
    live["endpoints"] = endpoints.into();
    live["ports"] = ports;
    client.replace(&target, &live, Write::by(MANAGER)).await?;
    info!(family, "addresses of the node API are in Kubernetes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;
    use ichor_testkit::kube::Server;

    use super::*;

    #[tokio::test]
    async fn the_settings_come_from_the_configuration_of_a_control_plane() {
        let config = "version: v1alpha1
machine:
  type: controlplane
  features:
    kubernetesTalosAPIAccess: {enabled: true, allowedRoles: ['os:reader'], allowedKubernetesNamespaces: [kube-system]}
cluster: {clusterName: a}
";
        let (state, _clock) = ichor_testkit::state();
        state.create("config", MachineConfig::ACTIVE, MachineConfig::new(config), "").unwrap();
        let mut harness = Harness::new(&state, ConfigController).unwrap();
        harness.reconcile().await.unwrap();
        let found = state.get::<KubernetesAccessConfig>("config", CONFIG).unwrap();
        assert!(found.enabled);
        assert_eq!(found.allowed_api_roles, ["os:reader"]);
        assert_eq!(found.allowed_kubernetes_namespaces, ["kube-system"]);
    }

    #[tokio::test]
    async fn the_service_follows_the_addresses() {
        const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/talos-ipv";
        let server = Server::new();
        let (ports, _root) = crate::api::fake(&server);
        let (state, _clock) = ichor_testkit::state();
        let config = KubernetesAccessConfig { enabled: true, ..KubernetesAccessConfig::default() };
        state.create("config", CONFIG, config, "").unwrap();
        state.create("secrets", "k8s-certs", KubernetesSecret::default(), "").unwrap();
        let set = |addresses: &[&str]| {
            let addresses: Vec<_> =
                addresses.iter().map(|address| address.parse::<IpAddr>().unwrap().into()).collect();
            let _ = state.destroy::<Endpoint>("controlplane", "kube-apiserver", "");
            state.create("controlplane", "kube-apiserver", Endpoint { addresses }, "").unwrap();
        };
        set(&["10.0.0.2", "fd00::2"]);
        let mut harness = Harness::new(&state, EndpointController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        assert!(server.object("/api/v1/namespaces/default/services/talos").is_some());
        assert!(server.object(&format!("{SLICE}6")).is_some());
        set(&["10.0.0.3"]);
        harness.reconcile().await.unwrap();
        assert!(server.object(&format!("{SLICE}6")).is_none());
        let four = server.object(&format!("{SLICE}4")).unwrap();
        assert_eq!(four["endpoints"][0]["addresses"][0], "10.0.0.3");
        assert_eq!(four["metadata"]["labels"]["kubernetes.io/service-name"], "talos");
        server.writes();
        harness.reconcile().await.unwrap();
        assert_eq!(server.writes(), [""; 0]);
    }
}
