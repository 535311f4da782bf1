//! The checks of the CIS Kubernetes Benchmark over what a fresh configuration renders; `docs/kubernetes-hardening.md`
//! is their result. Run with `UPDATE_EXPECT=1` to write it anew.

use std::collections::BTreeMap;

use expect_test::expect_file;
use ichor_config::CommentMode;
use ichor_config::generate::{Input, Options, Secrets};
use ichor_cosi::State;
use ichor_ctl_k8s::kubelet::{Host, KubeletConfigController, KubeletSpecController};
use ichor_ctl_k8s::pods::{self, Versions};
use ichor_ctl_k8s::{files, settings};
use ichor_ctl_secrets::{RootEtcd, RootKubernetes};
use ichor_render::etcd::{Beginning, arguments};
use ichor_resource::config::{MachineConfig, MachineType};
use ichor_resource::etcd::EtcdSpec;
use ichor_resource::k8s::{
    APIServerConfig, AuthorizationConfig, ControllerManagerConfig, KubeletSpec, NodeIP, Nodename,
    SchedulerConfig,
};
use ichor_resource::secrets::{EtcdRootSecret, KubernetesRootSecret};
use ichor_testkit::Harness;
use serde_json::{Map, Value as Json};

/// Everything that is checked.
struct Plane {
    api: Flags,
    controller_manager: Flags,
    scheduler: Flags,
    etcd: Flags,
    kubelet: Flags,
    kubelet_config: Json,
    authorizers: Vec<String>,
    encryption: Json,
    /// The authorities of etcd and of Kubernetes.
    authorities: (Vec<u8>, Vec<u8>),
}

/// Flags of a program, by name without dashes; a bare one is `true`.
struct Flags(BTreeMap<String, String>);

impl Flags {
    fn of<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let flag = |argument: &str| {
            let text = argument.strip_prefix("--")?;
            let (name, value) = text.split_once('=').unwrap_or((text, "true"));
            Some((name.to_owned(), value.to_owned()))
        };
        Self(arguments.into_iter().filter_map(flag).collect())
    }

    fn pod(pod: &Map<String, Json>) -> Self {
        let command = pod["spec"]["containers"][0]["command"].as_array().unwrap();
        Self::of(command.iter().map(|argument| argument.as_str().unwrap()))
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }

    fn has(&self, name: &str) -> bool {
        !self.get(name).is_empty()
    }

    fn lists(&self, name: &str, item: &str) -> bool {
        self.get(name).split(',').any(|found| found == item)
    }

    fn at_least(&self, name: &str, least: u32) -> bool {
        self.get(name).parse::<u32>().is_ok_and(|value| value >= least)
    }
}

async fn plane() -> Plane {
    let (state, _clock) = ichor_testkit::state();
    let input = Input {
        cluster_name: "hard".into(),
        endpoint: "https://10.5.0.2:6443".into(),
        kubernetes_version: "1.35.0".into(),
        secrets: Secrets::generate(jiff::Timestamp::now(), ichor_types::VersionContract::CURRENT).unwrap(),
        options: Options::default(),
    };
    let config = input.config(ichor_types::MachineType::ControlPlane).unwrap().encode(CommentMode::default());
    put(&state, "config", MachineConfig::ACTIVE, MachineConfig::new(config));
    let machine_type = ichor_types::MachineType::ControlPlane;
    put(&state, "config", MachineType::ID, MachineType { machine_type });
    put(&state, "k8s", "nodename", Nodename { nodename: "cp-1".into(), ..Default::default() });
    let addresses = vec!["10.5.0.2".parse::<std::net::IpAddr>().unwrap().into()];
    put(&state, "k8s", "kubelet", NodeIP { addresses });
    macro_rules! run {
        ($($controller:expr),+) => { $(Harness::new(&state, $controller).unwrap().reconcile().await.unwrap();)+ };
    }
    run!(settings::ApiServerController, settings::ControllerManagerController, settings::SchedulerController);
    run!(settings::AuthorizationController, RootEtcd::default(), RootKubernetes::default());
    run!(KubeletConfigController);
    let host = Host { cgroup_root: "/".into(), protect_kernel: true, cgroup_v1: false, shared: false };
    run!(KubeletSpecController::new(host));

    let plane = "controlplane";
    let versions = Versions::default();
    let api = state.get::<APIServerConfig>(plane, "kube-apiserver").unwrap();
    let manager = state.get::<ControllerManagerConfig>(plane, "kube-controller-manager").unwrap();
    let scheduler = state.get::<SchedulerConfig>(plane, "kube-scheduler").unwrap();
    let authorization = state.get::<AuthorizationConfig>(plane, "authorization").unwrap();
    let kubelet = state.get::<KubeletSpec>("k8s", "kubelet").unwrap();
    let root = state.get::<KubernetesRootSecret>("secrets", "k8s").unwrap();
    let etcd_root = state.get::<EtcdRootSecret>("secrets", "etcd").unwrap();
    let encryption = files::encryption(&root.secretbox_encryption_secret, &root.aes_cbc_encryption_secret);
    let etcd = EtcdSpec { image: "registry.k8s.io/etcd:v3.6.7".into(), ..EtcdSpec::default() };
    let etcd = arguments(&etcd, &Beginning::New).unwrap();
    Plane {
        api: Flags::pod(&pods::api_server(&api, &versions).unwrap()),
        controller_manager: Flags::pod(&pods::controller_manager(&manager, &versions).unwrap()),
        scheduler: Flags::pod(&pods::scheduler(&scheduler, &versions).unwrap()),
        etcd: Flags(etcd),
        kubelet: Flags::of(kubelet.args.iter().map(String::as_str)),
        kubelet_config: Json::Object(kubelet.config.0.clone()),
        authorizers: authorization.config.iter().map(|authorizer| authorizer.r#type.clone()).collect(),
        encryption: serde_json::from_str(&encryption).unwrap(),
        authorities: (
            etcd_root.etcd_ca.as_ref().unwrap().crt.to_vec(),
            root.issuing_ca.as_ref().unwrap().crt.to_vec(),
        ),
    }
}

fn put<T: ichor_resource::TypedSpec>(state: &State, namespace: &str, id: &str, spec: T) {
    state.modify::<T>(namespace, id, "", |stored| stored.clone_from(&spec)).unwrap();
}

/// A check: its number, what it asks for, whether it is met, and why not where it is not.
type Check = (&'static str, &'static str, bool, &'static str);

fn api_server(plane: &Plane) -> Vec<Check> {
    let api = &plane.api;
    let authorized = |by: &str| plane.authorizers.iter().any(|name| name == by);
    let suites = api.get("tls-cipher-suites");
    let strong = |suite: &str| suite.contains("GCM") || suite.contains("CHACHA20");
    let provider = &plane.encryption["resources"][0]["providers"][0];
    vec![
        ("1.2.1", "anonymous requests are refused", api.is("anonymous-auth", "false"), ""),
        ("1.2.2", "no file of static tokens", !api.has("token-auth-file"), ""),
        (
            "1.2.3",
            "`DenyServiceExternalIPs` is on",
            api.lists("enable-admission-plugins", "DenyServiceExternalIPs"),
            "it would break services with external addresses; `cluster.apiServer.extraArgs` adds it",
        ),
        (
            "1.2.4",
            "a client certificate for kubelets",
            api.has("kubelet-client-certificate") && api.has("kubelet-client-key"),
            "",
        ),
        (
            "1.2.5",
            "an authority for the certificates of kubelets",
            api.has("kubelet-certificate-authority"),
            "kubelets make their serving certificates themselves, unless `rotate-server-certificates` is set and \
             somebody approves the requests; then the flag can be added as well",
        ),
        (
            "1.2.6",
            "not everything is allowed",
            !authorized("AlwaysAllow") && !api.has("authorization-mode"),
            "",
        ),
        ("1.2.7", "nodes are authorized as nodes", authorized("Node"), ""),
        ("1.2.8", "everybody else by roles", authorized("RBAC"), ""),
        (
            "1.2.9",
            "`EventRateLimit` is on",
            api.lists("enable-admission-plugins", "EventRateLimit"),
            "its limits depend on the cluster; `cluster.apiServer.admissionControl` sets them",
        ),
        ("1.2.10", "`AlwaysAdmit` is off", !api.lists("enable-admission-plugins", "AlwaysAdmit"), ""),
        (
            "1.2.11",
            "`AlwaysPullImages` is on",
            api.lists("enable-admission-plugins", "AlwaysPullImages"),
            "a node could then start nothing while a registry is away; `cluster.apiServer.extraArgs` adds it",
        ),
        (
            "1.2.12",
            "`ServiceAccount` is not off",
            !api.lists("disable-admission-plugins", "ServiceAccount"),
            "",
        ),
        (
            "1.2.13",
            "`NamespaceLifecycle` is not off",
            !api.lists("disable-admission-plugins", "NamespaceLifecycle"),
            "",
        ),
        ("1.2.14", "`NodeRestriction` is on", api.lists("enable-admission-plugins", "NodeRestriction"), ""),
        ("1.2.15", "no profiling", api.is("profiling", "false"), ""),
        (
            "1.2.16",
            "requests are written down",
            api.has("audit-log-path") && api.has("audit-policy-file"),
            "",
        ),
        ("1.2.17", "for 30 days", api.at_least("audit-log-maxage", 30), ""),
        ("1.2.18", "in 10 files", api.at_least("audit-log-maxbackup", 10), ""),
        ("1.2.19", "of 100 MB", api.at_least("audit-log-maxsize", 100), ""),
        ("1.2.20", "requests end after a minute, the default", !api.has("request-timeout"), ""),
        (
            "1.2.21",
            "tokens of deleted accounts are worth nothing",
            !api.is("service-account-lookup", "false"),
            "",
        ),
        ("1.2.22", "a key of its own for accounts", api.has("service-account-key-file"), ""),
        ("1.2.23", "a certificate for etcd", api.has("etcd-certfile") && api.has("etcd-keyfile"), ""),
        ("1.2.24", "it serves TLS", api.has("tls-cert-file") && api.has("tls-private-key-file"), ""),
        ("1.2.25", "clients prove who they are", api.has("client-ca-file"), ""),
        ("1.2.26", "etcd proves who it is", api.has("etcd-cafile"), ""),
        ("1.2.27", "secrets are encrypted at rest", api.has("encryption-provider-config"), ""),
        ("1.2.28", "by a good cipher", provider.get("secretbox").or(provider.get("aescbc")).is_some(), ""),
        (
            "1.2.29",
            "strong ciphers only, from TLS 1.2 on",
            api.is("tls-min-version", "VersionTLS12") && suites.split(',').all(strong),
            "",
        ),
        (
            "1.2.30",
            "tokens of pods live no longer than they say",
            api.is("service-account-extend-token-expiration", "false"),
            "clients that never read their token anew would fail after an hour; `cluster.apiServer.extraArgs` sets it",
        ),
    ]
}

fn others(plane: &Plane) -> Vec<Check> {
    let (manager, scheduler) = (&plane.controller_manager, &plane.scheduler);
    vec![
        (
            "1.3.1",
            "pods that ended are cleaned up early",
            manager.has("terminated-pod-gc-threshold"),
            "the default of 12500 stays: what is right depends on the cluster",
        ),
        ("1.3.2", "no profiling", manager.is("profiling", "false"), ""),
        (
            "1.3.3",
            "an account for each controller",
            manager.is("use-service-account-credentials", "true"),
            "",
        ),
        ("1.3.4", "a key for accounts", manager.has("service-account-private-key-file"), ""),
        ("1.3.5", "pods know the authority", manager.has("root-ca-file"), ""),
        (
            "1.3.6",
            "certificates of kubelets may be renewed",
            !manager.lists("feature-gates", "RotateKubeletServerCertificate=false"),
            "",
        ),
        ("1.3.7", "it listens on loopback", manager.is("bind-address", "127.0.0.1"), ""),
        ("1.4.1", "no profiling of the scheduler", scheduler.is("profiling", "false"), ""),
        ("1.4.2", "it listens on loopback", scheduler.is("bind-address", "127.0.0.1"), ""),
    ]
}

fn etcd(plane: &Plane) -> Vec<Check> {
    let etcd = &plane.etcd;
    let (own, kubernetes) = &plane.authorities;
    vec![
        ("2.1", "it serves TLS", etcd.has("cert-file") && etcd.has("key-file"), ""),
        ("2.2", "clients prove who they are", etcd.is("client-cert-auth", "true"), ""),
        ("2.3", "no certificates it made itself", !etcd.is("auto-tls", "true"), ""),
        ("2.4", "members speak TLS", etcd.has("peer-cert-file") && etcd.has("peer-key-file"), ""),
        ("2.5", "members prove who they are", etcd.is("peer-client-cert-auth", "true"), ""),
        ("2.6", "no certificates they made themselves", !etcd.is("peer-auto-tls", "true"), ""),
        ("2.7", "an authority of its own", own != kubernetes && etcd.has("trusted-ca-file"), ""),
    ]
}

fn kubelet(plane: &Plane) -> Vec<Check> {
    let (flags, config) = (&plane.kubelet, &plane.kubelet_config);
    let text = |key: &str| config[key].as_str().unwrap_or_default();
    vec![
        (
            "4.2.1",
            "anonymous requests are refused",
            config["authentication"]["anonymous"]["enabled"] == false,
            "",
        ),
        ("4.2.2", "not everything is allowed", config["authorization"]["mode"] == "Webhook", ""),
        (
            "4.2.3",
            "clients prove who they are",
            config["authentication"]["x509"]["clientCAFile"] == "/etc/kubernetes/pki/ca.crt",
            "",
        ),
        ("4.2.4", "no port without authentication", config["readOnlyPort"].as_u64().unwrap_or(0) == 0, ""),
        ("4.2.5", "idle streams end", !["", "0", "0s"].contains(&text("streamingConnectionIdleTimeout")), ""),
        ("4.2.6", "rules of the firewall are its own", config["makeIPTablesUtilChains"] != false, ""),
        (
            "4.2.7",
            "the name is not overridden",
            !flags.has("hostname-override"),
            "the machine decides the name of the node, and has certificates of another name removed",
        ),
        (
            "4.2.8",
            "events are limited to 50 a second, the default",
            config.get("eventRecordQPS").is_none(),
            "",
        ),
        (
            "4.2.9",
            "a serving certificate of an authority",
            config.get("tlsCertFile").is_some() || config["serverTLSBootstrap"] == true,
            "it needs somebody in the cluster who approves the requests; \
             `machine.kubelet.extraArgs.rotate-server-certificates` turns it on",
        ),
        ("4.2.10", "its client certificate is renewed", config["rotateCertificates"] == true, ""),
        (
            "4.2.11",
            "its serving certificate is renewed",
            config["serverTLSBootstrap"] == true,
            "as 4.2.9; until then it is made anew at every start",
        ),
        ("4.2.12", "strong ciphers only: TLS 1.3", text("tlsMinVersion") == "VersionTLS13", ""),
        (
            "4.2.13",
            "a limit of processes in pods",
            config["podPidsLimit"].as_i64().is_some_and(|limit| limit > 0),
            "what is right depends on the workload; `machine.kubelet.extraConfig.podPidsLimit` sets it",
        ),
        ("4.2.14", "system calls of pods are filtered", config["seccompDefault"] == true, ""),
    ]
}

/// Checks one part of a control plane.
type Section = fn(&Plane) -> Vec<Check>;

const SECTIONS: [(&str, Section); 4] = [
    ("1.2 API server", api_server),
    ("1.3 Controller manager, 1.4 scheduler", others),
    ("2 etcd", etcd),
    ("4.2 kubelet", kubelet),
];

#[tokio::test]
async fn every_check_passes_or_says_why_not() {
    let plane = plane().await;
    let mut page = String::from(
        "# Kubernetes, hardened\n\nWhat the sections 1.2, 1.3, 1.4, 2 and 4.2 of the CIS Kubernetes Benchmark ask for, and \
         what a fresh configuration gives.\nWritten by `crates/machined/tests/hardening.rs`, which fails when it is not true.\n",
    );
    let mut wrong = Vec::new();
    for (title, checks) in SECTIONS {
        page.push_str(&format!("\n## {title}\n\n| Check | Asks for | Result |\n|---|---|---|\n"));
        for (id, what, met, reason) in checks(&plane) {
            match (met, reason) {
                (true, "") => page.push_str(&format!("| {id} | {what} | pass |\n")),
                (false, reason) if !reason.is_empty() => {
                    page.push_str(&format!("| {id} | {what} | no: {reason} |\n"));
                }
                (true, _) => wrong.push(format!("{id} passes now; it needs no reason")),
                (false, _) => wrong.push(format!("{id} {what}: not met, and no reason is given")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    expect_file!["../../../docs/kubernetes-hardening.md"].assert_eq(&page);
}
