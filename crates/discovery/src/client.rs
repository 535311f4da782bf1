//! A node's side of discovery: says hello, watches, tells of itself, and starts over when anything breaks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ichor_pki::seal::SealKey;
use ichor_rpc::{Channel, Endpoint as Address};
use ichor_types::deadlines::{CALL_DISCOVERY_HELLO, CALL_DISCOVERY_PUSH};
use ichor_wire::discovery::server as wire;
use ichor_wire::discovery::server::cluster_client::ClusterClient;
use tokio::sync::{Notify, watch};
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use crate::affiliate::{Affiliate, Endpoint, address, seal_endpoint};

/// How long a service should remember this node; it is told again at half of it.
pub const TTL: Duration = Duration::from_secs(30 * 60);
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Redirects followed in a row.
const REDIRECTS_MAX: u32 = 5;
/// Affiliates kept, as many as a service gives.
const AFFILIATES_MAX: usize = crate::directory::AFFILIATES_MAX;

/// How to reach a service: makes a connection to an address. A port, so that tests and TLS are the caller's business.
pub type Dial = Arc<dyn Fn(&Address) -> Channel + Send + Sync>;

/// Which service, which cluster, who.
#[derive(Clone)]
pub struct Options {
    /// The service.
    pub endpoint: Address,
    /// The cluster.
    pub cluster_id: String,
    /// This node.
    pub affiliate_id: String,
    /// The key the nodes share.
    pub key: SealKey,
    /// The version to greet with.
    pub version: String,
    /// What opens the service; empty where everybody may come.
    pub token: String,
    /// How to connect.
    pub dial: Dial,
}

/// What this node tells.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Local {
    /// Itself, when it is known well enough.
    pub affiliate: Option<Affiliate>,
    /// Endpoints at which it reaches other nodes, by their identity.
    pub others: BTreeMap<String, Vec<Endpoint>>,
}

#[derive(Default)]
struct Known {
    affiliates: BTreeMap<String, Affiliate>,
    public_ip: Option<IpAddr>,
    error: Option<String>,
}

/// The client. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Client {
    options: Arc<Options>,
    local: watch::Sender<Local>,
    known: Arc<Mutex<Known>>,
    changed: Arc<Notify>,
}

impl Client {
    /// A client that does nothing until it is [`run`](Self::run).
    pub fn new(options: Options) -> Self {
        let (local, _) = watch::channel(Local::default());
        Self { options: Arc::new(options), local, known: Arc::default(), changed: Arc::default() }
    }

    /// Sets what this node tells; told at once when it differs.
    pub fn set_local(&self, local: Local) {
        self.local.send_if_modified(|have| {
            let differs = *have != local;
            if differs {
                *have = local;
            }
            differs
        });
    }

    /// The other nodes.
    pub fn affiliates(&self) -> Vec<Affiliate> {
        self.known().affiliates.values().cloned().collect()
    }

    /// The address the service sees this node at.
    pub fn public_ip(&self) -> Option<IpAddr> {
        self.known().public_ip
    }

    /// Why the service cannot be used now, if it cannot.
    pub fn error(&self) -> Option<String> {
        self.known().error.clone()
    }

    /// Waits until something may have changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes this node back from the service, once.
    pub async fn delete_local(&self) -> Result<(), Status> {
        let request = wire::AffiliateDeleteRequest {
            cluster_id: self.options.cluster_id.clone(),
            affiliate_id: self.options.affiliate_id.clone(),
        };
        let mut client = ClusterClient::new((self.options.dial)(&self.options.endpoint));
        within(CALL_DISCOVERY_HELLO, client.affiliate_delete(self.request(request))).await.map(drop)
    }

    /// Keeps in touch with the service until it is dropped.
    pub async fn run(&self) {
        let mut endpoint = self.options.endpoint.clone();
        let mut backoff = BACKOFF_FIRST;
        let mut redirects = 0;
        loop {
            let result = self.session(&endpoint).await;
            match result {
                Ok(Next::Redirect(next)) if redirects < REDIRECTS_MAX => {
                    redirects += 1;
                    endpoint = next;
                    continue;
                }
                Ok(Next::Redirect(_)) => self.fail("the discovery service redirects without end".into()),
                Ok(Next::Again) => backoff = BACKOFF_FIRST,
                Err(status) => self.fail(format!("discovery service {endpoint}: {}", status.message())),
            }
            (redirects, endpoint) = (0, self.options.endpoint.clone());
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 3 / 2).min(BACKOFF_MAX);
        }
    }

    /// A request with the token on it.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A token that cannot be sent is refused by the service, which says more than we could.
        if let Ok(token) = MetadataValue::try_from(&self.options.token)
            && !self.options.token.is_empty()
        {
            request.metadata_mut().insert("token", token);
        }
        request
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fail(&self, error: String) {
        tracing::warn!("{error}");
        self.known().error = Some(error);
        self.changed.notify_one();
    }

    /// One connection: from hello until something breaks.
    async fn session(&self, endpoint: &Address) -> Result<Next, Status> {
        let mut client = ClusterClient::new((self.options.dial)(endpoint));
        let cluster_id = self.options.cluster_id.clone();
        let hello = wire::HelloRequest {
            cluster_id: cluster_id.clone(),
            client_version: self.options.version.clone(),
        };
        let hello = within(CALL_DISCOVERY_HELLO, client.hello(self.request(hello))).await?.into_inner();
        if let Some(redirect) = hello.redirect.filter(|redirect| !redirect.endpoint.is_empty()) {
            let next = redirect_address(&redirect.endpoint).ok_or_else(|| {
                Status::internal(format!("it redirects to {:?}, which is no address", redirect.endpoint))
            })?;
            return Ok(Next::Redirect(next));
        }
        {
            let mut known = self.known();
            known.public_ip = address(&hello.client_ip).ok();
            known.error = None;
        }
        self.changed.notify_one();

        let mut local = self.local.subscribe();
        let mut watch =
            within(CALL_DISCOVERY_HELLO, client.watch(self.request(wire::WatchRequest { cluster_id })))
                .await?
                .into_inner();
        let first = local.borrow_and_update().clone();
        self.push(&mut client, first).await?;
        let mut refresh = tokio::time::interval_at(tokio::time::Instant::now() + TTL / 2, TTL / 2);
        let mut snapshot = true;
        loop {
            let due = tokio::select! {
                message = watch.message() => match message? {
                    Some(message) => {
                        self.take(message, std::mem::take(&mut snapshot));
                        false
                    }
                    None => return Ok(Next::Again),
                },
                _ = local.changed() => true,
                _ = refresh.tick() => true,
            };
            if due {
                let now = local.borrow_and_update().clone();
                self.push(&mut client, now).await?;
            }
        }
    }

    /// Tells of this node, and of the endpoints at which it reaches others.
    async fn push(&self, client: &mut ClusterClient<Channel>, local: Local) -> Result<(), Status> {
        let sealed = |endpoints: &[Endpoint]| {
            let sealed = endpoints.iter().map(|endpoint| seal_endpoint(&self.options.key, *endpoint));
            sealed.collect::<Result<Vec<_>, _>>().map_err(|error| Status::internal(error.to_string()))
        };
        let mut words = Vec::new();
        if let Some(affiliate) = &local.affiliate {
            let data =
                affiliate.seal(&self.options.key).map_err(|error| Status::internal(error.to_string()))?;
            words.push((self.options.affiliate_id.clone(), Some(data), sealed(&affiliate.endpoints)?));
        }
        for (id, endpoints) in &local.others {
            words.push((id.clone(), None, sealed(endpoints)?));
        }
        let all = async {
            for (affiliate_id, affiliate_data, affiliate_endpoints) in words {
                let request = wire::AffiliateUpdateRequest {
                    cluster_id: self.options.cluster_id.clone(),
                    affiliate_id,
                    affiliate_data,
                    affiliate_endpoints,
                    ttl: prost_types::Duration::try_from(TTL).ok(),
                };
                client.affiliate_update(self.request(request)).await?;
            }
            Ok(())
        };
        within(CALL_DISCOVERY_PUSH, all).await
    }

    /// Takes in what the service told.
    fn take(&self, message: wire::WatchResponse, snapshot: bool) {
        let mut known = self.known();
        if snapshot {
            known.affiliates.clear();
        }
        for affiliate in message.affiliates {
            if affiliate.id == self.options.affiliate_id {
                continue;
            }
            if message.deleted {
                known.affiliates.remove(&affiliate.id);
                continue;
            }
            if affiliate.data.is_empty() {
                continue;
            }
            match Affiliate::open(&self.options.key, &affiliate.data, &affiliate.endpoints) {
                Ok(_)
                    if known.affiliates.len() >= AFFILIATES_MAX
                        && !known.affiliates.contains_key(&affiliate.id) => {}
                Ok(open) => {
                    known.affiliates.insert(affiliate.id, open);
                }
                Err(error) => tracing::warn!(
                    affiliate = affiliate.id,
                    "discovery: an affiliate cannot be read: {error}"
                ),
            }
        }
        drop(known);
        self.changed.notify_one();
    }
}

enum Next {
    Redirect(Address),
    Again,
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {} s", limit.as_secs()));
    tokio::time::timeout(limit, call).await.map_err(late)?
}

/// `host:port`.
fn redirect_address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty()).then_some(Address::new(host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_addresses() {
        assert_eq!(redirect_address("[::1]:300"), Some(Address::new("::1", 300)));
        assert_eq!(redirect_address("a.example:443"), Some(Address::new("a.example", 443)));
        assert_eq!(redirect_address("a.example"), None);
        assert_eq!(redirect_address(":80"), None);
        assert_eq!(redirect_address("a:99999"), None);
    }
}
