//! Buckets of S3 (and what speaks like it), Google Cloud Storage and Azure: put, get, list and delete.
//!
//! Protocols, signatures, credentials of instances and retries are those of `object_store`; this module says where
//! credentials come from, bounds what is read and words the errors.

mod connect;
mod settings;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::buffered::BufWriter;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt as _, RetryConfig};
use tokio::io::AsyncWriteExt as _;

pub use settings::{Given, Place, Service, Settings};

use crate::failure::{Context as _, Failure};

/// How often a request is repeated that failed for a passing reason.
const RETRIES_MAX: usize = 2;
/// No further attempt after this time.
const RETRY_TIME_MAX: Duration = Duration::from_secs(120);
/// The first pause between two attempts, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// Larger files go up in parts of this size, this many at a time.
const PART: usize = 16 << 20;
const PARTS_AT_ONCE: usize = 2;
/// Names in a list; a directory of backups with more was never cleaned up.
const KEYS_MAX: usize = 100_000;

/// A bucket and the right to use it.
pub struct Bucket {
    place: Place,
    store: Arc<dyn ObjectStore>,
}

impl Bucket {
    /// A bucket; nothing is asked yet.
    pub fn new(settings: Settings) -> Result<Self, Failure> {
        Self::with(settings, connect::Connector::default(), PAUSE.0)
    }

    fn with(
        settings: Settings,
        connector: impl object_store::client::HttpConnector,
        pause: Duration,
    ) -> Result<Self, Failure> {
        let place = settings.place.clone();
        let backoff = BackoffConfig { init_backoff: pause, max_backoff: PAUSE.1.max(pause), base: 2.0 };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIME_MAX };
        let store = settings.open(connector, retry).map_err(|error| explain(&place, error))?;
        Ok(Self { place, store })
    }

    /// For messages: `s3://bucket/key`.
    pub fn name(&self, key: &str) -> String {
        format!("{}://{}/{key}", self.place.service.scheme(), self.place.bucket)
    }

    /// Stores a file: the object is there whole or not at all.
    pub async fn put(&mut self, key: &str, file: &Path) -> Result<(), Failure> {
        let doing = format!("store {}", self.name(key));
        let mut from = tokio::fs::File::open(file).await.context(file.display())?;
        let writer = BufWriter::with_capacity(self.store.clone(), path(key)?, PART);
        let mut to = writer.with_max_concurrency(PARTS_AT_ONCE);
        let copied = match tokio::io::copy(&mut from, &mut to).await {
            Ok(_) => to.shutdown().await,
            Err(error) => Err(error),
        };
        if let Err(error) = copied {
            // Parts that went up before cost money until somebody removes them.
            let _ = to.abort().await;
            let error = object_store::Error::Generic { store: "bucket", source: error.into() };
            return Err(explain(&self.place, error).within(&doing));
        }
        Ok(())
    }

    /// Reads an object of at most `limit` bytes into `out`.
    pub async fn get(&mut self, key: &str, limit: u64, out: &mut impl Write) -> Result<(), Failure> {
        let doing = format!("read {}", self.name(key));
        let failed = |error| explain(&self.place, error).within(&doing);
        let mut pieces = self.store.get(&path(key)?).await.map_err(failed)?.into_stream();
        let mut left = limit;
        while let Some(piece) = pieces.try_next().await.map_err(failed)? {
            left = left
                .checked_sub(piece.len() as u64)
                .ok_or_else(|| Failure::new(format!("{doing}: longer than {limit} bytes")))?;
            out.write_all(&piece).context(&doing)?;
        }
        Ok(())
    }

    /// The keys that begin with `prefix`, in order.
    pub async fn list(&mut self, prefix: &str) -> Result<Vec<String>, Failure> {
        let doing = format!("list {}", self.name(prefix));
        let failed = |error| explain(&self.place, error).within(&doing);
        // The library lists directories; what begins alike in one is chosen here.
        let directory = prefix.rsplit_once('/').map(|(directory, _)| path(directory)).transpose()?;
        let mut found = self.store.list(directory.as_ref());
        let mut keys = Vec::new();
        while let Some(object) = found.try_next().await.map_err(failed)? {
            if keys.len() == KEYS_MAX {
                return Err(Failure::new(format!("{doing}: more than {KEYS_MAX} objects"))
                    .hint("use a prefix of its own for each cluster"));
            }
            let key = String::from(object.location);
            if key.starts_with(prefix) {
                keys.push(key);
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Deletes an object.
    pub async fn delete(&mut self, key: &str) -> Result<(), Failure> {
        let doing = format!("delete {}", self.name(key));
        let deleted = self.store.delete(&path(key)?).await;
        deleted.map_err(|error| explain(&self.place, error).within(&doing))
    }
}

fn path(key: &str) -> Result<Key, Failure> {
    Key::parse(key).context(format!("{key:?} is not a valid object name"))
}

/// What the service said, in one line, and what helps.
fn explain(place: &Place, error: object_store::Error) -> Failure {
    let text = error.to_string();
    let part = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(value, _)| value.trim().to_owned())
    };
    let code = part("Code");
    let failure = match (&code, part("Message")) {
        (Some(code), Some(message)) => Failure::new(format!("{code}: {message}")),
        (Some(code), None) => Failure::new(code.clone()),
        (None, _) => Failure::new(text.trim().to_owned()),
    };
    let hint = match code.as_deref() {
        Some("SignatureDoesNotMatch" | "InvalidAccessKeyId") => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY do not match this bucket"
        }
        Some("AuthorizationHeaderMalformed" | "PermanentRedirect") => {
            "the bucket is in another region: name it with --s3-region"
        }
        Some("RequestTimeTooSkewed") => "the clock of this machine is wrong",
        Some(_) => return failure,
        None if connect::is_about_metadata(&text) => place.service.credentials_hint(),
        None => return failure,
    };
    failure.hint(hint)
}

#[cfg(test)]
mod tests;
