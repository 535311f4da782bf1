//! The way to the service: the workspace's HTTP client, with bounds on what is answered.

use std::pin::Pin;
use std::time::Duration;

use http::{Method, Uri};
use http_body_util::{BodyExt as _, Limited};
use ichor_http::{Client, ClientError};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};

/// Time for a response to begin once a request is sent.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// The slowest upload that is worth waiting for.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// Instance metadata is near, or not there at all.
const METADATA_MAX: Duration = Duration::from_secs(2);
const METADATA_HOSTS: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];
/// The largest page of a list, token or error.
const DOCUMENT_MAX: usize = 16 << 20;

/// Whether a text names a metadata service.
pub(super) fn is_about_metadata(text: &str) -> bool {
    METADATA_HOSTS.iter().any(|host| text.contains(host))
}

/// Hands the library our client.
#[derive(Debug)]
pub(super) struct Connector(Client);

impl Default for Connector {
    fn default() -> Self {
        Self(Client::system())
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Exchange(self.0.clone())))
    }
}

#[derive(Debug)]
struct Exchange(Client);

impl HttpService for Exchange {
    fn call<'a, 'r>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'r>>
    where
        'a: 'r,
        Self: 'r,
    {
        Box::pin(async move {
            let content = is_content(request.method(), request.uri());
            let limit = patience(request.uri(), request.body().content_length() as u64);
            let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
            let response = self.0.send(request, limit).await.map_err(failed)?;
            let whole = content && response.status().is_success();
            let cut = |error| HttpError::new_boxed(HttpErrorKind::Interrupted, error);
            Ok(response.map(|body| match whole {
                true => HttpResponseBody::new(body.map_err(cut)),
                false => HttpResponseBody::new(Limited::new(body, DOCUMENT_MAX).map_err(cut)),
            }))
        })
    }
}

/// An object itself may be of any length; the caller counts. Lists and credentials are documents.
fn is_content(method: &Method, uri: &Uri) -> bool {
    const DOCUMENTS: [&str; 3] = ["list-type=", "comp=", "Action="];
    let query = uri.query().unwrap_or_default();
    method == Method::GET && !is_metadata(uri) && !DOCUMENTS.iter().any(|part| query.contains(part))
}

fn is_metadata(uri: &Uri) -> bool {
    uri.host().is_some_and(|host| METADATA_HOSTS.contains(&host))
}

fn patience(uri: &Uri, length: u64) -> Duration {
    match is_metadata(uri) {
        true => METADATA_MAX,
        false => ANSWER_MAX + Duration::from_secs(length / BYTES_PER_SECOND_MIN),
    }
}

fn failed(error: ClientError) -> HttpError {
    let kind = match &error {
        ClientError::Exchange { connect: true, .. } => HttpErrorKind::Connect,
        ClientError::Exchange { .. } => HttpErrorKind::Interrupted,
        ClientError::Timeout { .. } => HttpErrorKind::Timeout,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
