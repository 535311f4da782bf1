//! The control plane as static pods. Pure: settings in, pod objects out.

use ichor_resource::k8s::{
    APIServerConfig, ControllerManagerConfig, ExtraVolume, Resources, SchedulerConfig,
};
use serde_json::{Map, Value as Json, json};

use crate::args::{self, Args, Denied, Rules};
use crate::images;

/// Where secrets of a component lie.
pub const SECRETS: &str = "/system/secrets/kubernetes";
/// Where configuration files of a component lie.
pub const CONFIGS: &str = "/system/config/kubernetes";
/// Where the API server writes what was asked of it.
pub const AUDIT: &str = "/var/log/audit/kube";
/// Cipher suites of the API server.
const CIPHERS: &str = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,\
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,\
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,\
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";

/// Versions of the resources a pod is made from; when one moves, the pod restarts.
#[derive(Debug, Clone, Default)]
pub struct Versions {
    /// Of the secrets.
    pub secrets: String,
    /// Of the component's settings.
    pub config: String,
    /// Of the configuration files, for those that have any.
    pub files: String,
}

/// The identity a component runs as.
#[derive(Clone, Copy)]
struct Component {
    name: &'static str,
    uid: u32,
    /// Port and health path of its probes.
    probe: Option<(u16, &'static str)>,
    capabilities: &'static [&'static str],
}

/// The pod of the API server.
pub fn api_server(config: &APIServerConfig, versions: &Versions) -> Result<Map<String, Json>, Denied> {
    let component =
        Component { name: "kube-apiserver", uid: 65534, probe: None, capabilities: &["NET_BIND_SERVICE"] };
    let command = command(&[], component, &api_server_args(config)?);
    let volumes = vec![
        volume("secrets", format!("{SECRETS}/{}", component.name), true),
        volume("config", format!("{CONFIGS}/{}", component.name), true),
        volume("audit", AUDIT.to_owned(), false),
    ];
    let workload = Workload {
        image: &config.image,
        command,
        volumes,
        extra_volumes: &config.extra_volumes,
        env: &config.environment_variables,
        resources: &config.resources,
    };
    let mut pod = pod(component, versions, workload);
    pod["metadata"]["annotations"]["talos.dev/config-file-version"] = versions.files.clone().into();
    Ok(unwrap(pod))
}

fn api_server_args(config: &APIServerConfig) -> Result<Args, Denied> {
    let secret = |file: &str| format!("{SECRETS}/kube-apiserver/{file}");
    let file = |file: &str| format!("{CONFIGS}/kube-apiserver/{file}");
    let mut ours: Args = [
        ("admission-control-config-file", file("admission-control-config.yaml")),
        ("allow-privileged", "true".into()),
        ("anonymous-auth", "false".into()),
        ("api-audiences", config.control_plane_endpoint.clone()),
        ("audit-log-maxage", "30".into()),
        ("audit-log-maxbackup", "10".into()),
        ("audit-log-maxsize", "100".into()),
        ("audit-log-path", format!("{AUDIT}/kube-apiserver.log")),
        ("audit-policy-file", file("auditpolicy.yaml")),
        ("bind-address", "0.0.0.0".into()),
        ("client-ca-file", secret("ca.crt")),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("enable-bootstrap-token-auth", "true".into()),
        ("encryption-provider-config", secret("encryptionconfig.yaml")),
        ("etcd-cafile", secret("etcd-client-ca.crt")),
        ("etcd-certfile", secret("etcd-client.crt")),
        ("etcd-keyfile", secret("etcd-client.key")),
        ("etcd-servers", config.etcd_servers.join(",")),
        ("kubelet-client-certificate", secret("apiserver-kubelet-client.crt")),
        ("kubelet-client-key", secret("apiserver-kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname".into()),
        ("profiling", "false".into()),
        ("proxy-client-cert-file", secret("front-proxy-client.crt")),
        ("proxy-client-key-file", secret("front-proxy-client.key")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        ("requestheader-client-ca-file", secret("aggregator-ca.crt")),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("secure-port", config.local_port.to_string()),
        ("service-account-issuer", config.control_plane_endpoint.clone()),
        ("service-account-key-file", secret("service-account.pub")),
        ("service-account-signing-key-file", secret("service-account.key")),
        ("service-cluster-ip-range", config.service_cidr.join(",")),
        // Without it, open watches keep a server that is told to end for as long as it is let, deaf to everybody.
        ("shutdown-send-retry-after", "true".into()),
        ("tls-cert-file", secret("apiserver.crt")),
        ("tls-cipher-suites", CIPHERS.into()),
        ("tls-min-version", "VersionTLS12".into()),
        ("tls-private-key-file", secret("apiserver.key")),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    let mut set = |name: &str, value: String| ours.insert(name.to_owned(), value);
    if !config.advertised_address.is_empty() {
        set("advertise-address", config.advertised_address.clone());
    }
    let version = images::version(&config.image);
    if !config.cloud_provider.is_empty() && version < (1, 33) {
        set("cloud-provider", config.cloud_provider.clone());
    }
    // A user who chooses authorizers by flag cannot have them in a file at the same time.
    let by_flag = |name: &String| name == "authorization-mode" || name.starts_with("authorization-webhook-");
    if version < (1, 29) || config.extra_args.keys().any(by_flag) {
        set("authorization-mode", "Node,RBAC".into());
    } else {
        set("authorization-config", file("authorization-config.yaml"));
        if version == (1, 29) {
            set("feature-gates", "StructuredAuthorizationConfiguration=true".into());
        }
    }
    let rules = Rules {
        additive: &["enable-admission-plugins", "feature-gates", "authorization-mode", "tls-cipher-suites"],
        denied: &[
            "etcd-servers",
            "client-ca-file",
            "requestheader-client-ca-file",
            "proxy-client-cert-file",
            "proxy-client-key-file",
            "encryption-provider-config",
            "etcd-cafile",
            "etcd-certfile",
            "etcd-keyfile",
            "kubelet-client-certificate",
            "kubelet-client-key",
            "service-account-key-file",
            "service-account-signing-key-file",
            "tls-cert-file",
            "tls-private-key-file",
            "authorization-config",
        ],
    };
    args::merge(ours, &config.extra_args, rules)
}

/// The pod of the controller manager.
pub fn controller_manager(
    config: &ControllerManagerConfig,
    versions: &Versions,
) -> Result<Map<String, Json>, Denied> {
    let component = Component {
        name: "kube-controller-manager",
        uid: 65535,
        probe: Some((10257, "/healthz")),
        capabilities: &[],
    };
    let secret = |file: &str| format!("{SECRETS}/{}/{file}", component.name);
    let mut ours: Args = [
        ("allocate-node-cidrs", "true".into()),
        ("authentication-kubeconfig", secret("kubeconfig")),
        ("authorization-kubeconfig", secret("kubeconfig")),
        ("bind-address", "127.0.0.1".into()),
        ("cluster-cidr", config.pod_cidrs.join(",")),
        ("cluster-signing-cert-file", secret("ca.crt")),
        ("cluster-signing-key-file", secret("ca.key")),
        ("configure-cloud-routes", "false".into()),
        ("controllers", "*,tokencleaner".into()),
        // Each controller asks for an account and a token of its own when it starts; at the default of 20 requests a
        // second that alone takes a new leader five seconds. The API server has limits of its own.
        ("kube-api-burst", "200".into()),
        ("kube-api-qps", "100".into()),
        ("kubeconfig", secret("kubeconfig")),
        ("leader-elect", "true".into()),
        ("profiling", "false".into()),
        ("root-ca-file", secret("root-ca.crt")),
        ("service-account-private-key-file", secret("service-account.key")),
        ("service-cluster-ip-range", config.service_cidrs.join(",")),
        ("tls-min-version", "VersionTLS13".into()),
    ]
    .into_iter()
    .map(|(name, value): (&str, String)| (name.to_owned(), value))
    .collect();
    if !config.cloud_provider.is_empty() {
        ours.insert("cloud-provider".to_owned(), config.cloud_provider.clone());
    }
    let rules = Rules {
        additive: &["service-cluster-ip-range", "controllers"],
        denied: &[
            "cluster-signing-cert-file",
            "cluster-signing-key-file",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
            "root-ca-file",
            "service-account-private-key-file",
        ],
    };
    let merged = args::merge(ours, &config.extra_args, rules)?;
    let workload = Workload {
        image: &config.image,
        command: command(&["--use-service-account-credentials"], component, &merged),
        volumes: vec![volume("secrets", format!("{SECRETS}/{}", component.name), true)],
        extra_volumes: &config.extra_volumes,
        env: &config.environment_variables,
        resources: &config.resources,
    };
    Ok(unwrap(pod(component, versions, workload)))
}

/// The pod of the scheduler.
pub fn scheduler(config: &SchedulerConfig, versions: &Versions) -> Result<Map<String, Json>, Denied> {
    let live = if images::version(&config.image) < (1, 31) { "/healthz" } else { "/livez" };
    let component =
        Component { name: "kube-scheduler", uid: 65536, probe: Some((10259, live)), capabilities: &[] };
    let kubeconfig = format!("{SECRETS}/{}/kubeconfig", component.name);
    let ours = args::args([
        ("authentication-kubeconfig", kubeconfig.as_str()),
        ("authentication-tolerate-lookup-failure", "false"),
        ("authorization-kubeconfig", kubeconfig.as_str()),
        ("bind-address", "127.0.0.1"),
        ("config", "/system/config/kubernetes/kube-scheduler/scheduler-config.yaml"),
        ("leader-elect", "true"),
        ("profiling", "false"),
        ("tls-min-version", "VersionTLS13"),
    ]);
    let denied = &["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig", "config"];
    let merged = args::merge(ours, &config.extra_args, Rules { additive: &[], denied })?;
    let workload = Workload {
        image: &config.image,
        command: command(&[], component, &merged),
        volumes: vec![
            volume("secrets", format!("{SECRETS}/{}", component.name), true),
            volume("config", format!("{CONFIGS}/{}", component.name), true),
        ],
        extra_volumes: &config.extra_volumes,
        env: &config.environment_variables,
        resources: &config.resources,
    };
    let mut pod = pod(component, versions, workload);
    let ready = if live == "/livez" { "/readyz" } else { live };
    pod["spec"]["containers"][0]["readinessProbe"] = probe(10259, ready);
    pod["spec"]["containers"][0]["readinessProbe"]["timeoutSeconds"] = 15.into();
    Ok(unwrap(pod))
}

fn command(first: &[&str], component: Component, args: &Args) -> Vec<String> {
    let mut command = vec![format!("/usr/local/bin/{}", component.name)];
    command.extend(first.iter().map(|flag| (*flag).to_owned()));
    command.extend(args::command(args));
    command
}

/// A directory of the host, seen at the same path.
fn volume(name: &str, path: String, readonly: bool) -> ExtraVolume {
    ExtraVolume { name: name.to_owned(), host_path: path.clone(), mount_path: path, readonly }
}

fn probe(port: u16, path: &str) -> Json {
    json!({ "httpGet": { "path": path, "host": "localhost", "port": port, "scheme": "HTTPS" } })
}

/// What differs between components besides their identity.
struct Workload<'a> {
    image: &'a str,
    command: Vec<String>,
    volumes: Vec<ExtraVolume>,
    extra_volumes: &'a [ExtraVolume],
    env: &'a Args,
    resources: &'a Resources,
}

fn pod(component: Component, versions: &Versions, workload: Workload<'_>) -> Json {
    let all = || workload.volumes.iter().chain(workload.extra_volumes);
    let mounts: Vec<Json> =
        all().map(|v| json!({ "name": v.name, "mountPath": v.mount_path, "readOnly": v.readonly })).collect();
    let volumes: Vec<Json> =
        all().map(|v| json!({ "name": v.name, "hostPath": { "path": v.host_path } })).collect();
    let tag =
        workload.image.split('@').next().and_then(|image| image.rsplit_once(':')).map_or("", |(_, tag)| tag);
    let mut container = json!({
        "name": component.name,
        "image": workload.image,
        "command": workload.command,
        "env": environment(workload.env, workload.resources),
        "volumeMounts": mounts,
        "resources": resources(workload.resources),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"], "add": component.capabilities },
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    });
    if component.capabilities.is_empty() {
        container["securityContext"]["capabilities"] = json!({ "drop": ["ALL"] });
    }
    if let Some((port, path)) = component.probe {
        let mut startup = probe(port, path);
        startup["periodSeconds"] = 1.into();
        startup["failureThreshold"] = 60.into();
        container["startupProbe"] = startup;
        let mut live = probe(port, path);
        live["timeoutSeconds"] = 15.into();
        container["livenessProbe"] = live;
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": component.name,
            "namespace": "kube-system",
            "annotations": { "talos.dev/secrets-version": versions.secrets, "talos.dev/config-version": versions.config },
            "labels": {
                "tier": "control-plane",
                "k8s-app": component.name,
                "component": component.name,
                "app.kubernetes.io/name": component.name,
                "app.kubernetes.io/version": tag.trim_start_matches('v'),
                "app.kubernetes.io/component": "control-plane",
                "app.kubernetes.io/managed-by": "Talos",
            },
        },
        "spec": {
            "priority": 2_000_000_000,
            "priorityClassName": "system-cluster-critical",
            "hostNetwork": true,
            "securityContext": { "runAsNonRoot": true, "runAsUser": component.uid, "runAsGroup": component.uid },
            "containers": [container],
            "volumes": volumes,
        },
    })
}

/// The pod's address, what the user sets, and a memory limit the Go runtime knows of.
fn environment(users: &Args, resources: &Resources) -> Vec<Json> {
    let mut env =
        vec![json!({ "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } })];
    env.extend(users.iter().map(|(name, value)| json!({ "name": name, "value": value.replace('$', "$$") })));
    let limit = resources.limits.get("memory").and_then(|text| quantity(text));
    env.extend(limit.map(|bytes| json!({ "name": "GOMEMLIMIT", "value": (bytes / 100 * 95 + bytes % 100 * 95 / 100).to_string() })));
    env
}

fn resources(resources: &Resources) -> Json {
    let mut out = json!({ "requests": resources.requests });
    if !resources.limits.is_empty() {
        out["limits"] = json!(resources.limits);
    }
    out
}

/// Whole bytes of a quantity such as `512Mi`.
fn quantity(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000u64.pow(2),
        "G" => 1000u64.pow(3),
        "T" => 1000u64.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn unwrap(pod: Json) -> Map<String, Json> {
    match pod {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn versions() -> Versions {
        Versions { secrets: "3".into(), config: "2".into(), files: "1111".into() }
    }

    fn api() -> APIServerConfig {
        APIServerConfig {
            image: images::kubernetes("kube-apiserver"),
            control_plane_endpoint: "https://c:6443".into(),
            etcd_servers: vec!["https://localhost:2379".into()],
            local_port: 6443,
            service_cidr: vec!["10.96.0.0/12".into()],
            advertised_address: "$(POD_IP)".into(),
            ..APIServerConfig::default()
        }
    }

    fn flags(pod: &Map<String, Json>) -> Vec<String> {
        let command = pod["spec"]["containers"][0]["command"].as_array().unwrap();
        command.iter().map(|flag| flag.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_api_server_has_the_flags_of_the_original_in_order() {
        let pod = api_server(&api(), &versions()).unwrap();
        let flags = flags(&pod);
        assert_eq!(flags.len(), 42);
        assert_eq!(flags[0], "/usr/local/bin/kube-apiserver");
        assert!(flags[1..].is_sorted());
        for flag in [
            "--advertise-address=$(POD_IP)",
            "--authorization-config=/system/config/kubernetes/kube-apiserver/authorization-config.yaml",
            "--etcd-servers=https://localhost:2379",
            "--secure-port=6443",
        ] {
            assert!(flags.contains(&flag.to_owned()), "{flag}");
        }
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["talos.dev/config-file-version"], "1111");
        assert_eq!(annotations["talos.dev/secrets-version"], "3");
        assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/version"], "1.35.0");
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn older_versions_and_chosen_authorizers_go_without_the_file() {
        let old = APIServerConfig { image: "x:v1.28.4".into(), cloud_provider: "external".into(), ..api() };
        let flags_of = |config| flags(&api_server(config, &versions()).unwrap());
        assert!(flags_of(&old).contains(&"--authorization-mode=Node,RBAC".to_owned()));
        assert!(flags_of(&old).contains(&"--cloud-provider=external".to_owned()));
        let chosen = APIServerConfig { extra_args: args::args([("authorization-mode", "Webhook")]), ..api() };
        assert!(flags_of(&chosen).contains(&"--authorization-mode=Node,RBAC,Webhook".to_owned()));
        let between = APIServerConfig { image: "x:v1.29.0".into(), ..api() };
        assert!(
            flags_of(&between)
                .contains(&"--feature-gates=StructuredAuthorizationConfiguration=true".to_owned())
        );
    }

    #[test]
    fn secrets_of_the_node_cannot_be_replaced() {
        let config = APIServerConfig { extra_args: args::args([("etcd-keyfile", "/x")]), ..api() };
        assert_eq!(api_server(&config, &versions()).unwrap_err(), Denied("etcd-keyfile".into()));
    }

    #[test]
    fn the_others_are_probed_and_run_as_themselves() {
        let config = ControllerManagerConfig {
            image: images::kubernetes("kube-controller-manager"),
            extra_args: args::args([("controllers", "-nodeipam")]),
            ..ControllerManagerConfig::default()
        };
        let pod = controller_manager(&config, &versions()).unwrap();
        assert_eq!(flags(&pod)[1], "--use-service-account-credentials");
        assert!(flags(&pod).contains(&"--controllers=*,tokencleaner,-nodeipam".to_owned()));
        assert_eq!(pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], 10257);
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], 65535);
        let config =
            SchedulerConfig { image: images::kubernetes("kube-scheduler"), ..SchedulerConfig::default() };
        let pod = scheduler(&config, &versions()).unwrap();
        assert_eq!(pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"], "/readyz");
        assert_eq!(pod["spec"]["containers"][0]["startupProbe"]["failureThreshold"], 60);
    }

    #[test]
    fn a_memory_limit_reaches_the_runtime_and_dollars_stay_dollars() {
        let resources = Resources {
            requests: BTreeMap::new(),
            limits: BTreeMap::from([("memory".to_owned(), "1Gi".to_owned())]),
        };
        let env = environment(&args::args([("A", "$x")]), &resources);
        assert_eq!(env[1], json!({ "name": "A", "value": "$$x" }));
        assert_eq!(env[2]["value"], ((1u64 << 30) * 95 / 100).to_string());
        assert_eq!(quantity("1.5Gi"), None);
    }
}
