//! Calls as bytes: one path through the HTTP stack for every method, so that a method costs only its messages.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use ichor_rpc::{Channel, Dialer, Raw};
use ichor_types::deadlines::CALL_CONTAINERD;
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::Client;

/// The largest answer taken: a few thousand containers with their specs.
const ANSWER_MAX: usize = 16 << 20;
/// The header that names the namespace.
const NAMESPACE: &str = "containerd-namespace";

impl Client {
    /// A client of the socket at `path`. Nothing connects yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { channel: Channel::new(Dialer::unix(path)) }
    }

    /// Calls a method that answers once.
    pub(crate) async fn call<R: Message + Default>(
        &self,
        method: &'static str,
        namespace: &str,
        request: &impl Message,
    ) -> Result<R, Status> {
        self.call_within(method, namespace, request, CALL_CONTAINERD).await
    }

    /// The same, for methods that take their time.
    pub(crate) async fn call_within<R: Message + Default>(
        &self,
        method: &'static str,
        namespace: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<R, Status> {
        let answers = self.bytes(method, namespace, request.encode_to_vec().into(), limit).await?;
        decode(answers.into_iter().next().unwrap_or_default())
    }

    /// Calls a method that answers with a stream, and waits for its end.
    pub(crate) async fn calls<R: Message + Default>(
        &self,
        method: &'static str,
        namespace: &str,
        request: &impl Message,
    ) -> Result<Vec<R>, Status> {
        let answers = self.bytes(method, namespace, request.encode_to_vec().into(), CALL_CONTAINERD).await?;
        answers.into_iter().map(decode).collect()
    }

    async fn bytes(
        &self,
        method: &'static str,
        namespace: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Vec<Bytes>, Status> {
        let mut request = tonic::Request::new(body);
        if !namespace.is_empty() {
            let value = MetadataValue::try_from(namespace)
                .map_err(|_| Status::invalid_argument(format!("invalid namespace {namespace:?}")))?;
            request.metadata_mut().insert(NAMESPACE, value);
        }
        let path = http_path(method)?;
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX);
        let answer = async {
            let mut stream = grpc.server_streaming(request, path, Raw).await?.into_inner();
            let (mut answers, mut total) = (Vec::new(), 0);
            while let Some(message) = stream.message().await? {
                total += message.len();
                if total > ANSWER_MAX {
                    return Err(Status::resource_exhausted("the answer of containerd is too long"));
                }
                answers.push(message);
            }
            Ok(answers)
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(answers) => answers,
            Err(_) => {
                Err(Status::deadline_exceeded(format!("containerd did not answer {method} within {limit:?}")))
            }
        }
    }
}

fn http_path(method: &'static str) -> Result<tonic::codegen::http::uri::PathAndQuery, Status> {
    tonic::codegen::http::uri::PathAndQuery::try_from(method)
        .map_err(|error| Status::internal(error.to_string()))
}

fn decode<R: Message + Default>(bytes: Bytes) -> Result<R, Status> {
    R::decode(bytes)
        .map_err(|error| Status::internal(format!("cannot read the answer of containerd: {error}")))
}
