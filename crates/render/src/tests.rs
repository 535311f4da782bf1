//! Whole configurations, rendered.

use expect_test::{Expect, expect};
use ichor_config::CommentMode;
use ichor_config::generate::{Input, Options, Secrets};
use ichor_types::MachineType;

use super::*;

fn documents(text: &str) -> Documents {
    Documents::load(text.as_bytes()).unwrap()
}

const CONFIG: &str = "version: v1alpha1
machine:
  type: controlplane
  install: {disk: /dev/vda, extraKernelArgs: [quiet, 'x.token=s3cret-1']}
  kubelet: {extraArgs: {v: '4'}}
  sysctls: {net.core.somaxconn: '65535'}
  kernel: {modules: [{name: nbd}]}
  network:
    hostname: cp-1
    interfaces:
      - {interface: eth0, addresses: [10.5.0.2/24], vip: {ip: 10.5.0.9, hcloud: {apiToken: s3cret-2}}}
      - interface: wg0
        wireguard: {privateKey: s3cret-3, listenPort: 51820}
  pods: [{metadata: {name: web}, spec: {containers: [{name: w, env: [{name: P, value: s3cret-4}]}]}}]
cluster:
  controlPlane: {endpoint: 'https://10.5.0.9:6443'}
  apiServer:
    env: {HTTPS_PROXY: 'http://u:s3cret-5@proxy/'}
    extraArgs: {custom-token: s3cret-6}
  etcd: {extraArgs: {election-timeout: '5000'}}
";

fn facts() -> Facts {
    let address = vec!["10.5.0.2".parse().unwrap()];
    Facts { routed: address.clone(), current: address, ..Facts::default() }
}

fn outcome(text: &str) -> Outcome {
    render(&documents(text), &facts())
}

#[track_caller]
fn shows(rendering: &Rendering, thing: &str, expect: Expect) {
    expect.assert_eq(rendering.get(thing).unwrap_or_else(|| panic!("no {thing}")));
}

#[test]
fn a_control_plane_is_rendered_with_everything_it_would_run() {
    let found = outcome(CONFIG);
    assert_eq!((found.errors, found.notes), (vec![], vec![]));
    let names: Vec<&str> = found.rendering.names().collect();
    expect![[r#"
        bootstrap-manifests
        etcd
        file/kube-apiserver/admission-control-config.yaml
        file/kube-apiserver/auditpolicy.yaml
        file/kube-apiserver/authorization-config.yaml
        file/kube-scheduler/scheduler-config.yaml
        images
        kernel/arguments
        kernel/modules
        kernel/parameters
        kubelet
        network/addresses
        network/hostname
        network/links
        network/operators
        network/resolvers
        network/time-servers
        static-pod/default-web
        static-pod/kube-apiserver
        static-pod/kube-controller-manager
        static-pod/kube-scheduler"#]]
    .assert_eq(&names.join("\n"));
    shows(
        &found.rendering,
        "images",
        expect![[r#"
            coredns: registry.k8s.io/coredns/coredns:v1.13.2
            etcd: registry.k8s.io/etcd:v3.6.7
            flannel: ghcr.io/siderolabs/flannel:v0.27.4
            kube-apiserver: registry.k8s.io/kube-apiserver:v1.35.0
            kube-controller-manager: registry.k8s.io/kube-controller-manager:v1.35.0
            kube-proxy: registry.k8s.io/kube-proxy:v1.35.0
            kube-scheduler: registry.k8s.io/kube-scheduler:v1.35.0
            kubelet: ghcr.io/siderolabs/kubelet:v1.35.0
        "#]],
    );
    let etcd = found.rendering.get("etcd").unwrap();
    for line in ["--name=cp-1", "--election-timeout=5000", "--advertise-client-urls=https://10.5.0.2:2379"] {
        assert!(etcd.contains(&format!("- {line}\n")), "{etcd}");
    }
    assert!(found.rendering.get("kernel/parameters").unwrap().contains("somaxconn: \"65535\"\n"));
    assert!(found.rendering.get("network/links").unwrap().contains("listenPort: 51820\n"));
}

#[test]
fn a_worker_has_neither_etcd_nor_a_control_plane() {
    let worker = CONFIG.replace("controlplane", "worker");
    let found = outcome(&worker);
    assert!(found.errors.is_empty(), "{:?}", found.errors);
    let names: Vec<&str> = found.rendering.names().filter(|name| !name.starts_with("network/")).collect();
    assert_eq!(
        names,
        [
            "images",
            "kernel/arguments",
            "kernel/modules",
            "kernel/parameters",
            "kubelet",
            "static-pod/default-web"
        ]
    );
}

#[test]
fn what_would_fail_is_named() {
    let broken =
        CONFIG.replace("{election-timeout: '5000'}", "{data-dir: /x}").replace("v: '4'", "config: /x");
    assert_eq!(
        outcome(&broken).errors,
        [
            r#"machine.kubelet.extraArgs: extra arg "config" is not allowed"#,
            r#"cluster.etcd.extraArgs: extra arg "data-dir" is not allowed"#,
        ]
    );
}

#[test]
fn no_secret_of_a_configuration_is_shown() {
    let printed = outcome(CONFIG).rendering.print();
    for number in 1..=6 {
        assert!(CONFIG.contains(&format!("s3cret-{number}")));
    }
    assert!(!printed.contains("s3cret"), "{printed}");
    for kept in ["custom-token", "HTTPS_PROXY", "privateKey", "apiToken", "x.token"] {
        assert!(printed.contains(kept), "{kept} is there without its value");
    }
}

#[test]
fn no_secret_of_a_generated_cluster_is_shown() {
    let now = jiff::Timestamp::from_second(1_760_000_000).unwrap();
    let options = Options { install_disk: "/dev/vda".to_owned(), ..Options::default() };
    let secrets = Secrets::generate(now, options.contract).unwrap();
    let input = Input {
        cluster_name: "c".to_owned(),
        endpoint: "https://10.5.0.9:6443".to_owned(),
        kubernetes_version: "1.35.0".to_owned(),
        secrets,
        options,
    };
    for kind in [MachineType::ControlPlane, MachineType::Worker] {
        let config = input.config(kind).unwrap();
        let text = config.encode(CommentMode::None);
        let printed = render(&documents(&text), &facts()).rendering.print();
        // Keys of a configuration whose values are secrets, wherever they are.
        let secret = |line: &&str| {
            ["token:", "key:", "secret:", "secretboxEncryptionSecret:", "aescbcEncryptionSecret:"]
                .iter()
                .any(|key| line.trim_start().starts_with(key))
        };
        let values: Vec<&str> =
            text.lines().filter(secret).filter_map(|line| line.split_once(": ")).map(|(_, v)| v).collect();
        assert!(values.iter().filter(|value| value.len() >= 16).count() >= 3, "{values:?}");
        for value in values.iter().filter(|value| value.len() >= 16) {
            assert!(!printed.contains(value.trim_matches('"')), "{value}");
        }
    }
}

#[test]
fn two_sides_with_other_facts_about_the_same_differ_and_with_equal_ones_do_not() {
    let one = outcome(CONFIG).rendering;
    assert_eq!(difference::differences(&one, &outcome(CONFIG).rendering), []);
    let moved = Facts { routed: vec!["10.5.0.3".parse().unwrap()], ..facts() };
    let other = render(&documents(CONFIG), &moved).rendering;
    let things: Vec<String> =
        difference::differences(&one, &other).into_iter().map(|found| found.thing).collect();
    assert_eq!(things, ["etcd", "kubelet"]);
}

#[test]
fn a_configuration_of_documents_alone_is_rendered_as_far_as_it_goes() {
    let found = outcome("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n");
    assert!(found.errors.is_empty());
    assert!(found.rendering.get("network/hostname").unwrap().contains("hostname: a\n"));
    assert!(found.rendering.get("kubelet").is_none());
}
