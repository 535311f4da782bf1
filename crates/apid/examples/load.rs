//! CPU per call of the gateway and of a tonic server behind it, without a node: `cargo run --profile quick
//! -p ichor-apid --example load -- [callers] [seconds]`. With `-- serve talosconfig` it writes that file and
//! serves, for other clients to measure.
//!
//! Each part has a thread of its own, so the kernel's clock of each thread is the part's cost. Read the
//! figures as trends; a real node is measured by `make bench`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use ichor_apid::Options;
use ichor_pki::{Authority, KeyAlgorithm, KeyPair, Leaf};
use ichor_resource::secrets::ApiCertificate;
use ichor_resource::spec::{Spec, TypedSpec};
use ichor_resource::value::{PemCertificate, PemCertificateAndKey};
use ichor_rpc::authorize::ByRole;
use ichor_rpc::gate::Gate;
use ichor_rpc::server::{Grpc, Limits, serve_unix};
use ichor_rpc::unix::{Access, bind};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_wire::codec::Codec;
use ichor_wire::cosi::resource as cosi;
use ichor_wire::machine as api;
use ichor_wire::machine::machine_service_client::MachineServiceClient;
use tokio_util::sync::CancellationToken;
use tonic::Status;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();

    let dir = tempfile::tempdir()?;
    let now = jiff::Timestamp::now();
    let authority = Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS)?;
    let listen: SocketAddr = "127.99.0.1:50999".parse()?;
    let certificates = certificates(&authority, listen, now)?;
    let machine_path = dir.path().join("machine.sock");
    let runtime_path = dir.path().join("runtime.sock");
    let (path, spec) = (runtime_path.clone(), certificates.clone());
    thread("runtime", move || {
        serve(path, move || {
            let spec = spec.clone();
            tower::service_fn(move |request| watch(request, spec.clone()))
        })
    });
    let path = machine_path.clone();
    let machine = thread("machine", move || serve(path, || Gate::new(tower::service_fn(version), ByRole)));
    let options = Options {
        listen,
        socket: dir.path().join("apid.sock"),
        machine: machine_path,
        runtime: runtime_path,
        peer_port: listen.port(),
    };
    let ready = options.socket.clone();
    let gateway = thread("gateway", move || ichor_apid::run(options, CancellationToken::new()));
    while !ready.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }

    let admin = authority.issue(&Leaf::client("", ["os:admin"]), now)?;
    if let [first, path] = args.as_slice()
        && first == "serve"
    {
        std::fs::write(path, talosconfig(&authority, &admin, listen))?;
        println!("serving on {listen}, process {}", std::process::id());
        loop {
            std::thread::park();
        }
    }
    let callers: usize = args.first().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = args.get(1).map_or(Ok(4), |text| text.parse())?;
    let tls = ClientTls::verified(authority.crt_pem(), Some((admin.crt.as_bytes(), admin.key.as_bytes())))?;
    for node in [None, Some(listen.ip().to_string())] {
        let before = (cpu(&machine), cpu(&gateway));
        let (calls, mut times) =
            drive(listen, tls.clone(), callers, Duration::from_secs(seconds), node.clone())?;
        let cost = |after: u64, before: u64| (after - before) as f64 / 1000.0 / calls as f64;
        let (machine, gateway) = (cost(cpu(&machine), before.0), cost(cpu(&gateway), before.1));
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        println!(
            "node={} callers={callers} calls={calls} rate={}/s p50={:?} p99={:?} cpu: gateway {gateway:.1} + machine {machine:.1} = {:.1} us",
            node.as_deref().unwrap_or("-"),
            calls / seconds,
            at(0.5),
            at(0.99),
            gateway + machine,
        );
    }
    Ok(())
}

fn talosconfig(authority: &Authority, admin: &KeyPair, listen: SocketAddr) -> String {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let (ca, crt, key) = (encode(authority.crt_pem()), encode(&admin.crt), encode(&admin.key));
    format!(
        "context: load\ncontexts:\n    load:\n        endpoints:\n            - {listen}\n        \
         ca: {ca}\n        crt: {crt}\n        key: {key}\n"
    )
}

fn certificates(
    authority: &Authority,
    listen: SocketAddr,
    now: jiff::Timestamp,
) -> Result<ApiCertificate, Failure> {
    let pair = |pair: KeyPair| PemCertificateAndKey { crt: pair.crt.into(), key: pair.key.into() };
    let server = Leaf::server("node").with_names([""; 0], [listen.ip()]);
    Ok(ApiCertificate {
        accepted_cas: vec![PemCertificate { crt: authority.crt_pem().to_owned().into() }],
        server: Some(pair(authority.issue(&server, now)?)),
        client: Some(pair(authority.issue(&Leaf::client("node", ["os:impersonator"]), now)?)),
    })
}

/// Calls from many tasks of one thread for a while: number of calls, time of each.
fn drive(
    listen: SocketAddr,
    tls: ClientTls,
    callers: usize,
    span: Duration,
    node: Option<String>,
) -> Result<(u64, Vec<Duration>), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let channel = Channel::new(Dialer::tls([Endpoint::new(listen.ip().to_string(), listen.port())], tls));
        channel.connect().await?;
        let count = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let mut client = MachineServiceClient::new(channel.clone());
                let (count, done, node) = (count.clone(), done.clone(), node.clone());
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    while !done.load(Relaxed) {
                        let mut request = tonic::Request::new(());
                        if let Some(node) = &node {
                            request.metadata_mut().insert("node", node.parse().expect("metadata"));
                        }
                        let start = Instant::now();
                        client.version(request).await.expect("answer");
                        times.push(start.elapsed());
                        count.fetch_add(1, Relaxed);
                    }
                    times
                })
            })
            .collect();
        tokio::time::sleep(span).await;
        done.store(true, Relaxed);
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await?);
        }
        Ok((count.load(Relaxed), all))
    })
}

/// Runs `work` on a runtime of its own thread; the file with the thread's times.
fn thread<F, T>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> PathBuf
where
    F: Future<Output = T>,
{
    let (tell, told) = std::sync::mpsc::channel();
    let body = move || {
        let path = std::fs::canonicalize("/proc/thread-self").expect("thread");
        tell.send(path.join("schedstat")).expect("heard");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(work());
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("thread");
    told.recv().expect("thread")
}

/// Nanoseconds a thread has run.
fn cpu(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).expect("schedstat");
    text.split(' ').next().and_then(|text| text.parse().ok()).expect("nanoseconds")
}

async fn serve<S>(path: PathBuf, make: impl Fn() -> S + Send + Sync + 'static)
where
    S: tower::Service<Request<Incoming>, Response = Response<tonic::body::Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let listener = bind(&path, Access::PRIVATE).expect("socket");
    serve_unix(listener, Limits::default(), CancellationToken::new(), move |peer| Grpc::new(make(), peer))
        .await;
}

#[derive(Clone)]
struct Version;

impl tonic::server::UnaryService<()> for Version {
    type Response = api::VersionResponse;
    type Future = std::future::Ready<Result<tonic::Response<Self::Response>, Status>>;

    fn call(&mut self, _request: tonic::Request<()>) -> Self::Future {
        let version = api::VersionInfo { tag: "v1.12.1".to_owned(), ..api::VersionInfo::default() };
        let message = api::Version { version: Some(version), ..api::Version::default() };
        std::future::ready(Ok(tonic::Response::new(api::VersionResponse { messages: vec![message] })))
    }
}

async fn version(request: Request<Incoming>) -> Result<Response<tonic::body::Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(Codec::<api::VersionResponse, ()>::default());
    Ok(grpc.unary(Version, request).await)
}

/// The State service, as far as the gateway needs it: one certificate, for ever.
async fn watch(
    request: Request<Incoming>,
    certificates: ApiCertificate,
) -> Result<Response<tonic::body::Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(Codec::<cosi::WatchResponse, cosi::WatchRequest>::default());
    Ok(grpc.server_streaming(Watch(certificates), request).await)
}

struct Watch(ApiCertificate);

impl tonic::server::ServerStreamingService<cosi::WatchRequest> for Watch {
    type Response = cosi::WatchResponse;
    type ResponseStream = futures_util::stream::BoxStream<'static, Result<cosi::WatchResponse, Status>>;
    type Future = std::future::Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<cosi::WatchRequest>) -> Self::Future {
        use futures_util::StreamExt;
        let mut first = cosi::WatchResponse::default();
        if request.get_ref().r#type == ApiCertificate::definition().type_name {
            let mut bytes = Vec::new();
            Spec::encode_proto(&self.0, &mut bytes);
            let spec = cosi::Spec { proto_spec: bytes.into(), yaml_spec: String::new() };
            let resource = Some(cosi::Resource { metadata: None, spec: Some(spec) });
            first.event.push(cosi::Event { resource, ..cosi::Event::default() });
        }
        let stream = futures_util::stream::iter([Ok(first)]).chain(futures_util::stream::pending());
        std::future::ready(Ok(tonic::Response::new(stream.boxed())))
    }
}
