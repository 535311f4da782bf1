//! Brings manifests into the cluster.
//!
//! What is missing is made. What is there is changed only when the manifests of this very node changed, and only in
//! fields that are ours; fields of others are never taken. What leaves the manifests leaves the cluster, if it is ours
//! alone. One bad object keeps no other from being applied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, exclusive, shared, weak};
use ichor_kube::{Client, Delete, Error, Kind, Patch, Target, Write};
use ichor_resource::k8s::{
    BootstrapManifestsConfig, ExtraManifestsConfig, Manifest, ManifestStatus, Nodename,
};
use ichor_resource::runtime::Diagnostic;
use ichor_resource::secrets::KubernetesSecret;
use ichor_resource::v1alpha1::Service;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::api::{Pace, Ports, Way};
use crate::extra_manifests::diagnostic;
use crate::inventory::{self, Entry, Inventory};
use crate::manifests;

/// Who we are to the cluster.
const MANAGER: &str = "talos";
/// Objects that are asked for at once.
const PARALLEL: usize = 8;
/// Longest wait between attempts while the API does not answer.
const UNREACHABLE_MAX: Duration = Duration::from_secs(2);
/// Longest wait between attempts while objects are refused.
const REFUSED_MAX: Duration = Duration::from_secs(5 * 60);
/// Time for the lock: another node may be applying.
const LOCK_MAX: Duration = Duration::from_secs(60);

/// Applies `Manifests/*`, writes `ManifestStatuses/manifests`.
#[derive(Debug)]
pub struct ManifestApplyController {
    ports: Ports,
    client: Option<(String, Client)>,
    unreachable: Pace,
    refused: Pace,
    /// The digest of what is applied wholly.
    done: Option<String>,
    /// What was last complained about.
    said: String,
}

/// An object and the manifest it comes from.
#[derive(Debug, Clone)]
struct Wish {
    manifest: String,
    object: Value,
}

impl Wish {
    fn display(&self) -> String {
        let meta = &self.object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let place = meta["namespace"].as_str().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("{}: {} {place}{}", self.manifest, text(&self.object["kind"]), text(&meta["name"]))
    }
}

/// All objects of manifests: namespaces first, then definitions of kinds, both by name, then the rest in order.
fn wishes(manifests: &[Typed<Manifest>]) -> Vec<Wish> {
    let mut wishes: Vec<Wish> = manifests
        .iter()
        .flat_map(|manifest| {
            let id = manifest.id().to_string();
            manifest
                .items
                .iter()
                .map(move |item| Wish { manifest: id.clone(), object: Value::Object(item.object.0.clone()) })
        })
        .collect();
    let rank = |wish: &Wish| {
        let name = || wish.object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match wish.object["kind"].as_str() {
            Some("Namespace") => (0, name()),
            Some("CustomResourceDefinition") => (1, name()),
            _ => (2, String::new()),
        }
    };
    wishes.sort_by_cached_key(rank);
    wishes
}

fn digest(wishes: &[Wish]) -> String {
    let mut text = String::new();
    for wish in wishes {
        text.push_str(&wish.manifest);
        text.push_str(&wish.object.to_string());
    }
    let sum = ichor_pki::sha256(text.as_bytes());
    sum.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Ids of all manifests that there will be: until all are there, nothing can be said to have left.
fn expected(bootstrap: &BootstrapManifestsConfig, extra: &ExtraManifestsConfig) -> BTreeSet<String> {
    let token = manifests::Token { id: "", secret: "" };
    let own = manifests::render(bootstrap, token).into_iter().map(|(id, _)| id);
    let more = extra.extra_manifests.iter().map(|extra| format!("{}-{}", extra.priority, extra.name));
    own.chain(more).collect()
}

/// An object as it is sent: in its namespace, secrets in the form the server keeps.
fn prepared(object: &Value, target: &Target) -> Value {
    let mut object = object.clone();
    if !target.namespace.is_empty() {
        object["metadata"]["namespace"] = target.namespace.as_str().into();
    }
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
        if let Some(Value::Object(texts)) = map.remove("stringData") {
            // Data that is no mapping is left to the server to refuse.
            if let Value::Object(data) = map.entry("data").or_insert_with(|| json!({})) {
                for (key, value) in texts {
                    let text = value.as_str().unwrap_or_default();
                    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
                    data.insert(key, encoded.into());
                }
            }
        }
    }
    object
}

/// What came of an object.
enum Outcome {
    /// It is in the cluster and ours (also).
    Ours,
    /// It is in the cluster and another's.
    Others,
}

/// A pass over all objects.
struct Pass<'a> {
    client: &'a Client,
    /// Whether what is there is changed.
    update: bool,
}

impl Pass<'_> {
    async fn bring(&self, wish: &Wish) -> Result<(Target, Outcome), Error> {
        let target = self.client.locate(&wish.object).await?;
        let object = prepared(&wish.object, &target);
        let Some(live) = self.client.find(&target).await? else {
            self.client.apply(&target, &object, Write::by(MANAGER)).await?;
            info!(object = wish.display(), "created");
            return Ok((target, Outcome::Ours));
        };
        if !inventory::is_ours(&live) {
            return Ok((target, Outcome::Others));
        }
        if self.update {
            self.change(wish, &target, &object, &live).await?;
        }
        Ok((target, Outcome::Ours))
    }

    /// Changes an object that is ours, in the fields that are ours.
    async fn change(&self, wish: &Wish, target: &Target, object: &Value, live: &Value) -> Result<(), Error> {
        if let Some(patch) = adopt(live) {
            self.client.patch(target, Patch::Json, &patch, Write::by(MANAGER)).await?;
        }
        let refused = match self.client.apply(target, object, Write::by(MANAGER)).await {
            Ok(now) => {
                if now["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"] {
                    info!(object = wish.display(), "updated");
                }
                return Ok(());
            }
            Err(error) => error,
        };
        let others: Vec<String> = match refused.status() {
            Some(status) if refused.is_conflict() => {
                let managers = status.conflicting_managers().into_iter();
                managers.filter(|manager| !inventory::OURS.contains(manager)).map(str::to_owned).collect()
            }
            _ => return Err(refused),
        };
        if others.is_empty() {
            // All of it is ours, only written in another way: by the original's nodes, or by an upgrade.
            let force = Write { force: true, ..Write::by(MANAGER) };
            self.client.apply(target, object, force).await?;
            info!(object = wish.display(), "updated");
        } else {
            info!(object = wish.display(), owners = others.join(", "), "left to others");
        }
        Ok(())
    }
}

/// Makes what we once created (by other means than applying) count as applied, so that fields can leave too.
fn adopt(live: &Value) -> Option<Value> {
    let entries = live["metadata"]["managedFields"].as_array()?;
    let own = |entry: &&Value, operation: &str| {
        entry["manager"] == MANAGER
            && entry["operation"] == operation
            && entry["subresource"].as_str().unwrap_or_default().is_empty()
    };
    if entries.iter().any(|entry| own(&entry, "Apply")) {
        return None;
    }
    let at = entries.iter().position(|entry| own(&entry, "Update"))?;
    Some(json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"] },
        { "op": "replace", "path": format!("/metadata/managedFields/{at}/operation"), "value": "Apply" },
    ]))
}

/// What a whole pass led to.
#[derive(Default)]
struct Applied {
    entries: BTreeMap<Entry, String>,
    failures: Vec<(String, String)>,
}

impl ManifestApplyController {
    /// A controller that reaches Kubernetes like this.
    pub fn new(ports: Ports) -> Self {
        Self {
            ports,
            client: None,
            unreachable: Pace::default(),
            refused: Pace::default(),
            done: None,
            said: String::new(),
        }
    }

    fn client(&mut self, kubeconfig: &str) -> Result<Client, ControllerError> {
        if let Some((known, client)) = &self.client
            && known == kubeconfig
        {
            return Ok(client.clone());
        }
        let client = (self.ports.connect)(Way::Kubeconfig(kubeconfig))?;
        self.client = Some((kubeconfig.to_owned(), client.clone()));
        Ok(client)
    }

    async fn pass(
        &mut self,
        client: &Client,
        wishes: &[Wish],
        node: &str,
        complete: bool,
    ) -> Result<Applied, Error> {
        let place = Target::new(Kind::CONFIG_MAPS, inventory::NAMESPACE, inventory::NAME);
        // Before the lock: a server that does not answer is no reason to hold it.
        client.find(&place).await?;
        let _guard = self.lock().await;
        let found = client.find(&place).await?;
        let mut known = found.as_ref().map(Inventory::read).unwrap_or_default();
        let before = known.clone();
        let digest = digest(wishes);
        // A node that comes to a cluster changes nothing there; one whose wishes changed does.
        let tried = format!("?{digest}");
        let update = known.applied(node).is_some_and(|last| last != digest && last != tried);
        let applied = apply(&Pass { client, update }, wishes).await?;
        known.entries.extend(applied.entries.clone());
        if complete && update {
            let wanted: BTreeSet<&Entry> = applied.entries.keys().collect();
            let failed = !applied.failures.is_empty();
            let left: Vec<(Entry, String)> = known
                .entries
                .iter()
                .filter(|(entry, _)| !wanted.contains(entry) && !is_wished(wishes, entry, failed))
                .map(|(entry, version)| (entry.clone(), version.clone()))
                .collect();
            for (entry, version) in left {
                if leave(client, &entry, &version).await? {
                    known.entries.remove(&entry);
                }
            }
        }
        if complete {
            // What failed halfway is not what was before, should the wishes go back to that.
            let outcome = match (applied.failures.is_empty(), update) {
                (true, _) => digest,
                (false, true) => format!("!{digest}"),
                (false, false) => tried,
            };
            known.set_applied(node, &outcome);
        }
        if known != before {
            let object = known.write();
            match known.exists() {
                true => client.replace(&place, &object, Write::by(MANAGER)).await?,
                false => {
                    client.create(&place.kind, inventory::NAMESPACE, &object, Write::by(MANAGER)).await?
                }
            };
        }
        Ok(applied)
    }

    async fn lock(&self) -> Option<Box<dyn Send + Sync>> {
        match tokio::time::timeout(LOCK_MAX, (self.ports.manifests)()).await {
            Ok(Ok(guard)) => Some(guard),
            // The inventory has a version, so that without the lock at worst a pass is repeated.
            Ok(Err(error)) => {
                warn!(error, "manifests are applied without the lock");
                None
            }
            Err(_) => {
                warn!("manifests are applied without the lock: another node holds it for too long");
                None
            }
        }
    }
}

/// Whether a manifest still names an entry; matters where applying it failed.
fn is_wished(wishes: &[Wish], entry: &Entry, failed: bool) -> bool {
    failed
        && wishes.iter().any(|wish| {
            let namespace = wish.object["metadata"]["namespace"].as_str().unwrap_or("default");
            let other = Entry::of(&wish.object, namespace);
            other.name == entry.name && other.kind == entry.kind && other.group == entry.group
        })
}

/// Takes an object that no manifest names any more out of the cluster. False when it must be tried again.
async fn leave(client: &Client, entry: &Entry, version: &str) -> Result<bool, Error> {
    if entry.is_kept() {
        info!(object = entry.display(), "left the manifests and stays, for it holds what belongs to others");
        return Ok(true);
    }
    let version = if version.is_empty() { "v1" } else { version };
    let api_version = match entry.group.as_str() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    let kind = match client.discover(&api_version, &entry.kind).await {
        Ok(kind) => kind,
        Err(Error::NoKind { .. }) => return Ok(true),
        Err(error) => return Err(error),
    };
    let target = Target::new(kind, &entry.namespace, &entry.name);
    let Some(live) = client.find(&target).await? else { return Ok(true) };
    if !inventory::is_ours_alone(&live) {
        info!(object = entry.display(), "left the manifests and stays, for others own parts of it");
        return Ok(true);
    }
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
    match client.delete(&target, Delete { uid, ..Delete::default() }).await {
        Ok(()) => info!(object = entry.display(), "removed"),
        Err(error) if error.is_not_found() => {}
        Err(error) if error.is_of_object() => {
            warn!(object = entry.display(), error = error.chain(), "not removed");
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

type Attempt<'a> = BoxFuture<'a, (&'a Wish, Result<(Target, Outcome), Error>)>;

/// Boxed: a stream of closures that borrow is not `Send` for all the compiler knows.
fn attempt<'a>(pass: &'a Pass<'_>, wish: &'a Wish) -> Attempt<'a> {
    Box::pin(async move { (wish, pass.bring(wish).await) })
}

/// Brings all wishes into the cluster, those that others wait for first. What fails by itself is noted.
async fn apply(pass: &Pass<'_>, wishes: &[Wish]) -> Result<Applied, Error> {
    let first =
        |wish: &&Wish| matches!(wish.object["kind"].as_str(), Some("Namespace" | "CustomResourceDefinition"));
    let (early, rest): (Vec<&Wish>, Vec<&Wish>) = wishes.iter().partition(first);
    let mut applied = Applied::default();
    for (parallel, wishes) in [(1, early), (PARALLEL, rest)] {
        let attempts: Vec<_> = wishes.into_iter().map(|wish| attempt(pass, wish)).collect();
        let mut results = stream::iter(attempts).buffered(parallel);
        while let Some((wish, result)) = results.next().await {
            match result {
                Ok((target, Outcome::Ours)) => {
                    let entry = Entry::of(&wish.object, &target.namespace);
                    applied.entries.insert(entry, target.kind.version.into_owned());
                }
                Ok((_, Outcome::Others)) => {}
                Err(error) if error.is_of_object() => {
                    applied
                        .failures
                        .push((wish.manifest.clone(), format!("{}: {}", wish.display(), error.chain())));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(applied)
}

impl Controller for ManifestApplyController {
    const NAME: &'static str = "k8s.ManifestApplyController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<KubernetesSecret>().id("k8s-certs"),
            weak::<Manifest>(),
            weak::<BootstrapManifestsConfig>().id("manifests"),
            weak::<ExtraManifestsConfig>().id("extra-manifests"),
            weak::<Nodename>().id("nodename"),
            weak::<Service>().id("etcd"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ManifestStatus>(), shared::<Diagnostic>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(secrets) = ctx.get::<KubernetesSecret>("k8s-certs")? else { return Ok(()) };
        let etcd = ctx.get::<Service>("etcd")?.is_some_and(|etcd| etcd.running && etcd.healthy);
        let bootstrap = ctx.get::<BootstrapManifestsConfig>("manifests")?;
        let nodename = ctx.get::<Nodename>("nodename")?;
        let (true, Some(bootstrap), Some(nodename)) = (etcd, bootstrap, nodename) else { return Ok(()) };
        let manifests = ctx.list::<Manifest>()?;
        let extra = ctx.get::<ExtraManifestsConfig>("extra-manifests")?;
        let ids: BTreeSet<String> = manifests.iter().map(|manifest| manifest.id().to_string()).collect();
        let complete = extra.as_ref().is_some_and(|extra| ids.is_superset(&expected(&bootstrap, extra)));
        let wishes = wishes(&manifests);
        let digest = format!("{complete} {}", digest(&wishes));
        if wishes.is_empty() || self.done.as_ref() == Some(&digest) {
            return Ok(());
        }
        self.done = None;
        let client = self.client(&secrets.localhost_admin_kubeconfig)?;
        match self.pass(&client, &wishes, &nodename.nodename, complete).await {
            Ok(applied) => {
                self.unreachable.reset();
                let failed: BTreeSet<&String> = applied.failures.iter().map(|(id, _)| id).collect();
                let done: Vec<String> = ids.iter().filter(|id| !failed.contains(id)).cloned().collect();
                ctx.modify::<ManifestStatus>("manifests", |spec| spec.manifests_applied.clone_from(&done))?;
                let reasons: Vec<String> =
                    applied.failures.iter().map(|(_, reason)| reason.clone()).collect();
                let told = diagnostic("manifests-refused", "some manifests are not applied", reasons.clone());
                ctx.publish(told)?;
                if reasons.is_empty() {
                    self.done = Some(digest);
                    self.refused.reset();
                    return Ok(());
                }
                let reasons = reasons.join("; ");
                if reasons != self.said {
                    warn!(reasons, "some manifests are not applied");
                    self.said.clone_from(&reasons);
                }
                ctx.trouble(reasons);
                ctx.requeue_after(self.refused.next(REFUSED_MAX));
            }
            Err(error) => {
                ctx.trouble(error.chain());
                ctx.requeue_after(self.unreachable.next(UNREACHABLE_MAX));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
