//! A Kubernetes API server in memory: objects, versions, watches, field owners. No schemas, no authorization.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Method;
use ichor_kube::{Chunks, Client, Error, Reply, Request, Transport};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

/// What the server knows: group and version, kind, plural, whether namespaced.
const KINDS: &[(&str, &str, &str, bool)] = &[
    ("v1", "Namespace", "namespaces", false),
    ("v1", "Node", "nodes", false),
    ("v1", "Pod", "pods", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Service", "services", true),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "Endpoints", "endpoints", true),
    ("v1", "Event", "events", true),
    ("apps/v1", "DaemonSet", "daemonsets", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("talos.dev/v1alpha1", "ServiceAccount", "serviceaccounts", true),
];

/// The server. Clones share it.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    objects: BTreeMap<String, Value>,
    version: u64,
    history: Vec<Happened>,
    watchers: Vec<Watcher>,
    calls: Vec<String>,
    down: bool,
    /// Objects whose writes are refused as invalid, and evictions that a budget holds back so many times.
    refused: BTreeSet<String>,
    held_back: usize,
}

#[derive(Clone)]
struct Happened {
    version: u64,
    what: &'static str,
    collection: String,
    object: Value,
}

struct Watcher {
    path: String,
    fields: String,
    send: mpsc::UnboundedSender<Bytes>,
}

impl Server {
    /// An empty server.
    pub fn new() -> Self {
        Self::default()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::over(self.clone())
    }

    /// Stores an object at a path, as it is.
    pub fn put(&self, path: &str, object: Value) {
        self.world().store(path, object);
    }

    /// The object at a path.
    pub fn object(&self, path: &str) -> Option<Value> {
        self.world().objects.get(path).cloned()
    }

    /// All paths.
    pub fn paths(&self) -> Vec<String> {
        self.world().objects.keys().cloned().collect()
    }

    /// The calls since the last time, reads left out.
    pub fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.world().calls)
    }

    /// Makes connections fail, or work again.
    pub fn set_down(&self, down: bool) {
        let mut world = self.world();
        world.down = down;
        if down {
            world.watchers.clear();
        }
    }

    /// Refuses all writes to an object.
    pub fn refuse(&self, path: &str) {
        self.world().refused.insert(path.to_owned());
    }

    /// Lets a budget hold back so many evictions.
    pub fn hold_back(&self, evictions: usize) {
        self.world().held_back = evictions;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Server {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Error>> {
        let mut world = self.world();
        let reply = match world.down {
            true => Err(Error::Broken { what: request.what(), text: "the server is down".into() }),
            false => Ok(world.serve(&request)),
        };
        Box::pin(std::future::ready(reply))
    }
}

/// Whole bodies, then those of a watch.
struct Body {
    whole: Vec<Bytes>,
    more: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl Chunks for Body {
    fn next(&mut self) -> BoxFuture<'_, Option<Result<Bytes, String>>> {
        Box::pin(async move {
            if let Some(whole) = self.whole.pop() {
                return Some(Ok(whole));
            }
            self.more.as_mut()?.recv().await.map(Ok)
        })
    }
}

fn reply(code: u16, value: &Value) -> Reply {
    Reply { code, location: None, body: Box::new(Body { whole: vec![value.to_string().into()], more: None }) }
}

fn status(code: u16, reason: &str, message: &str) -> Reply {
    reply(code, &json!({ "kind": "Status", "code": code, "reason": reason, "message": message }))
}

/// A path taken apart.
struct Place {
    prefix: String,
    namespace: Option<String>,
    plural: String,
    name: Option<String>,
    sub: Option<String>,
}

fn place(path: &str) -> Option<Place> {
    let parts: Vec<String> = path.trim_matches('/').split('/').map(unescape).collect();
    let head = if parts.first()? == "api" { 2 } else { 3 };
    let prefix = format!("/{}", parts.get(..head)?.join("/"));
    let mut rest = parts[head..].iter();
    let mut plural = rest.next()?.clone();
    let mut namespace = None;
    if plural == "namespaces" && rest.len() >= 2 {
        namespace = rest.next().cloned();
        plural = rest.next()?.clone();
    }
    Some(Place { prefix, namespace, plural, name: rest.next().cloned(), sub: rest.next().cloned() })
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let digits = |bytes: &mut std::str::Bytes<'_>| {
            let (high, low) = (bytes.next()?, bytes.next()?);
            u8::from_str_radix(std::str::from_utf8(&[high, low]).ok()?, 16).ok()
        };
        match byte {
            b'%' => out.extend(digits(&mut bytes)),
            _ => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Place {
    fn collection(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
            None => format!("{}/{}", self.prefix, self.plural),
        }
    }

    fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.collection(self.namespace.as_deref()))
    }
}

impl World {
    fn serve(&mut self, request: &Request) -> Reply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let query: BTreeMap<String, String> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), unescape(value)))
            .collect();
        if path == "/readyz" || path.starts_with("/readyz/") {
            return reply(200, &json!("ok"));
        }
        let Some(place) = place(path) else { return discovery(path) };
        if request.method != Method::GET {
            self.calls.push(request.what());
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let manager = query.get("fieldManager").map_or("unknown", String::as_str);
        match (request.method.as_str(), &place.name, &place.sub) {
            ("GET", None, None) if query.contains_key("watch") => self.watch(path, &query),
            ("GET", None, None) => self.list(path, &query),
            ("GET", Some(name), None) => match self.objects.get(&place.object(name)) {
                Some(object) => reply(200, object),
                None => status(404, "NotFound", &format!("{} {name:?} not found", place.plural)),
            },
            ("GET", Some(name), Some(sub)) if sub == "log" => {
                // Pods of tests carry what they have said.
                let text = self.objects.get(&place.object(name)).and_then(|pod| pod["log"].as_str());
                let whole = vec![text.unwrap_or_default().to_owned().into()];
                Reply { code: 200, location: None, body: Box::new(Body { whole, more: None }) }
            }
            ("POST", None, None) => self.create(&place, body, manager),
            ("POST", Some(name), Some(sub)) if sub == "eviction" => self.evict(&place.object(name)),
            ("PUT", Some(name), None) => self.replace(&place.object(name), body, manager),
            ("PATCH", Some(name), None) => {
                let path = place.object(name);
                match request.content_type {
                    "application/apply-patch+yaml" => {
                        self.apply(&path, body, manager, query.contains_key("force"))
                    }
                    "application/json-patch+json" => self.edit(&path, &body),
                    _ => self.merge(&path, &body),
                }
            }
            ("DELETE", Some(name), None) => match self.remove(&place.object(name)) {
                Some(object) => reply(200, &object),
                None => status(404, "NotFound", "not found"),
            },
            _ => status(405, "MethodNotAllowed", "the server does not allow this method"),
        }
    }

    fn list(&self, path: &str, query: &BTreeMap<String, String>) -> Reply {
        let fields = query.get("fieldSelector").map_or("", String::as_str);
        let all = self.objects.iter();
        let found = all.filter(|(object, _)| within(object, path)).map(|(_, object)| object);
        let items: Vec<_> = found.filter(|object| selected(object, fields)).cloned().collect();
        reply(200, &json!({ "items": items, "metadata": { "resourceVersion": self.version.to_string() } }))
    }

    fn watch(&mut self, path: &str, query: &BTreeMap<String, String>) -> Reply {
        let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or_default();
        let fields = query.get("fieldSelector").cloned().unwrap_or_default();
        let (send, more) = mpsc::unbounded_channel();
        for event in self.history.iter().filter(|event| event.version > from) {
            if within(&format!("{}/x", event.collection), path) && selected(&event.object, &fields) {
                let _ = send.send(line(event.what, &event.object));
            }
        }
        self.watchers.push(Watcher { path: path.to_owned(), fields, send });
        Reply { code: 200, location: None, body: Box::new(Body { whole: Vec::new(), more: Some(more) }) }
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.version).into();
        }
        let what = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());
        self.tell(what, path, object.clone());
        object
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        self.version += 1;
        self.tell("DELETED", path, object.clone());
        Some(object)
    }

    fn tell(&mut self, what: &'static str, path: &str, object: Value) {
        let collection = path.rsplit_once('/').map_or("", |(collection, _)| collection).to_owned();
        self.watchers.retain(|watcher| {
            let matches = within(path, &watcher.path) && selected(&object, &watcher.fields);
            !matches || watcher.send.send(line(what, &object)).is_ok()
        });
        self.history.push(Happened { version: self.version, what, collection, object });
    }

    fn create(&mut self, place: &Place, mut object: Value, manager: &str) -> Reply {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = place.object(&name);
        if self.objects.contains_key(&path) {
            return status(409, "AlreadyExists", &format!("{} {name:?} already exists", place.plural));
        }
        if self.refused.contains(&path) {
            return status(422, "Invalid", &format!("{name} is invalid"));
        }
        let fields = leaves(&object).into_keys().collect();
        set_managers(&mut object, &[(manager.to_owned(), "Update".to_owned(), fields)]);
        reply(201, &self.store(&path, object))
    }

    fn replace(&mut self, path: &str, mut object: Value, manager: &str) -> Reply {
        let Some(old) = self.objects.get(path).cloned() else {
            return status(404, "NotFound", "not found");
        };
        let given = &object["metadata"]["resourceVersion"];
        if given.is_string() && *given != old["metadata"]["resourceVersion"] {
            return status(409, "Conflict", "the object has been modified");
        }
        let (before, after) = (leaves(&old), leaves(&object));
        let changed: BTreeSet<String> = after
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(value))
            .map(|(key, _)| key.clone())
            .collect();
        let mut owners = managers(&old);
        for (_, _, fields) in &mut owners {
            fields.retain(|field| !changed.contains(field));
        }
        owners.push((manager.to_owned(), "Update".to_owned(), changed));
        object["metadata"]["uid"] = old["metadata"]["uid"].clone();
        set_managers(&mut object, &owners);
        reply(200, &self.store(path, object))
    }

    fn apply(&mut self, path: &str, object: Value, manager: &str, force: bool) -> Reply {
        if self.refused.contains(path) {
            return status(422, "Invalid", "the object is invalid");
        }
        let wanted = leaves(&object);
        let mut live = self.objects.get(path).cloned().unwrap_or_else(|| object.clone());
        let (have, mut owners) = (leaves(&live), managers(&live));
        let mut causes = Vec::new();
        for (field, value) in &wanted {
            if have.get(field) == Some(value) {
                continue;
            }
            for (other, operation, fields) in &mut owners {
                let other_one = other != manager || operation != "Apply";
                if other_one && fields.contains(field) {
                    causes.push(
                        json!({ "field": field, "message": format!("conflict with {other:?} using v1") }),
                    );
                    fields.remove(field);
                }
            }
        }
        if !causes.is_empty() && !force {
            let mut body =
                json!({ "kind": "Status", "code": 409, "reason": "Conflict", "message": "Apply failed" });
            body["details"]["causes"] = causes.into();
            return reply(409, &body);
        }
        let own = owners.iter().position(|(other, operation, _)| other == manager && operation == "Apply");
        let before = own.map(|at| owners.remove(at).2).unwrap_or_default();
        for field in &before {
            if !wanted.contains_key(field) && !owners.iter().any(|(_, _, fields)| fields.contains(field)) {
                set(&mut live, field, None);
            }
        }
        for (field, value) in &wanted {
            set(&mut live, field, Some(value.clone()));
        }
        owners.push((manager.to_owned(), "Apply".to_owned(), wanted.into_keys().collect()));
        set_managers(&mut live, &owners);
        reply(200, &self.store(path, live))
    }

    fn merge(&mut self, path: &str, patch: &Value) -> Reply {
        let Some(mut object) = self.objects.get(path).cloned() else {
            return status(404, "NotFound", "not found");
        };
        let given = &patch["metadata"]["resourceVersion"];
        if given.is_string() && *given != object["metadata"]["resourceVersion"] {
            return status(409, "Conflict", "the object has been modified");
        }
        merge(&mut object, patch);
        reply(200, &self.store(path, object))
    }

    /// Only tests and replacements.
    fn edit(&mut self, path: &str, patch: &Value) -> Reply {
        let Some(mut object) = self.objects.get(path).cloned() else {
            return status(404, "NotFound", "not found");
        };
        for step in patch.as_array().into_iter().flatten() {
            let place = object.pointer_mut(step["path"].as_str().unwrap_or_default());
            match (step["op"].as_str(), place) {
                (Some("replace"), Some(place)) => *place = step["value"].clone(),
                (Some("test"), Some(place)) if *place == step["value"] => {}
                _ => return status(422, "Invalid", "the patch does not apply"),
            }
        }
        reply(200, &self.store(path, object))
    }

    fn evict(&mut self, path: &str) -> Reply {
        if self.held_back > 0 {
            self.held_back -= 1;
            return status(429, "TooManyRequests", "would violate the pod's disruption budget");
        }
        match self.remove(path) {
            Some(_) => status(201, "", ""),
            None => status(404, "NotFound", "not found"),
        }
    }
}

fn discovery(path: &str) -> Reply {
    let group = path.trim_start_matches("/apis/").trim_start_matches("/api/");
    let resources: Vec<_> = KINDS
        .iter()
        .filter(|(version, ..)| *version == group)
        .map(
            |(_, kind, plural, namespaced)| json!({ "name": plural, "kind": kind, "namespaced": namespaced }),
        )
        .collect();
    match resources.is_empty() {
        true => status(404, "NotFound", "the server could not find the requested resource"),
        false => reply(200, &json!({ "resources": resources })),
    }
}

fn line(what: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({ "type": what, "object": object })).into()
}

/// Whether an object lies in a collection, of one namespace or of all.
fn within(object: &str, collection: &str) -> bool {
    let Some((own, _)) = object.rsplit_once('/') else { return false };
    let (Some(a), Some(b)) = (place(own), place(collection)) else { return false };
    a.prefix == b.prefix && a.plural == b.plural && (b.namespace.is_none() || a.namespace == b.namespace)
}

fn selected(object: &Value, fields: &str) -> bool {
    fields.split(',').filter_map(|pair| pair.split_once('=')).all(|(field, value)| {
        object.pointer(&format!("/{}", field.replace('.', "/"))).and_then(Value::as_str) == Some(value)
    })
}

/// What can be owned: everything that is no mapping, by its path.
fn leaves(object: &Value) -> BTreeMap<String, Value> {
    fn walk(value: &Value, path: &str, out: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    walk(value, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), out);
                }
            }
            _ => {
                out.insert(path.to_owned(), value.clone());
            }
        }
    }
    const NOT_OWNED: &[&str] = &[
        "/apiVersion",
        "/kind",
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/uid",
        "/metadata/resourceVersion",
        "/metadata/managedFields",
    ];
    let mut out = BTreeMap::new();
    walk(object, "", &mut out);
    out.retain(|path, _| !NOT_OWNED.contains(&path.as_str()));
    out
}

fn set(object: &mut Value, path: &str, value: Option<Value>) {
    let keys: Vec<String> =
        path.split('/').skip(1).map(|key| key.replace("~1", "/").replace("~0", "~")).collect();
    let Some((last, parents)) = keys.split_last() else { return };
    let mut at = object;
    for key in parents {
        if !at[key.as_str()].is_object() {
            at[key.as_str()] = Value::Object(Map::new());
        }
        at = &mut at[key.as_str()];
    }
    match (value, at.as_object_mut()) {
        (Some(value), Some(map)) => drop(map.insert(last.clone(), value)),
        (None, Some(map)) => drop(map.remove(last)),
        (_, None) => {}
    }
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, change) in changes {
        match change {
            Value::Null => drop(object.as_object_mut().map(|map| map.remove(key))),
            _ => merge(&mut object[key.as_str()], change),
        }
    }
}

type Owners = Vec<(String, String, BTreeSet<String>)>;

fn managers(object: &Value) -> Owners {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    entries
        .map(|entry| {
            let fields = entry["fieldsV1"].as_object().into_iter().flatten();
            (text(&entry["manager"]), text(&entry["operation"]), fields.map(|(key, _)| key.clone()).collect())
        })
        .collect()
}

fn set_managers(object: &mut Value, owners: &[(String, String, BTreeSet<String>)]) {
    let entries = owners.iter().filter(|(_, _, fields)| !fields.is_empty());
    let entries: Vec<_> = entries
        .map(|(manager, operation, fields)| {
            let fields: Map<_, _> = fields.iter().map(|field| (field.clone(), json!({}))).collect();
            json!({ "manager": manager, "operation": operation, "fieldsV1": fields })
        })
        .collect();
    object["metadata"]["managedFields"] = entries.into();
}
