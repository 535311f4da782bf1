//! The rim: one request out, one answer in pieces back.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;

use crate::error::Error;

/// A request.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to do.
    pub method: Method,
    /// To what; path and query.
    pub path: String,
    /// What the answer should be.
    pub accept: &'static str,
    /// What the body is; empty without one.
    pub content_type: &'static str,
    /// With what.
    pub body: Bytes,
    /// What else is said.
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// For messages: what is done to what, without the query.
    pub fn what(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

/// The beginning of an answer.
pub struct Reply {
    /// As HTTP counts.
    pub code: u16,
    /// Where it is instead.
    pub location: Option<String>,
    /// The rest, as it comes.
    pub body: Box<dyn Chunks>,
}

/// A body as it comes.
pub trait Chunks: Send + Sync {
    /// The next piece; none at the end.
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Bytes, String>>>;
}

/// Carries requests to a server.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and waits for the beginning of the answer.
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Error>>;

    /// Forgets the connection, so that the next request makes a new one.
    fn reset(&self) {}
}
