//! Locks and elections: a key of a lease below a prefix; whoever has the oldest one holds the lock.

use std::time::Duration;

use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use ichor_types::deadlines::CALL_ETCD_UNLOCK;
use ichor_wire::etcd::{
    Compare, Headed, LeaseGrantRequest, LeaseGrantResponse, LeaseId, LeaseKeepAliveResponse, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse, compare,
    request_op,
};

use crate::Client;
use crate::call::Kind::{Read, Write};
use crate::call::decode;
use crate::kv::after_prefix;

/// A watch is begun anew after this, in case it was cut without a word.
const WATCH_MAX: Duration = Duration::from_secs(60);
/// Before a watch that could not be had is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// A lock that is held. Dropped, it is given back in the background.
#[derive(Debug)]
pub struct Guard {
    key: String,
    lost: CancellationToken,
    release: Option<DropGuard>,
    released: tokio::task::JoinHandle<()>,
}

impl Guard {
    /// The key that stands for the lock.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Ends when the lease could not be kept alive and the lock may be another's.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Gives the lock back and waits until it is.
    pub async fn unlock(mut self) {
        drop(self.release.take());
        let _ = (&mut self.released).await;
    }
}

impl Client {
    /// Waits for the lock below `prefix`. Its lease ends `ttl` after the holder is gone.
    pub async fn lock(&self, prefix: &str, ttl: Duration) -> Result<Guard, Status> {
        self.elect(prefix, Vec::new(), ttl).await
    }

    /// The same with a value that others can read: an election.
    pub async fn elect(&self, prefix: &str, value: Vec<u8>, ttl: Duration) -> Result<Guard, Status> {
        let (guard, revision) = self.queue(prefix, value, ttl).await?;
        loop {
            let Some((key, seen)) = self.before(prefix, revision).await? else { break };
            tokio::select! {
                () = self.gone(&key, seen) => {}
                () = guard.lost() => return Err(lease_lost()),
            }
        }
        // The lease may have ended while we waited, and the lock with it.
        match self
            .range(RangeRequest { key: guard.key.clone().into(), ..RangeRequest::default() })
            .await?
            .kvs
            .is_empty()
        {
            true => Err(lease_lost()),
            false => Ok(guard),
        }
    }

    /// The lock, or nothing when another has it.
    pub async fn try_lock(&self, prefix: &str, ttl: Duration) -> Result<Option<Guard>, Status> {
        let (guard, revision) = self.queue(prefix, Vec::new(), ttl).await?;
        if self.before(prefix, revision).await?.is_none() {
            return Ok(Some(guard));
        }
        guard.unlock().await;
        Ok(None)
    }

    /// Gets in line: a lease, kept alive from now on, and its key. Returns the revision that orders the keys.
    async fn queue(&self, prefix: &str, value: Vec<u8>, ttl: Duration) -> Result<(Guard, i64), Status> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let grant: LeaseGrantResponse = self
            .call(Write, "/etcdserverpb.Lease/LeaseGrant", &LeaseGrantRequest { ttl: seconds, id: 0 })
            .await?;
        let lease = grant.id;
        let key = format!("{prefix}/{lease:x}");
        let (lost, release) = (CancellationToken::new(), CancellationToken::new());
        let released = tokio::spawn(keep(self.clone(), lease, ttl, release.clone(), lost.clone()));
        let guard = Guard { key: key.clone(), lost, release: Some(release.drop_guard()), released };
        let put = PutRequest { key: key.clone().into(), value, lease };
        let answer = self
            .txn(&TxnRequest {
                compare: vec![Compare {
                    result: 0,
                    target: 1,
                    key: key.into(),
                    than: Some(compare::Than::CreateRevision(0)),
                }],
                success: vec![RequestOp { request: Some(request_op::Request::Put(put)) }],
                failure: Vec::new(),
            })
            .await?;
        match (answer.succeeded, answer.header) {
            // The lease is new, so its key was created by this very call.
            (true, Some(header)) => Ok((guard, header.revision)),
            _ => Err(Status::aborted("the key of a new lease exists already")),
        }
    }

    /// The key right before ours, and the revision it was seen at.
    async fn before(&self, prefix: &str, revision: i64) -> Result<Option<(Vec<u8>, i64)>, Status> {
        const DESCENDING: i32 = 2;
        const BY_CREATION: i32 = 2;
        let below = format!("{prefix}/");
        let answer = self
            .range(RangeRequest {
                range_end: after_prefix(&below),
                key: below.into(),
                limit: 1,
                sort_order: DESCENDING,
                sort_target: BY_CREATION,
                keys_only: true,
                max_create_revision: revision - 1,
                ..RangeRequest::default()
            })
            .await?;
        let seen = answer.header.map(|header| header.revision).unwrap_or_default();
        Ok(answer.kvs.into_iter().next().map(|found| (found.key, seen)))
    }

    /// Ends when the key was removed after `seen`, or when it is time to look again.
    async fn gone(&self, key: &[u8], seen: i64) {
        let create =
            WatchCreateRequest { key: key.to_vec(), range_end: Vec::new(), start_revision: seen + 1 };
        let body = WatchRequest { create: Some(create) }.encode_to_vec().into();
        let watch = async {
            let mut events = self.stream("/etcdserverpb.Watch/Watch", body, true).await?;
            while let Some(message) = events.message().await? {
                let message: WatchResponse = decode(message)?;
                const DELETED: i32 = 1;
                if message.canceled || message.events.iter().any(|event| event.r#type == DELETED) {
                    break;
                }
            }
            Ok::<(), Status>(())
        };
        if !matches!(tokio::time::timeout(WATCH_MAX, watch).await, Ok(Ok(()))) {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Keeps a lease alive until it is released; says when it is lost.
async fn keep(
    client: Client,
    lease: i64,
    ttl: Duration,
    release: CancellationToken,
    lost: CancellationToken,
) {
    let body: bytes::Bytes = LeaseId { id: lease }.encode_to_vec().into();
    let mut valid_until = Instant::now() + ttl;
    let mut pause = ttl / 3;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = release.cancelled() => break,
        }
        let asked = Instant::now();
        let left = valid_until.saturating_duration_since(asked);
        // Of the stream of questions just one is asked: the method then answers once.
        let alive =
            client.unary(Read, "/etcdserverpb.Lease/LeaseKeepAlive", body.clone(), left.max(AGAIN)).await;
        match alive.and_then(decode::<LeaseKeepAliveResponse>) {
            Ok(answer) if answer.ttl > 0 => {
                valid_until = asked + ttl;
                pause = ttl / 3;
            }
            Ok(_) => {
                lost.cancel();
                return;
            }
            Err(_) if asked >= valid_until => {
                lost.cancel();
                return;
            }
            Err(_) => pause = AGAIN,
        }
    }
    let request = LeaseId { id: lease };
    let revoke = client.call::<Headed>(Write, "/etcdserverpb.Lease/LeaseRevoke", &request);
    if let Ok(Err(error)) = tokio::time::timeout(CALL_ETCD_UNLOCK, revoke).await {
        tracing::debug!(%error, "a lease stays until its time is over");
    }
}

fn lease_lost() -> Status {
    Status::aborted("the lease of the lock ended")
}
