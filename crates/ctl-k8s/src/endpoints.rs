//! The addresses of the Kubernetes API, as Kubernetes itself knows them.

use std::net::IpAddr;
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, shared, weak};
use ichor_kube::Kind;
use ichor_resource::config::MachineType;
use ichor_resource::k8s::Endpoint;
use ichor_resource::secrets::KubernetesSecret;
use ichor_resource::v1alpha1::Service;
use serde_json::Value;

use crate::api::{Pace, Ports, Wanted, Watcher, Way};

/// The id of the addresses, and whose addresses they are.
const API_SERVER: &str = "kube-apiserver";
/// Longest wait between two looks for the kubelet's kubeconfig while the kubelet runs.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Writes `Endpoints/kube-apiserver`.
#[derive(Debug)]
pub struct EndpointController {
    ports: Ports,
    wake: Option<Wake>,
    watcher: Option<Watcher>,
    pace: Pace,
}

impl EndpointController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self { ports, wake: None, watcher: None, pace: Pace::default() }
    }

    /// The way to the API that does not need the API server of this machine.
    fn kubeconfig(&mut self, ctx: &Context) -> Result<Option<String>, ControllerError> {
        let Some(machine) = ctx.get::<MachineType>(MachineType::ID)? else { return Ok(None) };
        if machine.machine_type.is_control_plane() {
            let secrets = ctx.get::<KubernetesSecret>("k8s-certs")?;
            return Ok(secrets.map(|secrets| secrets.admin_kubeconfig.clone()));
        }
        let found = self.ports.kubelet_kubeconfig();
        match &found {
            Some(_) => self.pace.reset(),
            None if ctx.get::<Service>("kubelet")?.is_some_and(|kubelet| kubelet.running) => {
                ctx.requeue_after(self.pace.next(LOOK_MAX));
            }
            None => {}
        }
        Ok(found)
    }
}

impl Controller for EndpointController {
    const NAME: &'static str = "k8s.EndpointController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<MachineType>().id(MachineType::ID),
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<Service>().id("kubelet"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Endpoint>()]
    }

    fn start(&mut self, wake: Wake) {
        self.wake = Some(wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(kubeconfig) = self.kubeconfig(ctx)? else { return Ok(()) };
        if self.watcher.as_ref().is_none_or(|watcher| watcher.key != kubeconfig) {
            let Some(wake) = &self.wake else { return Ok(()) };
            let wanted = Wanted {
                kind: Kind::ENDPOINT_SLICES,
                namespace: "default",
                fields: "metadata.name=kubernetes".to_owned(),
            };
            let connect = self.ports.connect.clone();
            let key = kubeconfig.clone();
            let client = move || connect(Way::Kubeconfig(&kubeconfig));
            self.watcher = Some(Watcher::start(key, client, wanted, wake.clone()));
            return Ok(());
        }
        let Some(watcher) = &self.watcher else { return Ok(()) };
        let found = {
            let seen = watcher.seen();
            if let Some(error) = &seen.error {
                ctx.trouble(error.clone());
            }
            seen.objects.as_ref().map(|objects| addresses(objects.values()))
        };
        // What is known stays while nobody says otherwise.
        if let Some(found) = found.filter(|found| !found.is_empty()) {
            let found: Vec<_> = found.into_iter().map(Into::into).collect();
            ctx.modify::<Endpoint>(API_SERVER, |spec| spec.addresses.clone_from(&found))?;
        }
        Ok(())
    }
}

/// All addresses of slices, each once, in order.
fn addresses<'a>(slices: impl Iterator<Item = &'a Value>) -> Vec<IpAddr> {
    let list = |value: &'a Value| value.as_array().into_iter().flatten();
    let mut found: Vec<IpAddr> = slices
        .flat_map(|slice| list(&slice["endpoints"]))
        .flat_map(|endpoint| list(&endpoint["addresses"]))
        .filter_map(|address| address.as_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use ichor_testkit::Harness;
    use ichor_testkit::kube::Server;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn addresses_follow_the_slices() {
        const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
        let server = Server::new();
        let (ports, _root) = crate::api::fake(&server);
        let (state, _clock) = ichor_testkit::state();
        let worker = MachineType { machine_type: ichor_types::MachineType::Worker };
        state.create("config", MachineType::ID, worker, "").unwrap();
        let slice = |addresses: &[&str]| {
            let endpoints: Vec<_> =
                addresses.iter().map(|address| json!({ "addresses": [address] })).collect();
            json!({ "metadata": { "name": "kubernetes", "namespace": "default" }, "endpoints": endpoints })
        };
        server.put(SLICE, slice(&["10.0.0.3", "10.0.0.2"]));
        let mut harness = Harness::new(&state, EndpointController::new(ports)).unwrap();
        harness.reconcile().await.unwrap();
        crate::api::woken(harness.context()).await;
        harness.reconcile().await.unwrap();
        let shown = || {
            let found = state.get::<Endpoint>("controlplane", API_SERVER).unwrap();
            found.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(shown(), ["10.0.0.2", "10.0.0.3"]);
        server.put(SLICE, slice(&[]));
        crate::api::woken(harness.context()).await;
        harness.reconcile().await.unwrap();
        assert_eq!(shown(), ["10.0.0.2", "10.0.0.3"]);
        server.put(SLICE, slice(&["10.0.0.4"]));
        crate::api::woken(harness.context()).await;
        harness.reconcile().await.unwrap();
        assert_eq!(shown(), ["10.0.0.4"]);
    }
}
