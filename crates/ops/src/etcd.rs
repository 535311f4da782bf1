//! Copies of the database of etcd: snapshots, backups in a directory or a bucket, and a cluster that starts from one.

mod backup;
mod bolt;
mod snapshot;

use std::future::Future;
use std::path::Path;

use ichor_client::{Client, Reply, split};
use ichor_wire::common::Data;
use ichor_wire::machine::BootstrapRequest;
use tonic::{Response, Status};

pub use backup::{BackupOptions, Event, Place, Seal, backup, decompressed, read};
pub use bolt::Info;
pub use snapshot::{SNAPSHOT_MAX, check, describe, save, write_private};

use crate::error::{Error, Problem, Result};

/// Bytes of one message of an upload.
const CHUNK: usize = 64 * 1024;

/// Where backups are kept as objects with keys.
pub trait Storage: Send {
    /// Its own error, which holds those of the engines.
    type Error: From<Error> + std::fmt::Display;

    /// How people call an object.
    fn name(&self, key: &str) -> String;

    /// Stores a file as an object, whole or not at all.
    fn put(
        &mut self,
        key: &str,
        file: &Path,
    ) -> impl Future<Output = std::result::Result<(), Self::Error>> + Send;

    /// The keys of all objects below a prefix.
    fn list(
        &mut self,
        prefix: &str,
    ) -> impl Future<Output = std::result::Result<Vec<String>, Self::Error>> + Send;

    /// The content of an object of at most `limit` bytes.
    fn get(
        &mut self,
        key: &str,
        limit: u64,
    ) -> impl Future<Output = std::result::Result<Vec<u8>, Self::Error>> + Send;

    /// Removes an object.
    fn delete(&mut self, key: &str) -> impl Future<Output = std::result::Result<(), Self::Error>> + Send;
}

/// Starts etcd of a new cluster on one machine, from a snapshot when there is one. `label` names the machine in errors.
pub async fn bootstrap(
    client: &Client,
    label: &str,
    snapshot: Option<Vec<u8>>,
    skip_hash_check: bool,
) -> Result<()> {
    let request =
        BootstrapRequest { recover_etcd: snapshot.is_some(), recover_skip_hash_check: skip_hash_check };
    if let Some(content) = snapshot {
        let chunk = |chunk: &[u8]| Data { metadata: None, bytes: chunk.to_vec().into() };
        let chunks: Vec<Data> = content.chunks(CHUNK).map(chunk).collect();
        let reply = client.machine().etcd_recover(futures_util::stream::iter(chunks)).await;
        only("error uploading snapshot", label, messages(reply, |reply| reply.messages))?;
    }
    let reply = client.machine().bootstrap(request).await;
    only("error executing bootstrap", label, messages(reply, |reply| reply.messages))
}

fn messages<R, T>(
    reply: std::result::Result<Response<R>, Status>,
    messages: impl Fn(R) -> Vec<T>,
) -> std::result::Result<Vec<T>, Status> {
    reply.map(|reply| messages(reply.into_inner()))
}

/// The only machine must have answered without an error.
fn only<T: Reply>(doing: &str, label: &str, reply: std::result::Result<Vec<T>, Status>) -> Result<()> {
    let messages = reply.map_err(|status| Error::call(doing, status))?;
    match split(messages, label).failed.into_iter().next() {
        Some(error) => Err(Problem::Node { doing: doing.to_owned(), error }.into()),
        None => Ok(()),
    }
}
