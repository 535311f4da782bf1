//! A small client of etcd, version 3.
//!
//! [`Client::connect`] takes the endpoints of a cluster, in the order in which they are tried, and a certificate.
//! Every call goes to the first endpoint that takes a connection; what only reads moves on to the next one when a member
//! is not available. [`Client::lock`] is the usual recipe for locks: keys of leases below a prefix, the oldest one holds it.

mod call;
mod cluster;
mod kv;
mod lock;
mod snapshot;

use std::sync::Arc;

use ichor_rpc::tls::ClientTlsError;
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use tonic::{Code, Status};

pub use cluster::{Alarm, AlarmKind, Downgrade};
pub use ichor_wire::etcd::{Member, StatusResponse};
pub use lock::Guard;
pub use snapshot::Snapshot;

/// Where etcd takes calls of clients.
pub const CLIENT_PORT: u16 = 2379;
/// Where members talk to each other.
pub const PEER_PORT: u16 = 2380;

/// What a client shows and trusts, as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The authority of the cluster.
    pub ca: Vec<u8>,
    /// The client's certificate.
    pub cert: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Tls {
    /// The key does not show.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// A client of a cluster. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    members: Arc<[(Endpoint, Channel)]>,
    /// Members without a leader refuse such calls.
    leader: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members.iter().map(|(endpoint, _)| endpoint)).finish()
    }
}

impl Client {
    /// A client of the members at `endpoints`, tried in this order. Nothing connects yet.
    pub fn connect(endpoints: impl IntoIterator<Item = Endpoint>, tls: &Tls) -> Result<Self, ClientTlsError> {
        let tls = ClientTls::verified(&tls.ca, Some((&tls.cert, &tls.key)))?;
        let member =
            |endpoint: Endpoint| (endpoint.clone(), Channel::new(Dialer::tls([endpoint], tls.clone())));
        Ok(Self { members: endpoints.into_iter().map(member).collect(), leader: false })
    }

    /// The same, for calls that a member without a leader shall refuse.
    pub fn require_leader(mut self) -> Self {
        self.leader = true;
        self
    }

    /// A client of each single endpoint, with the same connections.
    pub fn each(&self) -> impl Iterator<Item = (&Endpoint, Self)> {
        self.members
            .iter()
            .map(|member| (&member.0, Self { members: [member.clone()].into(), leader: self.leader }))
    }
}

/// The member is not of this cluster.
pub fn is_member_not_found(error: &Status) -> bool {
    error.code() == Code::NotFound && error.message().contains("member not found")
}

/// Another learner has to be promoted first.
pub fn is_too_many_learners(error: &Status) -> bool {
    error.message().contains("too many learner members")
}

/// The learner has not caught up yet.
pub fn is_learner_not_ready(error: &Status) -> bool {
    error.message().contains("learner member which is in sync with leader")
}

/// The member is no learner (any more).
pub fn is_not_learner(error: &Status) -> bool {
    error.message().contains("can only promote a learner member") && !is_learner_not_ready(error)
}

/// Changing the members now could cost the cluster its quorum, or the asked one is going down; later it may work.
pub fn is_unhealthy(error: &Status) -> bool {
    error.message().contains("unhealthy cluster") || error.message().contains("server stopped")
}
