//! The servers of machined: the machine socket, the filtered state of the daemons, maintenance mode.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use ichor_cosi::{AccessFilter, AccessRequest, ReadOnly, State, StateService};
use ichor_pki::{Role, RoleSet};
use ichor_resource::TypedSpec;
use ichor_resource::cluster::{Info, Member};
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::{AddressStatus, HostnameStatus, LinkStatus, NodeAddress};
use ichor_resource::secrets::{ApiCertificate, OSRootSecret, TrustdCertificate};
use ichor_rpc::authorize::{Assign, ByRole};
use ichor_rpc::budget::{BodyBudget, BodyLimits};
use ichor_rpc::gate::Gate;
use ichor_rpc::http2::Http2Limits;
use ichor_rpc::ledger::{self, Ledger};
use ichor_rpc::peer::PeerIdentity;
use ichor_rpc::server::{Boxed, Grpc, Limits, Make, serve_tls_boxed, serve_unix_boxed};
use ichor_rpc::services::Services;
use ichor_rpc::{ServerTls, roles};
use ichor_types::deadlines;
use ichor_wire::cluster::cluster_service_server::ClusterServiceServer;
use ichor_wire::ichor::node::audit_service_server::AuditServiceServer;
use ichor_wire::ichor::node::node_service_server::NodeServiceServer;
use ichor_wire::inspect::inspect_service_server::InspectServiceServer;
use ichor_wire::machine::machine_service_server::MachineServiceServer;
use ichor_wire::storage::storage_service_server::StorageServiceServer;
use ichor_wire::time::time_service_server::TimeServiceServer;

use super::guard::{CatchPanic, MaintenanceCalls};
use super::health::ClusterApi;
use super::machine::{Api, ApiMode};
use crate::audit::{self, Audit, Audited, Reports};
use crate::daemons::APID_UID;
use crate::node::Node;

/// The largest message a configured node takes.
const MESSAGE_MAX: usize = 32 * MIB;

/// The largest report of a daemon.
const REPORT_MAX: usize = 64 * KIB;

/// The largest message a node in maintenance mode takes: its peers are nobody yet.
const MAINTENANCE_MESSAGE_MAX: usize = 4 * MIB;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// The link of the SideroLink tunnel.
const TUNNEL: &str = "siderolink";

/// Bounds of the machine socket: one message of the largest size at a time, and many of a usual one.
pub(super) fn machine_limits() -> Limits {
    let bodies = BodyLimits {
        message: MESSAGE_MAX,
        connection: MESSAGE_MAX + 2 * MIB,
        total: MESSAGE_MAX + 10 * MIB,
        small: 64 * KIB,
        reserve: 8 * MIB,
        waiting: 128,
        wait: deadlines::BODY_ROOM,
        stall: deadlines::BODY_STALL,
        rate: 256 * KIB,
        deadline: deadlines::BODY_MACHINE,
    };
    Limits { http2: Http2Limits::LOCAL, bodies: Some(BodyBudget::new(bodies)), ..Limits::default() }
}

/// Bounds of a daemon's state socket.
pub(super) fn runtime_limits() -> Limits {
    let bodies = BodyLimits {
        message: REPORT_MAX,
        connection: 2 * REPORT_MAX,
        total: MIB,
        small: 4 * KIB,
        reserve: MIB / 4,
        waiting: 32,
        wait: deadlines::BODY_ROOM,
        stall: deadlines::BODY_STALL,
        rate: 256 * KIB,
        deadline: deadlines::BODY,
    };
    Limits { http2: Http2Limits::LOCAL, bodies: Some(BodyBudget::new(bodies)), ..Limits::default() }
}

/// Bounds of maintenance mode, where everybody may call and one of them is to be served.
fn maintenance_limits() -> Limits {
    let bodies = BodyLimits {
        message: MAINTENANCE_MESSAGE_MAX,
        connection: MAINTENANCE_MESSAGE_MAX + MIB,
        total: 16 * MIB,
        small: 64 * KIB,
        reserve: 4 * MIB,
        waiting: 32,
        wait: deadlines::BODY_ROOM,
        stall: deadlines::BODY_STALL,
        rate: 128 * KIB,
        deadline: deadlines::BODY,
    };
    Limits {
        connections: 128,
        handshakes: 64,
        first_call: Some(deadlines::FIRST_CALL_MAINTENANCE),
        share: Some(16),
        http2: Http2Limits {
            streams: 32,
            stream_window: 64 * KIB as u32,
            connection_window: 256 * KIB as u32,
            headers: 16 * KIB as u32,
            send_buffer: 16 * KIB,
        },
        bodies: Some(BodyBudget::new(bodies)),
        ..Limits::default()
    }
}

fn is_admin(request: &AccessRequest<'_>) -> bool {
    roles::of_extensions(request.extensions).intersects(&RoleSet::of(&[Role::Admin]))
}

/// The rules for callers from outside; what they ask for goes into the audit log.
fn read_only(state: &State) -> impl AccessFilter + use<> {
    let rules = ReadOnly::new(state.clone(), is_admin);
    move |request: &AccessRequest<'_>| {
        audit::target(request.extensions, || {
            let id = request.id.map_or(String::new(), |id| format!("/{id}"));
            format!("{}/{}{id}", request.namespace, request.type_name)
        });
        rules.check(request)
    }
}

/// All services of a configured node, without any check of roles.
pub fn services(node: &Arc<Node>) -> Services {
    let api = Api::new(Arc::clone(node), ApiMode::Configured);
    let state = StateService::new(node.store.state.clone(), read_only(&node.store.state));
    Services::new()
        .with(MachineServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_MAX))
        .with(TimeServiceServer::new(api.clone()))
        .with(InspectServiceServer::new(api.clone()))
        .with(NodeServiceServer::new(api.clone()))
        .with(StorageServiceServer::new(api))
        .with(ClusterServiceServer::new(ClusterApi::new(
            node.store.state.clone(),
            node.host.paths.gateway_socket(),
        )))
        .with(state)
}

/// Serves the machine socket until `stop`.
pub async fn serve_machine(node: Arc<Node>, listener: UnixListener, stop: CancellationToken) {
    let services = services(&node);
    let audit = node.journal.audit.clone();
    let make: Make = Box::new(move |peer| {
        let guarded = Gate::new(CatchPanic(services.clone()), ByRole);
        let audited = Audited::new(guarded, audit.clone(), Some(APID_UID));
        Boxed::new(Grpc::new(audited, peer))
    });
    serve_unix_boxed(listener, machine_limits(), stop, make).await;
}

/// Serves the part of the state that one daemon may read, until `stop`.
pub async fn serve_runtime(
    state: State,
    audit: Audit,
    allowed: &'static [Readable],
    listener: UnixListener,
    stop: CancellationToken,
) {
    let filter = move |request: &AccessRequest<'_>| check_readable(allowed, request);
    let services = Services::new()
        .with(StateService::new(state, filter))
        .with(AuditServiceServer::new(Reports(audit)).max_decoding_message_size(REPORT_MAX));
    let make: Make = Box::new(move |peer| Boxed::new(Grpc::new(services.clone(), peer)));
    serve_unix_boxed(listener, runtime_limits(), stop, make).await;
}

/// One thing a daemon may read.
#[derive(Debug, Clone, Copy)]
pub struct Readable {
    namespace: &'static str,
    type_name: fn() -> &'static str,
    id: Option<&'static str>,
}

fn type_name<T: TypedSpec>() -> &'static str {
    T::definition().type_name
}

/// What apid may read.
pub const FOR_APID: &[Readable] = &[
    Readable { namespace: "secrets", type_name: type_name::<ApiCertificate>, id: Some("api") },
    Readable { namespace: "network", type_name: type_name::<NodeAddress>, id: None },
    Readable { namespace: "network", type_name: type_name::<HostnameStatus>, id: None },
    Readable { namespace: "cluster", type_name: type_name::<Member>, id: None },
    Readable { namespace: "controlplane", type_name: type_name::<Endpoint>, id: None },
];

/// What trustd may read.
pub const FOR_TRUSTD: &[Readable] = &[
    Readable { namespace: "secrets", type_name: type_name::<TrustdCertificate>, id: Some("trustd") },
    Readable { namespace: "secrets", type_name: type_name::<OSRootSecret>, id: Some("os") },
    Readable { namespace: "cluster", type_name: type_name::<Info>, id: Some("current") },
];

fn check_readable(allowed: &[Readable], request: &AccessRequest<'_>) -> Result<(), Status> {
    if !request.verb.is_read() {
        return Err(Status::permission_denied("write access is not allowed"));
    }
    let fits = |readable: &Readable| {
        readable.namespace == request.namespace
            && (readable.type_name)() == request.type_name
            && readable.id.is_none_or(|id| request.id == Some(id))
    };
    match allowed.iter().any(fits) {
        true => Ok(()),
        false => Err(Status::permission_denied("access denied")),
    }
}

/// Serves maintenance mode over TLS until `stop`. Everyone may read, and hand in a configuration.
pub async fn serve_maintenance(
    node: Arc<Node>,
    listener: TcpListener,
    tls: &ServerTls,
    stop: CancellationToken,
) -> Result<(), ichor_pki::PkiError> {
    let config = tls.server_only()?;
    let api = Api::new(Arc::clone(&node), ApiMode::Maintenance);
    let state = StateService::new(node.store.state.clone(), read_only(&node.store.state));
    let services = Services::new()
        .with(MachineServiceServer::new(api.clone()).max_decoding_message_size(MAINTENANCE_MESSAGE_MAX))
        .with(NodeServiceServer::new(api.clone()))
        .with(StorageServiceServer::new(api))
        .with(state);
    let limits = maintenance_limits();
    let (audit, ledger) = (node.journal.audit.clone(), Arc::new(Ledger::default()));
    let tunnel = node.store.state.clone();
    let telling = tell_handshakes(Reports(node.journal.audit.clone()), ledger.clone());
    let make: Make = Box::new(move |peer| {
        let gate = Gate::new(CatchPanic(services.clone()), MaintenanceCalls);
        let audited = Audited::new(gate, audit.clone(), None);
        // Once for a connection: its two addresses stay what they are.
        let roles = maintenance_roles(&tunnel, &peer);
        Boxed::new(Grpc::new(Assign::new(audited, move |_| roles.clone()), peer))
    });
    let serving = serve_tls_boxed(listener, config, limits, stop, ledger, make);
    tokio::select! {
        () = serving => {}
        () = telling => {}
    }
    Ok(())
}

/// Writes down who came without getting in, for ever.
async fn tell_handshakes(reports: Reports, ledger: Arc<Ledger>) {
    loop {
        reports.take(&ledger.next().await);
        tokio::time::sleep(ledger::REST).await;
    }
}

/// The management plane at the other end of the SideroLink tunnel is an administrator; everyone else may look.
///
/// An address of the range is not enough: anybody on the network can take one. The peer has to have connected to an
/// address of the tunnel's own link, from which answers go into the tunnel only.
fn maintenance_roles(state: &State, peer: &PeerIdentity) -> RoleSet {
    let is_in_range = |ip: IpAddr| match ip {
        IpAddr::V6(ip) => ip.octets()[0] == 0xfd && ip.octets()[7] == 0x03,
        IpAddr::V4(_) => false,
    };
    let from_tunnel = match (peer.address, peer.local) {
        (Some(remote), Some(local)) => is_in_range(remote.ip()) && is_of_tunnel(state, local.ip()),
        _ => false,
    };
    RoleSet::of(&[if from_tunnel { Role::Admin } else { Role::Reader }])
}

/// Whether an address of this machine is one of the tunnel's link.
fn is_of_tunnel(state: &State, address: IpAddr) -> bool {
    let is_tunnel = state.find::<LinkStatus>("network", TUNNEL).is_some_and(|link| link.kind == "wireguard");
    is_tunnel
        && state.list::<AddressStatus>("network").iter().any(|status| {
            status.link_name == TUNNEL && status.address.get().is_some_and(|net| net.addr() == address)
        })
}

#[cfg(test)]
mod tests {
    use ichor_cosi::SystemClock;

    use super::*;

    #[test]
    fn an_address_of_the_siderolink_range_alone_does_not_make_an_administrator() {
        let state = State::new(SystemClock);
        crate::meta::register(&state).unwrap();
        let peer = |remote: &str, local: &str| PeerIdentity {
            address: Some(remote.parse().unwrap()),
            local: Some(local.parse().unwrap()),
            ..PeerIdentity::default()
        };
        let inside = peer("[fdae:41e4:649b:9303::1]:4000", "[fdae:41e4:649b:9303::2]:50000");
        let (admin, reader) = (RoleSet::of(&[Role::Admin]), RoleSet::of(&[Role::Reader]));
        assert_eq!(maintenance_roles(&state, &inside), reader, "there is no tunnel");

        let address = |link: &str| AddressStatus {
            address: "fdae:41e4:649b:9303::2/64".parse().unwrap(),
            link_name: link.into(),
            ..AddressStatus::default()
        };
        state.create("network", "eth0/a", address("eth0"), "").unwrap();
        let link = |kind: &str| LinkStatus { kind: kind.into(), ..LinkStatus::default() };
        state.create("network", TUNNEL, link("bridge"), "").unwrap();
        assert_eq!(maintenance_roles(&state, &inside), reader, "the address is on another link");
        state.create("network", "siderolink/a", address(TUNNEL), "").unwrap();
        assert_eq!(maintenance_roles(&state, &inside), reader, "the link is no tunnel");
        state.modify::<LinkStatus>("network", TUNNEL, "", |spec| *spec = link("wireguard")).unwrap();
        assert_eq!(maintenance_roles(&state, &inside), admin);
        for (remote, local) in [
            ("[fdae:41e4:649b:9303::1]:4000", "[fd00::2]:50000"),
            ("[fd00::1]:4000", "[fdae:41e4:649b:9303::2]:50000"),
            ("10.0.0.1:4000", "10.0.0.2:50000"),
        ] {
            assert_eq!(maintenance_roles(&state, &peer(remote, local)), reader, "{remote} to {local}");
        }
    }
}
