//! The server kubelet gets its static pods from.
//!
//! An answer that would repeat what the same connection got last waits until there is something new, for a while: so
//! a change reaches kubelet at once, and an unchanged list costs next to nothing. Kubelet stops pods that leave the list;
//! that is why a machined that was killed goes on with the list and the port of its predecessor until it knows better.
//!
//! A pod that changes is another pod to kubelet, which starts it when the old one is gone; but when it finds the old one
//! still there it looks again only after ten seconds and more. It is made to look every second here: see [`replaced`].

mod mirror;
mod replaced;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_http::server::Limits;
use ichor_resource::config::MachineType;
use ichor_resource::k8s::{NodeStatus, StaticPod, StaticPodServerStatus, StaticPodStatus};
use ichor_resource::v1alpha1::Service;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use crate::kubelet_service::started_since;
use crate::static_pods::{CONTROL_PLANE, WAIT_MAX};
use mirror::Mirrors;
use replaced::{Replaced, Step};

/// Where a machine's server remembers: in memory, so that it is gone after a reboot.
pub const MEMORY: &str = "/system/run/static-pods";
const STATUS: &str = "static-pod-server-status";
/// Kubelet has one connection, people who look have a few. One without a request is closed, and so is one whose caller
/// takes nothing of the answer.
const LIMITS: Limits =
    Limits { connections: 8, request: Duration::from_secs(90), stall: Duration::from_secs(5) };
/// Kubelet gives up after ten seconds.
const HOLD: Duration = Duration::from_secs(9);
/// After a start the controllers have this long to bring back what was there.
const GRACE: Duration = Duration::from_secs(10);

/// What is served; nothing before the first list.
type List = Option<Arc<str>>;

/// Serves `StaticPods` and writes `StaticPodServerStatuses`.
#[derive(Debug)]
pub struct StaticPodServerController {
    memory: Memory,
    list: watch::Sender<List>,
    /// What a predecessor served, until it is clear what became of it.
    former: Option<Former>,
    url: Option<String>,
    replaced: Replaced,
    mirrors: Mirrors,
}

/// The list of a machined that is gone.
#[derive(Debug)]
struct Former {
    text: Arc<str>,
    names: BTreeSet<(String, String)>,
    since: Instant,
    etcd_was_there: bool,
}

/// Where port and list survive a machined that dies, but not a reboot.
#[derive(Debug)]
struct Memory(PathBuf);

impl Memory {
    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok()
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        ichor_sys::file::replace(&self.0.join(name), text.as_bytes(), 0o600)
    }
}

impl StaticPodServerController {
    /// A server that remembers its port and its list in this directory, which must not survive a reboot.
    pub fn new(directory: impl AsRef<Path>) -> Self {
        let memory = Memory(directory.as_ref().to_owned());
        let list = watch::Sender::new(None);
        Self {
            memory,
            list,
            former: None,
            url: None,
            replaced: Replaced::default(),
            mirrors: Mirrors::default(),
        }
    }

    /// Binds the port of before if it is free, and starts to serve.
    async fn listen(&mut self) -> Result<String, ControllerError> {
        let former = self.memory.read("port").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let listener = match bind(former).await {
            Ok(listener) => listener,
            Err(_) if former != 0 => bind(0).await?,
            Err(error) => return Err(error.into()),
        };
        let address = listener.local_addr()?;
        self.memory.write("port", &address.port().to_string())?;
        self.former = self.memory.read("pods").and_then(Former::of);
        tokio::spawn(serve(listener, self.list.clone()));
        Ok(format!("http://{address}"))
    }

    /// The list to serve now, from what the controllers made of the machine so far.
    fn choose(&mut self, current: Arc<str>, names: &BTreeSet<(String, String)>, seen: Seen) -> Arc<str> {
        let Some(former) = &mut self.former else { return current };
        if former.is_over(names, seen) {
            self.former = None;
            return current;
        }
        former.text.clone()
    }
}

/// What tells whether the control plane of before is to go on.
#[derive(Debug, Clone, Copy)]
struct Seen {
    worker: bool,
    etcd: bool,
    now: Instant,
}

impl Former {
    fn of(text: String) -> Option<Self> {
        let list: Json = serde_json::from_str(&text).ok()?;
        let names = names(list["items"].as_array()?);
        (!names.is_empty()).then(|| Self {
            text: text.into(),
            names,
            since: Instant::now(),
            etcd_was_there: false,
        })
    }

    /// Whether the controllers have said all there is to say about these pods.
    fn is_over(&mut self, now_there: &BTreeSet<(String, String)>, seen: Seen) -> bool {
        if self.names.is_subset(now_there) {
            return true;
        }
        let etcd_left = self.etcd_was_there && !seen.etcd;
        self.etcd_was_there |= seen.etcd;
        let age = seen.now.duration_since(self.since);
        let missing = self.names.iter().any(|name| is_control_plane(name) && !now_there.contains(name));
        // None of them: etcd is not healthy yet. Some of them: the others wait for an API server, but not for ever.
        let waits = !seen.worker
            && !etcd_left
            && missing
            && (!now_there.iter().any(is_control_plane) || age < WAIT_MAX + GRACE);
        age >= GRACE && !waits
    }
}

fn is_control_plane((namespace, name): &(String, String)) -> bool {
    namespace == "kube-system" && CONTROL_PLANE.contains(&name.as_str())
}

/// Namespaces and names of pods.
fn names(pods: &[Json]) -> BTreeSet<(String, String)> {
    let text =
        |pod: &Json, key: &str, default: &str| pod["metadata"][key].as_str().unwrap_or(default).to_owned();
    pods.iter().map(|pod| (text(pod, "namespace", "default"), text(pod, "name", ""))).collect()
}

async fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

impl Controller for StaticPodServerController {
    const NAME: &'static str = "k8s.StaticPodServerController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<StaticPod>(),
            weak::<StaticPodStatus>(),
            weak::<NodeStatus>(),
            weak::<MachineType>().id(MachineType::ID),
            weak::<Service>().id("etcd"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<StaticPodServerStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut pods: Vec<Json> =
            ctx.list::<StaticPod>()?.iter().map(|pod| Json::Object(pod.pod.0.clone())).collect();
        let names = names(&pods);
        if self.url.is_none() {
            self.url = Some(self.listen().await?);
        }
        let url = self.url.clone().unwrap_or_default();
        ctx.publish([(STATUS, StaticPodServerStatus { url: url.clone() })])?;
        replaced::identify(&mut pods, &url);
        let statuses = ctx.list::<StaticPodStatus>()?;
        let begun = |name: &str, since| {
            let status = statuses.iter().find(|status| status.id().starts_with(name));
            status.is_some_and(|status| started_since(&status.pod_status.0, since))
        };
        match self.replaced.pass(&mut pods, ctx.now(), begun) {
            Step::Wait(rest) => {
                ctx.requeue_after(rest);
                return Ok(());
            }
            Step::Serve(again) => again.into_iter().for_each(|rest| ctx.requeue_after(rest)),
        }
        let registered = !ctx.list::<NodeStatus>()?.is_empty();
        if let Some(rest) = self.mirrors.pass(&mut pods, registered, ctx.now()) {
            ctx.requeue_after(rest);
        }
        let current: Arc<str> =
            json!({ "apiVersion": "v1", "kind": "PodList", "items": pods }).to_string().into();
        let machine = ctx.get::<MachineType>(MachineType::ID)?;
        let seen = Seen {
            worker: machine.is_some_and(|machine| !machine.machine_type.is_control_plane()),
            etcd: ctx.get::<Service>("etcd")?.is_some(),
            now: Instant::now(),
        };
        let text = self.choose(current, &names, seen);
        if let Some(former) = &self.former {
            let age = seen.now.duration_since(former.since);
            for end in [GRACE, WAIT_MAX + GRACE].into_iter().filter(|end| age < *end) {
                ctx.requeue_after(end - age);
            }
        }
        let changed = self.list.send_if_modified(|list| {
            let changed = list.as_deref() != Some(&*text);
            *list = Some(text.clone());
            changed
        });
        if changed && self.former.is_none() {
            self.memory.write("pods", &text)?;
        }
        Ok(())
    }
}

async fn serve(listener: TcpListener, list: watch::Sender<List>) {
    let service = move || {
        let caller = Arc::new(Mutex::new(Caller { list: list.subscribe(), told: None }));
        service_fn(move |request: Request<Incoming>| {
            let caller = caller.clone();
            async move { Ok::<_, Infallible>(caller.lock().await.answer(request.method()).await) }
        })
    };
    ichor_http::server::serve("static pods", listener, LIMITS, service, std::future::pending()).await;
}

/// One connection, and what it was told last.
struct Caller {
    list: watch::Receiver<List>,
    told: List,
}

impl Caller {
    async fn answer(&mut self, method: &Method) -> Response<Full<Bytes>> {
        if self.told.is_some() && *self.list.borrow_and_update() == self.told {
            // The server lives as long as the process; an end of waiting is as good as a change.
            let _ = timeout(HOLD, self.list.changed()).await;
        }
        self.told = self.list.borrow_and_update().clone();
        let (status, body) = match &self.told {
            _ if method != Method::GET && method != Method::HEAD => {
                (StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".into())
            }
            Some(list) => (StatusCode::OK, Bytes::copy_from_slice(list.as_bytes())),
            None => (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error\n".into()),
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(names: &[(&str, &str)]) -> BTreeSet<(String, String)> {
        names.iter().map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned())).collect()
    }

    #[track_caller]
    fn check(after: u64, (worker, etcd): (bool, bool), there: &[(&str, &str)], over: bool) {
        let since = Instant::now();
        let names = pods(&[("kube-system", "kube-apiserver"), ("kube-system", "kube-scheduler"), ("a", "b")]);
        let mut former = Former { text: "".into(), names, since, etcd_was_there: true };
        let seen = Seen { worker, etcd, now: since + Duration::from_secs(after) };
        assert_eq!(former.is_over(&pods(there), seen), over, "after {after} s");
    }

    const API: (&str, &str) = ("kube-system", "kube-apiserver");
    const SCHEDULER: (&str, &str) = ("kube-system", "kube-scheduler");

    #[test]
    fn a_former_list_lasts_until_it_is_clear_what_became_of_it() {
        check(0, (false, true), &[API, SCHEDULER, ("a", "b")], true);
        check(9, (false, true), &[API, SCHEDULER], false);
        check(10, (false, true), &[API, SCHEDULER], true);
        // The scheduler waits for an API server, for a while.
        check(60, (false, true), &[API, ("a", "b")], false);
        check(70, (false, true), &[API, ("a", "b")], true);
        // An etcd that is ill for hours stops nothing; one that is gone does, and so does another role.
        check(7200, (false, true), &[("a", "b")], false);
        check(10, (false, false), &[("a", "b")], true);
        check(10, (true, true), &[("a", "b")], true);
    }
}
