//! Files of both versions, and what becomes of them.

use expect_test::{Expect, expect};

use super::*;

fn links() -> Vec<KnownLink> {
    let link = |name: &str, permanent: &str, current: &str| KnownLink {
        name: name.to_owned(),
        permanent: permanent.parse().unwrap_or_default(),
        current: current.parse().unwrap(),
    };
    vec![link("enp1s0", "52:54:00:00:00:01", "52:54:00:00:00:aa"), link("enp2s0", "", "52:54:00:00:00:02")]
}

/// What a file becomes, a spec a line.
#[track_caller]
fn check(text: &str, expect: Expect) {
    let lines = match parse(text, &links()) {
        Ok(config) => describe(&config),
        Err(error) => vec![format!("error: {error}")],
    };
    expect.assert_eq(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
}

fn describe(config: &PlatformConfig) -> Vec<String> {
    let mut lines = Vec::new();
    for link in &config.links {
        let mut line = format!("link {} mtu {} {}", link.name, link.mtu, link.kind);
        if link.kind == "vlan" {
            line += &format!(" {} on {}", link.vlan.vlan_id, link.parent_name);
        }
        if link.kind == "bond" {
            let bond = &link.bond_master;
            line += &format!(" {} {} {} {}", bond.mode, bond.lacp_rate, bond.miimon, bond.ad_lacp_active);
        }
        if !link.bond_slave.master_name.is_empty() {
            line += &format!("member {} of {}", link.bond_slave.slave_index, link.bond_slave.master_name);
        }
        lines.push(line.trim_end().to_owned());
    }
    for found in &config.addresses {
        lines.push(format!("address {} on {}", found.address, found.link_name));
    }
    for route in &config.routes {
        let (dst, via) = (route.dst.to_string(), route.gateway.to_string());
        lines.push(format!(
            "route {dst:?} via {via:?} on {} metric {} table {} scope {} src {:?}",
            route.out_link_name,
            route.priority,
            route.table,
            route.scope,
            route.src.to_string()
        ));
    }
    for spec in &config.operators {
        let metric = spec.dhcp4.route_metric.max(spec.dhcp6.route_metric);
        lines.push(format!("{} on {} metric {metric}", spec.operator, spec.link_name));
    }
    for spec in &config.resolvers {
        let servers: Vec<String> = spec.dns_servers.iter().map(ToString::to_string).collect();
        lines.push(format!("servers {}", servers.join(" ")));
    }
    lines
}

#[test]
fn version_1() {
    check(
        "version: 1
config:
  - type: physical
    name: eth0
    mac_address: '52:54:00:00:00:01'
    mtu: 1400
    subnets:
      - {type: static, address: 10.0.0.2/24, gateway: 10.0.0.1, dns_nameservers: [9.9.9.9]}
      - {type: static6, address: 'fd00::2/64', gateway: 'fd00::1'}
  - type: physical
    name: eth1
    mac_address: 52:54:00:00:00:02
    subnets: [{type: dhcp}, {type: ipv6_dhcpv6-stateful}]
  - type: physical
    name: eth2
    mac_address: 52:54:00:00:00:aa
    subnets: [{type: static, address: 10.1.0.2, netmask: 255.255.255.0}]
  - {type: nameserver, address: [8.8.8.8, 1.1.1.1]}
  - {type: nameserver, address: 8.8.8.8}
",
        expect![[r#"
            link enp1s0 mtu 1400
            link enp2s0 mtu 0
            link eth2 mtu 0
            address 10.0.0.2/24 on enp1s0
            address fd00::2/64 on enp1s0
            address 10.1.0.2/24 on eth2
            route "" via "10.0.0.1" on enp1s0 metric 1024 table main scope global src ""
            route "" via "fd00::1" on enp1s0 metric 2048 table main scope global src ""
            dhcp4 on enp2s0 metric 1024
            dhcp6 on enp2s0 metric 2048
            servers 8.8.8.8 1.1.1.1
        "#]],
    );
}

#[test]
fn bonds_and_vlans_use_the_names_of_the_machine() {
    check(
        "network:
  version: 1
  config:
    - {type: physical, name: a, mac_address: '52:54:00:00:00:01'}
    - {type: physical, name: b, mac_address: '52:54:00:00:00:02'}
    - type: bond
      name: bond0
      bond_interfaces: [a, b]
      params: {bond-mode: 802.3ad, bond-lacp-rate: fast, bond-miimon: 100}
    - {type: vlan, name: bond0.7, vlan_link: bond0, vlan_id: 7, subnets: [{type: dhcp4}]}
    - {type: vlan, name: v8, vlan_link: a, vlan_id: 8}
",
        expect![[r#"
            link enp1s0 mtu 0 member 0 of bond0
            link enp2s0 mtu 0 member 1 of bond0
            link bond0 mtu 0 bond 802.3ad fast 100 on
            link bond0.7 mtu 0 vlan 7 on bond0
            link v8 mtu 0 vlan 8 on enp1s0
            dhcp4 on bond0.7 metric 1024
        "#]],
    );
}

#[test]
fn version_2() {
    check(
        "version: 2
ethernets:
  z:
    match: {macaddress: '52:54:00:00:00:02'}
    dhcp4: true
    dhcp6: true
  eth0:
    match: {macaddress: '52:54:00:00:00:01'}
    addresses: [10.0.0.2/24, 'fd00::2/64']
    gateway4: 10.0.0.1
    gateway6: fd00::1
    mtu: 9000
    nameservers: {addresses: [8.8.8.8], search: [x]}
    routes:
      - {to: 10.9.0.0/16, via: 10.0.0.9, metric: 5, table: 77}
      - {to: default, via: 192.168.7.1, on-link: true}
vlans:
  v7: {id: 7, link: eth0, addresses: [10.7.0.2/24]}
bonds:
  bond0: {interfaces: [z], parameters: {mode: active-backup, mii-monitor-interval: 50}}
",
        expect![[r#"
            link enp1s0 mtu 9000
            link enp2s0 mtu 0 member 0 of bond0
            link bond0 mtu 0 bond active-backup slow 50 off
            link v7 mtu 0 vlan 7 on enp1s0
            address 10.0.0.2/24 on enp1s0
            address fd00::2/64 on enp1s0
            address 10.7.0.2/24 on v7
            route "" via "10.0.0.1" on enp1s0 metric 1024 table main scope global src ""
            route "" via "fd00::1" on enp1s0 metric 2048 table main scope global src ""
            route "10.9.0.0/16" via "10.0.0.9" on enp1s0 metric 5 table 77 scope global src ""
            route "192.168.7.1/32" via "" on enp1s0 metric 1024 table main scope link src "10.0.0.2"
            route "" via "192.168.7.1" on enp1s0 metric 1024 table main scope global src ""
            dhcp4 on enp2s0 metric 1024
            dhcp6 on enp2s0 metric 2048
            servers 8.8.8.8
        "#]],
    );
}

#[test]
fn mistakes_are_named() {
    for (text, told) in [
        ("version: 3\n", "version \"3\"; there are 1 and 2"),
        ("config: []\n", "version \"\"; there are 1 and 2"),
        ("version: 1\nconfig: [{type: bridge}]\n", "a device of type \"bridge\" is not known"),
        (
            "version: 1\nconfig: [{type: physical, name: a, subnets: [{type: static, address: 10.0.0.1}]}]\n",
            "\"10.0.0.1\" is not an address with a prefix, as in 10.0.0.2/24",
        ),
        (
            "version: 2\nvlans: {v: {id: 5000, link: a}}\n",
            "VLAN \"v\" needs a link and a number from 1 to 4094",
        ),
        ("version: 2\nethernets: {a: {gateway4: x}}\n", "\"x\" is not an address"),
        ("version: 2\nethernets: {a: {mtu: big}}\n", "mtu: bad value \"big\""),
    ] {
        let error = parse(text, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("nocloud network-config: {told}"));
    }
    assert_eq!(parse("", &[]).unwrap(), PlatformConfig::default());
}
