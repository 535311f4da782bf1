//! Manifests of the user: written into the configuration, or fetched from where it says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_kube::manifest;
use ichor_resource::k8s::{ExtraManifest, ExtraManifestsConfig, Manifest, SingleManifest};
use ichor_resource::network::NetworkStatus;
use ichor_resource::runtime::Diagnostic;
use ichor_resource::value::Object;
use serde_json::Value;

use crate::api::{Fetch, Pace};

/// Longest wait between two attempts to fetch.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// Writes `Manifests/<priority>-<name>`.
pub struct ExtraManifestController {
    fetch: Fetch,
    /// What was fetched, by address and headers.
    fetched: BTreeMap<(String, BTreeMap<String, String>), Manifest>,
    pace: Pace,
}

impl ExtraManifestController {
    /// A controller that fetches like this.
    pub fn new(fetch: Fetch) -> Self {
        Self { fetch, fetched: BTreeMap::new(), pace: Pace::default() }
    }

    async fn manifest(&mut self, extra: &ExtraManifest, online: bool) -> Result<Option<Manifest>, String> {
        if extra.url.is_empty() {
            return parse(&extra.inline_manifest).map(Some);
        }
        let key = (extra.url.clone(), extra.extra_headers.clone());
        if let Some(known) = self.fetched.get(&key) {
            return Ok(Some(known.clone()));
        }
        if !online {
            return Ok(None);
        }
        let headers = extra.extra_headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        let bytes = (self.fetch)(extra.url.clone(), headers.collect()).await?;
        let text = String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let manifest = parse(&text)?;
        self.fetched.insert(key, manifest.clone());
        Ok(Some(manifest))
    }
}

impl std::fmt::Debug for ExtraManifestController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExtraManifestController")
    }
}

/// What `health` and people are told about manifests, where there is something to tell.
pub(crate) fn diagnostic(
    id: &'static str,
    message: &str,
    details: Vec<String>,
) -> Option<(&'static str, Diagnostic)> {
    (!details.is_empty()).then(|| (id, Diagnostic { message: message.to_owned(), details }))
}

fn parse(text: &str) -> Result<Manifest, String> {
    let objects = manifest::parse(text).map_err(|error| error.to_string())?;
    let single = |object| match object {
        Value::Object(map) => Some(SingleManifest { object: Object(map) }),
        _ => None,
    };
    Ok(Manifest { items: objects.into_iter().filter_map(single).collect() })
}

impl Controller for ExtraManifestController {
    const NAME: &'static str = "k8s.ExtraManifestController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<ExtraManifestsConfig>().id("extra-manifests"), weak::<NetworkStatus>().id("status")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Manifest>(), shared::<Diagnostic>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<ExtraManifestsConfig>("extra-manifests")?;
        let extra = config.map(|config| config.extra_manifests.clone()).unwrap_or_default();
        let network = ctx.get::<NetworkStatus>("status")?;
        let online = network.is_some_and(|status| status.address_ready && status.connectivity_ready);
        let mut wanted = BTreeSet::new();
        let mut troubles = Vec::new();
        for extra in &extra {
            let id = format!("{}-{}", extra.priority, extra.name);
            match self.manifest(extra, online).await {
                Ok(Some(manifest)) => ctx.put("controlplane", &id.as_str().into(), manifest)?,
                Ok(None) => {}
                // What was there before stays: a slip of the pen removes nothing from the cluster.
                Err(reason) => troubles.push((!extra.url.is_empty(), format!("manifest {id}: {reason}"))),
            }
            wanted.insert(id);
        }
        ctx.keep_only::<Manifest>("controlplane", |id| wanted.contains(&id.to_string()))?;
        let urls: BTreeSet<&String> = extra.iter().map(|extra| &extra.url).collect();
        self.fetched.retain(|(url, _), _| urls.contains(url));
        match troubles.iter().any(|(fetched, _)| *fetched) {
            true => ctx.requeue_after(self.pace.next(AGAIN_MAX)),
            false => self.pace.reset(),
        }
        let details: Vec<String> = troubles.into_iter().map(|(_, text)| text).collect();
        if !details.is_empty() {
            ctx.trouble(details.join("; "));
        }
        Ok(ctx.publish(diagnostic("manifests-unread", "some manifests cannot be read", details))?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use ichor_testkit::Harness;

    use super::*;

    fn inline(name: &str, text: &str) -> ExtraManifest {
        ExtraManifest {
            name: name.into(),
            priority: "99".into(),
            inline_manifest: text.into(),
            ..ExtraManifest::default()
        }
    }

    #[tokio::test]
    async fn each_manifest_stands_for_itself() {
        let (state, _clock) = ichor_testkit::state();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let fetch: Fetch = Arc::new(move |_, headers| {
            let first = counter.fetch_add(1, Relaxed) == 0;
            assert_eq!(headers, [("X-Token".to_owned(), "1".to_owned())]);
            let answer = match first {
                true => Err("no route".to_owned()),
                false => Ok(b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n".to_vec()),
            };
            Box::pin(std::future::ready(answer))
        });
        let fetched = ExtraManifest {
            name: "https://x".into(),
            url: "https://x".into(),
            priority: "30".into(),
            extra_headers: BTreeMap::from([("X-Token".into(), "1".into())]),
            ..ExtraManifest::default()
        };
        let good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        let extra_manifests = vec![inline("good", good), inline("bad", "a: [\n"), fetched];
        let config = ExtraManifestsConfig { extra_manifests };
        state.create("controlplane", "extra-manifests", config, "").unwrap();
        let ready =
            NetworkStatus { address_ready: true, connectivity_ready: true, ..NetworkStatus::default() };
        let mut harness = Harness::new(&state, ExtraManifestController::new(fetch)).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(asked.load(Relaxed), 0, "nothing is fetched without a network");
        state.create("network", "status", ready, "").unwrap();
        harness.context().take_trouble();
        harness.reconcile().await.unwrap();
        let trouble = harness.context().take_trouble().unwrap();
        assert!(trouble.starts_with("manifest 99-bad: "), "{trouble}");
        assert!(trouble.ends_with("manifest 30-https://x: no route"), "{trouble}");
        assert!(harness.requeue().is_some());
        let told =
            || state.get::<Diagnostic>("runtime", "manifests-unread").map(|found| found.details.clone());
        let details = told().unwrap();
        assert!(details.len() == 2 && details.join("; ") == trouble, "{details:?}");
        let ids =
            || state.list::<Manifest>("controlplane").iter().map(|m| m.id().to_string()).collect::<Vec<_>>();
        assert_eq!(ids(), ["99-good"]);
        harness.reconcile().await.unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(ids(), ["30-https://x", "99-good"]);
        assert_eq!(asked.load(Relaxed), 2, "what was fetched is kept");

        // A slip in a manifest that was there keeps it there; one that is dropped goes.
        state
            .update_with::<ExtraManifestsConfig>("controlplane", "extra-manifests", "", |spec, _| {
                spec.extra_manifests = vec![inline("good", "kind: [")];
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(ids(), ["99-good"]);
        assert!(told().unwrap()[0].starts_with("manifest 99-good: "));
        state
            .update_with::<ExtraManifestsConfig>("controlplane", "extra-manifests", "", |spec, _| {
                spec.extra_manifests = vec![inline("good", good)];
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert!(told().is_err(), "what is mended is not told any more");
    }
}
