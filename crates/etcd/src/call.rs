//! Calls as bytes: one path through the HTTP stack for every method, so that a method costs only its messages.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use ichor_rpc::{Channel, Raw};
use ichor_types::deadlines::{CALL_ETCD, CALL_ETCD_CHANGE, DIAL_ETCD, DIAL_ETCD_STAGGER};
use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use crate::Client;

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
        decode(self.unary(kind, method, request.encode_to_vec().into(), CALL_ETCD).await?)
    }

    /// Changes the members. Of two changes at once etcd forgets one without a word, so that waiting longer is in vain.
    pub(crate) async fn change<R: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
    ) -> Result<R, Status> {
        decode(self.unary(Kind::Write, method, request.encode_to_vec().into(), CALL_ETCD_CHANGE).await?)
    }

    /// The same, for methods that take their time.
    pub(crate) async fn unary(
        &self,
        kind: Kind,
        method: &'static str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, Status> {
        let mut tried = Vec::new();
        let mut first = None;
        while tried.len() < self.members.len() {
            let number = match self.reach(&tried).await {
                Ok(number) => number,
                Err(error) => return Err(first.unwrap_or(error)),
            };
            tried.push(number);
            let (endpoint, channel) = &self.members[number];
            let call = async {
                let mut answers = self.begin(channel, method, body.clone(), false).await?;
                let answer = answers.message().await?;
                answer.ok_or_else(|| Status::internal("etcd closed the call without an answer"))
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

    /// The first member that takes a connection. One that is slow does not hold the next one up for long.
    async fn reach(&self, tried: &[usize]) -> Result<usize, Status> {
        let untried = (0..self.members.len()).filter(|number| !tried.contains(number));
        let mut dials: FuturesUnordered<_> = untried
            .enumerate()
            .map(|(place, number)| async move {
                tokio::time::sleep(DIAL_ETCD_STAGGER * u32::try_from(place).unwrap_or(u32::MAX)).await;
                dial(&self.members[number].1).await.map(|()| number).map_err(|error| (number, error))
            })
            .collect();
        let mut first: Option<(usize, Status)> = None;
        while let Some(dialed) = dials.next().await {
            match dialed {
                Ok(number) => return Ok(number),
                Err(error) if first.as_ref().is_none_or(|known| error.0 < known.0) => first = Some(error),
                Err(_) => {}
            }
        }
        Err(first.map_or_else(|| Status::unavailable("no etcd endpoints"), |(_, error)| error))
    }

    /// Calls a method that answers with a stream at the first member that takes a connection. `open` keeps the side of
    /// the requests open.
    pub(crate) async fn stream(
        &self,
        method: &'static str,
        body: Bytes,
        open: bool,
    ) -> Result<Streaming<Bytes>, Status> {
        let number = self.reach(&[]).await?;
        self.begin(&self.members[number].1, method, body, open).await
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
    match tokio::time::timeout(DIAL_ETCD, channel.connect()).await {
        Ok(done) => done,
        Err(_) => Err(Status::unavailable("etcd took no connection in time")),
    }
}

pub(crate) fn decode<R: Message + Default>(bytes: Bytes) -> Result<R, Status> {
    R::decode(bytes).map_err(|error| Status::internal(format!("cannot read the answer of etcd: {error}")))
}
