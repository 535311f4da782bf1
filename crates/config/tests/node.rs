//! What a running node asks: which changes need a reboot, what the documents say together.

use expect_test::expect;
use ichor_config::{Documents, plan};
use ichor_types::MachineType;

fn load(text: &str) -> Documents {
    Documents::load(text.as_bytes()).unwrap_or_else(|error| panic!("{}", error.render("text", text)))
}

const BASE: &str =
    "version: v1alpha1\nmachine:\n    type: worker\n    token: t\n    features:\n        rbac: true\n";

/// Changes the base by adding lines to the machine section.
fn with(lines: &str) -> Documents {
    let indented: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    load(&format!("{BASE}{indented}"))
}

#[test]
fn most_changes_take_effect_at_once() {
    let base = load(BASE);
    for change in [
        "certSANs: [a]",
        "sysctls: {a: b}",
        "sysfs: {a: b}",
        "network: {hostname: a}",
        "kubelet: {image: a}",
        "nodeLabels: {a: b}",
        "install: {disk: /dev/sda}",
        "registries: {mirrors: {a: {endpoints: []}}}",
        "pods: [{a: b}]",
        "time: {disabled: true}",
        "logging: {destinations: []}",
        "kernel: {modules: [{name: a}]}",
    ] {
        assert!(plan::plan(&base, &with(change)).is_hot(), "{change}");
    }
    let cluster = load(&format!("{BASE}cluster:\n    clusterName: x\ndebug: true\n"));
    assert!(plan::plan(&base, &cluster).is_hot());
    let document = load(&format!("{BASE}---\napiVersion: v1alpha1\nkind: ZswapConfig\n"));
    assert!(plan::plan(&base, &document).is_hot());
    let features = load(&BASE.replace("rbac: true\n", "rbac: true\n        hostDNS: {enabled: true}\n"));
    assert!(plan::plan(&base, &features).is_hot());
}

#[test]
fn some_changes_need_a_reboot_and_say_which() {
    let base = load(BASE);
    for (change, key) in [
        ("env: {a: b}", "machine.env"),
        ("files: [{content: a, permissions: 0o644, path: /var/a, op: create}]", "machine.files"),
        ("udev: {rules: [a]}", "machine.udev"),
        ("disks: [{device: /dev/sdb}]", "machine.disks"),
        ("systemDiskEncryption: {state: {provider: luks2, keys: []}}", "machine.systemDiskEncryption"),
        ("baseRuntimeSpecOverrides: {a: b}", "machine.baseRuntimeSpecOverrides"),
    ] {
        assert_eq!(plan::plan(&base, &with(change)).reboot, [key], "{change}");
    }
    let token = plan::plan(&base, &load(&BASE.replace("token: t", "token: other")));
    assert_eq!(token.reboot, ["machine.token"]);
    expect![[r#"
        this config change can't be applied in immediate mode
        diff:--- a
        +++ b
        @@ -1,7 +1,7 @@
         version: v1alpha1
         machine:
             type: worker
        -    token: t
        +    token: other
             certSANs: []
             features:
                 rbac: true
    "#]]
    .assert_eq(&token.reason());
    let quota = load(&BASE.replace("rbac: true", "diskQuotaSupport: true"));
    assert_eq!(plan::plan(&base, &quota).reboot, ["machine.features"]);
}

#[test]
fn every_question_has_an_answer_for_an_empty_configuration() {
    for text in ["machine:\n", "cluster:\n", "debug: true\n", "apiVersion: v1alpha1\nkind: ZswapConfig\n"] {
        let documents = load(text);
        assert_eq!(documents.machine_type(), MachineType::Unknown);
        assert_eq!(documents.api_server_port(), 6443);
        assert_eq!(documents.pod_subnets()[0].to_string(), "10.244.0.0/16");
        assert_eq!(documents.dns_domain(), "cluster.local");
        assert!(documents.kube_prism_port().is_none() && documents.legacy_devices().is_empty());
        assert!(documents.validate_images("v1.12.1").is_ok());
    }
}

#[test]
fn deprecated_keys_name_what_replaces_them() {
    let documents = with(
        "network:\n    hostname: a\n    interfaces:\n        - interface: eth0\n          cidr: 10.0.0.1/24\n",
    );
    let warnings: Vec<String> = documents
        .deprecations()
        .iter()
        .map(|item| format!("{}:{} {}", item.span.line, item.span.column, item.message))
        .collect();
    expect![[r#"
        6:9 machine.features.rbac is deprecated: leave it out, it is always on
        8:9 machine.network.hostname is deprecated: use a `HostnameConfig` document
        9:9 machine.network.interfaces is deprecated: use `LinkConfig`, `BondConfig`, `BridgeConfig`, `VLANConfig`, `WireguardConfig` and `DHCPv4Config` documents"#]]
    .assert_eq(&warnings.join("\n"));
}

#[test]
fn many_deprecated_keys_are_told_in_few_words() {
    let text = "machine:\n  install:\n    extensions: []\n  disks: []\n".to_owned()
        + "  time: {}\n  registries: {}\n  systemDiskEncryption: {}\n  network:\n    hostname: a\n"
        + "    interfaces: []\n    nameservers: []\n    searchDomains: []\n    extraHostEntries: []\n"
        + "    disableSearchDomain: true\n  features:\n    rbac: true\n    stableHostname: true\n"
        + "    apidCheckExtKeyUsage: true\ncluster:\n  allowSchedulingOnMasters: true\n  etcd:\n    subnet: a\n"
        + "  apiServer:\n    disablePodSecurityPolicy: true\n";
    let documents = Documents::load(text.as_bytes()).unwrap();
    let told = documents.deprecations();
    assert!((12..=21).contains(&told.len()), "{told:#?}");
    assert!(told.iter().all(|item| item.span.is_known() && item.message.contains(" is deprecated: ")));
}

#[test]
fn the_answer_of_a_node_has_the_places_that_the_client_shows() {
    let text = "version: v1alpha1\nmachine:\n    type: wroker\n    kubelet:\n        imagge: a\n        nodeIP:\n            validSubnets: x\n";
    let problems = Documents::load(text.as_bytes()).unwrap_err();
    let answer = problems.answer();
    assert!(answer.starts_with(problems.to_string().trim_end()), "{answer}");
    for item in &problems.items {
        let place = format!("line {}, column {}: ", item.span.line, item.span.column);
        assert!(answer.contains(&place) && answer.contains(&item.message), "{answer}");
        assert!(
            item.render("a.yaml", text).contains(&format!("a.yaml:{}:{}", item.span.line, item.span.column))
        );
    }
}

#[test]
fn an_answer_fits_into_a_trailer() {
    let keys: String = (0..5000).map(|i| format!("    schlüssel{i}: wert mit ümläuten %%%\n")).collect();
    let answer = Documents::load(format!("machine:\n{keys}").as_bytes()).unwrap_err().answer();
    let cost: usize =
        answer.bytes().map(|b| if (0x20..0x7f).contains(&b) && b != b'%' { 1 } else { 3 }).sum();
    assert!(cost < 14_000, "{cost}");
    assert!(
        answer.contains("line 2, column 5: ") && answer.contains("and more that is not shown"),
        "{answer}"
    );
}
