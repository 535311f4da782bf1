//! Configurations of about 30 KB.
#![allow(dead_code, reason = "each program uses what it needs")]

use std::fmt::Write as _;

use ichor_config::CommentMode;
use ichor_config::generate::{Input, Options, Secrets};

/// A control plane configuration as it is generated, comments and secrets included, with the documents that people
/// add: certificates, services, hosts and firewall rules.
pub(crate) fn typical() -> String {
    let secrets = include_str!("../../tests/fixtures/generate/inputs/secrets.yaml");
    let input = Input {
        cluster_name: "typical".to_owned(),
        endpoint: "https://10.0.0.1:6443".to_owned(),
        kubernetes_version: "1.35.0".to_owned(),
        secrets: Secrets::load(secrets.as_bytes()).expect("good secrets"),
        options: Options { install_disk: "/dev/sda".to_owned(), ..Options::default() },
    };
    let documents = input.config(ichor_types::MachineType::ControlPlane).expect("a configuration");
    let mut text = documents.encode(CommentMode::All);
    let line = "MIIBPzCB8qADAgECAhEA0Cf7um8uzjA8fDecqrHIWjAFBgMrZXAwEDEOMAwGA1UE\n    ";
    let mut add = |part: std::fmt::Arguments<'_>| text.write_fmt(part).expect("room");
    add(format_args!(
        "---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: company\ncertificates: |-\n    -----BEGIN CERTIFICATE-----\n    {}-----END CERTIFICATE-----\n",
        line.repeat(120)
    ));
    for i in 0..6 {
        add(format_args!(
            "---\n# Service number {i}.\napiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: service-{i}\nconfigFiles:\n    - content: |\n        {}\n      mountPath: /etc/service-{i}.conf\nenvironment:\n    - A=b\n",
            "some-setting = a value of usual length\n        ".repeat(12).trim_end()
        ));
    }
    for i in 0..12 {
        add(format_args!(
            "---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.1.0.{i}\nhostnames:\n    - host-{i}.example.com\n"
        ));
    }
    for i in 0..6 {
        add(format_args!(
            "---\napiVersion: v1alpha1\nkind: NetworkRuleConfig\nname: rule-{i}\nportSelector:\n    ports:\n        - {}\n    protocol: tcp\ningress:\n    - subnet: 10.0.0.0/8\n",
            8000 + i
        ));
    }
    text
}

/// A valid control plane configuration with many links, files, labels and documents: many values in few bytes.
pub(crate) fn dense() -> String {
    let mut text = "version: v1alpha1\nmachine:\n    type: controlplane\n    token: abcdef.0123456789abcdef\n    ca:\n        \
                    crt: Y2E=\n        key: a2V5\n    install:\n        disk: /dev/sda\n        wipe: false\n"
        .to_owned();
    let mut add = |part: std::fmt::Arguments<'_>| text.write_fmt(part).expect("room");
    add(format_args!("    nodeLabels:\n"));
    for i in 0..40 {
        add(format_args!("        example.com/label-{i}: value-{i}\n"));
    }
    add(format_args!("    sysctls:\n"));
    for i in 0..60 {
        add(format_args!("        net.ipv4.conf.eth{i}.rp_filter: \"{}\"\n", i % 3));
    }
    add(format_args!("    files:\n"));
    for i in 0..25 {
        add(format_args!(
            "        - content: |\n            # file {i}\n            [section]\n            key = value of some length\n            other = \"quoted\"\n          permissions: 0o644\n          path: /var/etc/file-{i}.conf\n          op: create\n"
        ));
    }
    add(format_args!(
        "    kubelet:\n        image: ghcr.io/siderolabs/kubelet:v1.35.0\n        extraArgs:\n"
    ));
    for i in 0..30 {
        add(format_args!("            feature-gate-number-{i}: \"true\"\n"));
    }
    add(format_args!("    network:\n        interfaces:\n"));
    for i in 0..40 {
        add(format_args!(
            "            - interface: eth{i}\n              addresses:\n                - 10.0.{i}.2/24\n              routes:\n                - network: 10.{}.0.0/16\n                  gateway: 10.0.{i}.1\n              mtu: 9000\n",
            i + 100
        ));
    }
    add(format_args!(
        "cluster:\n    id: abc\n    secret: def\n    controlPlane:\n        endpoint: https://10.0.0.1:6443\n    clusterName: large\n    network:\n        dnsDomain: cluster.local\n        podSubnets:\n            - 10.244.0.0/16\n        serviceSubnets:\n            - 10.96.0.0/12\n    inlineManifests:\n"
    ));
    for i in 0..20 {
        add(format_args!(
            "        - name: manifest-{i}\n          contents: |\n            apiVersion: v1\n            kind: ConfigMap\n            metadata:\n                name: map-{i}\n            data:\n                key: some value that is not short\n"
        ));
    }
    for i in 0..40 {
        add(format_args!(
            "---\napiVersion: v1alpha1\nkind: StaticHostConfig\nname: 10.1.0.{i}\nhostnames:\n    - host-{i}.example.com\n    - host-{i}\n"
        ));
    }
    text
}
