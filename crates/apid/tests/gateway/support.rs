//! Nodes in one process: a fake machined behind a real gateway, on addresses of the loopback network.

mod machine;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use ichor_apid::Options;
use ichor_pki::{Authority, KeyAlgorithm, KeyPair, Leaf};
use ichor_resource::cluster::Member;
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::secrets::ApiCertificate;
use ichor_resource::spec::{Spec, TypedSpec};
use ichor_resource::value::{PemCertificate, PemCertificateAndKey};
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_rpc::services::Services;
use ichor_rpc::unix::{Access, bind};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_wire::cosi::resource as cosi;
use ichor_wire::ichor::node::audit_service_server::{AuditService, AuditServiceServer};
use ichor_wire::ichor::node::{AuditEntry, ReportRequest, ReportResponse};
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) use machine::{Machine, answer_as};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The first nodes of every cluster are known as its members, whether they are there or not.
pub(crate) const MEMBERS: u8 = 8;

pub(crate) type Client = MachineServiceClient<Channel>;

/// A certificate authority, and the port all its nodes listen on.
pub(crate) struct Cluster {
    pub authority: Authority,
    pub port: u16,
    net: u8,
    dir: tempfile::TempDir,
}

static NEXT_NET: AtomicUsize = AtomicUsize::new(1);

impl Cluster {
    pub(crate) fn new() -> Self {
        let net = NEXT_NET.fetch_add(1, Ordering::Relaxed) as u8;
        let probe = TcpListener::bind(SocketAddr::from(([127, 77, net, 254], 0))).expect("probe");
        Self {
            authority: authority(),
            port: probe.local_addr().expect("address").port(),
            net,
            dir: tempfile::tempdir().expect("directory"),
        }
    }

    /// A cluster on the same addresses and port, to become another authority's.
    pub(crate) fn beside(other: &Cluster) -> Self {
        Self {
            authority: authority(),
            port: other.port,
            net: other.net,
            dir: tempfile::tempdir().expect("directory"),
        }
    }

    pub(crate) fn address(&self, number: u8) -> IpAddr {
        IpAddr::from([127, 77, self.net, number])
    }

    /// A control plane node.
    pub(crate) fn node(&self, number: u8) -> Node {
        Node::start(self, number, true)
    }

    /// A worker: it has no client certificate.
    pub(crate) fn worker(&self, number: u8) -> Node {
        Node::start(self, number, false)
    }

    /// A control plane node whose gateway is a process of its own.
    pub(crate) fn node_apart(&self, number: u8) -> (Node, u32) {
        let mut pid = 0;
        let node = Node::start_with(self, number, true, |options| {
            let process = Process::spawn(&options);
            pid = process.0.id();
            Gateway::Process { _process: process }
        });
        (node, pid)
    }

    /// A client certificate with these roles.
    pub(crate) fn certificate(&self, roles: &[&str]) -> KeyPair {
        self.authority.issue(&Leaf::client("", roles.iter().copied()), now()).expect("certificate")
    }

    /// A client of a node, with these roles.
    pub(crate) fn client(&self, number: u8, roles: &[&str]) -> Client {
        self.client_with(number, &self.certificate(roles))
    }

    /// A client of a node, with this certificate.
    pub(crate) fn client_with(&self, number: u8, pair: &KeyPair) -> Client {
        MachineServiceClient::new(self.channel(number, pair))
    }

    pub(crate) fn channel(&self, number: u8, pair: &KeyPair) -> Channel {
        let identity = (pair.crt.as_bytes(), pair.key.as_bytes());
        let tls = ClientTls::verified(self.authority.crt_pem(), Some(identity)).expect("client TLS");
        Channel::new(Dialer::tls([Endpoint::new(self.address(number).to_string(), self.port)], tls))
    }

    pub(crate) fn certificates(&self, number: u8, forwards: bool) -> ApiCertificate {
        let pair = |pair: KeyPair| PemCertificateAndKey { crt: pair.crt.into(), key: pair.key.into() };
        let names = ["node".to_owned(), format!("host-{number}")];
        let server = Leaf::server("node").with_names(names, [self.address(number)]);
        let client = Leaf::client("node", ["os:impersonator"]);
        ApiCertificate {
            accepted_cas: vec![PemCertificate { crt: self.authority.crt_pem().to_owned().into() }],
            server: Some(pair(self.authority.issue(&server, now()).expect("server"))),
            client: forwards.then(|| pair(self.authority.issue(&client, now()).expect("client"))),
        }
    }
}

pub(crate) fn authority() -> Authority {
    Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).expect("authority")
}

pub(crate) fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// A node: its gateway runs in a thread of its own, as does its machine.
pub(crate) struct Node {
    pub machine: Machine,
    pub specs: Arc<Specs>,
    /// What the gateway told of those it turned away.
    pub told: Told,
    pub socket: PathBuf,
    _runtime: Thread,
    _gateway: Gateway,
}

/// Where the gateway of a node runs.
enum Gateway {
    Thread { _thread: Thread },
    Process { _process: Process },
}

impl Node {
    fn start(cluster: &Cluster, number: u8, forwards: bool) -> Self {
        Self::start_with(cluster, number, forwards, |options| Gateway::Thread {
            _thread: Thread::spawn(move |stop| async move {
                ichor_apid::run(options, stop).await.expect("gateway");
            }),
        })
    }

    fn start_with(
        cluster: &Cluster,
        number: u8,
        forwards: bool,
        run: impl FnOnce(Options) -> Gateway,
    ) -> Self {
        let dir = cluster.dir.path().join(number.to_string());
        std::fs::create_dir(&dir).expect("directory");
        let address = cluster.address(number);
        let specs = Arc::new(Specs::default());
        specs.set("api", &cluster.certificates(number, forwards));
        let prefix = ipnet::IpNet::new(address, 32).expect("prefix").into();
        specs.set("current", &NodeAddress { addresses: vec![prefix], ..NodeAddress::default() });
        specs.set_members((1..=MEMBERS).map(|number| {
            let (name, address) = (format!("host-{number}"), cluster.address(number));
            (name.clone(), Member { hostname: name, addresses: vec![address.into()], ..Member::default() })
        }));
        let host = HostnameStatus { hostname: format!("host-{number}"), domainname: "example".to_owned() };
        specs.set("hostname", &host);
        let told = Told::default();
        let runtime = serve_state(&dir.join("runtime.sock"), specs.clone(), told.clone());
        let machine = Machine::new(&dir.join("machine.sock"), &format!("m{number}"));
        machine.start();
        let options = Options {
            listen: SocketAddr::new(address, cluster.port),
            socket: dir.join("apid.sock"),
            machine: dir.join("machine.sock"),
            runtime: dir.join("runtime.sock"),
            peer_port: cluster.port,
        };
        let socket = options.socket.clone();
        let gateway = run(options);
        // Both listeners exist once the second one does.
        wait_for("the gateway", || socket.exists());
        Node { machine, specs, told, socket, _runtime: runtime, _gateway: gateway }
    }
}

/// Waits, bounded, for something in another thread.
#[track_caller]
pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A thread with a runtime, stopped when dropped.
pub(crate) struct Thread {
    stop: CancellationToken,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn spawn<F: Future<Output = ()>>(
        work: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Self {
        let stop = CancellationToken::new();
        let token = stop.clone();
        let handle = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async {
                // What hangs on open connections is cut; tests do not wait for it.
                tokio::select! {
                    () = work(token.clone()) => {}
                    () = async { token.cancelled().await; tokio::time::sleep(Duration::from_millis(50)).await } => {}
                }
            });
        });
        Self { stop, handle: Some(handle) }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(handle) = self.handle.take() {
            let ended = handle.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the test panicked");
        }
    }
}

/// Where the arguments of [`Process`] are for its child.
const PROCESS_ARGS: &str = "ICHOR_TEST_GATEWAY";

/// A gateway in a process of its own, ended when dropped: this test program, started again.
pub(crate) struct Process(std::process::Child);

impl Process {
    fn spawn(options: &Options) -> Self {
        let path = |path: &Path| path.display().to_string();
        let args = [
            format!("--listen={}", options.listen),
            format!("--socket={}", path(&options.socket)),
            format!("--machine={}", path(&options.machine)),
            format!("--runtime={}", path(&options.runtime)),
            format!("--peer-port={}", options.peer_port),
        ];
        let mut command = std::process::Command::new(std::env::current_exe().expect("program"));
        command.args(["--exact", "support::gateway_process", "--include-ignored", "--nocapture"]);
        command.env(PROCESS_ARGS, args.join(" ")).stdin(std::process::Stdio::piped());
        Self(command.stdout(std::process::Stdio::null()).spawn().expect("process"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child of [`Process`]; nothing when it is run as a test.
#[test]
#[ignore = "started by other tests"]
fn gateway_process() {
    let Ok(args) = std::env::var(PROCESS_ARGS) else { return };
    let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
    let options = Options::parse(&args).expect("options");
    // It must not outlive whoever started it.
    std::thread::spawn(|| {
        let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(ichor_apid::run(options, CancellationToken::new())).expect("gateway");
}

/// The resources a gateway is shown, by id.
#[derive(Default)]
pub(crate) struct Specs(
    Mutex<HashMap<&'static str, watch::Sender<Option<Bytes>>>>,
    watch::Sender<Vec<cosi::Resource>>,
);

impl Specs {
    pub(crate) fn set<T: TypedSpec>(&self, id: &'static str, spec: &T) {
        let mut bytes = Vec::new();
        Spec::encode_proto(spec, &mut bytes);
        self.sender(id).send_replace(Some(bytes.into()));
    }

    /// Shows these members of the cluster, beside those of before.
    pub(crate) fn set_members(&self, members: impl IntoIterator<Item = (String, Member)>) {
        let resource = |(id, member): (String, Member)| {
            let mut bytes = Vec::new();
            Spec::encode_proto(&member, &mut bytes);
            let metadata = Some(cosi::Metadata { id, ..cosi::Metadata::default() });
            let spec = Some(cosi::Spec { proto_spec: bytes.into(), yaml_spec: String::new() });
            cosi::Resource { metadata, spec }
        };
        self.1.send_replace(members.into_iter().map(resource).collect());
    }

    fn sender(&self, id: &str) -> watch::Sender<Option<Bytes>> {
        let known = ["api", "current", "hostname"].into_iter().find(|known| *known == id).expect("known id");
        self.0.lock().unwrap().entry(known).or_insert_with(|| watch::channel(None).0).clone()
    }
}

struct StateOf(Arc<Specs>);

/// Reports of a gateway.
#[derive(Clone, Default)]
pub(crate) struct Told(pub Arc<Mutex<Vec<AuditEntry>>>);

#[tonic::async_trait]
impl AuditService for Told {
    async fn report(&self, request: tonic::Request<ReportRequest>) -> Reply<ReportResponse> {
        self.0.lock().unwrap().extend(request.into_inner().entries);
        Ok(tonic::Response::new(ReportResponse {}))
    }
}

type Reply<T> = Result<tonic::Response<T>, Status>;
type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl cosi::state_server::State for StateOf {
    type ListStream = Events<cosi::ListResponse>;
    type WatchStream = Events<cosi::WatchResponse>;

    async fn watch(&self, request: tonic::Request<cosi::WatchRequest>) -> Reply<Self::WatchStream> {
        let request = request.into_inner();
        let begun = futures_util::stream::iter([Ok(cosi::WatchResponse::default())]);
        let Some(id) = request.id else {
            assert!(request.options.expect("options").bootstrap_contents);
            let shown = request.r#type == Member::definition().type_name;
            let members = tokio_stream::wrappers::WatchStream::new(self.0.1.subscribe());
            let events = members.map(move |members| {
                let members = members.into_iter().filter(|_| shown);
                let created = |resource| cosi::Event { resource: Some(resource), ..cosi::Event::default() };
                let mut event: Vec<_> = members.map(created).collect();
                event.push(cosi::Event::default());
                event.last_mut().unwrap().set_event_type(cosi::EventType::Bootstrapped);
                Ok(cosi::WatchResponse { event })
            });
            return Ok(tonic::Response::new(Box::pin(begun.chain(events))));
        };
        let specs = tokio_stream::wrappers::WatchStream::new(self.0.sender(&id).subscribe());
        let events = specs.map(|spec| {
            let spec = cosi::Spec { proto_spec: spec.unwrap_or_default(), yaml_spec: String::new() };
            let resource = cosi::Resource { metadata: None, spec: Some(spec) };
            let event = cosi::Event { resource: Some(resource), ..cosi::Event::default() };
            Ok(cosi::WatchResponse { event: vec![event] })
        });
        Ok(tonic::Response::new(Box::pin(begun.chain(events))))
    }

    async fn get(&self, _: tonic::Request<cosi::GetRequest>) -> Reply<cosi::GetResponse> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn list(&self, _: tonic::Request<cosi::ListRequest>) -> Reply<Self::ListStream> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn create(&self, _: tonic::Request<cosi::CreateRequest>) -> Reply<cosi::CreateResponse> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn update(&self, _: tonic::Request<cosi::UpdateRequest>) -> Reply<cosi::UpdateResponse> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn destroy(&self, _: tonic::Request<cosi::DestroyRequest>) -> Reply<cosi::DestroyResponse> {
        Err(Status::unimplemented("not asked for"))
    }
}

fn serve_state(path: &Path, specs: Arc<Specs>, told: Told) -> Thread {
    let path = path.to_owned();
    Thread::spawn(move |stop| async move {
        let listener = bind(&path, Access::PRIVATE).expect("socket");
        let services = Services::new()
            .with(cosi::state_server::StateServer::new(StateOf(specs)))
            .with(AuditServiceServer::new(told));
        serve_unix(listener, Limits::default(), stop, move |peer| Grpc::new(services.clone(), peer)).await;
    })
}

/// A request with metadata.
pub(crate) fn with<T>(message: T, pairs: &[(&'static str, &str)]) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    for (key, value) in pairs {
        request.metadata_mut().append(*key, value.parse().expect("metadata"));
    }
    request
}
