//! Network settings of a running machine: applied live, seen by clients, gone again with the configuration.

use std::time::Duration;

use ichor_live::{Fleet, wait};

const OCTET: u8 = 33;
/// Everything below happens within milliseconds; a busy machine gets more.
const SOON: Duration = Duration::from_secs(90);

const DOCUMENTS: &str = r"apiVersion: v1alpha1
kind: HostnameConfig
auto: off
hostname: renamed.example.org
---
apiVersion: v1alpha1
kind: ResolverConfig
nameservers:
    - address: 10.33.0.1
searchDomains:
    domains: [lab.example.org]
---
apiVersion: v1alpha1
kind: StaticHostConfig
name: 10.33.0.200
hostnames: [printer, printer.example.org]
---
apiVersion: v1alpha1
kind: TimeSyncConfig
ntp:
    servers: [10.33.0.1]
---
apiVersion: v1alpha1
kind: BridgeConfig
name: br7
links: []
mtu: 1400
addresses:
    - address: 10.77.0.1/24
routes:
    - destination: 10.78.0.0/24
      gateway: 10.77.0.9
      metric: 77
";

/// Waits until a command of the client says what is wanted.
#[track_caller]
fn says(fleet: &Fleet, args: &[&str], wanted: impl Fn(&str) -> bool) {
    let node = fleet.address(0);
    let mut last = String::new();
    let seen = wait(&args.join(" "), SOON, || {
        let args: Vec<&str> = ["-n", &node].into_iter().chain(args.iter().copied()).collect();
        let output = fleet.run(&args).ok()?;
        last =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        wanted(&last).then_some(())
    });
    seen.unwrap_or_else(|error| panic!("{error}\n{last}"));
}

#[test]
fn documents_are_applied_live_and_removed_again() {
    let fleet = Fleet::create("net5", OCTET, 1, 0, &[]).unwrap();
    let node = fleet.address(0);
    let text =
        fleet.soon(&["-n", &node, "get", "machineconfig", "v1alpha1", "-o", "jsonpath={.spec}"]).unwrap();
    let before = fleet.home().join("before.yaml");
    std::fs::write(&before, text).unwrap();
    let name = fleet.soon(&["-n", &node, "get", "hostname", "-o", "jsonpath={.spec.hostname}"]).unwrap();

    fleet.soon(&["-n", &node, "patch", "mc", "--mode", "no-reboot", "-p", DOCUMENTS]).unwrap();
    says(&fleet, &["get", "hostname", "-o", "jsonpath={.spec.hostname}.{.spec.domainname}"], |text| {
        text.split_whitespace().collect::<String>() == "renamed.example.org"
    });
    says(&fleet, &["get", "addresses", "br7/10.77.0.1/24"], |text| text.contains("10.77.0.1/24   br7"));
    says(&fleet, &["get", "routes", "inet4/10.77.0.9/10.78.0.0/24/77"], |text| text.contains("10.77.0.9"));
    says(&fleet, &["get", "link", "br7", "-o", "jsonpath={.spec.kind}{.spec.mtu}"], |text| {
        text.split_whitespace().collect::<String>() == "bridge1400"
    });
    says(&fleet, &["get", "resolvers"], |text| {
        text.contains(r#"["10.33.0.1"]"#) && text.contains(r#"["lab.example.org","example.org"]"#)
    });
    says(&fleet, &["get", "timeservers"], |text| text.contains(r#"["10.33.0.1"]"#));
    says(&fleet, &["read", "/etc/hosts"], |text| {
        text.contains("10.33.0.2   renamed.example.org renamed\n")
            && text.contains("10.33.0.200 printer printer.example.org\n")
    });
    says(&fleet, &["read", "/etc/resolv.conf"], |text| {
        text.contains("\nsearch lab.example.org example.org\n")
    });
    says(&fleet, &["get", "linkspecs", "--namespace", "network-config", "configuration/br7"], |text| {
        text.contains("configuration/br7")
    });

    let file = before.to_str().unwrap();
    fleet.soon(&["-n", &node, "apply-config", "--mode", "no-reboot", "--file", file]).unwrap();
    says(&fleet, &["get", "hostname", "-o", "jsonpath={.spec.hostname}"], |text| text.trim() == name.trim());
    for gone in [
        &["get", "addresses", "br7/10.77.0.1/24"][..],
        &["get", "routes", "inet4/10.77.0.9/10.78.0.0/24/77"],
        &["get", "link", "br7"],
        &["get", "linkspecs", "br7"],
    ] {
        says(&fleet, gone, |text| text.contains("NotFound") || text.contains("not found"));
    }
    says(&fleet, &["read", "/etc/hosts"], |text| !text.contains("printer") && text.contains(name.trim()));
    says(&fleet, &["get", "timeservers"], |text| !text.contains("10.33.0.1"));
}

#[test]
fn all_that_a_machine_says_about_its_network_is_there() {
    let fleet = Fleet::create("net5-all", OCTET, 1, 0, &[]).unwrap();
    let listed = [
        ("linkstatuses", "eth0"),
        ("linkspecs", "eth0"),
        ("addressstatuses", "eth0/10.33.0.2/24"),
        ("addressspecs", "eth0/10.33.0.2/24"),
        ("routestatuses", "inet4/10.33.0.1//1024"),
        ("routespecs", "inet4/10.33.0.1//1024"),
        ("hostnamestatuses", "hostname"),
        ("hostnamespecs", "hostname"),
        ("resolverstatuses", "resolvers"),
        ("resolverspecs", "resolvers"),
        ("timeserverstatuses", "timeservers"),
        ("timeserverspecs", "timeservers"),
        ("nodeaddresses", "default"),
        ("nodeaddresses", "current"),
        ("nodeaddresses", "current-no-k8s"),
        ("nodeaddresses", "current-only-k8s"),
        ("nodeaddresses", "accumulative"),
        ("nodeaddresses", "accumulative-no-k8s"),
        ("nodeaddresses", "routed"),
        ("nodeaddresses", "routed-no-k8s"),
        ("nodeaddressfilters", "no-k8s"),
        ("nodeaddresssortalgorithms", "default"),
        ("networkstatuses", "status"),
        ("hostdnsconfigs", "config"),
        ("platformconfigs", "active"),
        ("ethernetstatuses", "eth0"),
    ];
    for (kind, id) in listed {
        says(&fleet, &["get", kind, id], |text| text.lines().any(|line| line.contains(id)));
    }
    says(&fleet, &["get", "networkstatus", "status", "-o", "jsonpath={.spec.connectivityReady}"], |text| {
        text.trim() == "true"
    });
}
