//! The authorization table: which roles open a method, and layers that enforce it.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use ichor_pki::{Role, RoleSet};
use tonic::Status;
use tower::Service;

use crate::gate::Admission;
use crate::peer::PeerIdentity;
use crate::roles::{self, Caller};

const ADMIN: RoleSet = RoleSet::of(&[Role::Admin]);
const OPERATE: RoleSet = RoleSet::of(&[Role::Admin, Role::Operator]);
const READ: RoleSet = RoleSet::of(&[Role::Admin, Role::Operator, Role::Reader]);
const READ_ETCD: RoleSet = RoleSet::of(&[Role::Admin, Role::Operator, Role::Reader, Role::EtcdBackup]);
const BACKUP: RoleSet = RoleSet::of(&[Role::Admin, Role::Operator, Role::EtcdBackup]);

/// Every method of the machine socket with the roles that open it, sorted by path.
static RULES: &[(&str, RoleSet)] = &[
    ("/cluster.ClusterService/HealthCheck", READ),
    ("/cosi.resource.State/Create", ADMIN),
    ("/cosi.resource.State/Destroy", ADMIN),
    ("/cosi.resource.State/Get", READ),
    ("/cosi.resource.State/List", READ),
    ("/cosi.resource.State/Update", ADMIN),
    ("/cosi.resource.State/Watch", READ),
    ("/ichor.node.NodeService/EtcdRebuild", ADMIN),
    ("/ichor.node.NodeService/Why", READ),
    ("/inspect.InspectService/ControllerRuntimeDependencies", READ),
    ("/machine.MachineService/ApplyConfiguration", ADMIN),
    ("/machine.MachineService/Bootstrap", ADMIN),
    ("/machine.MachineService/CPUFreqStats", READ),
    ("/machine.MachineService/CPUInfo", READ),
    ("/machine.MachineService/Containers", READ),
    ("/machine.MachineService/Copy", ADMIN),
    ("/machine.MachineService/DiskStats", READ),
    ("/machine.MachineService/DiskUsage", READ),
    ("/machine.MachineService/Dmesg", READ),
    ("/machine.MachineService/EtcdAlarmDisarm", OPERATE),
    ("/machine.MachineService/EtcdAlarmList", READ_ETCD),
    ("/machine.MachineService/EtcdDefragment", OPERATE),
    ("/machine.MachineService/EtcdDowngradeCancel", ADMIN),
    ("/machine.MachineService/EtcdDowngradeEnable", ADMIN),
    ("/machine.MachineService/EtcdDowngradeValidate", ADMIN),
    ("/machine.MachineService/EtcdForfeitLeadership", ADMIN),
    ("/machine.MachineService/EtcdLeaveCluster", ADMIN),
    ("/machine.MachineService/EtcdMemberList", READ_ETCD),
    ("/machine.MachineService/EtcdRecover", ADMIN),
    ("/machine.MachineService/EtcdRemoveMemberByID", ADMIN),
    ("/machine.MachineService/EtcdSnapshot", BACKUP),
    ("/machine.MachineService/EtcdStatus", READ_ETCD),
    ("/machine.MachineService/Events", READ),
    ("/machine.MachineService/GenerateClientConfiguration", ADMIN),
    ("/machine.MachineService/GenerateConfiguration", ADMIN),
    ("/machine.MachineService/Hostname", READ),
    ("/machine.MachineService/ImageList", READ),
    ("/machine.MachineService/ImagePull", OPERATE),
    ("/machine.MachineService/Kubeconfig", ADMIN),
    ("/machine.MachineService/List", READ),
    ("/machine.MachineService/LoadAvg", READ),
    ("/machine.MachineService/Logs", READ),
    ("/machine.MachineService/LogsContainers", READ),
    ("/machine.MachineService/Memory", READ),
    ("/machine.MachineService/MetaDelete", ADMIN),
    ("/machine.MachineService/MetaWrite", ADMIN),
    ("/machine.MachineService/Mounts", READ),
    ("/machine.MachineService/Netstat", READ),
    ("/machine.MachineService/NetworkDeviceStats", READ),
    ("/machine.MachineService/PacketCapture", OPERATE),
    ("/machine.MachineService/Processes", READ),
    ("/machine.MachineService/Read", ADMIN),
    ("/machine.MachineService/Reboot", OPERATE),
    ("/machine.MachineService/Reset", ADMIN),
    ("/machine.MachineService/Restart", OPERATE),
    ("/machine.MachineService/Rollback", ADMIN),
    ("/machine.MachineService/ServiceList", READ),
    ("/machine.MachineService/ServiceRestart", OPERATE),
    ("/machine.MachineService/ServiceStart", OPERATE),
    ("/machine.MachineService/ServiceStop", OPERATE),
    ("/machine.MachineService/Shutdown", OPERATE),
    ("/machine.MachineService/Stats", READ),
    ("/machine.MachineService/SystemStat", READ),
    ("/machine.MachineService/Upgrade", ADMIN),
    ("/machine.MachineService/Version", READ),
    ("/storage.StorageService/BlockDeviceWipe", ADMIN),
    ("/storage.StorageService/Disks", READ),
    ("/time.TimeService/Time", READ),
    ("/time.TimeService/TimeCheck", READ),
];

/// The roles that open `path`; none for a path nobody serves.
pub fn rule(path: &str) -> Option<&'static RoleSet> {
    let found = RULES.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
    Some(&RULES[found].1)
}

/// The path itself, if it is one of a method that is served.
pub fn known(path: &str) -> Option<&'static str> {
    let found = RULES.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
    Some(RULES[found].0)
}

/// Whether `roles` open `path`. Everything without a rule is for administrators.
pub fn allows(path: &str, roles: &RoleSet) -> bool {
    roles.intersects(rule(path).unwrap_or(&ADMIN))
}

/// What a caller hears about a method that does not exist, after the role check.
fn unknown_method(path: &str) -> Status {
    let Some((service, method)) = path.strip_prefix('/').and_then(|rest| rest.rsplit_once('/')) else {
        return Status::unimplemented(format!("malformed method name: {path:?}"));
    };
    let is_served = RULES.iter().any(|(known, _)| {
        known
            .strip_prefix('/')
            .and_then(|rest| rest.rsplit_once('/'))
            .is_some_and(|(name, _)| name == service)
    });
    Status::unimplemented(if is_served {
        format!("unknown method {method} for service {service}")
    } else {
        format!("unknown service {service}")
    })
}

/// Admits a call when the roles in its metadata open its method; for [`crate::gate::Gate`].
///
/// For Unix sockets, where the gateway in front has put the caller's roles into the metadata. The roles
/// are left in the extensions of the request as [`Caller`].
#[derive(Clone, Copy, Debug)]
pub struct ByRole;

impl Admission for ByRole {
    fn admit<B>(&self, request: &mut Request<B>) -> Result<(), Status> {
        let path = request.uri().path();
        let roles = roles::from_headers(request.headers());
        match rule(path) {
            Some(opens) if roles.intersects(opens) => {}
            None if roles.intersects(&ADMIN) => return Err(unknown_method(path)),
            Some(_) | None => return Err(Status::permission_denied("not authorized")),
        }
        request.extensions_mut().insert(Caller(roles));
        Ok(())
    }
}

/// Gives every request fixed roles by its peer, without any check: for servers that have no authorizer.
#[derive(Clone)]
pub struct Assign<S> {
    service: S,
    roles: Arc<dyn Fn(&PeerIdentity) -> RoleSet + Send + Sync>,
}

impl<S> Assign<S> {
    /// Wraps `service`; `roles` says what a peer gets.
    pub fn new(service: S, roles: impl Fn(&PeerIdentity) -> RoleSet + Send + Sync + 'static) -> Self {
        Self { service, roles: Arc::new(roles) }
    }
}

impl<S, B> Service<Request<B>> for Assign<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let peer = request.extensions().get::<Arc<PeerIdentity>>();
        let roles = peer.map(|peer| (self.roles)(peer)).unwrap_or_default();
        request.extensions_mut().insert(Caller(roles));
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;

    use super::*;
    use crate::gate::Gate;

    #[test]
    fn rules_are_sorted_and_cover_every_method() {
        assert!(RULES.is_sorted_by(|left, right| left.0 < right.0));
        assert_eq!(RULES.len(), 69);
    }

    #[test]
    fn each_role_opens_what_it_should() {
        let one = |role| RoleSet::of(&[role]);
        let cases = [
            ("/machine.MachineService/Version", Role::Reader, true),
            ("/machine.MachineService/Reboot", Role::Reader, false),
            ("/machine.MachineService/Reboot", Role::Operator, true),
            ("/machine.MachineService/Copy", Role::Operator, false),
            ("/machine.MachineService/Copy", Role::Admin, true),
            ("/machine.MachineService/EtcdSnapshot", Role::EtcdBackup, true),
            ("/machine.MachineService/EtcdSnapshot", Role::Reader, false),
            ("/machine.MachineService/Version", Role::Impersonator, false),
            ("/cosi.resource.State/Watch", Role::Reader, true),
            ("/cosi.resource.State/Create", Role::Operator, false),
            ("/no.Such/Method", Role::Operator, false),
            ("/no.Such/Method", Role::Admin, true),
        ];
        for (path, role, expected) in cases {
            assert_eq!(allows(path, &one(role)), expected, "{path} as {role}");
        }
        for (path, _) in RULES {
            assert!(allows(path, &one(Role::Admin)), "{path}");
            assert!(!allows(path, &RoleSet::EMPTY), "{path}");
        }
    }

    #[tokio::test]
    async fn the_layer_answers_for_the_service_behind_it() {
        let inner = tower::service_fn(|request: Request<()>| async move {
            assert!(request.extensions().get::<Caller>().is_some());
            Ok::<_, Infallible>(Response::new(()))
        });
        let mut service = Gate::new(inner, ByRole);
        for (path, role, code, message) in [
            ("/machine.MachineService/Version", "os:reader", None, ""),
            ("/machine.MachineService/Version", "os:none", Some("7"), "not authorized"),
            ("/machine.MachineService/Nope", "os:reader", Some("7"), "not authorized"),
            (
                "/machine.MachineService/Nope",
                "os:admin",
                Some("12"),
                "unknown method Nope for service machine.MachineService",
            ),
            ("/a.B/C", "os:admin", Some("12"), "unknown service a.B"),
        ] {
            let request = Request::builder().uri(path).header(roles::ROLE, role).body(()).unwrap();
            let response = service.call(request).await.unwrap();
            let found = response.headers().get("grpc-status").map(|value| value.to_str().unwrap());
            assert_eq!(found, code, "{path} as {role}");
            if code.is_some() {
                let status = crate::status::from_headers(response.headers()).expect("status");
                assert_eq!(status.message(), message);
            }
        }
    }
}
