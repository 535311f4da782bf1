//! Shapes shared by all handlers: streams, blocking work, errors in the client's words.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Response, Status};

use ichor_wire::common;

use crate::lanes;

/// A server stream.
pub type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Bytes in one message of a data stream. Clients take any size; larger ones cost fewer frames.
pub const CHUNK: usize = 32 * 1024;

/// A reply that is a stream.
pub fn streaming<T>(stream: impl Stream<Item = Result<T, Status>> + Send + 'static) -> Response<Replies<T>> {
    Response::new(Box::pin(stream))
}

/// Bounds how many streams of a kind run at once.
#[derive(Debug, Clone)]
pub struct Slots {
    free: Arc<Semaphore>,
    what: &'static str,
}

impl Slots {
    /// Room for `count` streams, called `what` in answers.
    pub fn new(count: usize, what: &'static str) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), what }
    }

    /// Takes a place that is given back when the stream ends or is dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` when all are taken.
    pub fn take(&self) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.free)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted(format!("too many {} at once", self.what)))
    }
}

/// Keeps a place for as long as the reply is read.
pub fn holding<T: 'static>(place: OwnedSemaphorePermit, reply: Response<Replies<T>>) -> Response<Replies<T>> {
    reply.map(|stream| -> Replies<T> {
        Box::pin(stream.map(move |item| {
            let _ = &place;
            item
        }))
    })
}

/// Bytes of a data stream.
pub fn data(bytes: impl Into<Bytes>) -> common::Data {
    common::Data { metadata: None, bytes: bytes.into() }
}

/// An error inside a data stream.
pub fn data_error(error: String) -> common::Data {
    common::Data {
        metadata: Some(common::Metadata { error, ..common::Metadata::default() }),
        bytes: Bytes::new(),
    }
}

/// Runs blocking work that has no lane of its own off the API thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    lanes::OTHER.run(work).await
}

/// An I/O error in the words clients know: `stat /x: no such file or directory`.
pub fn io_text(action: &str, path: &Path, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::NotADirectory => "not a directory".to_owned(),
        io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    };
    format!("{action} {}: {reason}", path.display())
}

/// The same as a status: a missing file is `NotFound`, everything else `Unknown`.
pub fn io_status(action: &str, path: &Path, error: &io::Error) -> Status {
    let text = io_text(action, path, error);
    match error.kind() {
        io::ErrorKind::NotFound => Status::not_found(text),
        _ => Status::unknown(text),
    }
}

/// An error with its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The path a request names: absolute, without `.` and `..`, at most a kernel path long.
pub fn request_path(text: &str) -> Result<PathBuf, Status> {
    /// `PATH_MAX`.
    const LEN_MAX: usize = 4096;
    if text.len() > LEN_MAX || text.contains('\0') {
        return Err(Status::invalid_argument("path is too long or holds a zero byte"));
    }
    let mut path = PathBuf::from("/");
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_stream_is_gone() {
        let slots = Slots::new(1, "captures");
        let empty = streaming(futures_util::stream::empty::<Result<(), Status>>());
        let held = holding(slots.take().unwrap(), empty);
        let refused = slots.take().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(refused.message(), "too many captures at once");
        drop(held);
        assert!(slots.take().is_ok());
    }

    #[test]
    fn paths_are_absolute_and_clean() {
        for (text, expected) in
            [("etc/hosts", "/etc/hosts"), ("/a/../b/./c/", "/b/c"), ("../../x", "/x"), ("", "/")]
        {
            assert_eq!(request_path(text).unwrap(), Path::new(expected), "{text}");
        }
        assert!(request_path("a\0b").is_err());
        assert!(request_path(&"x/".repeat(4000)).is_err());
    }
}
