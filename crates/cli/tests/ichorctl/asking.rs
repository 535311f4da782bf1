//! Questions with one answer: versions, resources, services, memory.

use expect_test::expect;
use ichor_wire::common::Metadata;
use ichor_wire::cosi::resource as wire;
use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use ichor_wire::cosi::resource::meta::resource_definition_spec::PrintColumn;
use ichor_wire::google::rpc;
use ichor_wire::machine::{
    FeaturesInfo, MemInfo, Memory, MemoryResponse, Version, VersionInfo, VersionResponse,
};
use prost::Message as _;
use prost_types::Timestamp;
use tonic::Code;

use crate::fake::{Answer, Methods, Seen};

const VERSION: &str = "/machine.MachineService/Version";
const LIST: &str = "/cosi.resource.State/List";
const GET: &str = "/cosi.resource.State/Get";
const WATCH: &str = "/cosi.resource.State/Watch";

/// Metadata as a gateway writes it: nodes that end in 9 are down.
fn metadata(node: &str) -> Metadata {
    if !node.ends_with('9') {
        return Metadata { hostname: node.into(), ..Metadata::default() };
    }
    Metadata {
        hostname: node.into(),
        error: "rpc error: code = Unavailable desc = down".into(),
        status: Some(rpc::Status {
            code: Code::Unavailable as i32,
            message: "down".into(),
            details: Vec::new(),
        }),
    }
}

fn version(seen: &Seen) -> Answer {
    let reply = |metadata: Option<Metadata>, tag: &str| Version {
        metadata,
        version: Some(VersionInfo {
            tag: tag.into(),
            sha: "abc".into(),
            go_version: "none".into(),
            os: "linux".into(),
            arch: "amd64".into(),
            ..VersionInfo::default()
        }),
        features: Some(FeaturesInfo { rbac: true }),
        ..Version::default()
    };
    if seen.node() == "10.5.0.9" {
        return Answer::error(Code::Unavailable, "down");
    }
    let messages = match seen.nodes() {
        nodes if nodes.is_empty() => vec![reply(None, "v1.12.1")],
        nodes => nodes
            .iter()
            .map(|node| match metadata(node) {
                metadata if metadata.error.is_empty() => reply(Some(metadata), "v1.12.1"),
                metadata => Version { metadata: Some(metadata), ..Version::default() },
            })
            .collect(),
    };
    Answer::one(&VersionResponse { messages })
}

fn resource(resource_type: &str, id: &str, version: u32, yaml: &str, proto: Vec<u8>) -> wire::Resource {
    wire::Resource {
        metadata: Some(wire::Metadata {
            namespace: if resource_type.contains("meta") { "meta" } else { "network" }.into(),
            r#type: resource_type.into(),
            id: id.into(),
            version: version.to_string(),
            owner: "network.HostnameSpecController".into(),
            phase: "running".into(),
            created: Some(Timestamp { seconds: 1_735_689_600, nanos: 5 }),
            updated: Some(Timestamp { seconds: 1_735_689_605, nanos: 0 }),
            ..wire::Metadata::default()
        }),
        spec: Some(wire::Spec { proto_spec: proto.into(), yaml_spec: yaml.into() }),
    }
}

fn definitions() -> Vec<wire::Resource> {
    let definition = |name: &str, display: &str, aliases: &[&str], column: (&str, &str)| {
        let spec = ResourceDefinitionSpec {
            resource_type: name.into(),
            display_type: display.into(),
            default_namespace: if name.contains("meta") { "meta" } else { "network" }.into(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            all_aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            print_columns: vec![PrintColumn { name: column.0.into(), json_path: column.1.into() }],
            ..ResourceDefinitionSpec::default()
        };
        let yaml = format!(
            "type: {name}\naliases:\n{}",
            aliases.iter().map(|a| format!("    - {a}\n")).collect::<String>()
        );
        resource("ResourceDefinitions.meta.cosi.dev", &name.to_lowercase(), 1, &yaml, spec.encode_to_vec())
    };
    vec![
        definition(
            "HostnameStatuses.net.talos.dev",
            "HostnameStatus",
            &["hostname", "hs"],
            ("Hostname", "{.hostname}"),
        ),
        definition(
            "HostnameSpecs.net.talos.dev",
            "HostnameSpec",
            &["hostnamespec", "hs"],
            ("Hostname", "{.hostname}"),
        ),
        definition(
            "ResourceDefinitions.meta.cosi.dev",
            "ResourceDefinition",
            &["rd", "rds"],
            ("Aliases", "{.aliases[:]}"),
        ),
    ]
}

fn hostname(node: &str) -> wire::Resource {
    let name = format!("node-{}", node.rsplit('.').next().unwrap_or_default());
    let yaml = format!("hostname: {name}\ndomainname: \"\"\n");
    resource("HostnameStatuses.net.talos.dev", "hostname", 2, &yaml, Vec::new())
}

fn list(seen: &Seen) -> Answer {
    let request: wire::ListRequest = seen.decode();
    if seen.node() == "10.5.0.9" {
        return Answer::error(Code::Unavailable, "down");
    }
    let resources = match request.r#type.as_str() {
        "ResourceDefinitions.meta.cosi.dev" => definitions(),
        _ => vec![hostname(&seen.node())],
    };
    Answer::many(
        resources.into_iter().map(|found| wire::ListResponse { resource: Some(found) }.encode_to_vec()),
    )
}

fn get(seen: &Seen) -> Answer {
    let request: wire::GetRequest = seen.decode();
    match request.id.as_str() {
        "hostname" => Answer::one(&wire::GetResponse { resource: Some(hostname(&seen.node())) }),
        id => Answer::error(
            Code::NotFound,
            &format!("resource {}({}/{id}@undefined) doesn't exist", request.r#type, request.namespace),
        ),
    }
}

fn watch(seen: &Seen) -> Answer {
    let event = |kind: wire::EventType, found: wire::Resource| {
        let event = wire::Event { resource: Some(found), event_type: kind.into(), ..wire::Event::default() };
        wire::WatchResponse { event: vec![event] }.encode_to_vec()
    };
    let found = hostname(&seen.node());
    Answer::many([
        wire::WatchResponse::default().encode_to_vec(),
        event(wire::EventType::Created, found.clone()),
        event(wire::EventType::Bootstrapped, wire::Resource::default()),
        event(wire::EventType::Updated, found.clone()),
        event(wire::EventType::Destroyed, found),
    ])
}

/// What the program under test was built from.
const COMMIT: &str = match option_env!("ICHOR_COMMIT") {
    Some(commit) => commit,
    None => "undefined",
};

fn node() -> Methods {
    Methods::default().on(VERSION, version).on(LIST, list).on(GET, get).on(WATCH, watch).on(
        "/machine.MachineService/Memory",
        |_| {
            let meminfo =
                MemInfo { memtotal: 8_192_000, memfree: 4_096_000, cached: 1_024_000, ..MemInfo::default() };
            Answer::one(&MemoryResponse { messages: vec![Memory { metadata: None, meminfo: Some(meminfo) }] })
        },
    )
}

#[test]
fn version_of_one_machine_shows_client_and_server() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        Client:
        	Tag:         v1.12.1
        	SHA:         COMMIT
        	Built:       
        	Go version:  none (Ichor 0.1.0)
        	OS/Arch:     linux/amd64
        Server:
        	NODE:        10.5.0.2
        	Tag:         v1.12.1
        	SHA:         abc
        	Built:       
        	Go version:  none
        	OS/Arch:     linux/amd64
        	Enabled:     RBAC
    "#]]
    .assert_eq(&fake.run(&["version"]).text().replace(COMMIT, "COMMIT"));
    let seen = &fake.calls(VERSION)[0];
    assert_eq!(seen.headers["nodes"], "10.5.0.2");
    assert_eq!(seen.headers["runtime"], "Talos");
}

#[test]
fn a_machine_that_fails_is_a_warning_beside_the_others() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        Client:
        Talos v1.12.1
        Server:
        	NODE:        10.5.0.2
        	Tag:         v1.12.1
        	SHA:         abc
        	Built:       
        	Go version:  none
        	OS/Arch:     linux/amd64
        	Enabled:     RBAC
        	NODE:        10.5.0.3
        	Tag:         v1.12.1
        	SHA:         abc
        	Built:       
        	Go version:  none
        	OS/Arch:     linux/amd64
        	Enabled:     RBAC
        --- stderr
        WARNING: 1 error occurred:
        	* 10.5.0.9: rpc error: code = Unavailable desc = down
    "#]]
    .assert_eq(&fake.run(&["-n", "10.5.0.2,10.5.0.9", "--nodes", "10.5.0.3", "version", "--short"]).text());
    assert_eq!(fake.calls(VERSION)[0].nodes(), ["10.5.0.2", "10.5.0.9", "10.5.0.3"]);
}

#[test]
fn when_no_machine_answers_the_command_fails() {
    let fake = node().start(&["10.5.0.9"]);
    let run = fake.run(&["version", "--short"]);
    assert_eq!(run.code, 1);
    expect![[r#"
        error getting version: 10.5.0.9: rpc error: code = Unavailable desc = down
          check that the machine is up; `ichorctl -n NODE dmesg` of a neighbour may tell why
    "#]]
    .assert_eq(&run.err);
}

#[test]
fn resources_are_shown_as_a_table() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3"]);
    expect![[r#"
        NODE       NAMESPACE   TYPE             ID         VERSION   HOSTNAME
        10.5.0.2   network     HostnameStatus   hostname   2         node-2
        10.5.0.3   network     HostnameStatus   hostname   2         node-3
    "#]]
    .assert_eq(&fake.run(&["get", "hostname"]).text());
}

#[test]
fn types_are_listed_with_their_aliases_by_one_call() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        NODE       NAMESPACE   TYPE                 ID                                  VERSION   ALIASES
        10.5.0.2   meta        ResourceDefinition   hostnamestatuses.net.talos.dev      1         hostname hs
        10.5.0.2   meta        ResourceDefinition   hostnamespecs.net.talos.dev         1         hostnamespec hs
        10.5.0.2   meta        ResourceDefinition   resourcedefinitions.meta.cosi.dev   1         rd rds
    "#]]
    .assert_eq(&fake.run(&["get", "rd"]).text());
    assert_eq!(fake.calls(LIST).len(), 1);
}

#[test]
fn resources_are_shown_as_yaml() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3"]);
    expect![[r#"
        node: 10.5.0.2
        metadata:
            namespace: network
            type: HostnameStatuses.net.talos.dev
            id: hostname
            version: 2
            owner: network.HostnameSpecController
            phase: running
            created: 2025-01-01T00:00:00Z
            updated: 2025-01-01T00:00:05Z
        spec:
            hostname: node-2
            domainname: ""
        ---
        node: 10.5.0.3
        metadata:
            namespace: network
            type: HostnameStatuses.net.talos.dev
            id: hostname
            version: 2
            owner: network.HostnameSpecController
            phase: running
            created: 2025-01-01T00:00:00Z
            updated: 2025-01-01T00:00:05Z
        spec:
            hostname: node-3
            domainname: ""
    "#]]
    .assert_eq(&fake.run(&["get", "HOSTNAME", "hostname", "-o", "yaml"]).text());
}

#[test]
fn resources_are_shown_as_json_and_by_path() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        {
            "metadata": {
                "created": "2025-01-01T00:00:00Z",
                "id": "hostname",
                "namespace": "network",
                "owner": "network.HostnameSpecController",
                "phase": "running",
                "type": "HostnameStatuses.net.talos.dev",
                "updated": "2025-01-01T00:00:05Z",
                "version": 2
            },
            "node": "10.5.0.2",
            "spec": {
                "domainname": "",
                "hostname": "node-2"
            }
        }
    "#]]
    .assert_eq(&fake.run(&["get", "hostname", "-o", "json"]).text());
    let run = fake.run(&["get", "hostname", "-o", "jsonpath={.spec.hostname} v{.metadata.version}"]);
    assert_eq!(run.text(), "node-2\n v\n2\n");
}

#[test]
fn a_watch_shows_what_happens_beside_the_node() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        NODE       *   NAMESPACE   TYPE             ID         VERSION   HOSTNAME
        10.5.0.2   +   network     HostnameStatus   hostname   2         node-2
        10.5.0.2       network   HostnameStatus   hostname   2   node-2
        10.5.0.2   -   network   HostnameStatus   hostname   2   node-2
    "#]]
    .assert_eq(&fake.run(&["get", "hostname", "-w"]).text());
}

#[test]
fn what_cannot_be_found_is_named_with_the_way_out() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        --- stderr
        resource "hostnam" is not registered
          did you mean "hostname"? `ichorctl get rd` lists all types
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["get", "hostnam"]).text());
    expect![[r#"
        --- stderr
        resource type "hs" is ambiguous: [HostnameSpecs.net.talos.dev HostnameStatuses.net.talos.dev]
          use one of these names in full
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["get", "hs"]).text());
    expect![[r#"
        NODE   NAMESPACE   TYPE   ID   VERSION   HOSTNAME
        --- stderr
        error getting HostnameStatuses.net.talos.dev: 10.5.0.2: rpc error: code = NotFound desc = resource HostnameStatuses.net.talos.dev(network/x@undefined) doesn't exist
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["get", "hostname", "x"]).text());
    expect![[r#"
        --- stderr
        output format "xml" is not supported
          use table, yaml, json or jsonpath=EXPRESSION
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["get", "hostname", "-o", "xml"]).text());
}

#[test]
fn memory_is_counted_in_mebibytes() {
    let fake = node().start(&["10.5.0.2"]);
    expect![[r#"
        NODE        TOTAL   USED   FREE   SHARED   BUFFERS   CACHE   AVAILABLE
        127.0.0.1   8000    3000   4000   0        0         1000    0
    "#]]
    .assert_eq(&fake.run(&["memory"]).text());
}

#[test]
fn commands_for_one_machine_refuse_several() {
    let fake = node().start(&["10.5.0.2", "10.5.0.3"]);
    expect![[r#"
        --- stderr
        command "read" is not supported with multiple nodes
          name one machine with `-n ADDRESS`
        --- exit 1
    "#]]
    .assert_eq(&fake.run(&["read", "/etc/hosts"]).text());
}

#[test]
fn a_dead_endpoint_does_not_stop_the_others() {
    let fake = node().start(&["10.5.0.2"]);
    let endpoints = format!("127.0.0.1:1,127.0.0.1:{}", fake.port());
    for _ in 0..3 {
        assert_eq!(fake.run(&["version", "-e", &endpoints]).code, 0);
    }
}

#[test]
fn a_silent_endpoint_does_not_stop_the_others() {
    let fake = node().start(&["10.5.0.2"]);
    // It accepts and says nothing, ever.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = format!("127.0.0.1:{},127.0.0.1:{}", silent.local_addr().unwrap().port(), fake.port());
    for _ in 0..3 {
        let started = std::time::Instant::now();
        assert_eq!(fake.run(&["version", "-e", &endpoints]).code, 0);
        assert!(started.elapsed() < std::time::Duration::from_secs(15), "{:?}", started.elapsed());
    }
}

#[test]
fn nobody_listening_is_said_with_the_way_out() {
    let fake = node().start(&["10.5.0.2"]);
    let run = fake.run(&["-e", "127.0.0.1:1", "version", "--short"]);
    expect![[r#"
        transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused
          nothing listens there: is the machine up? `ichorctl cluster list` shows local ones, `-e ADDRESS` picks another endpoint
    "#]]
    .assert_eq(&run.err);
}

#[test]
fn another_authority_is_recognized() {
    let fake = node().start(&["10.5.0.2"]);
    let other = node().start(&["10.5.0.2"]);
    let config = other.home().join(".talos/config");
    let endpoint = format!("127.0.0.1:{}", fake.port());
    let run = fake.run(&["--talosconfig", config.to_str().unwrap(), "-e", &endpoint, "version", "--short"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("the certificate there is of another CA"), "{}", run.err);
}
