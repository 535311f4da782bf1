//! One call to one other node: whether the caller may reach it, the way there, and what is recorded of it.
//!
//! A node records the calls it answers. Recorded here is what no other node does: calls that were denied or did not
//! arrive, and calls to machines that are not members of the cluster.

use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use ichor_pki::{Role, RoleSet};
use tonic::{Code, Status};

use super::upstreams::{Upstream, Upstreams};
use super::{ProxyConnection, caller_text};
use crate::authorize;
use crate::body::{RequestBody, Running, UpstreamBody};
use crate::ledger::Ledger;
use crate::members::{Members, canonical};
use crate::roles;
use crate::status;

/// Who may have calls forwarded to any address. All others reach members of the cluster only: with the gateway's
/// errors and their timing, everybody who may call at all could otherwise scan the networks of its node.
const ANYWHERE: RoleSet = RoleSet::of(&[Role::Admin, Role::Operator]);

const NOT_A_MEMBER: &str = "target is not a cluster member";
const UNREACHABLE: &str = "node not reachable";
const STRANGER_UNREACHABLE: &str = "target is not a cluster member and not reachable";
const LOST: &str = "connection to the node lost";
const GAVE_UP: &str = "canceled before the node answered";

/// Whom the caller of a call may reach.
pub(super) struct Gate {
    anywhere: bool,
    members: Arc<Members>,
}

impl Gate {
    /// By the roles that the call is made with.
    pub(super) fn new(headers: &HeaderMap, members: Arc<Members>) -> Self {
        Self { anywhere: roles::from_headers(headers).intersects(&ANYWHERE), members }
    }

    /// What the caller hears of a node that could not be reached. Only those who may reach any address learn why.
    fn failure(&self, target: &str, status: Status) -> Status {
        match self.anywhere {
            true => status,
            false => {
                Status::unavailable(format!("connection error: desc = \"node {target} is not reachable\""))
            }
        }
    }
}

/// A call on its way to another node. Unless somebody takes it, its end is recorded when it is dropped.
struct Attempt<'a> {
    ledger: &'a Ledger,
    caller: &'a str,
    method: &'static str,
    target: &'a str,
    key: Arc<str>,
    is_member: bool,
    upstreams: &'a Upstreams,
    running: Option<Running>,
    is_connected: bool,
    is_over: bool,
}

impl Attempt<'_> {
    fn record(&mut self, code: Code, reason: &str) {
        self.is_over = true;
        self.ledger.forward(self.caller, self.method, code, reason, self.target);
    }

    /// The node has begun to answer.
    fn answered(&mut self, response: &Response<UpstreamBody>) {
        self.is_over = true;
        if !self.is_member {
            let code = status::from_headers(response.headers()).map_or(Code::Ok, |status| status.code());
            self.record(code, NOT_A_MEMBER);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // Whoever is on the way to a node is counted, so this one must not be any more.
        let unused = self.running.take();
        drop(unused);
        if !self.is_connected {
            self.upstreams.unreachable(&self.key);
        }
        // A member that was reached records what became of the call itself.
        let is_elsewhere = self.is_connected && self.is_member;
        if !self.is_over && !is_elsewhere {
            self.record(Code::Cancelled, GAVE_UP);
        }
    }
}

/// A reply that another node has begun.
pub(super) struct Begun {
    pub(super) response: Response<UpstreamBody>,
    /// Counts the call on its connection until it is dropped.
    pub(super) running: Running,
    /// The connection was made for this call.
    pub(super) is_new: bool,
    /// The target in the form that connections are known by.
    pub(super) key: Arc<str>,
}

impl ProxyConnection {
    /// Sends a call of `path` to `target`, if its caller may; `make` makes the request for the connection.
    pub(super) async fn send_to(
        &self,
        upstreams: &Arc<Upstreams>,
        gate: &Gate,
        target: &Arc<str>,
        path: &str,
        make: impl FnOnce(&Upstream) -> Result<Request<RequestBody>, Status>,
    ) -> Result<Begun, Status> {
        let (caller, method) = (caller_text(&self.caller), authorize::known(path).unwrap_or("unknown"));
        let is_member = gate.members.contains(target);
        let ledger = &*self.proxy.ledger;
        if !is_member && !gate.anywhere {
            ledger.forward(caller, method, Code::PermissionDenied, NOT_A_MEMBER, target);
            return Err(denied(target));
        }
        let key = canonical(target);
        let (upstream, running) = upstreams.get(&key, path, &self.private);
        let is_new = !upstream.channel.is_connected();
        let mut attempt = Attempt {
            ledger,
            caller,
            method,
            target,
            key,
            is_member,
            upstreams,
            running: Some(running),
            is_connected: !is_new,
            is_over: false,
        };
        if let Err(failed) = upstream.channel.connect_within(&self.share.dials).await {
            attempt.record(failed.code(), if is_member { UNREACHABLE } else { STRANGER_UNREACHABLE });
            return Err(gate.failure(target, failed));
        }
        attempt.is_connected = true;
        match upstream.channel.send(make(&upstream)?).await {
            Ok(response) => {
                attempt.answered(&response);
                let key = attempt.key.clone();
                let running = attempt.running.take().ok_or_else(|| Status::internal("call counted twice"))?;
                Ok(Begun { response, running, is_new, key })
            }
            Err(failed) => {
                attempt.record(failed.code(), LOST);
                Err(gate.failure(target, failed))
            }
        }
    }
}

/// What a caller hears who may not reach `target`. It says nothing about whether anybody is there.
fn denied(target: &str) -> Status {
    Status::permission_denied(format!(
        "{target:?} is not a known member of the cluster; other targets need the role os:operator"
    ))
}
