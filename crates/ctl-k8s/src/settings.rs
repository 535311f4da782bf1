//! What the configuration says about the control plane, as resources: one small controller for each component.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ichor_config::Documents;
use ichor_config::model::Free;
use ichor_config::v1alpha1::control_plane as config;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::k8s::{
    APIServerConfig, AdmissionControlConfig, AdmissionPluginSpec, AuditPolicyConfig,
    AuthorizationAuthorizersSpec, AuthorizationConfig, BootstrapManifestsConfig, ControllerManagerConfig,
    ExtraManifest, ExtraManifestsConfig, ExtraVolume, Resources, SchedulerConfig,
};
use ichor_resource::value::Object;
use ichor_types::MachineType;
use serde_json::{Map, Value as Json, json};

use crate::args::{self, Args, Rules};
use crate::images;

/// A controller that turns the configuration of a control plane into one resource.
macro_rules! derived {
    ($($(#[$doc:meta])* $name:ident($title:literal): $spec:ident[$id:literal] = $make:path;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Default)]
            pub struct $name;

            impl Controller for $name {
                const NAME: &'static str = $title;

                fn inputs(&self) -> Vec<Input> {
                    vec![active_input()]
                }

                fn outputs(&self) -> Vec<Output> {
                    vec![exclusive::<$spec>()]
                }

                async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
                    let config = Configuration::active(ctx)?;
                    let spec = config.as_deref().filter(|config| is_control_plane(config)).map($make).transpose()?;
                    ctx.publish(spec.map(|spec| ($id, spec)))?;
                    Ok(())
                }
            }
        )+
    };
}

derived! {
    /// Writes `APIServerConfigs/kube-apiserver`.
    ApiServerController("k8s.ControlPlaneAPIServerController"): APIServerConfig["kube-apiserver"] = api_server;
    /// Writes `AdmissionControlConfigs/admission-control`.
    AdmissionController("k8s.ControlPlaneAdmissionControlController"):
        AdmissionControlConfig["admission-control"] = admission;
    /// Writes `AuditPolicyConfigs/audit-policy`.
    AuditPolicyController("k8s.ControlPlaneAuditPolicyController"): AuditPolicyConfig["audit-policy"] = audit_policy;
    /// Writes `AuthorizationConfigs/authorization`.
    AuthorizationController("k8s.ControlPlaneAuthorizationPolicyController"):
        AuthorizationConfig["authorization"] = authorization;
    /// Writes `ControllerManagerConfigs/kube-controller-manager`.
    ControllerManagerController("k8s.ControlPlaneControllerManagerController"):
        ControllerManagerConfig["kube-controller-manager"] = controller_manager;
    /// Writes `SchedulerConfigs/kube-scheduler`.
    SchedulerController("k8s.ControlPlaneSchedulerController"): SchedulerConfig["kube-scheduler"] = scheduler;
    /// Writes `BootstrapManifestsConfigs/manifests`.
    BootstrapManifestsController("k8s.ControlPlaneBootstrapManifestsController"):
        BootstrapManifestsConfig["manifests"] = bootstrap_manifests;
    /// Writes `ExtraManifestsConfigs/extra-manifests`.
    ExtraManifestsController("k8s.ControlPlaneExtraManifestsController"):
        ExtraManifestsConfig["extra-manifests"] = extra_manifests;
}

/// Whether a configuration is that of a control plane, whole enough to say something about it.
pub fn is_control_plane(config: &Documents) -> bool {
    config.cluster().is_some()
        && matches!(config.machine_type(), MachineType::ControlPlane | MachineType::Init)
}

/// `external` when another program speaks with the cloud.
fn cloud_provider(config: &Documents) -> String {
    if external_cloud_provider(config) { "external".to_owned() } else { String::new() }
}

/// Whether another program speaks with the cloud.
pub(crate) fn external_cloud_provider(config: &Documents) -> bool {
    let provider = config.cluster().and_then(|cluster| cluster.external_cloud_provider.as_ref());
    provider.and_then(|provider| provider.enabled).unwrap_or(false)
}

fn texts<T: ToString>(items: Vec<T>) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

fn endpoint(config: &Documents) -> String {
    config.cluster_endpoint().map(|url| url.to_string()).unwrap_or_default()
}

pub(crate) fn api_server(config: &Documents) -> Result<APIServerConfig, ControllerError> {
    let server = config.cluster().and_then(|cluster| cluster.api_server.as_ref());
    let kubelet = config.machine().and_then(|machine| machine.kubelet.as_ref());
    let alone = kubelet.and_then(|kubelet| kubelet.skip_node_registration).unwrap_or(false);
    Ok(APIServerConfig {
        image: images::or(server.map(|server| &server.image), images::kubernetes("kube-apiserver")),
        cloud_provider: cloud_provider(config),
        control_plane_endpoint: endpoint(config),
        etcd_servers: vec!["https://localhost:2379".to_owned()],
        local_port: config.api_server_port().into(),
        service_cidr: texts(config.service_subnets()),
        extra_args: server.map(|server| map(&server.extra_args)).unwrap_or_default(),
        extra_volumes: server.map(|server| volumes(&server.extra_volumes)).unwrap_or_default(),
        environment_variables: server.map(|server| map(&server.env)).unwrap_or_default(),
        advertised_address: if alone { String::new() } else { "$(POD_IP)".to_owned() },
        resources: resources(server.and_then(|server| server.resources.as_ref()), "200m", "512Mi"),
    })
}

pub(crate) fn admission(config: &Documents) -> Result<AdmissionControlConfig, ControllerError> {
    let server = config.cluster().and_then(|cluster| cluster.api_server.as_ref());
    let plugins = server.into_iter().flat_map(|server| server.admission_control.iter());
    let plugin = |plugin: &config::AdmissionPlugin| AdmissionPluginSpec {
        name: plugin.name.clone(),
        configuration: object(&plugin.configuration),
    };
    Ok(AdmissionControlConfig { config: plugins.map(plugin).collect() })
}

pub(crate) fn audit_policy(config: &Documents) -> Result<AuditPolicyConfig, ControllerError> {
    let server = config.cluster().and_then(|cluster| cluster.api_server.as_ref());
    let given = server.map(|server| object(&server.audit_policy)).filter(|policy| !policy.0.is_empty());
    let default = || {
        let Json::Object(map) =
            json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{ "level": "Metadata" }] })
        else {
            return Object::default();
        };
        Object(map)
    };
    Ok(AuditPolicyConfig { config: given.unwrap_or_else(default) })
}

pub(crate) fn authorization(config: &Documents) -> Result<AuthorizationConfig, ControllerError> {
    let server = config.cluster().and_then(|cluster| cluster.api_server.as_ref());
    let image = images::or(server.map(|server| &server.image), images::kubernetes("kube-apiserver"));
    if images::version(&image) < (1, 29) {
        return Ok(AuthorizationConfig { image, config: Vec::new() });
    }
    let given = server.into_iter().flat_map(|server| server.authorization_config.iter());
    let mut authorizers: Vec<AuthorizationAuthorizersSpec> = given
        .map(|authorizer| AuthorizationAuthorizersSpec {
            r#type: authorizer.authorizer_type.clone(),
            name: authorizer.name.clone(),
            webhook: object(&authorizer.webhook),
        })
        .collect();
    // Nodes and roles are always there, in this order and before the rest when they were left out.
    for (place, (kind, name)) in [("Node", "node"), ("RBAC", "rbac")].into_iter().enumerate() {
        if !authorizers.iter().any(|authorizer| authorizer.r#type == kind) {
            let builtin = AuthorizationAuthorizersSpec {
                r#type: kind.to_owned(),
                name: name.to_owned(),
                webhook: Object::default(),
            };
            authorizers.insert(place.min(authorizers.len()), builtin);
        }
    }
    Ok(AuthorizationConfig { image, config: authorizers })
}

pub(crate) fn controller_manager(config: &Documents) -> Result<ControllerManagerConfig, ControllerError> {
    let manager = config.cluster().and_then(|cluster| cluster.controller_manager.as_ref());
    let switches = config.machine().and_then(|machine| machine.control_plane.as_ref());
    let off = switches.and_then(|switches| switches.controller_manager.as_ref()?.disabled).unwrap_or(false);
    Ok(ControllerManagerConfig {
        enabled: !off,
        image: images::or(
            manager.map(|manager| &manager.image),
            images::kubernetes("kube-controller-manager"),
        ),
        cloud_provider: cloud_provider(config),
        pod_cidrs: texts(config.pod_subnets()),
        service_cidrs: texts(config.service_subnets()),
        extra_args: manager.map(|manager| map(&manager.extra_args)).unwrap_or_default(),
        extra_volumes: manager.map(|manager| volumes(&manager.extra_volumes)).unwrap_or_default(),
        environment_variables: manager.map(|manager| map(&manager.env)).unwrap_or_default(),
        resources: resources(manager.and_then(|manager| manager.resources.as_ref()), "50m", "256Mi"),
    })
}

pub(crate) fn scheduler(config: &Documents) -> Result<SchedulerConfig, ControllerError> {
    let scheduler = config.cluster().and_then(|cluster| cluster.scheduler.as_ref());
    let switches = config.machine().and_then(|machine| machine.control_plane.as_ref());
    let off = switches.and_then(|switches| switches.scheduler.as_ref()?.disabled).unwrap_or(false);
    Ok(SchedulerConfig {
        enabled: !off,
        image: images::or(scheduler.map(|scheduler| &scheduler.image), images::kubernetes("kube-scheduler")),
        extra_args: scheduler.map(|scheduler| map(&scheduler.extra_args)).unwrap_or_default(),
        extra_volumes: scheduler.map(|scheduler| volumes(&scheduler.extra_volumes)).unwrap_or_default(),
        environment_variables: scheduler.map(|scheduler| map(&scheduler.env)).unwrap_or_default(),
        resources: resources(scheduler.and_then(|scheduler| scheduler.resources.as_ref()), "10m", "64Mi"),
        config: scheduler.map(|scheduler| object(&scheduler.config)).unwrap_or_default(),
    })
}

pub(crate) fn bootstrap_manifests(config: &Documents) -> Result<BootstrapManifestsConfig, ControllerError> {
    let cluster = config.cluster();
    let proxy = cluster.and_then(|cluster| cluster.proxy.as_ref());
    let dns = cluster.and_then(|cluster| cluster.core_dns.as_ref());
    let cni = cluster.and_then(|cluster| cluster.network.as_ref()?.cni.as_ref());
    let prism = config.kube_prism_port();
    let addresses = dns_addresses(config);
    let first = |v6: bool| {
        let address = addresses.iter().find(|address| address.is_ipv6() == v6);
        address.map(IpAddr::to_string).unwrap_or_default()
    };
    let name = cni.map(|cni| cni.name.as_str()).filter(|name| !name.is_empty()).unwrap_or("flannel");
    Ok(BootstrapManifestsConfig {
        server: prism.map_or_else(|| endpoint(config), |port| format!("https://127.0.0.1:{port}")),
        cluster_domain: config.dns_domain().to_owned(),
        pod_cidrs: texts(config.pod_subnets()),
        proxy_enabled: !proxy.and_then(|proxy| proxy.disabled).unwrap_or(false),
        proxy_image: images::or(proxy.map(|proxy| &proxy.image), images::kubernetes("kube-proxy")),
        proxy_args: proxy_args(config)?,
        core_dns_enabled: !dns.and_then(|dns| dns.disabled).unwrap_or(false),
        core_dns_image: images::or(dns.map(|dns| &dns.image), images::COREDNS),
        dns_service_ip: first(false),
        dns_service_ipv6: first(true),
        flannel_enabled: name == "flannel",
        flannel_image: images::FLANNEL.to_owned(),
        flannel_extra_args: cni
            .and_then(|cni| cni.flannel.as_ref())
            .map(|f| f.extra_args.to_vec())
            .unwrap_or_default(),
        flannel_kube_service_host: prism.map(|_| "127.0.0.1".to_owned()).unwrap_or_default(),
        flannel_kube_service_port: prism.map(|port| port.to_string()).unwrap_or_default(),
        pod_security_policy_enabled: false,
        talos_api_service_enabled: config.kubernetes_api_access().is_some(),
    })
}

/// The addresses of the cluster's DNS: the tenth of each service network.
pub(crate) fn dns_addresses(config: &Documents) -> Vec<IpAddr> {
    config.service_subnets().iter().filter_map(|subnet| nth_address(subnet.network(), 10)).collect()
}

/// The address this far from the first of a network.
fn nth_address(network: IpAddr, number: u32) -> Option<IpAddr> {
    Some(match network {
        IpAddr::V4(address) => IpAddr::V4(u32::from(address).checked_add(number)?.into()),
        IpAddr::V6(address) => IpAddr::V6(u128::from(address).checked_add(number.into())?.into()),
    })
}

fn proxy_args(config: &Documents) -> Result<Vec<String>, ControllerError> {
    let proxy = config.cluster().and_then(|cluster| cluster.proxy.as_ref());
    let image = images::or(proxy.map(|proxy| &proxy.image), images::kubernetes("kube-proxy"));
    let mode = proxy.map(|proxy| proxy.mode.as_str()).filter(|mode| !mode.is_empty());
    let default = if images::version(&image) >= (1, 31) { "nftables" } else { "iptables" };
    let ours = args::args([
        ("cluster-cidr", texts(config.pod_subnets()).join(",").as_str()),
        ("conntrack-max-per-core", "0"),
        ("hostname-override", "$(NODE_NAME)"),
        ("kubeconfig", "/etc/kubernetes/kubeconfig"),
        ("proxy-mode", mode.unwrap_or(default)),
    ]);
    let users = proxy.map(|proxy| map(&proxy.extra_args)).unwrap_or_default();
    let merged = args::merge(ours, &users, Rules { additive: &[], denied: &["kubeconfig"] })?;
    Ok(args::command(&merged))
}

fn extra_manifests(config: &Documents) -> Result<ExtraManifestsConfig, ControllerError> {
    let Some(cluster) = config.cluster() else { return Ok(ExtraManifestsConfig::default()) };
    let fetched = |url: &String, priority: &str| ExtraManifest {
        name: url.clone(),
        url: url.clone(),
        priority: priority.to_owned(),
        ..ExtraManifest::default()
    };
    let cni = cluster.network.as_ref().and_then(|network| network.cni.as_ref());
    let custom = cni.filter(|cni| cni.name == "custom").into_iter().flat_map(|cni| cni.urls.iter());
    let cloud = cluster.external_cloud_provider.iter().filter(|provider| provider.enabled == Some(true));
    let cloud = cloud.flat_map(|provider| provider.manifests.iter());
    let mut manifests: Vec<ExtraManifest> = custom.map(|url| fetched(url, "05")).collect();
    manifests.extend(cloud.map(|url| fetched(url, "30")));
    let headers = map(&cluster.extra_manifest_headers);
    manifests.extend(
        cluster
            .extra_manifests
            .iter()
            .map(|url| ExtraManifest { extra_headers: headers.clone(), ..fetched(url, "99") }),
    );
    manifests.extend(cluster.inline_manifests.iter().map(|manifest| ExtraManifest {
        name: manifest.name.clone(),
        priority: "99".to_owned(),
        inline_manifest: manifest.contents.0.clone(),
        ..ExtraManifest::default()
    }));
    Ok(ExtraManifestsConfig { extra_manifests: manifests })
}

/// A map of the configuration as resources have it.
pub fn map(given: &ichor_config::model::Map<String>) -> Args {
    given.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Free-form content as an object.
pub(crate) fn object(free: &Free) -> Object {
    match free.to_json() {
        Json::Object(map) => Object(map),
        _ => Object(Map::new()),
    }
}

fn volumes(given: &[config::VolumeMount]) -> Vec<ExtraVolume> {
    let volume = |volume: &config::VolumeMount| ExtraVolume {
        name: volume.mount_path.replace(['/', '_', '.'], "-").trim_matches('-').to_owned(),
        host_path: volume.host_path.clone(),
        mount_path: volume.mount_path.clone(),
        readonly: volume.read_only,
    };
    given.iter().map(volume).collect()
}

/// Requests always, limits only when there are any; both know CPU and memory alone.
fn resources(given: Option<&config::Resources>, cpu: &str, memory: &str) -> Resources {
    let value = |free: &Free, key: &str| match free.to_json().get(key) {
        Some(Json::String(text)) => Some(text.clone()),
        Some(Json::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let request = |key: &str, default: &str| {
        (
            key.to_owned(),
            given.and_then(|given| value(&given.requests, key)).unwrap_or_else(|| default.to_owned()),
        )
    };
    let limit = |key: &str| Some((key.to_owned(), value(&given?.limits, key)?));
    Resources {
        requests: BTreeMap::from([request("cpu", cpu), request("memory", memory)]),
        limits: ["cpu", "memory"].into_iter().filter_map(limit).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "version: v1alpha1
machine:
  type: controlplane
  features: {kubePrism: {enabled: true, port: 7445}}
cluster:
  controlPlane: {endpoint: 'https://10.5.0.1:6443'}
  network: {serviceSubnets: [10.96.0.0/12, 'fd00:10:96::/112'], podSubnets: [10.244.0.0/16]}
";

    fn documents(more: &str) -> Documents {
        Documents::load(format!("{CONFIG}{more}").as_bytes()).unwrap()
    }

    #[test]
    fn a_plain_configuration_gives_the_defaults() {
        let config = documents("");
        let server = api_server(&config).unwrap();
        assert_eq!(server.image, "registry.k8s.io/kube-apiserver:v1.35.0");
        assert_eq!(server.control_plane_endpoint, "https://10.5.0.1:6443");
        assert_eq!((server.local_port, server.advertised_address.as_str()), (6443, "$(POD_IP)"));
        assert_eq!(server.service_cidr, ["10.96.0.0/12", "fd00:10:96::/112"]);
        assert_eq!(server.resources.requests["memory"], "512Mi");
        assert!(server.resources.limits.is_empty());
        let manifests = bootstrap_manifests(&config).unwrap();
        assert_eq!(manifests.server, "https://127.0.0.1:7445");
        assert_eq!(
            (manifests.dns_service_ip.as_str(), manifests.dns_service_ipv6.as_str()),
            ("10.96.0.10", "fd00:10:96::a")
        );
        assert_eq!(
            manifests.proxy_args,
            [
                "--cluster-cidr=10.244.0.0/16",
                "--conntrack-max-per-core=0",
                "--hostname-override=$(NODE_NAME)",
                "--kubeconfig=/etc/kubernetes/kubeconfig",
                "--proxy-mode=nftables"
            ]
        );
        assert!(manifests.flannel_enabled && manifests.core_dns_enabled && manifests.proxy_enabled);
        assert_eq!(audit_policy(&config).unwrap().config.0["rules"][0]["level"], "Metadata");
        assert!(controller_manager(&config).unwrap().enabled && scheduler(&config).unwrap().enabled);
    }

    #[test]
    fn what_the_user_says_is_taken_over() {
        let config = documents(
            "  apiServer:
    image: example.org/api:v1.30.1
    extraVolumes: [{hostPath: /var/x, mountPath: /etc/my_dir.d, readonly: true}]
    resources: {requests: {cpu: 2}, limits: {memory: 1Gi}}
    admissionControl: [{name: PodSecurity, configuration: {kind: X}}]
  proxy: {image: 'example.org/proxy:v1.30.0', extraArgs: {proxy-mode: ipvs}}
  externalCloudProvider: {enabled: true, manifests: ['https://e/a.yaml']}
  extraManifests: ['https://e/b.yaml']
  extraManifestHeaders: {token: t}
  inlineManifests: [{name: n, contents: 'kind: X'}]
",
        );
        let server = api_server(&config).unwrap();
        assert_eq!(server.cloud_provider, "external");
        assert_eq!(server.extra_volumes[0].name, "etc-my-dir-d");
        assert_eq!(server.resources.requests["cpu"], "2");
        assert_eq!(server.resources.limits["memory"], "1Gi");
        assert_eq!(admission(&config).unwrap().config[0].configuration.0["kind"], "X");
        assert!(bootstrap_manifests(&config).unwrap().proxy_args.contains(&"--proxy-mode=ipvs".to_owned()));
        let manifests = extra_manifests(&config).unwrap().extra_manifests;
        let summary: Vec<_> = manifests.iter().map(|m| (m.priority.as_str(), m.name.as_str())).collect();
        assert_eq!(summary, [("30", "https://e/a.yaml"), ("99", "https://e/b.yaml"), ("99", "n")]);
        assert_eq!(manifests[1].extra_headers["token"], "t");
    }

    #[test]
    fn a_flag_that_is_ours_alone_is_refused_by_name() {
        let config = documents("  proxy: {extraArgs: {kubeconfig: /x}}\n");
        assert_eq!(
            bootstrap_manifests(&config).unwrap_err().to_string(),
            r#"extra arg "kubeconfig" is not allowed"#
        );
    }

    #[test]
    fn nodes_and_roles_are_always_authorized() {
        let types = |config: &Documents| {
            let config = authorization(config).unwrap().config;
            config.into_iter().map(|authorizer| authorizer.r#type).collect::<Vec<_>>()
        };
        assert_eq!(types(&documents("")), ["Node", "RBAC"]);
        let webhook = "  apiServer: {authorizationConfig: [{type: Webhook, name: w}]}\n";
        assert_eq!(types(&documents(webhook)), ["Node", "RBAC", "Webhook"]);
        let last = "  apiServer: {authorizationConfig: [{type: Webhook, name: w}, {type: Node, name: n}]}\n";
        assert_eq!(types(&documents(last)), ["Webhook", "RBAC", "Node"]);
        assert!(types(&documents("  apiServer: {image: 'x:v1.28.0'}\n")).is_empty());
    }

    #[test]
    fn workers_have_no_control_plane() {
        let worker = CONFIG.replace("controlplane", "worker");
        assert!(!is_control_plane(&Documents::load(worker.as_bytes()).unwrap()));
    }
}
