//! What the controllers that speak with Kubernetes need of the machine: locks that the whole cluster shares.

use std::sync::Arc;
use std::time::Duration;

use ichor_ctl_k8s::api::{Fetch, Lock, Ports};

use crate::download;

/// One node at a time brings manifests into the cluster.
const MANIFESTS: &str = "talos:v1:manifestApplyMutex";
/// One node at a time serves the accounts of pods.
const ACCOUNTS: &str = "talos:v1:serviceAccountCRDController";
/// How long a lock outlives a node that died with it.
const TTL: Duration = Duration::from_secs(15);
/// The same for one that is held for as long as the node lives: seldom kept alive.
const TTL_LONG: Duration = Duration::from_secs(60);

/// The rim of the machine's own controllers.
pub(crate) fn ports() -> Ports {
    Ports::machine(lock(MANIFESTS, TTL), lock(ACCOUNTS, TTL_LONG), fetch())
}

/// A lock kept in etcd.
fn lock(name: &'static str, ttl: Duration) -> Lock {
    Arc::new(move || {
        Box::pin(async move {
            let client = ichor_ctl_etcd::client::local().map_err(|error| error.to_string())?;
            let guard = client.lock(name, ttl).await.map_err(|status| status.message().to_owned())?;
            Ok(Box::new(guard) as Box<dyn Send + Sync>)
        })
    })
}

/// Manifests from elsewhere.
fn fetch() -> Fetch {
    Arc::new(|url, headers| {
        Box::pin(async move { download::fetch(&url, &headers).await.map_err(|error| error.to_string()) })
    })
}
