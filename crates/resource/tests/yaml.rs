//! What people see: YAML of specs and definitions, byte for byte.

use std::net::Ipv4Addr;

use expect_test::{Expect, expect};
use ichor_resource::meta::ResourceDefinition;
use ichor_resource::network::{
    AddressFlags, AddressStatus, Family, LinkSpec, LinkType, Scope, WireguardPeer,
};
use ichor_resource::runtime::{MachineStage, MachineStatus, MachineStatusStatus, UnmetCondition};
use ichor_resource::secrets::{ApiCertificate, KubeletSecret};
use ichor_resource::value::{PemCertificateAndKey, Url};
use ichor_resource::{Spec, TypedSpec, network, runtime};

#[track_caller]
fn check(spec: &impl Spec, expect: Expect) {
    let mut out = String::new();
    spec.encode_yaml(&mut out);
    expect.assert_eq(&out);
}

#[test]
fn lists_of_mappings_stand_after_their_dash() {
    let condition = |name: &str, reason: &str| UnmetCondition { name: name.into(), reason: reason.into() };
    check(
        &MachineStatus {
            stage: MachineStage::ShuttingDown,
            status: MachineStatusStatus {
                ready: false,
                unmet_conditions: vec![
                    condition("time", "time is not synced"),
                    condition("services", "a: b"),
                ],
            },
        },
        expect![[r#"
            stage: shutting down
            status:
                ready: false
                unmetConditions:
                    - name: time
                      reason: time is not synced
                    - name: services
                      reason: 'a: b'
        "#]],
    );
}

#[test]
fn empty_values_have_a_form_each() {
    check(
        &ApiCertificate {
            server: Some(PemCertificateAndKey { crt: "CRT".into(), key: "KEY".into() }),
            ..Default::default()
        },
        expect![[r#"
            acceptedCAs: []
            client: null
            server:
                crt: Q1JU
                key: S0VZ
        "#]],
    );
    check(&runtime::MaintenanceServiceRequest {}, expect!["{}\n"]);
}

#[test]
fn flags_enums_and_addresses_are_texts() {
    check(
        &AddressStatus {
            address: "10.5.0.2/24".parse().unwrap(),
            local: Ipv4Addr::new(10, 5, 0, 2).into(),
            link_index: 7,
            link_name: "eth0".into(),
            family: Family::INET4,
            scope: Scope::GLOBAL,
            flags: AddressFlags::PERMANENT.with(AddressFlags::TEMPORARY),
            ..Default::default()
        },
        expect![[r#"
            address: 10.5.0.2/24
            linkIndex: 7
            linkName: eth0
            family: inet4
            scope: global
            flags: temporary,permanent
            priority: 0
        "#]],
    );
}

#[test]
fn inlined_and_nested_messages_keep_their_places() {
    let mut link = LinkSpec { name: "wg0".into(), r#type: LinkType(9999), ..Default::default() };
    link.bond_slave.master_name = "bond0".into();
    link.wireguard.peers =
        vec![WireguardPeer { allowed_ips: vec!["10.0.0.0/8".parse().unwrap()], ..Default::default() }];
    check(
        &link,
        expect![[r#"
            name: wg0
            logical: false
            up: false
            mtu: 0
            kind: ""
            type: LinkType(9999)
            masterName: bond0
            wireguard:
                listenPort: 0
                firewallMark: 0
                peers:
                    - publicKey: ""
                      presharedKey: ""
                      endpoint: ""
                      persistentKeepaliveInterval: 0s
                      allowedIPs:
                        - 10.0.0.0/8
            layer: default
        "#]],
    );
}

#[test]
fn urls_show_their_parts() {
    let spec = KubeletSecret { endpoint: Some(Url::from("https://10.5.0.2:6443")), ..Default::default() };
    check(
        &spec,
        expect![[r#"
            endpoint:
                scheme: https
                opaque: ""
                user: null
                host: 10.5.0.2:6443
                path: ""
                rawpath: ""
                omithost: false
                forcequery: false
                rawquery: ""
                fragment: ""
                rawfragment: ""
            acceptedCAs: []
            bootstrapTokenID: ""
            bootstrapTokenSecret: ""
        "#]],
    );
}

#[test]
fn definitions_say_all_names_of_a_type() {
    check(
        &ResourceDefinition::from(network::DNSResolveCache::definition()),
        expect![[r#"
            type: DNSResolveCaches.net.talos.dev
            displayType: DNSResolveCach
            defaultNamespace: network
            aliases:
                - dnsresolvecach
                - dnsrc
                - dnsrcs
            allAliases:
                - dnsresolvecaches
                - dnsresolvecaches.net
                - dnsresolvecaches.net.talos
                - dnsresolvecach
                - dnsrc
                - dnsrcs
            printColumns:
                - name: Status
                  jsonPath: '{.status}'
        "#]],
    );
    check(
        &ResourceDefinition::from(runtime::MountStatus::definition()),
        expect![[r#"
            type: MountStatuses.runtime.talos.dev
            displayType: MountStatus
            defaultNamespace: runtime
            aliases:
                - mounts
            allAliases:
                - mounts
            skipAutomaticAliases: true
            printColumns:
                - name: Source
                  jsonPath: '{.source}'
                - name: Target
                  jsonPath: '{.target}'
                - name: Filesystem Type
                  jsonPath: '{.filesystemType}'
        "#]],
    );
}
