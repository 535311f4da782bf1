//! Where a call goes: a pure decision over its path, its metadata and what the node knows of itself.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use crate::members::canonical;

pub(crate) const NODE: HeaderName = HeaderName::from_static("node");
pub(crate) const NODES: HeaderName = HeaderName::from_static("nodes");
pub(crate) const PROXY_FROM: HeaderName = HeaderName::from_static("proxyfrom");

/// Nodes that one call may go to: twice what the largest clusters have.
pub const TARGETS_MAX: usize = 1024;

/// Metadata of a call, without its targets, counted as HTTP/2 does.
const METADATA_MAX: usize = 16 * 1024;
/// What HTTP/2 adds to the size of every field.
const FIELD: usize = 32;

/// Methods whose replies are streams; all others reply once.
const STREAMED: &[&str] = &[
    "/cluster.ClusterService/HealthCheck",
    "/machine.MachineService/Copy",
    "/machine.MachineService/DiskUsage",
    "/machine.MachineService/Dmesg",
    "/machine.MachineService/EtcdSnapshot",
    "/machine.MachineService/Events",
    "/machine.MachineService/ImageList",
    "/machine.MachineService/Kubeconfig",
    "/machine.MachineService/List",
    "/machine.MachineService/Logs",
    "/machine.MachineService/PacketCapture",
    "/machine.MachineService/Read",
    "/os.OSService/Dmesg",
];

/// Whether the replies of several nodes are interleaved (and not merged into one).
pub fn is_streamed(path: &str) -> bool {
    path.ends_with("Stream") || STREAMED.binary_search(&path).is_ok()
}

/// What a node knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl Facts {
    /// Facts from addresses and names (host name, FQDN); empty names do not count.
    pub fn new<T: Into<String>>(
        addresses: impl IntoIterator<Item = IpAddr>,
        names: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            names: names.into_iter().map(Into::into).filter(|name| !name.is_empty()).collect(),
            addresses: addresses.into_iter().map(|address| address.to_canonical()).collect(),
        }
    }

    fn is_self(&self, target: &str) -> bool {
        match target.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address.to_canonical()),
            Err(_) => self.names.contains(target),
        }
    }
}

/// Where a call goes.
#[derive(Debug)]
pub enum Route {
    /// To the machine itself.
    Local,
    /// To one other node, or to this one by its address.
    One(Arc<str>),
    /// To each of these, none of which is there twice.
    Many(Vec<Arc<str>>),
    /// Nowhere.
    Refused(Status),
}

/// Refuses metadata that is larger than any client of ours needs: it is kept as long as its call, and sent to every node
/// that the call goes to. Targets have a bound of their own.
pub(crate) fn check_metadata(headers: &HeaderMap) -> Result<(), Status> {
    let others = headers.iter().filter(|(key, _)| **key != NODE && **key != NODES);
    let size: usize = others.map(|(key, value)| key.as_str().len() + value.len() + FIELD).sum();
    match size > METADATA_MAX {
        true => Err(Status::invalid_argument(format!(
            "metadata of {size} bytes beside the targets, {METADATA_MAX} at most"
        ))),
        false => Ok(()),
    }
}

/// Decides. `forwards` says whether the node has a certificate to forward with.
pub fn route(path: &str, headers: &HeaderMap, forwards: bool, facts: &Facts) -> Route {
    if headers.contains_key(PROXY_FROM) {
        return Route::Local;
    }
    let mut single = headers.get_all(NODE).iter();
    let mut node = match (single.next(), single.next()) {
        (first, None) => first.map(text),
        (_, Some(_)) => {
            return Route::Refused(Status::invalid_argument("node metadata must be single-valued"));
        }
    };
    let mut nodes = match distinct(headers) {
        Ok(found) => Some(found).filter(|found| !found.is_empty()),
        Err(refused) => return Route::Refused(refused),
    };
    if !forwards {
        node = node.filter(|target| !facts.is_self(target));
        nodes = nodes.filter(|targets| !matches!(targets.as_slice(), [one] if facts.is_self(one)));
    }
    let forbidden = || Route::Refused(Status::permission_denied("no request forwarding"));
    match (nodes, node) {
        (Some(_), _) if path.starts_with("/cosi.") => {
            Route::Refused(Status::invalid_argument("one-2-many proxying is not supported for COSI methods"))
        }
        (Some(_), _) | (None, Some(_)) if !forwards => forbidden(),
        (Some(targets), _) => match targets.iter().find(|target| !is_target(target)) {
            Some(bad) => Route::Refused(invalid(bad)),
            None => Route::Many(targets),
        },
        (None, Some(target)) if is_target(&target) => Route::One(target),
        (None, Some(target)) => Route::Refused(invalid(&target)),
        (None, None) => Route::Local,
    }
}

fn invalid(target: &str) -> Status {
    Status::internal(format!("invalid target {target:?}"))
}

/// The targets in `nodes`, each once, in their order.
fn distinct(headers: &HeaderMap) -> Result<Vec<Arc<str>>, Status> {
    // The same bytes first: that costs nothing, however often they are repeated.
    let mut seen = HashSet::new();
    let all = headers.get_all(NODES);
    let values = all.iter().filter(|value| seen.insert(value.as_bytes()));
    let mut known = HashSet::new();
    let found: Vec<Arc<str>> = values.map(text).filter(|target| known.insert(canonical(target))).collect();
    if found.len() > TARGETS_MAX {
        return Err(Status::invalid_argument(format!(
            "{} nodes in one call, {TARGETS_MAX} at most; split it into several calls",
            found.len()
        )));
    }
    Ok(found)
}

fn text(value: &HeaderValue) -> Arc<str> {
    // Bytes that are no text make a name that nothing matches, and the refusal shows it.
    String::from_utf8_lossy(value.as_bytes()).into()
}

/// An address or a name, without a port.
fn is_target(target: &str) -> bool {
    !target.is_empty()
        && (target.parse::<IpAddr>().is_ok() || !target.contains([':', '[', ']', '/', ' ', '@']))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use http::HeaderValue;

    use super::*;

    const VERSION: &str = "/machine.MachineService/Version";
    const COSI: &str = "/cosi.resource.State/List";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (key, value) in pairs {
            map.append(*key, HeaderValue::from_static(value));
        }
        map
    }

    fn facts() -> Facts {
        Facts::new(
            ["10.5.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ["worker-1", "worker-1.example", ""],
        )
    }

    fn show(route: Route) -> String {
        match route {
            Route::Refused(status) => format!("{:?}: {}", status.code(), status.message()),
            other => format!("{other:?}"),
        }
    }

    #[track_caller]
    fn check(path: &str, forwards: bool, pairs: &[(&'static str, &'static str)], expect: Expect) {
        expect.assert_eq(&show(route(path, &headers(pairs), forwards, &facts())));
    }

    #[test]
    fn without_metadata_a_call_is_local() {
        check(VERSION, true, &[], expect!["Local"]);
        check(VERSION, false, &[], expect!["Local"]);
    }

    #[test]
    fn a_forwarded_call_stays_whatever_it_names() {
        check(
            VERSION,
            true,
            &[("proxyfrom", "a"), ("nodes", "b"), ("node", "c"), ("node", "d")],
            expect!["Local"],
        );
    }

    #[test]
    fn node_must_be_single() {
        check(
            VERSION,
            true,
            &[("node", "a"), ("node", "b")],
            expect!["InvalidArgument: node metadata must be single-valued"],
        );
    }

    #[test]
    fn a_control_plane_goes_out_even_to_itself() {
        check(VERSION, true, &[("node", "10.5.0.2")], expect![[r#"One("10.5.0.2")"#]]);
        check(VERSION, true, &[("nodes", "10.5.0.2")], expect![[r#"Many(["10.5.0.2"])"#]]);
    }

    #[test]
    fn nodes_win_over_node() {
        check(
            VERSION,
            true,
            &[("node", "c"), ("nodes", "a"), ("nodes", "b")],
            expect![[r#"Many(["a", "b"])"#]],
        );
    }

    #[test]
    fn repeated_targets_are_called_once() {
        let nodes = [("nodes", "b"), ("nodes", "a"), ("nodes", "b"), ("nodes", "a")];
        check(VERSION, true, &nodes, expect![[r#"Many(["b", "a"])"#]]);
        check(VERSION, false, &[("nodes", "10.5.0.2"), ("nodes", "10.5.0.2")], expect!["Local"]);
        let spelled =
            [("nodes", "Node-1"), ("nodes", "node-1."), ("nodes", "fd00::3"), ("nodes", "fd00:0::3")];
        check(VERSION, true, &spelled, expect![[r#"Many(["Node-1", "fd00::3"])"#]]);
    }

    #[test]
    fn the_number_of_targets_is_bounded() {
        let call = |count: usize| {
            let mut map = HeaderMap::new();
            // Every target twice: repeated ones do not count.
            for number in (0..count).chain(0..count) {
                map.append("nodes", HeaderValue::from_str(&format!("n{number}")).unwrap());
            }
            route(VERSION, &map, true, &facts())
        };
        assert!(matches!(call(TARGETS_MAX), Route::Many(targets) if targets.len() == TARGETS_MAX));
        let refused = "InvalidArgument: 1025 nodes in one call, 1024 at most; split it into several calls";
        assert_eq!(show(call(TARGETS_MAX + 1)), refused);
    }

    #[test]
    fn resources_have_no_many() {
        let refused = "InvalidArgument: one-2-many proxying is not supported for COSI methods";
        for forwards in [true, false] {
            for nodes in [&[("nodes", "a"), ("nodes", "b")][..], &[("nodes", "a")]] {
                let found = show(route(COSI, &headers(nodes), forwards, &facts()));
                assert_eq!(found, refused);
            }
        }
        check(COSI, true, &[("node", "a")], expect![[r#"One("a")"#]]);
    }

    #[test]
    fn a_worker_serves_itself_and_nobody_else() {
        let refused = "PermissionDenied: no request forwarding";
        for own in ["10.5.0.2", "fd00::2", "fd00:0::2", "::ffff:10.5.0.2", "worker-1", "worker-1.example"] {
            for key in ["node", "nodes"] {
                assert_eq!(
                    show(route(VERSION, &headers(&[(key, own)]), false, &facts())),
                    "Local",
                    "{key} {own}"
                );
            }
        }
        for other in ["10.5.0.3", "worker-2", ""] {
            for key in ["node", "nodes"] {
                assert_eq!(
                    show(route(VERSION, &headers(&[(key, other)]), false, &facts())),
                    refused,
                    "{key} {other}"
                );
            }
        }
        let two = [("nodes", "10.5.0.2"), ("nodes", "worker-1")];
        assert_eq!(show(route(VERSION, &headers(&two), false, &facts())), refused);
        check(COSI, false, &[("nodes", "10.5.0.2")], expect!["Local"]);
    }

    #[test]
    fn targets_carry_no_port() {
        check(VERSION, true, &[("node", "")], expect![[r#"Internal: invalid target """#]]);
        check(VERSION, true, &[("node", "a:50000")], expect![[r#"Internal: invalid target "a:50000""#]]);
        check(
            VERSION,
            true,
            &[("nodes", "a"), ("nodes", "[::1]:1")],
            expect![[r#"Internal: invalid target "[::1]:1""#]],
        );
        check(VERSION, true, &[("node", "fd00::3")], expect![[r#"One("fd00::3")"#]]);
    }

    #[test]
    fn streams_are_known_by_their_path() {
        assert!(STREAMED.is_sorted());
        assert!(is_streamed("/machine.MachineService/Logs"));
        assert!(is_streamed("/some.New/ThingStream"));
        assert!(!is_streamed("/machine.MachineService/EtcdRecover"));
        assert!(!is_streamed(VERSION));
    }
}
