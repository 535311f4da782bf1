//! Every method with every role, and with every certificate that opens nothing: on a control plane, on a worker,
//! through the gateway of another node, to several nodes at once, and in maintenance mode.
//!
//! What each role may do comes from the list of the original's methods. Every call carries a message that no method
//! can read, so whoever is let in changes nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::Full;
use ichor_live::Fleet;
use ichor_pki::Authority;
use ichor_rpc::{Channel, route};
use ichor_wire::common::Metadata;
use prost::Message as _;
use tonic::{Code, Status};

use crate::door::{bad_certificates, certificate, channel, insecure, knock};
use crate::{create, run};

const OCTET: u8 = 38;
const FACTS: &str = include_str!("../../../../crates/wire/tests/api.json");
const READERS: [&str; 3] = ["os:admin", "os:operator", "os:reader"];

/// A method with those who may call it.
struct Method {
    path: String,
    roles: Vec<String>,
    /// Whether anybody may call it while the machine waits for its configuration.
    open: bool,
}

/// All methods that a node serves, and two that nobody does: those are for administrators.
fn methods() -> Vec<Method> {
    let facts: serde_json::Value = serde_json::from_str(FACTS).unwrap();
    let mut methods = Vec::new();
    for (package, found) in facts["packages"].as_object().unwrap() {
        // Served by trustd, which knows tokens and no roles.
        if package == "securityapi" {
            continue;
        }
        for service in found["services"].as_object().into_iter().flatten().map(|(_, service)| service) {
            for rpc in service["rpcs"].as_object().unwrap().values() {
                let roles =
                    rpc["roles"].as_array().unwrap().iter().map(|role| role.as_str().unwrap().to_owned());
                methods.push(Method {
                    path: rpc["path"].as_str().unwrap().to_owned(),
                    roles: roles.collect(),
                    open: rpc["maintenance"].as_str().is_some_and(|text| text.starts_with("any peer")),
                });
            }
        }
    }
    assert_eq!(methods.len(), 67, "the methods of the original");
    // Ours.
    let ours = |path: &str, roles: &[&str], open| Method {
        path: path.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        open,
    };
    methods.push(ours("/ichor.node.NodeService/Why", &READERS, true));
    for nobodys in
        ["/ichor.node.AuditService/Report", "/machine.MachineService/Nothing", "/no.Service/Nothing"]
    {
        methods.push(ours(nobodys, &["os:admin"], false));
    }
    methods
}

/// A certificate with what its bearer claims beside it, and the roles that this amounts to.
struct Caller {
    name: &'static str,
    certificate: &'static [&'static str],
    claims: &'static [&'static str],
    roles: &'static [&'static str],
}

const fn plain(name: &'static str, roles: &'static [&'static str]) -> Caller {
    Caller { name, certificate: roles, claims: &[], roles }
}

const CALLERS: &[Caller] = &[
    plain("nobody", &[]),
    plain("reader", &["os:reader"]),
    plain("operator", &["os:operator"]),
    plain("admin", &["os:admin"]),
    plain("backup", &["os:etcd:backup"]),
    plain("gateway", &["os:impersonator"]),
    plain("made up", &["os:root"]),
    plain("reader and backup", &["os:reader", "os:etcd:backup"]),
    Caller {
        name: "reader who claims more",
        certificate: &["os:reader"],
        claims: &["os:admin"],
        roles: &["os:reader"],
    },
    Caller { name: "nobody who claims more", certificate: &[], claims: &["os:admin"], roles: &[] },
    Caller {
        name: "gateway for a reader",
        certificate: &["os:impersonator"],
        claims: &["os:reader"],
        roles: &["os:reader"],
    },
    Caller {
        name: "gateway for an administrator",
        certificate: &["os:impersonator"],
        claims: &["os:admin"],
        roles: &["os:admin"],
    },
];

/// What went wrong, and how much was tried.
#[derive(Default)]
struct Score {
    tried: usize,
    wrong: BTreeMap<&'static str, Vec<String>>,
}

impl Score {
    fn judge(&mut self, what: &str, should_open: bool, status: &Status) {
        self.tried += 1;
        let denied = (status.code(), status.message()) == (Code::PermissionDenied, "not authorized");
        // A message that cannot be read, or a method that is not there: said only to those who may know.
        let let_in = matches!(
            status.code(),
            Code::Internal | Code::InvalidArgument | Code::Unimplemented | Code::FailedPrecondition
        );
        let kind = match (should_open, denied, let_in) {
            (true, false, true) | (false, true, false) => return,
            (true, true, _) => "wrong reject",
            (false, _, true) => "wrong accept",
            _ => "strange answer",
        };
        self.wrong.entry(kind).or_default().push(format!("{what}: {status:?}"));
    }

    #[track_caller]
    fn finish(self, name: &str) {
        let wrong: usize = self.wrong.values().map(Vec::len).sum();
        println!("{name}: {} calls, {wrong} wrong", self.tried);
        let shown: Vec<String> = self
            .wrong
            .iter()
            .flat_map(|(kind, cases)| cases.iter().take(10).map(move |case| format!("{kind}: {case}")))
            .collect();
        assert!(wrong == 0, "{name}: {wrong} of {} wrong\n{}", self.tried, shown.join("\n"));
    }
}

fn may(method: &Method, roles: &[&str]) -> bool {
    method.roles.iter().any(|role| roles.contains(&role.as_str()))
}

fn claims(caller: &Caller) -> Vec<(&'static str, &'static str)> {
    caller.claims.iter().map(|role| ("talos-role", *role)).collect()
}

async fn one_node(
    score: &mut Score,
    methods: &[Method],
    address: &str,
    authority: &Authority,
    target: Option<&str>,
) {
    for caller in CALLERS {
        let channel = channel(address, authority, Some(&certificate(authority, caller.certificate)));
        let mut metadata: Vec<(&str, &str)> = claims(caller);
        metadata.extend(target.map(|target| ("node", target)));
        for method in methods {
            let (status, _) = knock(&channel, &method.path, &metadata).await;
            let what = format!("{} as {} at {address} for {target:?}", method.path, caller.name);
            score.judge(&what, may(method, caller.roles), &status);
        }
    }
}

/// One answer of several, whatever else is in it.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answers {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<Answer>,
}

fn answers(path: &str, messages: &[Bytes]) -> Vec<Metadata> {
    let found: Vec<Answer> = match route::is_streamed(path) {
        true => messages.iter().map(|message| Answer::decode(message.clone()).unwrap()).collect(),
        false => Answers::decode(messages.first().cloned().unwrap_or_default()).unwrap().messages,
    };
    found.into_iter().filter_map(|answer| answer.metadata).collect()
}

async fn several_nodes(
    score: &mut Score,
    methods: &[Method],
    address: &str,
    authority: &Authority,
    targets: &[String],
) {
    for caller in CALLERS {
        let channel = channel(address, authority, Some(&certificate(authority, caller.certificate)));
        let mut metadata: Vec<(&str, &str)> = claims(caller);
        metadata.extend(targets.iter().map(|target| ("nodes", target.as_str())));
        for method in methods {
            let (status, messages) = knock(&channel, &method.path, &metadata).await;
            let what = format!("{} as {} for all", method.path, caller.name);
            if method.path.starts_with("/cosi.") {
                score.tried += 1;
                if status.code() != Code::InvalidArgument {
                    score.wrong.entry("strange answer").or_default().push(format!("{what}: {status:?}"));
                }
                continue;
            }
            let answers = answers(&method.path, &messages);
            if status.code() != Code::Ok || answers.len() != targets.len() {
                let text = format!("{what}: {status:?}, {} answers", answers.len());
                score.wrong.entry("strange answer").or_default().push(text);
                continue;
            }
            for answer in answers {
                let inner = answer.status.unwrap_or_default();
                let status = Status::new(Code::from_i32(inner.code), inner.message);
                score.judge(&format!("{what} from {}", answer.hostname), may(method, caller.roles), &status);
            }
        }
    }
}

#[test]
fn every_method_opens_to_the_roles_it_should_and_to_no_others() {
    let fleet = create("matrix", OCTET, 1);
    let authority = fleet.authority();
    let methods = methods();
    let (plane, worker) = (fleet.address(0), fleet.address(1));
    run(async {
        let mut score = Score::default();
        for number in [0, 1] {
            one_node(&mut score, &methods, &fleet.loopback(number), &authority, None).await;
        }
        score.finish("to a machine itself");

        let mut score = Score::default();
        for target in [&plane, &worker] {
            one_node(&mut score, &methods, &fleet.loopback(0), &authority, Some(target)).await;
        }
        // A worker answers for itself by its address, and forwards nothing.
        one_node(&mut score, &methods, &fleet.loopback(1), &authority, Some(&worker)).await;
        score.finish("through a gateway, to one node");

        let mut score = Score::default();
        let all = [plane.clone(), worker.clone()];
        several_nodes(&mut score, &methods, &fleet.loopback(0), &authority, &all).await;
        score.finish("through a gateway, to all nodes");

        let admin = channel(&fleet.loopback(1), &authority, Some(&certificate(&authority, &["os:admin"])));
        for method in &methods {
            let (status, _) = knock(&admin, &method.path, &[("node", &plane)]).await;
            assert_eq!(status.message(), "no request forwarding", "{}: {status:?}", method.path);
        }
        bad_certificates_open_nothing(&fleet, &authority, &methods).await;
    });
    fleet.destroy().unwrap();
}

async fn bad_certificates_open_nothing(fleet: &Fleet, authority: &Authority, methods: &[Method]) {
    let mut tried = 0;
    for (name, pair) in bad_certificates(authority) {
        for number in [0, 1] {
            for method in methods {
                // A connection each: the one before was cut.
                let channel = channel(&fleet.loopback(number), authority, pair.as_ref());
                let (status, messages) = knock(&channel, &method.path, &[("talos-role", "os:admin")]).await;
                assert_eq!(status.code(), Code::Unavailable, "{name}: {}: {status:?}", method.path);
                assert!(messages.is_empty());
                tried += 1;
            }
        }
    }
    println!("with certificates that open nothing: {tried} calls, 0 wrong");
}

#[test]
fn a_machine_without_configuration_opens_what_it_should_and_no_more() {
    let fleet = Fleet::unconfigured("matrix-idle", OCTET, &[]).unwrap();
    let methods = methods();
    run(async {
        let mut tried = 0;
        let closed = (Code::Unimplemented, "API is not implemented in maintenance mode");
        let channel: Channel<Full<Bytes>> = insecure(&fleet.loopback(0));
        for claims in [&[][..], &[("talos-role", "os:admin")], &[("node", "10.38.0.9")]] {
            for method in &methods {
                let (status, _) = knock(&channel, &method.path, claims).await;
                let is_closed = (status.code(), status.message()) == closed;
                assert!(
                    !matches!(status.code(), Code::Ok | Code::Unavailable),
                    "{}: {status:?}",
                    method.path
                );
                assert_eq!(is_closed, !method.open, "{} with {claims:?}: {status:?}", method.path);
                tried += 1;
            }
        }
        println!("in maintenance mode: {tried} calls, 0 wrong");
    });
    fleet.destroy().unwrap();
}
