//! How controllers reach the Kubernetes API: clients, a lock, and watches that run beside them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ichor_cosi::{RegisterError, Runtime, Wake};
use ichor_kube::{Access, AccessError, Client, Event, Kind, Select};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    accounts, affiliates, endpoints, extra_manifests, kube_access, manifest_apply, node_apply, node_status,
    pod_status,
};

/// The kubelet's way to the API, written when it has joined.
const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubeconfig-kubelet";
/// What it proves itself with; until it is there, the kubeconfig leads nowhere.
const KUBELET_CERTIFICATE: &str = "/var/lib/kubelet/pki/kubelet-client-current.pem";
/// What the kubelet serves with, when it made its certificate itself.
const KUBELET_SERVING: &str = "/var/lib/kubelet/pki/kubelet.crt";

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What leads to the API makes no sense.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// What leads to a server.
#[derive(Debug)]
pub enum Way<'a> {
    /// A kubeconfig.
    Kubeconfig(&'a str),
    /// The parts of one.
    Access(Access),
}

/// Makes clients; tests make theirs of something else.
pub type Connect = Arc<dyn Fn(Way<'_>) -> Result<Client, ConnectError> + Send + Sync>;

/// Waits for a lock of the whole cluster; it is held until the value is dropped.
pub type Lock = Arc<dyn Fn() -> LockFuture + Send + Sync>;
/// A lock on its way.
pub type LockFuture = std::pin::Pin<Box<dyn Future<Output = Result<Box<dyn Send + Sync>, String>> + Send>>;

/// Fetches what is at an address, with headers.
pub type Fetch = Arc<dyn Fn(String, Vec<(String, String)>) -> FetchFuture + Send + Sync>;
/// Something on its way.
pub type FetchFuture = std::pin::Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>>;

/// The rim of the controllers that speak with Kubernetes.
#[derive(Clone)]
pub struct Ports {
    /// Makes clients.
    pub connect: Connect,
    /// The lock for manifests.
    pub manifests: Lock,
    /// The lock for the service accounts.
    pub accounts: Lock,
    /// Fetches manifests.
    pub fetch: Fetch,
    /// The root of the machine's files.
    pub root: PathBuf,
}

impl Ports {
    /// Those of the machine; locks and downloads are the caller's.
    pub fn machine(manifests: Lock, accounts: Lock, fetch: Fetch) -> Self {
        Self { connect: Arc::new(connect), manifests, accounts, fetch, root: "/".into() }
    }

    /// The kubelet's kubeconfig, once it can be used.
    pub(crate) fn kubelet_kubeconfig(&self) -> Option<String> {
        let at = |path: &str| self.root.join(path.trim_start_matches('/'));
        at(KUBELET_CERTIFICATE).exists().then_some(())?;
        std::fs::read_to_string(at(KUBELET_KUBECONFIG)).ok()
    }

    /// The certificate that the kubelet made itself, if it did.
    pub(crate) fn kubelet_serving(&self) -> Option<Vec<u8>> {
        std::fs::read(self.root.join(Path::new(KUBELET_SERVING.trim_start_matches('/')))).ok()
    }
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ports").field("root", &self.root).finish_non_exhaustive()
    }
}

/// A client of a real server.
///
/// # Errors
/// When what leads there makes no sense.
pub fn connect(way: Way<'_>) -> Result<Client, ConnectError> {
    Ok(match way {
        Way::Kubeconfig(text) => Client::from_kubeconfig(text)?,
        Way::Access(access) => Client::new(&access)?,
    })
}

/// A lock that everybody has.
pub fn no_lock() -> Lock {
    Arc::new(|| Box::pin(std::future::ready(Ok(Box::new(()) as Box<dyn Send + Sync>))))
}

/// Fetches nothing, for machines without a network.
pub fn no_fetch() -> Fetch {
    Arc::new(|_, _| Box::pin(std::future::ready(Err("nothing can be fetched here".to_owned()))))
}

/// Adds the controllers that speak with Kubernetes to a runtime.
///
/// # Errors
/// When a controller is refused; a bug.
pub fn register(runtime: &Runtime, ports: &Ports) -> Result<(), RegisterError> {
    runtime.register(extra_manifests::ExtraManifestController::new(ports.fetch.clone()))?;
    runtime.register(manifest_apply::ManifestApplyController::new(ports.clone()))?;
    runtime.register(node_status::NodeStatusController::new(ports.clone()))?;
    runtime.register(node_apply::NodeCordonedSpecController)?;
    runtime.register(node_apply::NodeApplyController::new(ports.clone()))?;
    runtime.register(pod_status::KubeletStaticPodController::new(ports.clone()))?;
    runtime.register(endpoints::EndpointController::new(ports.clone()))?;
    runtime.register(kube_access::ConfigController)?;
    runtime.register(kube_access::EndpointController::new(ports.clone()))?;
    runtime.register(accounts::CrdController::new(ports.clone()))?;
    runtime.register(affiliates::KubernetesPullController::new(ports.clone()))?;
    Ok(())
}

/// The wait after the first failure; each further one is half as long again.
const AGAIN_FIRST: Duration = Duration::from_millis(200);
/// The longest wait between attempts.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Failures after which the client is made anew: what it proves itself with may have been replaced.
const FAILURES_MAX: u32 = 5;

/// Waits between attempts.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Duration>);

impl Pace {
    /// The next wait.
    pub(crate) fn next(&mut self, longest: Duration) -> Duration {
        let next = self.0.map_or(AGAIN_FIRST, |last| last.mul_f32(1.5)).min(longest);
        self.0 = Some(next);
        next
    }

    /// Something worked.
    pub(crate) fn reset(&mut self) {
        self.0 = None;
    }
}

/// What to watch.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub kind: Kind,
    pub namespace: &'static str,
    pub fields: String,
}

/// What a watch has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The objects by namespace and name; none before the first list.
    pub objects: Option<BTreeMap<(String, String), Value>>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// A watch that runs beside a controller and wakes it; it ends with the value.
pub(crate) struct Watcher {
    /// What the client was made of; another one needs another watcher.
    pub key: String,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Starts a watch with clients made by `client`.
    pub(crate) fn start(
        key: String,
        client: impl Fn() -> Result<Client, ConnectError> + Send + Sync + 'static,
        wanted: Wanted,
        wake: Wake,
    ) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let task = tokio::spawn(follow(Box::new(client), wanted, seen.clone(), wake));
        Self { key, seen, task }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

type Make = Box<dyn Fn() -> Result<Client, ConnectError> + Send + Sync>;

async fn follow(make: Make, wanted: Wanted, seen: Arc<Mutex<Seen>>, wake: Wake) {
    let mut pace = Pace::default();
    loop {
        match make() {
            Ok(client) => {
                let select = Select { fields: &wanted.fields, ..Select::default() };
                let mut watch = client.watch(wanted.kind.clone(), wanted.namespace, select);
                let mut failures = 0;
                while failures < FAILURES_MAX {
                    match watch.next().await {
                        Ok(event) => {
                            pace.reset();
                            failures = 0;
                            take(&mut lock(&seen), event);
                            wake.wake();
                        }
                        Err(error) => {
                            failures += 1;
                            lock(&seen).error = Some(error.chain());
                            tokio::time::sleep(pace.next(AGAIN_MAX)).await;
                        }
                    }
                }
            }
            Err(error) => {
                lock(&seen).error = Some(ichor_kube::chain(&error));
                tokio::time::sleep(pace.next(AGAIN_MAX)).await;
            }
        }
        wake.wake();
    }
}

fn take(seen: &mut Seen, event: Event) {
    seen.error = None;
    let key = |object: &Value| {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        (text("namespace"), text("name"))
    };
    // Who owns which field is the larger half of an object, and of no use here.
    let slim = |mut object: Value| {
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        object
    };
    let objects = seen.objects.get_or_insert_default();
    match event {
        Event::Listed(items) => {
            *objects = items.into_iter().map(|object| (key(&object), slim(object))).collect();
        }
        Event::Changed(object) => drop(objects.insert(key(&object), slim(object))),
        Event::Gone(object) => drop(objects.remove(&key(&object))),
    }
}

/// Waits until something wakes the controller under test.
#[cfg(test)]
pub(crate) async fn woken(ctx: &ichor_cosi::Context) {
    tokio::time::timeout(Duration::from_secs(60), ctx.wake().woken()).await.expect("woken in time");
}

/// Ports onto a server in memory, for tests; the kubelet has joined.
#[cfg(test)]
pub(crate) fn fake(server: &ichor_testkit::kube::Server) -> (Ports, tempfile::TempDir) {
    let root = tempfile::tempdir().unwrap();
    for path in [KUBELET_KUBECONFIG, KUBELET_CERTIFICATE] {
        let path = root.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "kubelet").unwrap();
    }
    let server = server.clone();
    let connect: Connect = Arc::new(move |_| Ok(server.client()));
    let ports = Ports {
        connect,
        manifests: no_lock(),
        accounts: no_lock(),
        fetch: no_fetch(),
        root: root.path().into(),
    };
    (ports, root)
}
