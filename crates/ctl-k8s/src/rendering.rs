//! What the machine configuration makes of Kubernetes on a node: the same decisions as the controllers', without a state.
//! Pure.

use std::fmt::Display;
use std::net::IpAddr;

use ichor_config::Documents;
use ichor_resource::k8s::{BootstrapManifestsConfig, KubeletSpec};
use ichor_types::MachineType;
use serde_json::{Map, Value as Json};

use crate::files::{self, File};
use crate::kubelet::{self, Host};
use crate::pods::{self, Versions};
use crate::static_pods::CONTROL_PLANE;
use crate::{names, settings, user_pods};

/// Where the kubelet would fetch its static pods: the port is one of the moment.
const STATIC_PODS: &str = "http://127.0.0.1/static-pods";
/// The versions of resources that a pod is made from: they count what happens on a running machine.
const VERSION: &str = "0";

/// What is known of the machine.
#[derive(Debug, Clone)]
pub struct KubernetesFacts {
    /// Its host name.
    pub hostname: String,
    /// And the domain of that, if it has one.
    pub domain: String,
    /// Its addresses without those of pods and services, in order.
    pub addresses: Vec<IpAddr>,
    /// What it offers the kubelet.
    pub host: Host,
}

/// What would run.
#[derive(Debug, Clone, Default)]
pub struct KubernetesRendering {
    /// The kubelet; none on a machine that has no cluster, or no address the kubelet may use.
    pub kubelet: Option<KubeletSpec>,
    /// Static pods, by name.
    pub pods: Vec<(String, Map<String, Json>)>,
    /// Configuration files of the control plane.
    pub files: Vec<File>,
    /// What a new cluster is given, on control planes.
    pub manifests: Option<BootstrapManifestsConfig>,
    /// Why something would not run.
    pub errors: Vec<String>,
    /// What is left out, and why.
    pub notes: Vec<String>,
}

/// Renders what a configuration makes of Kubernetes.
pub fn render(config: &Documents, facts: &KubernetesFacts) -> KubernetesRendering {
    let mut out = KubernetesRendering::default();
    if config.machine().is_some() && config.cluster().is_some() {
        render_kubelet(config, facts, &mut out);
    }
    if settings::is_control_plane(config) {
        render_control_plane(config, &mut out);
    }
    for pod in config.machine().into_iter().flat_map(|machine| machine.pods.iter()) {
        let found = out.take("", user_pods::pod(pod));
        out.pods.extend(found.map(|(name, pod)| (name, pod.pod.0)));
    }
    out
}

impl KubernetesRendering {
    /// The value, or its error told.
    fn take<T, E: Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        let separator = if what.is_empty() { "" } else { ": " };
        result.map_err(|error| self.errors.push(format!("{what}{separator}{error}"))).ok()
    }
}

fn render_kubelet(config: &Documents, facts: &KubernetesFacts, out: &mut KubernetesRendering) {
    let Some(machine) = config.machine() else { return };
    let name = names::configured_nodename(machine, &facts.hostname, &facts.domain);
    let Some(name) = out.take("node name", name) else { return };
    let chosen = names::node_ips(&names::node_ip_config(config), &facts.addresses);
    // The controller waits for one, and so does the kubelet.
    let addresses = (!chosen.is_empty()).then(|| chosen.iter().map(ToString::to_string).collect());
    let settings = kubelet::kubelet_config(config, STATIC_PODS.to_owned());
    let control_plane = matches!(config.machine_type(), MachineType::ControlPlane | MachineType::Init);
    let spec = kubelet::kubelet_spec(&settings, &name, addresses, control_plane, &facts.host);
    match out.take("", spec) {
        Some(None) => out.notes.push(
            "no address of this machine fits machine.kubelet.nodeIP.validSubnets; the kubelet waits for one"
                .to_owned(),
        ),
        Some(spec) => out.kubelet = spec,
        None => {}
    }
}

fn render_control_plane(config: &Documents, out: &mut KubernetesRendering) {
    let [api_server, controller_manager, scheduler] = CONTROL_PLANE;
    let admission = out.take("cluster.apiServer.admissionControl", settings::admission(config));
    let audit = out.take("cluster.apiServer.auditPolicy", settings::audit_policy(config));
    let authorization = out.take("cluster.apiServer.authorizationConfig", settings::authorization(config));
    let scheduling = out.take("cluster.scheduler", settings::scheduler(config));
    if let (Some(admission), Some(audit), Some(authorization), Some(scheduling)) =
        (&admission, &audit, &authorization, &scheduling)
    {
        out.files = files::render(admission, audit, authorization, scheduling);
    }
    let versions = Versions {
        secrets: VERSION.to_owned(),
        config: VERSION.to_owned(),
        files: files::version(&out.files),
    };
    if let Some(settings) = out.take("cluster.apiServer", settings::api_server(config)) {
        let pod = pods::api_server(&settings, &versions);
        let pod = out.take("cluster.apiServer.extraArgs", pod);
        out.pods.extend(pod.map(|pod| (api_server.to_owned(), pod)));
    }
    let manager = out.take("cluster.controllerManager", settings::controller_manager(config));
    if let Some(settings) = manager.filter(|settings| settings.enabled) {
        let pod = pods::controller_manager(&settings, &versions);
        let pod = out.take("cluster.controllerManager.extraArgs", pod);
        out.pods.extend(pod.map(|pod| (controller_manager.to_owned(), pod)));
    }
    if let Some(settings) = scheduling.filter(|settings| settings.enabled) {
        let pod = out.take("cluster.scheduler.extraArgs", pods::scheduler(&settings, &versions));
        out.pods.extend(pod.map(|pod| (scheduler.to_owned(), pod)));
    }
    out.manifests = out.take("cluster.proxy.extraArgs", settings::bootstrap_manifests(config));
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: &str = "cluster:\n  controlPlane: {endpoint: 'https://10.5.0.1:6443'}\n";

    fn rendered(kind: &str, machine: &str, cluster: &str) -> KubernetesRendering {
        let text = format!("version: v1alpha1\nmachine:\n  type: {kind}\n{machine}{CLUSTER}{cluster}");
        let facts = KubernetesFacts {
            hostname: "Node_1".into(),
            domain: "example.org".into(),
            addresses: vec!["10.5.0.2".parse().unwrap()],
            host: Host { cgroup_root: "/".into(), protect_kernel: true, cgroup_v1: false, shared: false },
        };
        render(&Documents::load(text.as_bytes()).unwrap(), &facts)
    }

    fn names(rendering: &KubernetesRendering) -> Vec<&str> {
        rendering.pods.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn a_control_plane_runs_three_pods_and_a_worker_only_its_own() {
        let found = rendered("controlplane", "", "");
        assert_eq!(names(&found), CONTROL_PLANE);
        assert_eq!((found.files.len(), found.manifests.is_some()), (4, true));
        assert_eq!((found.errors, found.notes), (vec![], vec![]));
        let kubelet = found.kubelet.unwrap();
        assert!(kubelet.args.contains(&"--hostname-override=node-1".to_owned()), "{:?}", kubelet.args);
        assert!(kubelet.args.contains(&"--node-ip=10.5.0.2".to_owned()));

        let found = rendered("worker", "  pods: [{metadata: {name: web, namespace: shop}}]\n", "");
        assert_eq!(names(&found), ["shop-web"]);
        assert!(found.kubelet.is_some() && found.files.is_empty() && found.manifests.is_none());
    }

    #[test]
    fn everything_that_would_not_run_is_named_at_once() {
        let found = rendered(
            "controlplane",
            "  kubelet: {extraArgs: {kubeconfig: /x}}\n  pods: [{kind: Pod}]\n",
            "  apiServer: {extraArgs: {etcd-keyfile: /x}}\n  proxy: {extraArgs: {kubeconfig: /x}}\n",
        );
        assert_eq!(
            found.errors,
            [
                r#"machine.kubelet.extraArgs: extra arg "kubeconfig" is not allowed"#,
                r#"cluster.apiServer.extraArgs: extra arg "etcd-keyfile" is not allowed"#,
                r#"cluster.proxy.extraArgs: extra arg "kubeconfig" is not allowed"#,
                "machine.pods: a pod has no metadata.name",
            ]
        );
        assert_eq!(names(&found), CONTROL_PLANE[1..], "the others are rendered");
    }

    #[test]
    fn a_component_that_is_switched_off_is_not_there() {
        let off = "  controlPlane: {controllerManager: {disabled: true}, scheduler: {disabled: true}}\n";
        assert_eq!(names(&rendered("controlplane", off, "")), ["kube-apiserver"]);
    }

    #[test]
    fn a_kubelet_without_an_address_waits() {
        let elsewhere = "  kubelet: {nodeIP: {validSubnets: [192.0.2.0/24]}}\n";
        let found = rendered("worker", elsewhere, "");
        assert!(found.kubelet.is_none() && found.errors.is_empty());
        assert!(found.notes[0].contains("validSubnets"), "{:?}", found.notes);
    }
}
