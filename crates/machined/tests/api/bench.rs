//! A node without controllers, its API on a socket of its own, and clients of any role.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ichor_machined::api::server::{serve_machine, serve_maintenance};
use ichor_machined::node::{Node, NodeParts, Paths};
use ichor_machined::platform::{Mode, Platform};
use ichor_machined::supervisor::Supervisor;
use ichor_machined::tasks::NodeTasks;
use ichor_observe::LogManager;
use ichor_pki::{Authority, KeyAlgorithm, Leaf, Role, RoleSet};
use ichor_resource::config::MachineConfig;
use ichor_rpc::unix::{self, Access};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint, ServerTls, roles};
use ichor_types::Cmdline;
use ichor_wire::cosi::resource::state_client::StateClient;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use ichor_wire::storage::storage_service_client::StorageServiceClient;
use ichor_wire::time::time_service_client::TimeServiceClient;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest wait of any test.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// The least a worker can be configured with.
pub(crate) const WORKER: &str = include_str!("worker.yaml");

/// A node and its socket.
pub(crate) struct Bench {
    pub node: Arc<Node>,
    dir: tempfile::TempDir,
    socket: PathBuf,
    _stop: DropGuard,
}

impl Bench {
    /// Starts one.
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &Handle::current()).await
    }

    /// Starts one with its files in `dir` and its API on another runtime.
    pub(crate) async fn start_in(dir: tempfile::TempDir, api: &Handle) -> Self {
        ichor_pki::install_provider();
        let paths = Paths {
            state: dir.path().join("state"),
            run: dir.path().join("run"),
            ephemeral: dir.path().join("var"),
            containerd: dir.path().join("containerd.sock"),
        };
        std::fs::create_dir_all(&paths.state).unwrap();
        std::fs::create_dir_all(paths.run.join("machined")).unwrap();
        let (power, _) = mpsc::channel(1);
        let init = ichor_sys::supervisor::local::start().unwrap();
        let (supervisor, found) = Supervisor::connect(init, &Handle::current(), power).unwrap();
        let serve = Arc::new(|_stop| -> ichor_machined::services::BoxFuture<'static, Result<(), String>> {
            Box::pin(std::future::pending())
        });
        let tasks = Arc::new(NodeTasks::new(supervisor.clone(), serve, "/bin/false".to_owned()));
        let parts = NodeParts {
            platform: Platform { name: "sandbox".into(), mode: Mode::Cloud },
            cmdline: Cmdline::default(),
            paths,
            logs: LogManager::new(),
            own_kernel_log: false,
        };
        let node = parts.assemble(Arc::new(supervisor), found.processes, &tasks).unwrap();
        // The tasks hold the node weakly; whoever holds the sequencer holds them.
        let socket = node.host.paths.machine_socket();
        let stop = CancellationToken::new();
        let (served, stopped, path) = (Arc::clone(&node), stop.clone(), socket.clone());
        let bound = api.spawn(async move {
            let listener = unix::bind(&path, Access::PRIVATE).unwrap();
            tokio::spawn(serve_machine(served, listener, stopped));
        });
        bound.await.unwrap();
        Self { node, dir, socket, _stop: stop.drop_guard() }
    }

    pub(crate) fn channel(&self) -> Channel {
        Channel::new(Dialer::unix(&self.socket))
    }

    pub(crate) fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel())
    }

    pub(crate) fn storage(&self) -> StorageServiceClient<Channel> {
        StorageServiceClient::new(self.channel())
    }

    pub(crate) fn time(&self) -> TimeServiceClient<Channel> {
        TimeServiceClient::new(self.channel())
    }

    pub(crate) fn state(&self) -> StateClient<Channel> {
        StateClient::new(self.channel())
    }

    pub(crate) fn as_reader<T>(&self, message: T) -> tonic::Request<T> {
        request(message, Role::Reader)
    }

    pub(crate) fn as_admin<T>(&self, message: T) -> tonic::Request<T> {
        request(message, Role::Admin)
    }

    /// Puts a configuration in place as the boot does.
    pub(crate) async fn configure(&self, yaml: &'static str) {
        let change = self.node.store.config.change().await;
        change.persist(&Bytes::from_static(yaml.as_bytes())).await.unwrap();
        change.activate(&Bytes::from_static(yaml.as_bytes())).unwrap();
    }

    pub(crate) fn active(&self) -> String {
        self.node.store.config.active().map(|config| text(&config.yaml)).unwrap_or_default()
    }

    pub(crate) fn on_disk(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("state/config.yaml")).unwrap_or_default()
    }

    /// What a client handed in in maintenance mode.
    pub(crate) fn submitted(&self) -> Option<String> {
        let found = self.node.store.state.find::<MachineConfig>("config", MachineConfig::MAINTENANCE)?;
        Some(text(&found.yaml))
    }

    /// Serves maintenance mode over TLS.
    pub(crate) async fn maintenance(&self) -> Maintenance {
        let now = Timestamp::now();
        let authority = Authority::generate(KeyAlgorithm::Ed25519, "test", now, Leaf::DAY).unwrap();
        let leaf = Leaf::server("maintenance-service.talos.dev")
            .with_names(Vec::<String>::new(), [std::net::Ipv4Addr::LOCALHOST.into()]);
        let pair = authority.issue(&leaf, now).unwrap();
        let tls = ServerTls::new();
        tls.set_certificate(&pair.crt, &pair.key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let (node, stopped) = (Arc::clone(&self.node), stop.clone());
        tokio::spawn(async move { serve_maintenance(node, listener, &tls, stopped).await });
        Maintenance { port, _stop: stop.drop_guard() }
    }
}

/// A maintenance service.
pub(crate) struct Maintenance {
    pub port: u16,
    _stop: DropGuard,
}

impl Maintenance {
    /// A client that trusts anyone.
    pub(crate) fn machine(&self) -> MachineServiceClient<Channel> {
        let tls = ClientTls::insecure([]).unwrap();
        MachineServiceClient::new(Channel::new(Dialer::tls([Endpoint::new("127.0.0.1", self.port)], tls)))
    }
}

fn request<T>(message: T, role: Role) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    roles::add(&mut request, &RoleSet::of(&[role]));
    request
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
