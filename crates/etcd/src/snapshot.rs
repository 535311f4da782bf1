//! A copy of the database of one member.

use bytes::Bytes;
use prost::Message;
use tonic::{Status, Streaming};

use ichor_wire::etcd::{Nothing, SnapshotResponse};

use crate::Client;
use crate::call::decode;

/// A snapshot on its way.
#[derive(Debug)]
pub struct Snapshot(Streaming<Bytes>);

impl Client {
    /// Begins a snapshot of the first member that takes a connection; it needs no quorum.
    pub async fn snapshot(&self) -> Result<Snapshot, Status> {
        let body = Nothing {}.encode_to_vec().into();
        self.stream("/etcdserverpb.Maintenance/Snapshot", body, false).await.map(Snapshot)
    }
}

impl Snapshot {
    /// The next part; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        match self.0.message().await? {
            Some(message) => Ok(Some(decode::<SnapshotResponse>(message)?.blob)),
            None => Ok(None),
        }
    }
}
