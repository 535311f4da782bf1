//! Broken nodes on paper, and what is said about them.

use std::sync::Arc;

use expect_test::{Expect, expect};
use ichor_resource::metadata::Kind;
use ichor_resource::network::{
    AddressStatus, ConfigLayer, DNSUpstream, LinkStatus, NetworkStatus, OperationalState, ResolverStatus,
    RouteSpec, RouteStatus, RoutingTable, TimeServerStatus,
};
use ichor_resource::runtime::{Diagnostic, MachineStage, MachineStatus, MachineStatusStatus, UnmetCondition};
use ichor_resource::secrets::{ApiCertificate, TrustdCertificate};
use ichor_resource::time::TimeStatus;
use ichor_resource::{Metadata, Nanos, Phase, Resource, TypedSpec};

use crate::*;

const NOW: i64 = 1_000_000_000_000;

/// A node that is well, to be broken by each test.
struct Node(Snapshot);

fn resource<T: TypedSpec>(id: &str, spec: T) -> Resource {
    let definition = T::definition();
    let kind = Arc::new(Kind::new(definition.default_namespace, definition.type_name));
    let mut meta = Metadata::new(kind, id);
    meta.set_times(Nanos(0), Nanos(NOW - 90_000_000_000));
    Resource::new(meta, Arc::new(spec))
}

impl Node {
    fn well() -> Self {
        let mut node = Self(Snapshot { now_ns: NOW, ..Snapshot::default() });
        node.put("node", TimeStatus { synced: true, ..TimeStatus::default() });
        node.put(
            "status",
            NetworkStatus {
                address_ready: true,
                connectivity_ready: true,
                hostname_ready: true,
                etc_files_ready: true,
            },
        );
        node.put("timeservers", TimeServerStatus { time_servers: vec!["10.5.0.99".into()] });
        node.put("machine", machine(MachineStage::Running, &[]));
        node.put("active", ichor_resource::config::MachineConfig::default());
        node.put("eth0", LinkStatus { operational_state: OperationalState::Up, ..LinkStatus::default() });
        let address = "10.5.0.2/24".parse().unwrap();
        node.put(
            "eth0/10.5.0.2/24",
            AddressStatus { address, link_name: "eth0".into(), ..AddressStatus::default() },
        );
        node.route_status("", "10.5.0.1");
        node.controller("time.SyncController", 0, None);
        node.controller("network.RouteSpecController", 0, None);
        node.0.services.push(running("apid"));
        node
    }

    fn put<T: TypedSpec>(&mut self, id: &str, spec: T) {
        let place = Place::of::<T>(id);
        let same = |found: &Arc<Resource>| found.meta().type_name() == place.type_name && **found.id() == *id;
        self.0.resources.retain(|found| !same(found));
        self.0.resources.push(Arc::new(resource(id, spec)));
    }

    fn route_status(&mut self, dst: &str, gateway: &str) {
        let spec = RouteStatus {
            dst: dst.parse().unwrap_or_default(),
            gateway: gateway.parse().unwrap(),
            out_link_name: "eth0".into(),
            table: RoutingTable::MAIN,
            ..RouteStatus::default()
        };
        self.put(&format!("{dst}/{gateway}"), spec);
    }

    fn controller(&mut self, name: &str, failures: u32, complaint: Option<&str>) {
        self.0.controllers.retain(|known| known.name != name);
        let text = complaint.map(str::to_owned);
        let (error, trouble) = if failures > 0 { (text, None) } else { (None, text) };
        self.0.controllers.push(Controller {
            name: name.into(),
            runs: 7,
            failures,
            error,
            error_ago: 4,
            retry_in: (failures > 0).then_some(9),
            trouble,
        });
    }

    fn edge<T: TypedSpec>(&mut self, controller: &str, output: bool, id: Option<&str>) {
        let mut place = Place::of::<T>("");
        place.id = id.map(str::to_owned);
        self.0.edges.push(Edge { controller: controller.into(), output, place });
    }

    fn silent(&mut self, address: &str) {
        let address = address.parse().unwrap();
        self.0.neighbours.push(Neighbour { address, link: "eth0".into(), answers: false });
    }

    #[track_caller]
    fn check(&self, target: Target, expect: Expect) {
        let report = explain(&self.0, &target);
        let mut out = format!("{}{}\n", if report.healthy { "" } else { "! " }, report.summary);
        for finding in &report.findings {
            out += &format!("[{}] {}: {}\n", finding.kind, finding.subject, finding.summary);
            for reason in &finding.because {
                out += &format!("  {} ({})\n", reason.text, reason.evidence);
            }
            for also in &finding.also {
                out += &format!("  also: {also}\n");
            }
            out += &format!("  do: {}\n", finding.advice);
        }
        expect.assert_eq(&out);
    }
}

fn machine(stage: MachineStage, unmet: &[(&str, &str)]) -> MachineStatus {
    let unmet_conditions = unmet
        .iter()
        .map(|(name, reason)| UnmetCondition { name: (*name).into(), reason: (*reason).into() })
        .collect();
    MachineStatus { stage, status: MachineStatusStatus { ready: unmet.is_empty(), unmet_conditions } }
}

fn event(state: &str, message: &str, ago: u64) -> ServiceEvent {
    ServiceEvent { state: state.into(), message: message.into(), ago }
}

fn running(id: &str) -> Service {
    Service {
        id: id.into(),
        state: "Running".into(),
        healthy: Some(true),
        up: true,
        events: vec![event("Running", "Health check successful", 300)],
        ..Service::default()
    }
}

fn waiting(id: &str, message: &str) -> Service {
    Service {
        id: id.into(),
        state: "Waiting".into(),
        events: vec![event("Waiting", message, 34)],
        ..Service::default()
    }
}

#[test]
fn a_node_that_is_well() {
    Node::well().check(
        Target::Node,
        expect![[r#"
        nothing is wrong: the machine is ready, 1 services are up, no controller fails
    "#]],
    );
    Node::well().check(
        Target::Service("apid".into()),
        expect![[r#"
        apid runs and is healthy for 5 min
    "#]],
    );
    Node::well().check(
        Target::Service("nope".into()),
        expect![[r#"
        ! there is no service nope
    "#]],
    );
    Node::well().check(
        Target::Resource(Place::of::<TimeStatus>("node")),
        expect![[r#"
        TimeStatuses/node is there
    "#]],
    );
}

#[test]
fn a_service_that_waits_for_the_time_and_a_silent_time_server() {
    let mut node = Node::well();
    node.put("node", TimeStatus::default());
    node.put("machine", machine(MachineStage::Running, &[("time", "time is not synced"), ("services", "x")]));
    node.controller("time.SyncController", 0, Some("ask time server 10.5.0.99:123: timed out"));
    node.silent("10.5.0.99");
    let mut trustd = waiting("trustd", "Waiting for time to be in sync, trustd certificates");
    trustd.conditions = vec![
        Condition { name: "time to be in sync".into(), about: Some(Place::of::<TimeStatus>("node")) },
        Condition {
            name: "trustd certificates".into(),
            about: Some(Place::of::<TrustdCertificate>("trustd")),
        },
    ];
    node.0.services.push(trustd);
    node.controller("secrets.TrustdController", 0, None);
    node.edge::<TrustdCertificate>("secrets.TrustdController", true, None);
    node.edge::<TimeStatus>("secrets.TrustdController", false, Some("node"));
    node.check(Target::Service("trustd".into()), expect![[r#"
        ! one thing is wrong
        [time] service trustd: trustd waits for time to be in sync, trustd certificates
          of these, "time to be in sync" is nearest to the cause (service trustd: Waiting for 34 s)
          time is not in sync (TimeStatuses/node: synced=false)
          ask time server 10.5.0.99:123: timed out (time.SyncController)
          10.5.0.99 does not answer on its own network (neighbour table of eth0: no hardware address)
          do: let UDP port 123 through to 10.5.0.99, or name servers that can be reached in `machine.time.servers`; `ichorctl time --check SERVER` tries one
    "#]]);
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [time] time: the clock is not known to be right
          time is not in sync (TimeStatuses/node: synced=false)
          ask time server 10.5.0.99:123: timed out (time.SyncController)
          10.5.0.99 does not answer on its own network (neighbour table of eth0: no hardware address)
          also: trustd waits for time to be in sync, trustd certificates
          do: let UDP port 123 through to 10.5.0.99, or name servers that can be reached in `machine.time.servers`; `ichorctl time --check SERVER` tries one
    "#]]);
}

#[test]
fn a_clock_that_is_off_where_it_cannot_be_set() {
    let mut node = Node::well();
    node.put("node", TimeStatus { synced: true, sync_disabled: true, epoch: 0 });
    node.controller("time.SyncController", 0, Some("the clock is 7200.0 s behind time server 10.5.0.1"));
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [time] time: the clock is wrong, or the time server is
          the clock is 7200.0 s behind time server 10.5.0.1 (time.SyncController)
          do: find out who is right: compare with another server (`ichorctl time --check SERVER`); set the clock of the host, or name a server you trust in `machine.time.servers`
    "#]]);
}

#[test]
fn resolvers_that_do_not_answer() {
    let mut node = Node::well();
    node.put(
        "resolvers",
        ResolverStatus { dns_servers: vec!["10.5.0.250".parse().unwrap()], ..Default::default() },
    );
    node.put("#000 10.5.0.250", DNSUpstream { healthy: false, addr: "10.5.0.250:53".into() });
    node.controller("network.DNSUpstreamController", 0, Some("10.5.0.250:53: timed out"));
    node.controller("k8s.StaticEndpointController", 0, Some("cp.example does not resolve: try again"));
    node.controller("time.SyncController", 0, Some("resolve time server time.example: no answer"));
    node.silent("10.5.0.250");
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [dns] dns: names do not resolve
          the resolver 10.5.0.250 does not answer (DNSUpstreams: healthy=false; 10.5.0.250:53: timed out)
          10.5.0.250 does not answer on its own network (neighbour table of eth0: no hardware address)
          also: the time server's name does not resolve
          also: the control plane endpoint has no address
          do: correct `machine.network.nameservers`, or make 10.5.0.250 answer DNS to this machine (UDP and TCP port 53)
    "#]]);
}

#[test]
fn a_static_route_over_a_gateway_of_another_network() {
    let mut node = Node::well();
    let spec = RouteSpec {
        dst: "10.99.0.0/16".parse().unwrap(),
        gateway: "192.168.77.1".parse().unwrap(),
        out_link_name: "eth0".into(),
        table: RoutingTable::MAIN,
        layer: ConfigLayer::Configuration,
        ..RouteSpec::default()
    };
    node.put("eth0/inet4/192.168.77.1/10.99.0.0/16/1024", spec.clone());
    node.controller("network.RouteSpecController", 0, Some("route waits: network unreachable"));
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [route] network: the route to 10.99.0.0/16 via 192.168.77.1 is not installed
          it is wanted, and the kernel does not have it (RouteSpecs/eth0/inet4/192.168.77.1/10.99.0.0/16/1024, layer machine configuration; not in RouteStatuses)
          its gateway 192.168.77.1 is not in any network of eth0 (AddressStatuses: eth0 has 10.5.0.2/24)
          do: correct the gateway 192.168.77.1 in the machine configuration, or give eth0 an address in its network
    "#]]);
    let mut node = Node::well();
    node.put("x", RouteSpec { out_link_name: "eth9".into(), ..spec });
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [route] network: the route to 10.99.0.0/16 via 192.168.77.1 is not installed
          it is wanted, and the kernel does not have it (RouteSpecs/x, layer machine configuration; not in RouteStatuses)
          there is no link eth9 (LinkStatuses: not among them)
          do: correct the link name in the machine configuration; this machine has eth0
    "#]]);
}

#[test]
fn an_installed_route_whose_gateway_is_silent() {
    let mut node = Node::well();
    node.route_status("10.99.0.0/16", "10.5.0.66");
    node.silent("10.5.0.66");
    node.check(
        Target::Node,
        expect![[r#"
            ! one thing is wrong
            [route] network: the route to 10.99.0.0/16 via 10.5.0.66 leads nowhere
              it is installed (RouteStatuses/10.99.0.0/16/10.5.0.66)
              10.5.0.66 does not answer on its own network (neighbour table of eth0: no hardware address)
              do: correct the gateway 10.5.0.66 in the machine configuration, or bring it up
        "#]],
    );
}

#[test]
fn a_control_plane_that_does_not_sign() {
    let mut node = Node::well();
    let addresses = vec!["10.5.0.77".parse().unwrap()];
    node.put("controlplane", ichor_resource::k8s::Endpoint { addresses });
    let error = "no control plane machine signed the certificate: 10.5.0.77: no answer within 10 s";
    node.controller("secrets.APIController", 3, Some(error));
    node.silent("10.5.0.77");
    node.check(Target::Node, expect![[r#"
        ! one thing is wrong
        [endpoint] controller secrets.APIController: the API certificate cannot be made or renewed
          no control plane machine signs this machine's certificate (secrets.APIController: failed 3 times in a row, last 4 s ago, next try in 9 s)
          10.5.0.77: no answer within 10 s (Endpoints/controlplane: 10.5.0.77)
          10.5.0.77 does not answer on its own network (neighbour table of eth0: no hardware address)
          do: correct `cluster.controlPlane.endpoint`, or bring 10.5.0.77 up and let TCP port 50001 through
    "#]]);
    node.edge::<ApiCertificate>("secrets.APIController", true, None);
    node.check(Target::Resource(Place::of::<ApiCertificate>("api")), expect![[r#"
        ! one thing is wrong
        [endpoint] resource ApiCertificates/api: ApiCertificates/api is not there
          ApiCertificates/api does not exist (namespace secrets)
          no control plane machine signs this machine's certificate (secrets.APIController: failed 3 times in a row, last 4 s ago, next try in 9 s)
          10.5.0.77: no answer within 10 s (Endpoints/controlplane: 10.5.0.77)
          10.5.0.77 does not answer on its own network (neighbour table of eth0: no hardware address)
          do: correct `cluster.controlPlane.endpoint`, or bring 10.5.0.77 up and let TCP port 50001 through
    "#]]);
}

#[test]
fn a_service_that_crashes() {
    let mut node = Node::well();
    let end = "Error running Process(\"trustd\"), going to restart forever: exit status 1 (last log \"x\")";
    let mut trustd = waiting("trustd", end);
    trustd.events = [60, 40, 20]
        .into_iter()
        .flat_map(|ago| {
            [event("Running", "Process x started with PID 7", ago), event("Waiting", end, ago - 10)]
        })
        .collect();
    trustd.log = vec!["starting".into(), "listen on [::]:50001: address already in use".into()];
    node.0.services.push(trustd.clone());
    node.check(
        Target::Service("trustd".into()),
        expect![[r#"
            ! one thing is wrong
            [crash] service trustd: trustd keeps crashing: 3 starts in the last 2 min
              it ended with exit status 1 (service trustd: 10 s ago, state Waiting)
              it wrote: starting (ichorctl logs trustd)
              it wrote: listen on [::]:50001: address already in use (ichorctl logs trustd)
              do: find what else listens on that port (`ichorctl netstat -l -p`) and stop it; the service comes back by itself
        "#]],
    );
    // It runs at this very moment, and is still the problem.
    trustd.state = "Running".into();
    trustd.events.push(event("Running", "Process x started with PID 8", 1));
    node.0.services.pop();
    node.0.services.push(trustd);
    node.check(
        Target::Node,
        expect![[r#"
            ! one thing is wrong
            [crash] service trustd: trustd keeps crashing: 4 starts in the last 2 min
              it ended with exit status 1 (service trustd: 10 s ago, state Running)
              it wrote: starting (ichorctl logs trustd)
              it wrote: listen on [::]:50001: address already in use (ichorctl logs trustd)
              do: find what else listens on that port (`ichorctl netstat -l -p`) and stop it; the service comes back by itself
        "#]],
    );
}

#[test]
fn a_service_that_waits_for_another_one_that_failed() {
    let mut node = Node::well();
    let mut kubelet = waiting("kubelet", "Waiting for service \"cri\" to be \"up\"");
    kubelet.depends = vec!["cri".into()];
    let cri = Service {
        id: "cri".into(),
        state: "Failed".into(),
        events: vec![event("Failed", "Failed to start Process(\"containerd\"): no such file", 12)],
        ..Service::default()
    };
    node.0.services.extend([cri, kubelet]);
    node.check(
        Target::Service("kubelet".into()),
        expect![[r#"
        ! one thing is wrong
        [service] service kubelet: kubelet waits for service "cri" to be "up"
          cri has failed (service kubelet: Waiting for 34 s)
          Failed to start Process("containerd"): no such file (service cri: Failed, 12 s ago)
          do: start it again with `ichorctl service cri start`, and follow `ichorctl logs cri -f`
    "#]],
    );
    node.check(
        Target::Node,
        expect![[r#"
        ! one thing is wrong
        [service] service cri: cri has failed
          Failed to start Process("containerd"): no such file (service cri: Failed, 12 s ago)
          also: kubelet waits for service "cri" to be "up"
          do: start it again with `ichorctl service cri start`, and follow `ichorctl logs cri -f`
    "#]],
    );
}

#[test]
fn resources_that_nobody_writes_or_asks_for_or_lets_go() {
    let mut node = Node::well();
    let place = Place::of::<TrustdCertificate>("trustd");
    node.check(
        Target::Resource(place.clone()),
        expect![[r#"
        ! one thing is wrong
        [resource] resource TrustdCertificates/trustd: TrustdCertificates/trustd is not there
          TrustdCertificates/trustd does not exist (namespace secrets)
          no controller of this node writes that type (ichorctl inspect dependencies)
          do: nothing to wait for: this node has no part that makes it
    "#]],
    );
    node.controller("secrets.TrustdController", 0, None);
    node.edge::<TrustdCertificate>("secrets.TrustdController", true, None);
    node.check(Target::Resource(place.clone()), expect![[r#"
        ! one thing is wrong
        [resource] resource TrustdCertificates/trustd: TrustdCertificates/trustd is not there
          TrustdCertificates/trustd does not exist (namespace secrets)
          secrets.TrustdController would write it, has all it needs and sees no reason to (no controller fails)
          do: ask for it in the machine configuration (`ichorctl get machineconfig -o yaml`), if it should be there
    "#]]);
    let mut held = resource("trustd", TrustdCertificate::default());
    held.meta_mut().set_phase(Phase::TearingDown);
    held.meta_mut().add_finalizer("some.Controller");
    node.0.resources.push(Arc::new(held));
    node.controller("some.Controller", 2, Some("cannot let go"));
    node.check(Target::Resource(place), expect![[r#"
        ! one thing is wrong
        [teardown] resource TrustdCertificates/trustd: TrustdCertificates/trustd is being removed
          it is being removed and some.Controller still holds it (TrustdCertificates/trustd: phase tearing down for 90 s)
          cannot let go (some.Controller: failed 2 times in a row, last 4 s ago, next try in 9 s)
          do: look at some.Controller: `ichorctl logs controller-runtime`
    "#]]);
}

#[test]
fn maintenance_diagnostics_and_links() {
    let mut node = Node::well();
    node.put("machine", machine(MachineStage::Maintenance, &[]));
    node.put(
        "address-overlap",
        Diagnostic { message: "host and pod addresses overlap".into(), details: vec!["10.5.0.0/24".into()] },
    );
    node.put("status", NetworkStatus::default());
    node.put("eth0", LinkStatus { operational_state: OperationalState::Down, ..LinkStatus::default() });
    node.put("x", ichor_resource::network::OperatorSpec { link_name: "eth0".into(), ..Default::default() });
    node.check(Target::Node, expect![[r#"
        ! 2 things are wrong
        [configuration] node: the machine waits for its configuration
          no configuration was found on disk, on the kernel command line or at the platform (stage maintenance)
          do: send one: `ichorctl apply-config --insecure -n ADDRESS --file machine.yaml`
        [diagnostic] diagnostic address-overlap: host and pod addresses overlap
          10.5.0.0/24 (Diagnostics/address-overlap)
          do: https://talos.dev/diagnostic/address-overlap says more
    "#]]);
}

#[test]
fn circles_in_the_graph_end() {
    let mut node = Node::well();
    for (name, writes_time) in [("a", false), ("b", true)] {
        node.controller(name, 0, None);
        match writes_time {
            true => node.edge::<ApiCertificate>(name, false, Some("api")),
            false => node.edge::<TrustdCertificate>(name, false, Some("trustd")),
        }
    }
    node.edge::<ApiCertificate>("a", true, None);
    node.edge::<TrustdCertificate>("b", true, None);
    let report = explain(&node.0, &Target::Resource(Place::of::<ApiCertificate>("api")));
    assert!(!report.healthy);
}
