//! The directory over gRPC.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use futures_util::{Stream, stream};
use ichor_rpc::peer;
use ichor_wire::discovery::server as wire;
use ichor_wire::discovery::server::cluster_server::{Cluster, ClusterServer};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use crate::directory::{Change, Directory, check_id};
use crate::rate::Rates;

/// Changes a watcher may be behind before it is sent away.
const BEHIND_MAX: usize = 32;
/// Watchers of all clusters.
const WATCHERS_MAX: usize = 4096;
/// Watchers of one address: nodes behind one address of a router count together.
const WATCHERS_PER_SOURCE: usize = 256;
/// Affiliates in one message of a watch that begins: a watcher that does not read holds no more than this.
const PAGE: usize = 16;
/// The longest a call is held back for its address's sake.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// How often old entries are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Decides by its id whether a cluster is served.
pub type ClusterCheck = Arc<dyn Fn(&str) -> Result<(), Status> + Send + Sync>;

/// A discovery service.
#[derive(Clone, Default)]
pub struct Discovery {
    inner: Arc<Mutex<Inner>>,
    check: Option<ClusterCheck>,
}

#[derive(Default)]
struct Inner {
    directory: Directory,
    watchers: HashMap<String, Vec<Watcher>>,
    rates: Rates,
}

struct Watcher {
    source: IpAddr,
    changes: mpsc::Sender<Arc<wire::WatchResponse>>,
}

impl Discovery {
    /// An empty service for everybody, which sweeps itself; needs a running runtime.
    pub fn start() -> Self {
        let discovery = Self::default();
        tokio::spawn(sweep(Arc::downgrade(&discovery.inner)));
        discovery
    }

    /// The same for the clusters that `check` lets in.
    pub fn start_for(check: ClusterCheck) -> Self {
        Self { check: Some(check), ..Self::start() }
    }

    /// The gRPC service.
    pub fn server(&self) -> ClusterServer<Self> {
        ClusterServer::new(self.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Refuses clusters that are not served, and delays a caller that calls too often; refuses when that would take
    /// too long.
    async fn admit<T>(&self, request: &Request<T>, cluster_id: &str) -> Result<IpAddr, Status> {
        let address = caller(request);
        check_id("cluster", cluster_id)?;
        if let Some(check) = &self.check {
            check(cluster_id)?;
        }
        let hold = {
            let mut inner = self.inner();
            let hold = inner.rates.take(address, Instant::now());
            if hold > HOLD_MAX {
                inner.rates.give_back(address);
                return Err(Status::resource_exhausted(format!(
                    "too many calls from {address}; try again later"
                )));
            }
            hold
        };
        tokio::time::sleep(hold).await;
        Ok(address)
    }
}

impl Inner {
    fn tell(&mut self, cluster: &str, changes: impl IntoIterator<Item = Change>) {
        let Some(watchers) = self.watchers.get_mut(cluster) else { return };
        for change in changes {
            let response = Arc::new(change.into_response());
            // A watcher that is too far behind loses its sender, which ends its stream.
            watchers.retain(|watcher| watcher.changes.try_send(response.clone()).is_ok());
        }
        if watchers.is_empty() {
            self.watchers.remove(cluster);
        }
    }

    fn forget_closed(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.changes.is_closed());
            !watchers.is_empty()
        });
    }

    /// Whether this address may open one more watch. When all are taken the address that has the most loses one.
    fn place_to_watch(&mut self, source: IpAddr) -> Result<(), Status> {
        self.forget_closed();
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for watcher in self.watchers.values().flatten() {
            *counts.entry(watcher.source).or_default() += 1;
        }
        let own = counts.get(&source).copied().unwrap_or_default();
        if own >= WATCHERS_PER_SOURCE {
            return Err(Status::resource_exhausted(format!(
                "{source} has {WATCHERS_PER_SOURCE} watches open, which is the limit"
            )));
        }
        if counts.values().sum::<usize>() < WATCHERS_MAX {
            return Ok(());
        }
        let largest =
            counts.into_iter().filter(|(_, count)| *count > own + 1).max_by_key(|(_, count)| *count);
        let Some((largest, _)) = largest else {
            return Err(Status::resource_exhausted(format!(
                "{WATCHERS_MAX} watches are open, which is the limit"
            )));
        };
        for watchers in self.watchers.values_mut() {
            if let Some(at) = watchers.iter().position(|watcher| watcher.source == largest) {
                watchers.remove(at);
                break;
            }
        }
        Ok(())
    }
}

async fn sweep(inner: Weak<Mutex<Inner>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut inner = inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (cluster, change) in inner.directory.expire(Instant::now()) {
            inner.tell(&cluster, [change]);
        }
        inner.forget_closed();
    }
}

/// The address a request comes from.
fn caller<T>(request: &Request<T>) -> IpAddr {
    let ours = peer::address_of(request.extensions());
    let address = ours.or_else(|| request.remote_addr()).map(|address| address.ip());
    address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical()
}

type Watch = Pin<Box<dyn Stream<Item = Result<wire::WatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Cluster for Discovery {
    async fn hello(
        &self,
        request: Request<wire::HelloRequest>,
    ) -> Result<Response<wire::HelloResponse>, Status> {
        let address = self.admit(&request, &request.get_ref().cluster_id).await?;
        let client_ip = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        Ok(Response::new(wire::HelloResponse { redirect: None, client_ip }))
    }

    async fn affiliate_update(
        &self,
        request: Request<wire::AffiliateUpdateRequest>,
    ) -> Result<Response<wire::AffiliateUpdateResponse>, Status> {
        let source = self.admit(&request, &request.get_ref().cluster_id).await?;
        let request = request.into_inner();
        let cluster = request.cluster_id.clone();
        let mut inner = self.inner();
        let changes = inner.directory.update(request, source, Instant::now())?;
        inner.tell(&cluster, changes);
        Ok(Response::new(wire::AffiliateUpdateResponse {}))
    }

    async fn affiliate_delete(
        &self,
        request: Request<wire::AffiliateDeleteRequest>,
    ) -> Result<Response<wire::AffiliateDeleteResponse>, Status> {
        self.admit(&request, &request.get_ref().cluster_id).await?;
        let request = request.into_inner();
        let mut inner = self.inner();
        let change = inner.directory.delete(&request.cluster_id, &request.affiliate_id)?;
        inner.tell(&request.cluster_id, change);
        Ok(Response::new(wire::AffiliateDeleteResponse {}))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListResponse>, Status> {
        self.admit(&request, &request.get_ref().cluster_id).await?;
        let affiliates = self.inner().directory.list(&request.get_ref().cluster_id)?;
        Ok(Response::new(wire::ListResponse { affiliates }))
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Watch>, Status> {
        let source = self.admit(&request, &request.get_ref().cluster_id).await?;
        let cluster = request.into_inner().cluster_id;
        let mut inner = self.inner();
        inner.place_to_watch(source)?;
        // The subscription comes before the first page: what changes meanwhile is told after the last one, in order.
        let (changes, receiver) = mpsc::channel(BEHIND_MAX);
        inner.watchers.entry(cluster.clone()).or_default().push(Watcher { source, changes });
        let watching = Watching { inner: self.inner.clone(), cluster, receiver, step: Step::First };
        Ok(Response::new(Box::pin(stream::unfold(watching, Watching::next))))
    }
}

/// A watch: first what there is, page by page as it is read, then what changes.
struct Watching {
    inner: Arc<Mutex<Inner>>,
    cluster: String,
    receiver: mpsc::Receiver<Arc<wire::WatchResponse>>,
    step: Step,
}

enum Step {
    /// Nothing was told; the first page is told even if it is empty.
    First,
    /// Everything up to this affiliate was told.
    After(String),
    Changes,
    Ended,
}

impl Watching {
    async fn next(mut self) -> Option<(Result<wire::WatchResponse, Status>, Self)> {
        loop {
            let after = match &self.step {
                Step::First => None,
                Step::After(id) => Some(id.as_str()),
                Step::Changes => {
                    let next = self.receiver.recv().await;
                    let told = match next {
                        Some(change) => Ok(Arc::unwrap_or_clone(change)),
                        None => {
                            self.step = Step::Ended;
                            Err(Status::aborted("the watch fell too far behind"))
                        }
                    };
                    return Some((told, self));
                }
                Step::Ended => return None,
            };
            let affiliates = {
                let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                inner.directory.page(&self.cluster, after, PAGE)
            };
            let is_first = matches!(self.step, Step::First);
            self.step = match affiliates.last() {
                Some(last) if affiliates.len() == PAGE => Step::After(last.id.clone()),
                _ => Step::Changes,
            };
            if is_first || !affiliates.is_empty() {
                return Some((Ok(wire::WatchResponse { affiliates, deleted: false }), self));
            }
        }
    }
}
