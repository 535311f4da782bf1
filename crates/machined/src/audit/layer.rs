//! The layer around the services: it sees every call begin and end.
//!
//! What it costs a call: two looks at the clock (no system call), a few reference counts, one hash. No call waits for
//! the log.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use ichor_rpc::caller::{CALLER, PROXY, text};
use ichor_rpc::peer::PeerIdentity;
use ichor_rpc::roles::{Caller, ROLE_KEY};
use tonic::Code;
use tower::Service;

use super::record::{Event, What};
use super::{Audit, Target};

/// Calls that may go on for hours: their beginning is worth a line of its own.
const LASTING: [&str; 7] = [
    "/cosi.resource.State/Watch",
    "/machine.MachineService/Copy",
    "/machine.MachineService/Dmesg",
    "/machine.MachineService/EtcdSnapshot",
    "/machine.MachineService/Events",
    "/machine.MachineService/Logs",
    "/machine.MachineService/PacketCapture",
];

/// Calls whose handlers leave a target.
const TARGETED: [&str; 9] = [
    "/cosi.resource.State/Get",
    "/cosi.resource.State/List",
    "/cosi.resource.State/Watch",
    "/machine.MachineService/Copy",
    "/machine.MachineService/Logs",
    "/machine.MachineService/Read",
    "/machine.MachineService/ServiceRestart",
    "/machine.MachineService/ServiceStart",
    "/machine.MachineService/ServiceStop",
];

/// Writes every call of `service` into the audit log.
#[derive(Clone)]
pub struct Audited<S> {
    service: S,
    audit: Audit,
    gateway: Option<u32>,
    is_told: fn(&str) -> bool,
}

impl<S> Audited<S> {
    /// Around `service`. A peer that runs as user `gateway` is believed when it names callers.
    pub fn new(service: S, audit: Audit, gateway: Option<u32>) -> Self {
        Self { service, audit, gateway, is_told: |_| true }
    }

    /// Only calls of these methods are written down.
    #[must_use]
    pub fn only(self, is_told: fn(&str) -> bool) -> Self {
        Self { is_told, ..self }
    }
}

impl<S, B, R> Service<Request<B>> for Audited<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Unpin,
{
    type Response = Response<Watched<R>>;
    type Error = S::Error;
    type Future = Running<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let is_told = (self.is_told)(request.uri().path());
        let call = is_told.then(|| Box::new(Call::begin(&self.audit, self.gateway, &mut request)));
        Running { future: self.service.call(request), call }
    }
}

/// A call under way. One that is dropped before its end was canceled.
pub struct Call {
    audit: Audit,
    began: Instant,
    caller: HeaderValue,
    proxy: Option<HeaderValue>,
    roles: Roles,
    path: Option<PathAndQuery>,
    target: Option<Target>,
    told: bool,
}

/// The caller's roles, as they came or as a layer before found them.
enum Roles {
    None,
    One(HeaderValue),
    Many(String),
}

impl Roles {
    fn of(headers: &HeaderMap, extensions: &http::Extensions) -> Self {
        if let Some(Caller(roles)) = extensions.get::<Caller>() {
            return Self::Many(roles.iter().collect::<Vec<_>>().join(","));
        }
        let mut values = headers.get_all(ROLE_KEY).iter();
        match (values.next(), values.next()) {
            (None, _) => Self::None,
            (Some(one), None) => Self::One(one.clone()),
            (Some(one), Some(two)) => {
                let texts = [one, two].into_iter().chain(values).filter_map(|value| value.to_str().ok());
                Self::Many(texts.collect::<Vec<_>>().join(","))
            }
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::One(value) => value.to_str().unwrap_or_default(),
            Self::Many(text) => text,
        }
    }
}

impl Call {
    fn begin<B>(audit: &Audit, gateway: Option<u32>, request: &mut Request<B>) -> Self {
        let path = request.uri().path_and_query().cloned();
        let method = path.as_ref().map_or("", PathAndQuery::path);
        let target = TARGETED.contains(&method).then(Target::default);
        if let Some(target) = &target {
            request.extensions_mut().insert(target.clone());
        }
        let (headers, extensions) = (request.headers(), request.extensions());
        let peer = extensions.get::<Arc<PeerIdentity>>();
        let uid = peer.and_then(|peer| peer.credentials).map(|process| process.uid);
        let named = headers.get(CALLER).filter(|_| uid.is_some() && uid == gateway);
        let (caller, proxy) = match named {
            Some(caller) => (caller.clone(), headers.get(PROXY).cloned()),
            None => (local(peer.map(|peer| &**peer)), None),
        };
        Self {
            audit: audit.clone(),
            began: Instant::now(),
            caller,
            proxy,
            roles: Roles::of(headers, extensions),
            path,
            target,
            told: false,
        }
    }

    fn method(&self) -> &str {
        self.path.as_ref().map_or("", PathAndQuery::path)
    }

    fn end(&mut self, code: Code) {
        self.told = true;
        self.tell(What::Call, code);
    }

    fn tell(&self, what: What, code: Code) {
        self.audit.tell(&Event {
            what,
            caller: self.caller.to_str().unwrap_or_default(),
            proxy: self.proxy.as_ref().and_then(|proxy| proxy.to_str().ok()).unwrap_or_default(),
            roles: self.roles.as_str(),
            method: self.method(),
            target: self.target.as_ref().map_or("", Target::get),
            code,
            reason: "",
            took: self.began.elapsed(),
            count: 1,
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // At the end of the process there may be no runtime left to tell it from.
        if !self.told && tokio::runtime::Handle::try_current().is_ok() {
            self.tell(What::Call, Code::Cancelled);
        }
    }
}

/// A peer that is not the gateway speaks for itself.
fn local(peer: Option<&PeerIdentity>) -> HeaderValue {
    let text = peer.map(text).unwrap_or_default();
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The status of a call that has ended, from the headers of its reply or its trailers.
fn status(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// A call whose reply has not begun.
pub struct Running<F> {
    future: F,
    call: Option<Box<Call>>,
}

impl<F, R, E> Future for Running<F>
where
    F: Future<Output = Result<Response<R>, E>> + Unpin,
{
    type Output = Result<Response<Watched<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let response = ready!(Pin::new(&mut this.future).poll(context))?;
        let mut call = this.call.take();
        match status(response.headers()) {
            Some(code) => {
                if let Some(mut call) = call.take() {
                    call.end(code);
                }
            }
            None => {
                if let Some(call) = call.as_ref().filter(|call| LASTING.contains(&call.method())) {
                    call.tell(What::Opened, Code::Ok);
                }
            }
        }
        Poll::Ready(Ok(response.map(|body| Watched { body, call })))
    }
}

/// The body of a reply, with the call that ends with it.
pub struct Watched<R> {
    body: R,
    call: Option<Box<Call>>,
}

impl<R> Body for Watched<R>
where
    R: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        let code = match &frame {
            Some(Ok(frame)) => frame.trailers_ref().map(|trailers| status(trailers).unwrap_or(Code::Unknown)),
            Some(Err(_)) | None => Some(Code::Unknown),
        };
        if let Some(code) = code
            && let Some(mut call) = this.call.take()
        {
            call.end(code);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use ichor_observe::{LogManager, Start};
    use ichor_rpc::peer::PeerCredentials;
    use ichor_testkit::ScriptedBody;
    use tonic::Status;

    use super::*;

    fn request(path: &str, uid: u32) -> Request<()> {
        let process = PeerCredentials { uid, gid: uid, pid: Some(9) };
        let peer = PeerIdentity { credentials: Some(process), ..PeerIdentity::default() };
        Request::builder()
            .uri(path)
            .header(CALLER, "77 10.5.0.1 aabb jo")
            .header(PROXY, "88 10.5.0.2 ccdd node-1")
            .header(ROLE_KEY, "os:admin")
            .header(ROLE_KEY, "os:reader")
            .extension(Arc::new(peer))
            .body(())
            .unwrap()
    }

    async fn call(logs: &LogManager, request: Request<()>, trailers: Option<HeaderMap>, read: bool) {
        let inner = tower::service_fn(move |request: Request<()>| {
            super::super::target(request.extensions(), || "secrets/x".to_owned());
            let trailers = trailers.clone();
            Box::pin(async move {
                let body = ScriptedBody::stalling([Bytes::from_static(b"abc")]);
                let body = match trailers {
                    Some(trailers) => body.with_trailers(trailers),
                    None => body,
                };
                Ok::<_, Infallible>(Response::new(body))
            })
        });
        let mut service = Audited::new(inner, Audit::new(logs), Some(50));
        let mut body = service.call(request).await.unwrap().into_body();
        while read && let Some(frame) = next(&mut body).await {
            if frame.is_trailers() {
                break;
            }
        }
    }

    async fn next(body: &mut Watched<ScriptedBody>) -> Option<Frame<Bytes>> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        tokio::time::timeout(std::time::Duration::from_millis(20), frame).await.ok()??.ok()
    }

    async fn lines(logs: &LogManager) -> Vec<String> {
        let mut reader = logs.ring(super::super::LOG).reader(Start::Oldest);
        let mut text = Vec::new();
        while let Some(chunk) = reader.next(4096).await {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(text).unwrap();
        // Time and duration are of the moment.
        let masked = |line: &str| {
            let line = &line[line.find("\"level\"").unwrap()..];
            match (line.find(",\"duration_ms\":"), line.find(",\"name\"").or(line.find(",\"uid\""))) {
                (Some(from), Some(to)) => format!("{}{}", &line[..from], &line[to..]),
                _ => line.to_owned(),
            }
        };
        text.lines().map(masked).collect()
    }

    fn trailers(status: &Status) -> HeaderMap {
        status.clone().into_http::<()>().headers().clone()
    }

    #[tokio::test]
    async fn a_call_is_written_at_its_end_with_what_the_gateway_says() {
        let logs = LogManager::new();
        let request = request("/machine.MachineService/Version", 50);
        call(&logs, request, Some(trailers(&Status::ok(""))), true).await;
        assert_eq!(
            lines(&logs).await,
            [concat!(
                r#""level":"info","msg":"call","method":"/machine.MachineService/Version","code":"OK","#,
                r#""name":"jo","certificate":"aabb","address":"10.5.0.1:77","roles":["os:admin","os:reader"],"#,
                r#""proxy_name":"node-1","proxy_certificate":"ccdd","proxy_address":"10.5.0.2:88"}"#
            )]
        );
    }

    #[tokio::test]
    async fn a_process_that_is_not_the_gateway_speaks_for_itself() {
        let logs = LogManager::new();
        let refused = trailers(&Status::not_found("no"));
        call(&logs, request("/machine.MachineService/Version", 0), Some(refused), true).await;
        assert_eq!(
            lines(&logs).await,
            [concat!(
                r#""level":"info","msg":"call","method":"/machine.MachineService/Version","code":"NotFound","#,
                r#""uid":"0","address":"unix","pid":"9","roles":["os:admin","os:reader"]}"#
            )]
        );
    }

    #[tokio::test]
    async fn a_stream_is_written_when_it_opens_and_when_its_reader_goes() {
        let logs = LogManager::new();
        call(&logs, request("/cosi.resource.State/Watch", 50), None, true).await;
        let lines = lines(&logs).await;
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("\"msg\":\"stream opened\""), "{lines:?}");
        assert!(lines[1].contains("\"code\":\"Canceled\""), "{lines:?}");
        assert!(lines.iter().all(|line| line.contains("\"target\":\"secrets/x\"")), "{lines:?}");
    }

    #[tokio::test]
    async fn a_target_is_kept_only_where_it_is_meant_to_be() {
        let logs = LogManager::new();
        let ok = trailers(&Status::ok(""));
        call(&logs, request("/machine.MachineService/MetaWrite", 50), Some(ok), true).await;
        assert!(!lines(&logs).await[0].contains("target"));
    }
}
