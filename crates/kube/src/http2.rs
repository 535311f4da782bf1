//! The real transport: HTTP/2 over TLS, one connection for all calls.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, USER_AGENT};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use ichor_rpc::dial::DialError;
use ichor_rpc::{Dialer, Endpoint};
use ichor_types::deadlines::DIAL_KUBERNETES;
use tokio::time::timeout;
use tonic::body::Body;

use crate::error::{Error, chain};
use crate::transport::{Chunks, Reply, Request, Transport};

pub(crate) struct Http2 {
    endpoint: Endpoint,
    dialer: Dialer,
    token: Option<HeaderValue>,
    ready: Mutex<Option<SendRequest<Body>>>,
    dialing: tokio::sync::Mutex<()>,
}

impl Http2 {
    pub(crate) fn new(endpoint: Endpoint, dialer: Dialer, token: Option<HeaderValue>) -> Self {
        Self { endpoint, dialer, token, ready: Mutex::default(), dialing: tokio::sync::Mutex::default() }
    }

    fn current(&self) -> Option<SendRequest<Body>> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.as_ref().filter(|sender| sender.is_ready()).cloned()
    }

    async fn connection(&self) -> Result<SendRequest<Body>, Error> {
        if let Some(sender) = self.current() {
            return Ok(sender);
        }
        // One caller dials, the others wait for what it finds.
        let _alone = self.dialing.lock().await;
        if let Some(sender) = self.current() {
            return Ok(sender);
        }
        let late = |_| Err(DialError::Timeout { endpoint: self.endpoint.clone() });
        let dialed = timeout(DIAL_KUBERNETES, self.dialer.open()).await.unwrap_or_else(late);
        let sender = dialed.map_err(|cause| Error::Connect { server: self.endpoint.to_string(), cause })?;
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        Ok(sender)
    }

    fn build(&self, request: &Request) -> Result<http::Request<Body>, http::Error> {
        let uri = format!("https://{}{}", self.endpoint, request.path);
        let mut built = http::Request::builder()
            .method(request.method.clone())
            .uri(uri)
            .header(ACCEPT, request.accept)
            .header(USER_AGENT, concat!("ichor/", env!("CARGO_PKG_VERSION")));
        if !request.content_type.is_empty() {
            built = built.header(CONTENT_TYPE, request.content_type);
        }
        for (name, value) in &request.headers {
            built = built.header(name, value);
        }
        if let Some(token) = &self.token {
            built = built.header(AUTHORIZATION, token.clone());
        }
        match request.body.is_empty() {
            true => built.body(Body::empty()),
            false => built.body(Body::new(Full::new(request.body.clone()))),
        }
    }
}

impl Transport for Http2 {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let broken = |text: String| Error::Broken { what: request.what(), text };
            let mut built = self.build(&request).map_err(|error| broken(error.to_string()))?;
            let mut again = true;
            loop {
                let mut sender = self.connection().await?;
                match sender.try_send_request(built).await {
                    Ok(reply) => {
                        let code = reply.status().as_u16();
                        let location = reply.headers().get(LOCATION);
                        let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
                        return Ok(Reply { code, location, body: Box::new(reply.into_body()) });
                    }
                    Err(mut error) => match error.take_message() {
                        // It never left, because the connection had closed unnoticed: a new one may carry it.
                        Some(unsent) if again => {
                            again = false;
                            built = unsent;
                            self.reset();
                        }
                        _ => return Err(broken(chain(&error.into_error()))),
                    },
                }
            }
        })
    }

    fn reset(&self) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Chunks for Incoming {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Bytes, String>>> {
        Box::pin(async move {
            loop {
                let frame = std::future::poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await?;
                match frame {
                    Ok(frame) => match frame.into_data() {
                        Ok(data) => return Some(Ok(data)),
                        Err(_trailers) => {}
                    },
                    Err(error) => return Some(Err(chain(&error))),
                }
            }
        })
    }
}
