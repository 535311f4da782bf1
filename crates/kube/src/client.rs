//! Calls on objects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::Method;
use ichor_types::deadlines::CALL_KUBERNETES;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::access::{Access, AccessError};
use crate::error::{Error, Status};
use crate::kind::{Kind, Target, with_query};
use crate::transport::{Chunks, Reply, Request, Transport};
use crate::watch::Watch;

/// The largest answer.
const BODY_MAX: usize = 16 << 20;
/// Groups that are remembered; real clusters have a few dozen.
const GROUPS_MAX: usize = 512;

const JSON: &str = "application/json";

/// A server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Box<dyn Transport>,
    groups: Mutex<HashMap<String, Group>>,
}

/// The kinds of a group and version, by name.
type Group = Arc<Vec<(String, Kind)>>;

/// Which objects to list or watch, as the server writes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Select<'a> {
    /// Such as `k8s-app=kube-proxy`; empty for any.
    pub labels: &'a str,
    /// Such as `spec.nodeName=a`; empty for any.
    pub fields: &'a str,
}

/// How to write.
#[derive(Debug, Clone, Copy, Default)]
pub struct Write<'a> {
    /// Who writes; the owner of the fields.
    pub manager: &'a str,
    /// Take fields away from other owners (apply only).
    pub force: bool,
    /// Check only.
    pub dry_run: bool,
}

impl<'a> Write<'a> {
    /// Writes as that owner.
    pub fn by(manager: &'a str) -> Self {
        Self { manager, ..Self::default() }
    }

    fn query(&self) -> [(&'static str, &'a str); 2] {
        [("fieldManager", self.manager), ("dryRun", if self.dry_run { "All" } else { "" })]
    }
}

/// How to remove.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delete<'a> {
    /// Only the object with this uid.
    pub uid: &'a str,
    /// Only this version of the object.
    pub version: &'a str,
    /// Time for pods to end, in seconds.
    pub grace: Option<u32>,
    /// Check only.
    pub dry_run: bool,
}

/// Kinds of patches, beside apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
    /// As the server's own types say: lists of named things are merged by name.
    Strategic,
}

/// Objects, and the version of the whole.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// The objects.
    pub items: Vec<Value>,
    /// Where a watch goes on.
    pub version: String,
}

impl Client {
    /// The server of a kubeconfig. Nothing connects before the first call.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn from_kubeconfig(text: &str) -> Result<Self, AccessError> {
        Self::new(&Access::from_kubeconfig(text)?)
    }

    /// The server that can be reached like this.
    ///
    /// # Errors
    /// When certificates or token make no sense.
    pub fn new(access: &Access) -> Result<Self, AccessError> {
        Ok(Self::over(access.transport()?))
    }

    /// A server behind any transport.
    pub fn over(transport: impl Transport) -> Self {
        Self { inner: Arc::new(Inner { transport: Box::new(transport), groups: Mutex::default() }) }
    }

    /// Whether the server is ready to serve.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn ready(&self) -> Result<(), Error> {
        self.bytes(request(Method::GET, "/readyz".to_owned())).await.map(drop)
    }

    /// Whether one of the checks behind [`Client::ready`] passes, such as `poststarthook/rbac/bootstrap-roles`.
    ///
    /// # Errors
    /// As [`Client::get`]; a check that does not pass is an error with a status.
    pub async fn passes(&self, check: &str) -> Result<(), Error> {
        self.bytes(request(Method::GET, format!("/readyz/{check}"))).await.map(drop)
    }

    /// What is at a path.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn read(&self, path: &str) -> Result<Value, Error> {
        self.value(request(Method::GET, path.to_owned())).await
    }

    /// One object.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses; [`Error::is_not_found`] when there is none.
    pub async fn get(&self, target: &Target) -> Result<Value, Error> {
        self.value(request(Method::GET, target.path())).await
    }

    /// One object, or none.
    ///
    /// # Errors
    /// As [`Client::get`], but for objects that are not there.
    pub async fn find(&self, target: &Target) -> Result<Option<Value>, Error> {
        match self.get(target).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects of a kind, in a namespace (empty: in all) and as selected.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn list(&self, kind: &Kind, namespace: &str, select: Select<'_>) -> Result<List, Error> {
        let pairs = [("labelSelector", select.labels), ("fieldSelector", select.fields)];
        let mut value = self.value(request(Method::GET, with_query(kind.path(namespace), &pairs))).await?;
        let version = value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let items = match value["items"].take() {
            Value::Array(items) => items.into_iter().filter(Value::is_object).collect(),
            _ => Vec::new(),
        };
        Ok(List { items, version })
    }

    /// What a container has said and goes on saying, until it ends. Waiting for the next piece is for the caller to
    /// bound.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn log(&self, namespace: &str, pod: &str, container: &str) -> Result<Box<dyn Chunks>, Error> {
        let path = format!("{}/log", Target::new(Kind::PODS, namespace, pod).path());
        let path = with_query(path, &[("container", container), ("follow", "true")]);
        Ok(self.open(path).await?.body)
    }

    /// All objects of a kind, and then what changes.
    pub fn watch(&self, kind: Kind, namespace: &str, select: Select<'_>) -> Watch {
        Watch::new(self.clone(), kind, namespace, select)
    }

    /// Makes a new object.
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::is_already_exists`].
    pub async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: &Value,
        write: Write<'_>,
    ) -> Result<Value, Error> {
        let path = with_query(kind.path(namespace), &write.query());
        self.value(with_body(Method::POST, path, JSON, object)).await
    }

    /// Puts an object in place of another.
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::is_conflict`] when the version it names is not the current one.
    pub async fn replace(&self, target: &Target, object: &Value, write: Write<'_>) -> Result<Value, Error> {
        let path = with_query(target.path(), &write.query());
        self.value(with_body(Method::PUT, path, JSON, object)).await
    }

    /// Makes or changes an object so that it has these fields; the server keeps who owns what.
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::is_conflict`] when others own fields with other values.
    pub async fn apply(&self, target: &Target, object: &Value, write: Write<'_>) -> Result<Value, Error> {
        let [manager, dry_run] = write.query();
        let force = ("force", if write.force { "true" } else { "" });
        let path = with_query(target.path(), &[manager, dry_run, force]);
        self.value(with_body(Method::PATCH, path, "application/apply-patch+yaml", object)).await
    }

    /// Changes an object.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn patch(
        &self,
        target: &Target,
        patch: Patch,
        change: &Value,
        write: Write<'_>,
    ) -> Result<Value, Error> {
        let content_type = match patch {
            Patch::Merge => "application/merge-patch+json",
            Patch::Json => "application/json-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        let path = with_query(target.path(), &write.query());
        self.value(with_body(Method::PATCH, path, content_type, change)).await
    }

    /// Removes an object; what depends on it goes in the background.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn delete(&self, target: &Target, delete: Delete<'_>) -> Result<(), Error> {
        let mut options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
        });
        for (key, value) in [("uid", delete.uid), ("resourceVersion", delete.version)] {
            if !value.is_empty() {
                options["preconditions"][key] = value.into();
            }
        }
        if let Some(grace) = delete.grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        let dry_run = if delete.dry_run { "All" } else { "" };
        let path = with_query(target.path(), &[("dryRun", dry_run)]);
        self.value(with_body(Method::DELETE, path, JSON, &options)).await.map(drop)
    }

    /// Asks for a pod to be moved elsewhere, as disruption budgets allow.
    ///
    /// # Errors
    /// As [`Client::get`]; [`Error::is_too_many`] while a budget does not allow it.
    pub async fn evict(&self, namespace: &str, name: &str, uid: &str, grace: u32) -> Result<(), Error> {
        let mut eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": name, "namespace": namespace },
            "deleteOptions": { "gracePeriodSeconds": grace },
        });
        if !uid.is_empty() {
            eviction["deleteOptions"]["preconditions"] = json!({ "uid": uid });
        }
        let path = format!("{}/eviction", Target::new(Kind::PODS, namespace, name).path());
        self.value(with_body(Method::POST, path, JSON, &eviction)).await.map(drop)
    }

    /// The kind that manifests name so. Known groups are remembered; what is not in them is asked for again.
    ///
    /// # Errors
    /// [`Error::NoKind`] when the server has none, else as [`Client::get`].
    pub async fn discover(&self, api_version: &str, kind: &str) -> Result<Kind, Error> {
        let find =
            |group: &Group| group.iter().find(|(name, _)| name == kind).map(|(_, found)| found.clone());
        let cached = self.groups().get(api_version).and_then(find);
        if let Some(found) = cached {
            return Ok(found);
        }
        let group = match self.group(api_version).await {
            Ok(group) => group,
            Err(error) if error.is_not_found() => Group::default(),
            Err(error) => return Err(error),
        };
        let found = find(&group);
        let mut groups = self.groups();
        if groups.len() < GROUPS_MAX {
            groups.insert(api_version.to_owned(), group);
        }
        found.ok_or_else(|| Error::NoKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
    }

    /// The kind and place of a manifest.
    ///
    /// # Errors
    /// As [`Client::discover`]; [`Error::Nameless`].
    pub async fn locate(&self, object: &Value) -> Result<Target, Error> {
        let api_version = object["apiVersion"].as_str().ok_or(Error::Nameless("apiVersion"))?;
        let kind = object["kind"].as_str().ok_or(Error::Nameless("kind"))?;
        Target::of(self.discover(api_version, kind).await?, object)
    }

    fn groups(&self) -> std::sync::MutexGuard<'_, HashMap<String, Group>> {
        self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn group(&self, api_version: &str) -> Result<Group, Error> {
        let (group, version, path) = match api_version.split_once('/') {
            Some((group, version)) => (group, version, format!("/apis/{api_version}")),
            None => ("", api_version, format!("/api/{api_version}")),
        };
        let answer = self.value(request(Method::GET, path)).await?;
        let resources = answer["resources"].as_array().into_iter().flatten();
        let kinds = resources.filter_map(|resource| {
            let plural = resource["name"].as_str().filter(|name| !name.contains('/'))?;
            let kind = Kind {
                group: group.to_owned().into(),
                version: version.to_owned().into(),
                plural: plural.to_owned().into(),
                namespaced: resource["namespaced"].as_bool().unwrap_or_default(),
            };
            Some((resource["kind"].as_str()?.to_owned(), kind))
        });
        Ok(Arc::new(kinds.collect()))
    }

    /// Begins a call whose answer comes bit by bit.
    pub(crate) async fn open(&self, path: String) -> Result<Reply, Error> {
        let request = request(Method::GET, path);
        let what = request.what();
        let attempt = async {
            let reply = self.inner.transport.send(request).await?;
            match reply.code {
                200..300 => Ok(reply),
                code => Err(refused(&what, code, &collect(&what, reply).await?)),
            }
        };
        self.in_time(&what, attempt).await
    }

    async fn value(&self, request: Request) -> Result<Value, Error> {
        let what = request.what();
        let bytes = self.bytes(request).await?;
        match serde_json::from_slice(&bytes) {
            Ok(value @ Value::Object(_)) => Ok(value),
            Ok(_) => Err(Error::Broken { what, text: "the answer is no object".to_owned() }),
            Err(source) => Err(Error::Json { what, source }),
        }
    }

    async fn bytes(&self, request: Request) -> Result<Vec<u8>, Error> {
        let what = request.what();
        let attempt = async {
            let reply = self.inner.transport.send(request).await?;
            let code = reply.code;
            let body = collect(&what, reply).await?;
            match code {
                200..300 => Ok(body),
                _ => Err(refused(&what, code, &body)),
            }
        };
        self.in_time(&what, attempt).await
    }

    async fn in_time<T>(
        &self,
        what: &str,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match timeout(CALL_KUBERNETES, attempt).await {
            Ok(result) => result,
            Err(_) => {
                // A peer that hangs is not waited for twice.
                self.reset();
                Err(Error::Timeout { what: what.to_owned(), seconds: CALL_KUBERNETES.as_secs() })
            }
        }
    }

    /// Makes the next call use a new connection.
    pub(crate) fn reset(&self) {
        self.inner.transport.reset();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

fn request(method: Method, path: String) -> Request {
    Request { method, path, accept: JSON, content_type: "", body: Bytes::new(), headers: Vec::new() }
}

fn with_body(method: Method, path: String, content_type: &'static str, body: &Value) -> Request {
    Request { content_type, body: body.to_string().into(), ..request(method, path) }
}

fn refused(what: &str, code: u16, body: &[u8]) -> Error {
    Error::Refused { what: what.to_owned(), status: Status::read(code, body).into() }
}

pub(crate) async fn collect(what: &str, mut reply: Reply) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(chunk) = reply.body.next().await {
        let chunk = chunk.map_err(|text| Error::Broken { what: what.to_owned(), text })?;
        if body.len() + chunk.len() > BODY_MAX {
            return Err(Error::TooLarge { what: what.to_owned(), limit: BODY_MAX });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
