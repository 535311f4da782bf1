//! Calls as bytes: one path through the HTTP stack for every method, so that a method costs only its messages.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_util::StreamExt;
use futures_util::stream;
use ichor_rpc::Channel;
use prost::Message;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use crate::Client;

/// Time for a connection.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// Time for a call that answers once.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(15);
/// The largest answer taken; etcd itself takes requests of 1.5 MiB.
const ANSWER_MAX: usize = 16 << 20;

/// What may be done when a member was not available.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Another member may be asked the same.
    Read,
    /// Only a call that never left may be repeated.
    Write,
}

impl Client {
    /// Calls a method that answers once.
    pub(crate) async fn call<R: Message + Default>(
        &self,
        kind: Kind,
        method: &'static str,
        request: &impl Message,
    ) -> Result<R, Status> {
        let answer = self.unary(kind, method, request.encode_to_vec().into(), CALL_MAX).await?;
        decode(answer)
    }

    /// The same, for methods that take their time.
    pub(crate) async fn unary(
        &self,
        kind: Kind,
        method: &'static str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, Status> {
        let mut first = None;
        for (endpoint, channel) in &*self.members {
            if let Err(error) = dial(channel).await {
                first.get_or_insert(error);
                continue;
            }
            let call = async {
                let mut answers = self.begin(channel, method, body.clone(), false).await?;
                answers
                    .message()
                    .await?
                    .ok_or_else(|| Status::internal("etcd closed the call without an answer"))
            };
            let error = match tokio::time::timeout(limit, call).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => {
                    Status::deadline_exceeded(format!("etcd at {endpoint} did not answer within {limit:?}"))
                }
            };
            let gone = matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled);
            if kind == Kind::Write || !gone {
                return Err(error);
            }
            first.get_or_insert(error);
        }
        Err(first.unwrap_or_else(|| Status::unavailable("no etcd endpoints")))
    }

    /// Calls a method that answers with a stream at the first member that takes a connection. `open` keeps the side of
    /// the requests open.
    pub(crate) async fn stream(
        &self,
        method: &'static str,
        body: Bytes,
        open: bool,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut first = None;
        for (_, channel) in &*self.members {
            match dial(channel).await {
                Ok(()) => return self.begin(channel, method, body, open).await,
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| Status::unavailable("no etcd endpoints")))
    }

    async fn begin(
        &self,
        channel: &Channel,
        method: &'static str,
        body: Bytes,
        open: bool,
    ) -> Result<Streaming<Bytes>, Status> {
        let rest = if open { stream::pending().boxed() } else { stream::empty().boxed() };
        let mut request = Request::new(stream::iter([body]).chain(rest));
        if self.leader {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        let path = PathAndQuery::from_static(method);
        let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(ANSWER_MAX);
        Ok(grpc.streaming(request, path, Raw).await?.into_inner())
    }
}

async fn dial(channel: &Channel) -> Result<(), Status> {
    match tokio::time::timeout(DIAL_MAX, channel.connect()).await {
        Ok(done) => done,
        Err(_) => Err(Status::unavailable("etcd took no connection in time")),
    }
}

pub(crate) fn decode<R: Message + Default>(bytes: Bytes) -> Result<R, Status> {
    R::decode(bytes).map_err(|error| Status::internal(format!("cannot read the answer of etcd: {error}")))
}

/// Messages as they are.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(256, 32 << 10)
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(256, 32 << 10)
    }
}
