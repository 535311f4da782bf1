//! The gateway: calls pass through as raw frames, to the machine itself, to one node, or to many.

mod fan;
mod forward;
pub(crate) mod merge;
pub(crate) mod quota;
mod upstreams;

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::FutureExt;
use futures_util::future::Either;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use ichor_pki::Role;
use tonic::Status;

use crate::authorize;
use crate::body::{ReplyBody, RequestBody, UpstreamBody, Verdict};
use crate::caller::{self, Parts};
use crate::channel::{Begun, Channel};
use crate::dial::{Dialer, Endpoint};
use crate::ledger::Ledger;
use crate::members::Members;
use crate::peer::PeerIdentity;
use crate::roles;
use crate::route::{self, Facts, Route};
use crate::status;
use crate::tls::ClientTls;

use forward::{Begun as Answered, Gate};
use quota::{Quota, Share};
use upstreams::{Private, Upstream, Upstreams};

/// The port of the node API.
pub const API_PORT: u16 = 50000;

/// The most connections to the machine that wait for another client. Each costs some 50 KiB on both
/// sides, and spares a client that comes next a quarter of its price.
const SPARE_MAX: usize = 4;

/// Beyond this many clients, connections to the machine are made when they are needed.
const WARM_MAX: usize = 64;

/// What the connections of a gateway share.
pub struct Proxy {
    local: Dialer,
    spare: Mutex<Vec<Channel<RequestBody>>>,
    port: u16,
    facts: ArcSwap<Facts>,
    members: Arc<ArcSwap<Members>>,
    quota: Quota,
    remote: ArcSwapOption<Upstreams>,
    pulse: AtomicUsize,
    ledger: Arc<Ledger>,
    clients: AtomicUsize,
}

impl Proxy {
    /// A gateway in front of `local`. It forwards to other nodes, at `port`, once it has a certificate.
    pub fn new(local: Dialer, port: u16) -> Arc<Self> {
        Arc::new(Self {
            local,
            spare: Mutex::default(),
            port,
            facts: ArcSwap::from_pointee(Facts::default()),
            members: Arc::default(),
            quota: Quota::default(),
            remote: ArcSwapOption::empty(),
            pulse: AtomicUsize::new(0),
            ledger: Arc::default(),
            clients: AtomicUsize::new(0),
        })
    }

    /// Replaces what the node knows of itself.
    pub fn set_facts(&self, facts: Facts) {
        self.facts.store(Arc::new(facts));
    }

    /// Replaces the members of the cluster, whom callers of every role may reach.
    pub fn set_members(&self, members: Members) {
        self.members.store(Arc::new(members));
    }

    /// Replaces the identity that calls are forwarded with; none stops forwarding.
    ///
    /// Connections made with the old one take no new calls and are closed once idle.
    pub fn set_identity(&self, identity: Option<ClientTls>) {
        let fresh = identity.map(|tls| Arc::new(Upstreams::new(tls, self.port, self.members.clone())));
        if let Some(old) = self.remote.swap(fresh) {
            old.retire();
        }
    }

    /// Closes connections that nobody has used for a while. Call it now and then.
    pub fn sweep(&self) {
        drop(std::mem::take(&mut *self.spare()));
        if let Some(remote) = &*self.remote.load() {
            remote.sweep();
        }
    }

    /// A number that grows with every call and every connection that ends: equal twice means quiet.
    pub fn pulse(&self) -> usize {
        self.pulse.load(Relaxed)
    }

    /// Who was turned away here.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Connections to the machine without a client.
    fn spare(&self) -> MutexGuard<'_, Vec<Channel<RequestBody>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The side of one client connection.
    pub fn connection(self: &Arc<Self>, peer: &PeerIdentity) -> Arc<ProxyConnection> {
        self.clients.fetch_add(1, Relaxed);
        let spare = self.spare().pop();
        let machine = spare.unwrap_or_else(|| Channel::new(self.local.clone()));
        let caller = caller::header_value(peer);
        let share = self.quota.share(Parts::parse(caller_text(&caller)).credential);
        Arc::new(ProxyConnection {
            proxy: self.clone(),
            own: roles::header_values(&peer.roles),
            caller,
            share,
            impersonates: peer.roles.contains(Role::Impersonator),
            // On a Unix socket the roles are those of the metadata.
            is_local: peer.credentials.is_some() || peer.address.is_none(),
            machine,
            private: Private::default(),
        })
    }
}

/// The gateway as one client connection sees it.
///
/// Each has its own connection to the machine, so that a client that reads nothing stalls only itself.
pub struct ProxyConnection {
    proxy: Arc<Proxy>,
    own: Vec<HeaderValue>,
    caller: HeaderValue,
    share: Arc<Share>,
    impersonates: bool,
    is_local: bool,
    machine: Channel<RequestBody>,
    private: Private,
}

impl fmt::Debug for ProxyConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyConnection").field("own", &self.own).finish_non_exhaustive()
    }
}

impl ProxyConnection {
    /// Connects to the machine ahead of the first call. A failure shows when a call is made.
    ///
    /// In a crowd nothing is done ahead: most of it may never call.
    pub async fn warm(self: Arc<Self>) {
        if self.proxy.clients.load(Relaxed) > WARM_MAX {
            return;
        }
        let _ = self.machine.connect().await;
    }

    /// Answers one call.
    ///
    /// The future of a call to the machine itself is small and made of combinators: it is moved into a
    /// task for every call and lives as long as every stream. All other ways are boxed.
    pub fn handle(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ReplyBody>, Infallible>> + Send + use<> {
        self.proxy.pulse.fetch_add(1, Relaxed);
        if let Some(refusal) = not_a_call(&request) {
            return Either::Right(Either::Right(ready(Ok(refusal))));
        }
        self.identify(request.headers_mut());
        let this = self.clone();
        match self.decide(&request) {
            Route::Local => {
                // The machine has no use for them, and they may be many.
                request.headers_mut().remove(route::NODE);
                request.headers_mut().remove(route::NODES);
                let verdict = Verdict::default();
                let request = request.map(|incoming| RequestBody::passed(incoming, verdict.clone()));
                match self.machine.begin(request) {
                    Begun::Sent(sent) => Either::Left(sent.then(move |result| match result {
                        Ok(response) => {
                            let response =
                                response.map(|body| ReplyBody::Upstream(UpstreamBody::new(body).of(this)));
                            Either::Right(ready(Ok(response)))
                        }
                        Err(error) => Either::Left(boxed(async move {
                            let answer = this.machine.recover(error).await;
                            finish(answer.map(|response| held(response, this)), &verdict)
                        })),
                    })),
                    Begun::Unsent(request) => Either::Right(Either::Left(boxed(async move {
                        let answer = this.machine.send(request).await;
                        finish(answer.map(|response| held(response, this)), &verdict)
                    }))),
                }
            }
            Route::One(target) => {
                Either::Right(Either::Left(boxed(async move { this.forward(target, request).await })))
            }
            Route::Many(targets) => Either::Right(Either::Left(boxed(fan::call(this, targets, request)))),
            Route::Refused(status) => {
                let status = self.turned_away(request.uri().path(), status);
                Either::Right(Either::Right(ready(Ok(status::trailers_only(status)))))
            }
        }
    }

    fn decide(&self, request: &Request<Incoming>) -> Route {
        let headers = request.headers();
        if let Err(refused) = route::check_metadata(headers) {
            return Route::Refused(refused);
        }
        // Most calls name no target at all.
        if !headers.contains_key(route::NODE) && !headers.contains_key(route::NODES) {
            return Route::Local;
        }
        let forwards = self.proxy.remote.load().is_some();
        route::route(request.uri().path(), headers, forwards, &self.proxy.facts.load())
    }

    fn identify(&self, headers: &mut HeaderMap) {
        caller::write(headers, &self.caller, self.impersonates);
        if self.is_local || (self.impersonates && headers.contains_key(roles::ROLE)) {
            return;
        }
        roles::write(headers, &self.own);
    }

    fn upstreams(&self) -> Result<Arc<Upstreams>, Status> {
        let remote = self.proxy.remote.load_full();
        remote.ok_or_else(|| Status::permission_denied("no request forwarding"))
    }

    /// Records a call that the gateway answers itself.
    fn turned_away(&self, path: &str, status: Status) -> Status {
        let method = authorize::known(path).unwrap_or("unknown");
        self.proxy.ledger.call(caller_text(&self.caller), method, status.code(), status.message());
        status
    }

    /// Whom the caller of a call with these headers may reach.
    fn gate(&self, headers: &HeaderMap) -> Gate {
        Gate::new(headers, self.proxy.members.load_full())
    }

    async fn forward(
        &self,
        target: Arc<str>,
        mut request: Request<Incoming>,
    ) -> Result<Response<ReplyBody>, Status> {
        let upstreams = self.upstreams()?;
        let taken = self.share.one().map_err(|refused| self.turned_away(request.uri().path(), refused))?;
        let gate = self.gate(request.headers());
        let (path, from) = (request.uri().path().to_owned(), proxied_from(request.uri()));
        strip(request.headers_mut(), from);
        let verdict = Verdict::default();
        let make = |upstream: &Upstream| {
            *request.uri_mut() = upstream.uri(request.uri())?;
            Ok(request.map(|incoming| RequestBody::passed(incoming, verdict.clone())))
        };
        let answer = self.send_to(&upstreams, &gate, &target, &path, make).await;
        match answer {
            Ok(Answered { response, running, .. }) => {
                finish(Ok(response), &verdict).map(|response| upstreams::hold(response, running.keep(taken)))
            }
            Err(failed) => finish(Err(failed), &verdict),
        }
    }
}

/// Who calls, as text.
fn caller_text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

impl Drop for ProxyConnection {
    /// No reply is being read any more, so the connection to the machine may serve the next client.
    fn drop(&mut self) {
        self.proxy.pulse.fetch_add(1, Relaxed);
        self.proxy.clients.fetch_sub(1, Relaxed);
        let mut spare = self.proxy.spare();
        if spare.len() < SPARE_MAX && self.machine.is_connected() {
            spare.push(self.machine.clone());
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

/// A call on one of the less common ways; its failure is a reply too.
fn boxed(call: impl Future<Output = Result<Response<ReplyBody>, Status>> + Send + 'static) -> Answer {
    Box::pin(call.map(|answer| Ok(answer.unwrap_or_else(status::trailers_only))))
}

/// A reply that keeps its client's side until it is read.
fn held(response: Response<UpstreamBody>, client: Arc<ProxyConnection>) -> Response<UpstreamBody> {
    response.map(|body| body.of(client))
}

/// The reply of an upstream, or why there is none.
fn finish(
    answer: Result<Response<UpstreamBody>, Status>,
    verdict: &Verdict,
) -> Result<Response<ReplyBody>, Status> {
    match answer {
        Ok(response) => Ok(response.map(ReplyBody::Upstream)),
        // A body that was stopped for its own fault says more than the reset it caused.
        Err(broken) => Err(verdict.get().cloned().unwrap_or(broken)),
    }
}

/// Answers what is HTTP/2 but no gRPC call.
fn not_a_call(request: &Request<Incoming>) -> Option<Response<ReplyBody>> {
    if request.method() != Method::POST {
        let text = format!(
            "Received a HEADERS frame with :method {:?} which should be POST",
            request.method().as_str()
        );
        return Some(status::not_grpc(StatusCode::METHOD_NOT_ALLOWED, Status::internal(text)));
    }
    let kind = request.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if let Some(rest) = kind.strip_prefix(b"application/grpc")
        && matches!(rest.first(), None | Some(b'+' | b';'))
    {
        return None;
    }
    let text = format!("invalid gRPC request content-type {:?}", String::from_utf8_lossy(kind));
    Some(status::not_grpc(StatusCode::UNSUPPORTED_MEDIA_TYPE, Status::invalid_argument(text)))
}

/// What `proxyfrom` says: the authority the client called.
fn proxied_from(uri: &Uri) -> HeaderValue {
    let authority = uri.authority().map(Authority::as_str).filter(|text| !text.is_empty());
    authority
        .and_then(|text| HeaderValue::from_str(text).ok())
        .unwrap_or_else(|| HeaderValue::from_static("unknown"))
}

/// Makes the metadata of a forwarded call: no targets, and the mark that stops loops.
fn strip(headers: &mut HeaderMap, from: HeaderValue) {
    headers.remove(route::NODE);
    headers.remove(route::NODES);
    headers.insert(route::PROXY_FROM, from);
}

/// The time a client grants a call, from its `grpc-timeout`.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The whole URI of a call to `endpoint`.
fn uri_for(endpoint: &Endpoint, path: &Uri) -> Result<Uri, Status> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(Scheme::HTTPS);
    let authority = Authority::try_from(endpoint.to_string());
    parts.authority =
        Some(authority.map_err(|_| Status::internal(format!("invalid target {:?}", endpoint.host)))?);
    parts.path_and_query = path.path_and_query().cloned();
    Uri::from_parts(parts).map_err(|_| Status::internal("malformed method name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_future_of_a_local_call_stays_small() {
        fn size<F>(_: impl FnOnce(&Arc<ProxyConnection>, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        // It was 9 kB once, with the state of a TLS handshake in it, and the call cost twice as much.
        let found = size(ProxyConnection::handle);
        assert!(found <= 512, "{found} bytes");
    }

    #[test]
    fn timeouts_are_read_in_every_unit() {
        let read = |text: &str| {
            let mut map = HeaderMap::new();
            map.insert("grpc-timeout", HeaderValue::from_str(text).unwrap());
            deadline(&map)
        };
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("99999999m"), Some(Duration::from_millis(99_999_999)));
        assert_eq!(read("5n"), Some(Duration::from_nanos(5)));
        for bad in ["", "m", "5", "5x", "123456789m", "-5m", "5\u{20}m"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
