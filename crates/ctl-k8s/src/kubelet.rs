//! What the kubelet is started with: flags and configuration file, from the machine configuration and what the node
//! found out about itself.

use ichor_config::Documents;
use ichor_config::v1alpha1::kubelet as config;
use ichor_config::validate::KUBELET_PROTECTED;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::config::MachineType as MachineTypeSpec;
use ichor_resource::k8s::{
    ExtraMount, IdMapping, KubeletConfig, KubeletSpec, NodeIP, Nodename, StaticPodServerStatus,
};
use ichor_resource::value::Object;
use ichor_types::MachineType;
use serde_json::{Map, Value as Json, json};

use crate::args::{self, Rules};
use crate::images;
use crate::settings::{dns_addresses, external_cloud_provider, map, object};

const KUBELET: &str = "kubelet";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Flags that are ours alone.
const DENIED: &[&str] = &[
    "bootstrap-kubeconfig",
    "kubeconfig",
    "container-runtime",
    "container-runtime-endpoint",
    "config",
    "cert-dir",
];

/// Writes `KubeletConfigs/kubelet`.
#[derive(Debug, Default)]
pub struct KubeletConfigController;

impl Controller for KubeletConfigController {
    const NAME: &'static str = "k8s.KubeletConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<StaticPodServerStatus>().id("static-pod-server-status")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubeletConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let config =
            config.as_deref().filter(|config| config.machine().is_some() && config.cluster().is_some());
        let pods = ctx.get::<StaticPodServerStatus>("static-pod-server-status")?;
        let url = pods.map(|pods| pods.url.clone()).unwrap_or_default();
        ctx.publish(config.map(|config| (KUBELET, kubelet_config(config, url))))?;
        Ok(())
    }
}

pub(crate) fn kubelet_config(config: &Documents, static_pods: String) -> KubeletConfig {
    let kubelet = config.machine().and_then(|machine| machine.kubelet.as_ref());
    let features = config.machine().and_then(|machine| machine.features.as_ref());
    let cluster = config.cluster();
    let schedulable =
        cluster.and_then(|c| c.allow_scheduling_on_control_planes.or(c.allow_scheduling_on_masters));
    let flag = |look: fn(&config::KubeletConfig) -> Option<bool>| kubelet.and_then(look).unwrap_or(false);
    let dns = kubelet.map(|kubelet| kubelet.cluster_dns.to_vec()).filter(|dns| !dns.is_empty());
    KubeletConfig {
        image: images::or(kubelet.map(|kubelet| &kubelet.image), images::kubelet()),
        cluster_dns: dns.unwrap_or_else(|| dns_addresses(config).iter().map(ToString::to_string).collect()),
        cluster_domain: config.dns_domain().to_owned(),
        extra_args: kubelet.map(|kubelet| map(&kubelet.extra_args)).unwrap_or_default(),
        extra_mounts: kubelet
            .map(|kubelet| kubelet.extra_mounts.iter().map(mount).collect())
            .unwrap_or_default(),
        extra_config: kubelet.map(|kubelet| object(&kubelet.extra_config)).unwrap_or_default(),
        cloud_provider_external: external_cloud_provider(config),
        default_runtime_seccomp_enabled: flag(|kubelet| kubelet.default_runtime_seccomp_profile_enabled),
        skip_node_registration: flag(|kubelet| kubelet.skip_node_registration),
        static_pod_list_url: static_pods,
        disable_manifests_directory: flag(|kubelet| kubelet.disable_manifests_directory),
        enable_fs_quota_monitoring: features
            .and_then(|features| features.disk_quota_support)
            .unwrap_or(false),
        credential_provider_config: kubelet
            .map(|k| object(&k.credential_provider_config))
            .unwrap_or_default(),
        allow_scheduling_on_control_plane: schedulable.unwrap_or(false),
    }
}

fn mount(mount: &config::ExtraMount) -> ExtraMount {
    let ids = |ids: &[config::IdMapping]| {
        let id = |id: &config::IdMapping| IdMapping {
            container_id: id.container_id,
            host_id: id.host_id,
            size: id.size,
        };
        ids.iter().map(id).collect()
    };
    ExtraMount {
        destination: mount.destination.clone(),
        r#type: mount.mount_type.clone(),
        source: mount.source.clone(),
        options: mount.options.to_vec(),
        uid_mappings: ids(&mount.uid_mappings),
        gid_mappings: ids(&mount.gid_mappings),
    }
}

/// What the machine offers the kubelet; not the same everywhere.
#[derive(Debug, Clone)]
pub struct Host {
    /// Where the tree of cgroups begins; `/` but where the machine is itself inside of one.
    pub cgroup_root: String,
    /// Whether the kubelet may insist on kernel settings.
    pub protect_kernel: bool,
    /// Whether cgroups are of the first version, which the kubelet accepts only when told.
    pub cgroup_v1: bool,
    /// Whether disks and memory are shared with others: how full they are is then not the kubelet's to mend.
    pub shared: bool,
}

/// Writes `KubeletSpecs/kubelet`.
#[derive(Debug)]
pub struct KubeletSpecController {
    host: Host,
}

impl KubeletSpecController {
    /// A controller for this machine.
    pub fn new(host: Host) -> Self {
        Self { host }
    }
}

impl Controller for KubeletSpecController {
    const NAME: &'static str = "k8s.KubeletSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<KubeletConfig>().id(KUBELET),
            weak::<Nodename>().id("nodename"),
            weak::<NodeIP>().id(KUBELET),
            weak::<MachineTypeSpec>().id("machine-type"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubeletSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<KubeletConfig>(KUBELET)?;
        let nodename = ctx.get::<Nodename>("nodename")?;
        let kind = ctx.get::<MachineTypeSpec>("machine-type")?;
        let (Some(config), Some(nodename), Some(kind)) = (config, nodename, kind) else { return Ok(()) };
        let addresses =
            ctx.get::<NodeIP>(KUBELET)?.map(|ips| ips.addresses.iter().map(ToString::to_string).collect());
        let control_plane = matches!(kind.machine_type, MachineType::ControlPlane | MachineType::Init);
        if let Some(spec) = kubelet_spec(&config, &nodename.nodename, addresses, control_plane, &self.host)? {
            ctx.publish([(KUBELET, spec)])?;
        }
        Ok(())
    }
}

/// Why a kubelet cannot be described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeletError {
    /// The user's configuration sets what is ours.
    #[error("machine.kubelet.extraConfig: these fields cannot be overridden: {0}")]
    Protected(String),
    /// The user's flags set what is ours.
    #[error("machine.kubelet.extraArgs: {0}")]
    Denied(#[from] args::Denied),
}

/// Flags and configuration; nothing yet while the node has no address.
pub(crate) fn kubelet_spec(
    config: &KubeletConfig,
    nodename: &str,
    addresses: Option<Vec<String>>,
    control_plane: bool,
    host: &Host,
) -> Result<Option<KubeletSpec>, KubeletError> {
    let mut ours = args::args([
        ("config", "/etc/kubernetes/kubelet.yaml"),
        ("cert-dir", "/var/lib/kubelet/pki"),
        ("hostname-override", nodename),
    ]);
    let mut set = |name: &str, value: &str| ours.insert(name.to_owned(), value.to_owned());
    if !config.skip_node_registration {
        set("bootstrap-kubeconfig", "/etc/kubernetes/bootstrap-kubeconfig");
        set("kubeconfig", "/etc/kubernetes/kubeconfig-kubelet");
    }
    if config.cloud_provider_external {
        set("cloud-provider", "external");
    }
    if images::version(&config.image) < (1, 27) {
        set("container-runtime-endpoint", "/run/containerd/containerd.sock");
    }
    if !config.extra_args.contains_key("node-ip") {
        let Some(addresses) = addresses else { return Ok(None) };
        set("node-ip", &addresses.join(","));
    }
    let mut merged = args::merge(ours, &config.extra_args, Rules { additive: &[], denied: DENIED })?;
    if !config.credential_provider_config.0.is_empty() {
        let bin = "/usr/local/lib/kubelet/credentialproviders";
        merged.insert("image-credential-provider-bin-dir".to_owned(), bin.to_owned());
        let file = "/etc/kubernetes/kubelet-credentialproviderconfig.yaml";
        merged.insert("image-credential-provider-config".to_owned(), file.to_owned());
    }
    // A name the user chose is not checked against certificates.
    let own_name = config.extra_args.contains_key("hostname-override");
    Ok(Some(KubeletSpec {
        image: config.image.clone(),
        args: args::command(&merged),
        extra_mounts: config.extra_mounts.clone(),
        expected_nodename: if own_name { String::new() } else { nodename.to_owned() },
        config: Object(configuration(config, control_plane, host)?),
        credential_provider_config: config.credential_provider_config.clone(),
    }))
}

/// The configuration file: the user's, what is ours, and defaults for the rest.
fn configuration(
    config: &KubeletConfig,
    control_plane: bool,
    host: &Host,
) -> Result<Map<String, Json>, KubeletError> {
    let extra = &config.extra_config.0;
    let taken: Vec<&str> =
        KUBELET_PROTECTED.iter().copied().filter(|field| extra.contains_key(*field)).collect();
    if !taken.is_empty() {
        return Err(KubeletError::Protected(taken.join(", ")));
    }
    let mut file = extra.clone();
    let below = |path: &str| format!("{}{path}", host.cgroup_root.trim_end_matches('/'));
    let registers = !config.skip_node_registration;
    let ours = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodURL": config.static_pod_list_url,
        "port": 10250,
        "authentication": {
            "x509": { "clientCAFile": "/etc/kubernetes/pki/ca.crt" },
            "webhook": { "enabled": registers },
            "anonymous": { "enabled": false },
        },
        "authorization": { "mode": if registers { "Webhook" } else { "AlwaysAllow" } },
        "cgroupRoot": host.cgroup_root,
        "systemCgroups": below("/system"),
        "kubeletCgroups": below("/podruntime/kubelet"),
        "rotateCertificates": true,
        "protectKernelDefaults": host.protect_kernel,
        "resolvConf": "/system/resolved/resolv.conf",
    });
    overwrite(&mut file, ours);
    if !config.disable_manifests_directory {
        file.insert("staticPodPath".into(), "/etc/kubernetes/manifests".into());
    }
    if images::version(&config.image) >= (1, 27) {
        file.insert("containerRuntimeEndpoint".into(), "unix:///run/containerd/containerd.sock".into());
    }
    if config.default_runtime_seccomp_enabled {
        file.insert("seccompDefault".into(), true.into());
    }
    if config.enable_fs_quota_monitoring {
        let gates = file.entry("featureGates").or_insert_with(|| json!({}));
        if let Json::Object(gates) = gates {
            gates.entry("LocalStorageCapacityIsolationFSQuotaMonitoring").or_insert(true.into());
        }
    }
    if registers && control_plane && !config.allow_scheduling_on_control_plane {
        add_taint(&mut file, config);
    }
    if host.cgroup_v1 {
        file.entry("failCgroupV1").or_insert(false.into());
    }
    if host.shared {
        let little = json!({
            "memory.available": "20Mi", "nodefs.available": "100Mi", "nodefs.inodesFree": "0%",
            "imagefs.available": "100Mi", "imagefs.inodesFree": "0%",
        });
        file.entry("evictionHard").or_insert(little);
        file.entry("imageGCHighThresholdPercent").or_insert(100.into());
    }
    defaults(&mut file, config, control_plane);
    Ok(file)
}

/// Keeps ordinary pods away from the first moment on, unless the user already says something about it.
fn add_taint(file: &mut Map<String, Json>, config: &KubeletConfig) {
    if config.extra_args.get("register-with-taints").is_some_and(|taints| !taints.is_empty()) {
        return;
    }
    let taints = file.entry("registerWithTaints").or_insert_with(|| json!([]));
    if let Json::Array(taints) = taints
        && !taints.iter().any(|taint| taint["key"] == CONTROL_PLANE)
    {
        taints.push(json!({ "key": CONTROL_PLANE, "effect": "NoSchedule" }));
    }
}

/// What the user may change, where the user did not.
fn defaults(file: &mut Map<String, Json>, config: &KubeletConfig, control_plane: bool) {
    let memory = if control_plane { "512Mi" } else { "384Mi" };
    let ours = json!({
        "address": "0.0.0.0",
        // The server of static pods answers late when it has nothing new to say, so asking often is cheap.
        "httpCheckFrequency": "1s",
        "oomScoreAdj": -450,
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns,
        "serializeImagePulls": false,
        "failSwapOn": false,
        "systemReserved": { "cpu": "50m", "pid": "100", "ephemeral-storage": "256Mi", "memory": memory },
        "shutdownGracePeriod": "30s",
        "shutdownGracePeriodCriticalPods": "10s",
        "streamingConnectionIdleTimeout": "5m0s",
        "tlsMinVersion": "VersionTLS13",
    });
    let Json::Object(ours) = ours else { return };
    for (key, value) in ours {
        file.entry(key).or_insert(value);
    }
    let logging = file.entry("logging").or_insert_with(|| json!({}));
    if let Json::Object(logging) = logging {
        logging.entry("format").or_insert("json".into());
    }
}

fn overwrite(file: &mut Map<String, Json>, ours: Json) {
    if let Json::Object(ours) = ours {
        file.extend(ours);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host { cgroup_root: "/".into(), protect_kernel: true, cgroup_v1: false, shared: false }
    }

    fn config() -> KubeletConfig {
        KubeletConfig {
            image: images::kubelet(),
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            default_runtime_seccomp_enabled: true,
            static_pod_list_url: "http://127.0.0.1:1".into(),
            ..KubeletConfig::default()
        }
    }

    fn spec(config: &KubeletConfig) -> KubeletSpec {
        kubelet_spec(config, "node", Some(vec!["10.5.0.2".into()]), true, &host()).unwrap().unwrap()
    }

    #[test]
    fn the_settings_of_the_kubelet_come_from_the_configuration() {
        let text = "version: v1alpha1
machine:
  type: controlplane
  kubelet:
    image: example.org/kubelet:v1.35.0
    extraArgs: {v: '4'}
    extraMounts: [{destination: /var/a, type: bind, source: /var/a, options: [bind, ro]}]
    extraConfig: {maxPods: 7}
    defaultRuntimeSeccompProfileEnabled: true
    disableManifestsDirectory: true
  features: {diskQuotaSupport: true}
cluster:
  allowSchedulingOnControlPlanes: true
  network: {dnsDomain: a.local, serviceSubnets: [10.96.0.0/12]}
";
        let documents = Documents::load(text.as_bytes()).unwrap();
        let found = kubelet_config(&documents, "http://127.0.0.1:1".into());
        assert_eq!(found.image, "example.org/kubelet:v1.35.0");
        assert_eq!(
            (&found.cluster_dns[..], found.cluster_domain.as_str()),
            (&["10.96.0.10".into()][..], "a.local")
        );
        assert_eq!((found.extra_args["v"].as_str(), found.extra_mounts[0].source.as_str()), ("4", "/var/a"));
        assert_eq!(found.extra_config.0["maxPods"], 7);
        assert!(found.default_runtime_seccomp_enabled && found.disable_manifests_directory);
        assert!(found.enable_fs_quota_monitoring && found.allow_scheduling_on_control_plane);
        assert!(!found.skip_node_registration && !found.cloud_provider_external);
    }

    #[test]
    fn a_control_plane_kubelet() {
        let spec = spec(&config());
        assert_eq!(
            spec.args,
            [
                "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubeconfig",
                "--cert-dir=/var/lib/kubelet/pki",
                "--config=/etc/kubernetes/kubelet.yaml",
                "--hostname-override=node",
                "--kubeconfig=/etc/kubernetes/kubeconfig-kubelet",
                "--node-ip=10.5.0.2"
            ]
        );
        let file = &spec.config.0;
        assert_eq!(file["registerWithTaints"][0]["key"], CONTROL_PLANE);
        assert_eq!(file["systemReserved"]["memory"], "512Mi");
        assert_eq!(file["kubeletCgroups"], "/podruntime/kubelet");
        assert_eq!(file["containerRuntimeEndpoint"], "unix:///run/containerd/containerd.sock");
        assert!(!file.contains_key("failCgroupV1") && !file.contains_key("evictionHard"));
        assert_eq!(spec.expected_nodename, "node");
    }

    #[test]
    fn the_users_word_counts_where_it_may() {
        let extra = json!({
            "address": "::", "logging": { "verbosity": 3 }, "systemReserved": { "cpu": "1" },
            "registerWithTaints": [{ "key": CONTROL_PLANE, "effect": "PreferNoSchedule" }],
        });
        let Json::Object(extra) = extra else { unreachable!() };
        let config = KubeletConfig {
            extra_config: Object(extra),
            extra_args: args::args([("hostname-override", "mine"), ("v", "4")]),
            ..config()
        };
        let spec = spec(&config);
        let file = &spec.config.0;
        assert_eq!(file["address"], "::");
        assert_eq!(file["logging"], json!({ "verbosity": 3, "format": "json" }));
        assert_eq!(file["systemReserved"], json!({ "cpu": "1" }));
        assert_eq!(file["registerWithTaints"].as_array().unwrap().len(), 1);
        assert!(
            spec.args.contains(&"--hostname-override=mine".to_owned())
                && spec.args.contains(&"--v=4".to_owned())
        );
        assert_eq!(spec.expected_nodename, "");
    }

    #[test]
    fn what_is_ours_alone_is_refused_by_name() {
        let Json::Object(extra) = json!({ "port": 1, "authorization": {} }) else { unreachable!() };
        let config = KubeletConfig { extra_config: Object(extra), ..config() };
        let error = kubelet_spec(&config, "n", Some(vec![]), true, &host()).unwrap_err().to_string();
        assert_eq!(
            error,
            "machine.kubelet.extraConfig: these fields cannot be overridden: authorization, port"
        );
        let config = KubeletConfig { extra_args: args::args([("config", "/x")]), ..self::config() };
        let error = kubelet_spec(&config, "n", Some(vec![]), true, &host()).unwrap_err().to_string();
        assert_eq!(error, r#"machine.kubelet.extraArgs: extra arg "config" is not allowed"#);
    }

    #[test]
    fn a_node_without_an_address_waits_unless_the_user_gives_one() {
        assert!(kubelet_spec(&config(), "n", None, false, &host()).unwrap().is_none());
        let config = KubeletConfig { extra_args: args::args([("node-ip", "10.0.0.9")]), ..config() };
        let spec = kubelet_spec(&config, "n", None, false, &host()).unwrap().unwrap();
        assert!(spec.args.contains(&"--node-ip=10.0.0.9".to_owned()));
    }

    #[test]
    fn a_machine_inside_of_another_says_so() {
        let host =
            Host { cgroup_root: "/sandbox/x".into(), protect_kernel: false, cgroup_v1: true, shared: true };
        let spec =
            kubelet_spec(&config(), "n", Some(vec!["10.0.0.1".into()]), false, &host).unwrap().unwrap();
        let file = &spec.config.0;
        assert_eq!(file["systemCgroups"], "/sandbox/x/system");
        assert_eq!(file["evictionHard"]["nodefs.available"], "100Mi");
        assert_eq!((&file["protectKernelDefaults"], &file["failCgroupV1"]), (&json!(false), &json!(false)));
        assert_eq!(file["systemReserved"]["memory"], "384Mi");
        assert!(!file.contains_key("registerWithTaints"));
    }
}
