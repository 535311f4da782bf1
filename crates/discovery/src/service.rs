//! The directory over gRPC.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use ichor_rpc::peer;
use ichor_wire::discovery::server as wire;
use ichor_wire::discovery::server::cluster_server::{Cluster, ClusterServer};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::directory::{Change, Directory, check_id};
use crate::rate::Rates;

/// Changes a watcher may be behind before it is sent away.
const BEHIND_MAX: usize = 32;
/// Watchers of all clusters.
const WATCHERS_MAX: usize = 4096;
/// The longest a call is held back for its address's sake.
const HOLD_MAX: Duration = Duration::from_secs(10);
/// How often old entries are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Decides by the metadata of a call whether it is let in.
pub type Gate = Arc<dyn Fn(&MetadataMap) -> Result<(), Status> + Send + Sync>;

/// A discovery service.
#[derive(Clone, Default)]
pub struct Discovery {
    inner: Arc<Mutex<Inner>>,
    gate: Option<Gate>,
}

#[derive(Default)]
struct Inner {
    directory: Directory,
    watchers: HashMap<String, Vec<mpsc::Sender<wire::WatchResponse>>>,
    rates: Rates,
}

impl Discovery {
    /// An empty service for everybody, which sweeps itself; needs a running runtime.
    pub fn start() -> Self {
        let discovery = Self::default();
        tokio::spawn(sweep(Arc::downgrade(&discovery.inner)));
        discovery
    }

    /// The same for those the gate lets in.
    pub fn start_behind(gate: Gate) -> Self {
        Self { gate: Some(gate), ..Self::start() }
    }

    /// The gRPC service.
    pub fn server(&self) -> ClusterServer<Self> {
        ClusterServer::new(self.clone())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Turns strangers away, and holds a caller back that calls too often; refuses when that would take too long.
    async fn admit<T>(&self, request: &Request<T>) -> Result<IpAddr, Status> {
        let address = caller(request);
        if let Some(gate) = &self.gate {
            gate(request.metadata())?;
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
    fn tell(&mut self, cluster: &str, change: Change) {
        let Some(watchers) = self.watchers.get_mut(cluster) else { return };
        let response = change.into_response();
        // A watcher that is too far behind loses its sender, which ends its stream.
        watchers.retain(|watcher| watcher.try_send(response.clone()).is_ok());
        if watchers.is_empty() {
            self.watchers.remove(cluster);
        }
    }

    fn forget_closed(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        });
    }
}

async fn sweep(inner: Weak<Mutex<Inner>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut inner = inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (cluster, change) in inner.directory.expire(Instant::now()) {
            inner.tell(&cluster, change);
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
        let address = self.admit(&request).await?;
        check_id("cluster", &request.get_ref().cluster_id)?;
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
        self.admit(&request).await?;
        let request = request.into_inner();
        let cluster = request.cluster_id.clone();
        let mut inner = self.inner();
        if let Some(change) = inner.directory.update(request, Instant::now())? {
            inner.tell(&cluster, change);
        }
        Ok(Response::new(wire::AffiliateUpdateResponse {}))
    }

    async fn affiliate_delete(
        &self,
        request: Request<wire::AffiliateDeleteRequest>,
    ) -> Result<Response<wire::AffiliateDeleteResponse>, Status> {
        self.admit(&request).await?;
        let request = request.into_inner();
        let mut inner = self.inner();
        if let Some(change) = inner.directory.delete(&request.cluster_id, &request.affiliate_id)? {
            inner.tell(&request.cluster_id, change);
        }
        Ok(Response::new(wire::AffiliateDeleteResponse {}))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListResponse>, Status> {
        self.admit(&request).await?;
        let affiliates = self.inner().directory.list(&request.get_ref().cluster_id)?;
        Ok(Response::new(wire::ListResponse { affiliates }))
    }

    type WatchStream = Watch;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Watch>, Status> {
        self.admit(&request).await?;
        let cluster = request.into_inner().cluster_id;
        let mut inner = self.inner();
        let affiliates = inner.directory.list(&cluster)?;
        inner.forget_closed();
        if inner.watchers.values().map(Vec::len).sum::<usize>() >= WATCHERS_MAX {
            return Err(Status::resource_exhausted(format!(
                "{WATCHERS_MAX} watches are open, which is the limit"
            )));
        }
        // Snapshot and subscription are taken under one lock: nothing is missed between them.
        let (sender, receiver) = mpsc::channel(BEHIND_MAX);
        inner.watchers.entry(cluster).or_default().push(sender);
        let first = stream::iter([Ok(wire::WatchResponse { affiliates, deleted: false })]);
        let end = stream::iter([Err(Status::aborted("the watch fell too far behind"))]);
        Ok(Response::new(Box::pin(first.chain(ReceiverStream::new(receiver).map(Ok)).chain(end))))
    }
}
