//! Images that the node pulled for itself and does not run any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ichor_containerd::{Client, SYSTEM, reference};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, weak};
use ichor_resource::etcd::EtcdSpec;
use ichor_resource::k8s::KubeletSpec;
use ichor_resource::v1alpha1::Service;
use tokio::time::Instant;
use tracing::{info, warn};

/// How often images are looked at.
const INTERVAL: Duration = Duration::from_secs(15 * 60);

/// An image that nothing names for this long goes.
const GRACE: Duration = Duration::from_secs(60 * 60);

/// Names that are remembered as unused, so that a store full of strange ones holds no more.
const UNUSED_MAX: usize = 10_000;

/// An image of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredImage {
    /// Its name.
    pub name: String,
    /// The digest of its manifest.
    pub digest: String,
}

/// The images that the node pulled for itself.
pub trait ImageStore: Send + Sync + 'static {
    /// All of them.
    fn images(&self) -> impl Future<Output = Result<Vec<StoredImage>, String>> + Send;

    /// Forgets one.
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), String>> + Send;
}

/// Those of containerd.
impl ImageStore for Client {
    async fn images(&self) -> Result<Vec<StoredImage>, String> {
        let found = Client::images(self, SYSTEM).await.map_err(|status| status.message().to_owned())?;
        Ok(found.into_iter().map(|image| StoredImage { name: image.name, digest: image.digest }).collect())
    }

    async fn remove(&self, name: &str) -> Result<(), String> {
        self.remove_image(SYSTEM, name).await.map_err(|status| status.message().to_owned())
    }
}

/// When each image was first seen unused.
#[derive(Debug, Default)]
pub(super) struct Unused(BTreeMap<String, Instant>);

impl Unused {
    /// The images to remove now. An image is used when one of `expected` names it, or another name of the same content.
    pub(super) fn expired(
        &mut self,
        images: &[StoredImage],
        expected: &[String],
        now: Instant,
    ) -> Vec<String> {
        let names: BTreeSet<String> = expected
            .iter()
            .map(|image| reference::normalize(image).unwrap_or_else(|| image.clone()))
            .collect();
        let named = |image: &&StoredImage| {
            let by_digest = names.iter().any(|name| name.ends_with(&format!("@{}", image.digest)));
            names.contains(&image.name) || by_digest
        };
        let used: BTreeSet<&str> = images.iter().filter(named).map(|image| image.digest.as_str()).collect();
        let unused: BTreeSet<&str> = images
            .iter()
            .filter(|image| !used.contains(image.digest.as_str()))
            .map(|image| image.name.as_str())
            .take(UNUSED_MAX)
            .collect();
        self.0.retain(|name, _| unused.contains(name.as_str()));
        for name in &unused {
            self.0.entry((*name).to_owned()).or_insert(now);
        }
        let old =
            |(name, since): (&String, &Instant)| (now.duration_since(*since) >= GRACE).then(|| name.clone());
        self.0.iter().filter_map(old).collect()
    }
}

/// Removes images that neither etcd nor the kubelet runs.
pub struct CRIImageGCController<S> {
    store: S,
    unused: Unused,
    looked: Option<Instant>,
}

impl<S: ImageStore> CRIImageGCController<S> {
    /// A controller of this store.
    pub fn new(store: S) -> Self {
        Self { store, unused: Unused::default(), looked: None }
    }
}

impl<S: ImageStore> Controller for CRIImageGCController<S> {
    const NAME: &'static str = "runtime.CRIImageGCController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<Service>().id("cri"), weak::<KubeletSpec>().id("kubelet"), weak::<EtcdSpec>().id("etcd")]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let now = Instant::now();
        let next = self.looked.map_or(now, |at| at + INTERVAL);
        if now < next {
            ctx.requeue_after(next - now);
            return Ok(());
        }
        let serves = ctx.get::<Service>("cri")?.is_some_and(|service| service.running && service.healthy);
        // Before it is known what runs, everything would be unused.
        let Some(kubelet) = ctx.get::<KubeletSpec>("kubelet")? else { return Ok(()) };
        if !serves {
            return Ok(());
        }
        let etcd = ctx.get::<EtcdSpec>("etcd")?;
        let mut expected = vec![kubelet.image.clone()];
        expected.extend(etcd.map(|etcd| etcd.image.clone()));
        let images = self.store.images().await.map_err(GcError::List)?;
        self.looked = Some(now);
        ctx.requeue_after(INTERVAL);
        for name in self.unused.expired(&images, &expected, now) {
            match self.store.remove(&name).await {
                Ok(()) => info!(image = name, "unused image removed"),
                Err(error) => warn!(image = name, %error, "unused image not removed"),
            }
        }
        Ok(())
    }
}

/// Why images cannot be looked at.
#[derive(Debug, thiserror::Error)]
enum GcError {
    /// containerd does not list them.
    #[error("list the images of containerd: {0}")]
    List(String),
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ichor_testkit::Harness;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn image(name: &str, digest: &str) -> StoredImage {
        StoredImage { name: name.into(), digest: digest.into() }
    }

    fn sum(letter: &str) -> String {
        format!("sha256:{}", letter.repeat(64))
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_unused_for_an_hour_goes() {
        let (a, b) = (sum("a"), sum("b"));
        let now = Instant::now();
        let images = [
            image("ghcr.io/x/kubelet:1", &a),
            image(&format!("ghcr.io/x/kubelet@{a}"), &a),
            image("ghcr.io/x/kubelet:2", &b),
            image(&b, &b),
        ];
        let both = |tag: &str| vec![format!("ghcr.io/x/kubelet:{tag}")];
        let mut unused = Unused::default();
        assert_eq!(unused.expired(&images, &both("1"), now), [""; 0]);
        assert_eq!(unused.expired(&images, &both("1"), now + HOUR / 2), [""; 0]);
        // Used again in between: the time begins anew.
        assert_eq!(unused.expired(&images, &both("2"), now + HOUR * 3 / 4), [""; 0]);
        assert_eq!(unused.expired(&images, &both("1"), now + HOUR), [""; 0]);
        assert_eq!(
            unused.expired(&images, &both("1"), now + HOUR * 2),
            ["ghcr.io/x/kubelet:2".to_owned(), b.clone()]
        );
        let by_digest = vec![format!("ghcr.io/x/kubelet:2@{b}")];
        assert_eq!(unused.expired(&images, &by_digest, now + HOUR * 2), [""; 0]);
    }

    #[derive(Clone)]
    struct Fake {
        images: Arc<Mutex<Vec<StoredImage>>>,
    }

    impl ImageStore for Fake {
        async fn images(&self) -> Result<Vec<StoredImage>, String> {
            Ok(self.images.lock().unwrap().clone())
        }

        async fn remove(&self, name: &str) -> Result<(), String> {
            self.images.lock().unwrap().retain(|image| image.name != name);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn old_images_go_while_those_that_run_stay() {
        let all = vec![
            image("ghcr.io/x/kubelet:1", &sum("a")),
            image("ghcr.io/x/etcd:3", &sum("c")),
            image("ghcr.io/x/kubelet:0", &sum("b")),
        ];
        let fake = Fake { images: Arc::new(Mutex::new(all)) };
        let (state, _) = ichor_testkit::state();
        let mut harness = Harness::new(&state, CRIImageGCController::new(fake.clone())).unwrap();
        // Nothing is known of what runs: nothing is unused.
        for _ in 0..8 {
            harness.reconcile().await.unwrap();
            tokio::time::advance(INTERVAL).await;
        }
        let kubelet = KubeletSpec { image: "ghcr.io/x/kubelet:1".into(), ..KubeletSpec::default() };
        state.create("k8s", "kubelet", kubelet, "").unwrap();
        let etcd = EtcdSpec { image: "ghcr.io/x/etcd:3".into(), ..EtcdSpec::default() };
        state.create("etcd", "etcd", etcd, "").unwrap();
        let cri = Service { running: true, healthy: true, unknown: false };
        state.create("runtime", "cri", cri, "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(harness.requeue(), Some(INTERVAL));
        assert_eq!(fake.images.lock().unwrap().len(), 3);
        for _ in 0..4 {
            tokio::time::advance(INTERVAL).await;
            harness.reconcile().await.unwrap();
        }
        let left: Vec<String> = fake.images.lock().unwrap().iter().map(|image| image.name.clone()).collect();
        assert_eq!(left, ["ghcr.io/x/kubelet:1", "ghcr.io/x/etcd:3"]);
    }
}
