//! The node's own image cache: whether there is one, and the service that gives images out of it.

use std::path::PathBuf;
use std::sync::Arc;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::cri::{ImageCacheConfig, ImageCacheCopyStatus, ImageCacheStatus};
use ichor_resource::v1alpha1::Service;

use super::IMAGE_CACHE;

/// Where caches are, the better one first.
const ROOTS: [&str; 2] = ["/system/imagecache/disk", "/system/imagecache/iso/imagecache"];

/// Starts the service that serves these roots. A port.
pub type Registryd = Arc<dyn Fn(&[String]) -> Result<(), String> + Send + Sync>;

/// Writes `ImageCacheConfigs`.
pub(super) struct ImageCacheConfigController {
    registryd: Registryd,
    root: PathBuf,
    /// What the service was started with.
    started: Vec<String>,
}

impl ImageCacheConfigController {
    /// A controller that starts the service so.
    pub(super) fn new(registryd: Registryd) -> Self {
        Self { registryd, root: "/".into(), started: Vec::new() }
    }

    /// The caches that are there. They are mounted before this runs; none comes later.
    fn roots(&self) -> Vec<String> {
        let there = |root: &&&str| self.root.join(root.trim_start_matches('/')).join("manifests").is_dir();
        ROOTS.iter().filter(there).map(|root| (*root).to_owned()).collect()
    }
}

impl Controller for ImageCacheConfigController {
    const NAME: &'static str = "cri.ImageCacheConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<Service>().id("registryd")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ImageCacheConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(config) = Configuration::active(ctx)? else {
            ctx.publish(None::<(&str, ImageCacheConfig)>)?;
            return Ok(());
        };
        let features = config.machine().and_then(|machine| machine.features.as_ref());
        let cache = features.and_then(|features| features.image_cache.as_ref());
        let wanted = cache.and_then(|cache| cache.local_enabled).unwrap_or(false);
        let roots = if wanted { self.roots() } else { Vec::new() };
        let mut status = ImageCacheStatus::Disabled;
        if !roots.is_empty() {
            if self.started != roots {
                (self.registryd)(&roots).map_err(ControllerError::new)?;
                self.started.clone_from(&roots);
            }
            let well = ctx.get::<Service>("registryd")?.is_some_and(|one| one.running && one.healthy);
            status = if well { ImageCacheStatus::Ready } else { ImageCacheStatus::Preparing };
        }
        let copy_status = ImageCacheCopyStatus::Skipped;
        ctx.publish([(IMAGE_CACHE, ImageCacheConfig { status, copy_status, roots })])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;

    use super::*;

    const CONFIG: &str = "version: v1alpha1\nmachine:\n  type: worker\n  features: {imageCache: {localEnabled: true}}\ncluster: {}\n";

    #[tokio::test]
    async fn a_cache_is_ready_when_its_service_is_well() {
        let root = tempfile::tempdir().unwrap();
        let started: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let seen = started.clone();
        let mut controller = ImageCacheConfigController::new(Arc::new(move |roots| {
            seen.lock().unwrap().push(roots.to_vec());
            Ok(())
        }));
        controller.root = root.path().to_owned();
        let (state, _clock) = ichor_testkit::state();
        let config = MachineConfig::new(CONFIG);
        state.create("config", MachineConfig::ACTIVE, config, "").unwrap();
        let mut harness = Harness::new(&state, controller).unwrap();
        let now = |state: &ichor_cosi::State| {
            let cache = state.get::<ImageCacheConfig>("cri", IMAGE_CACHE).unwrap();
            (cache.status, cache.roots.clone())
        };
        harness.reconcile().await.unwrap();
        assert_eq!(now(&state), (ImageCacheStatus::Disabled, vec![]));

        std::fs::create_dir_all(root.path().join("system/imagecache/disk/manifests")).unwrap();
        harness.reconcile().await.unwrap();
        let roots = vec![ROOTS[0].to_owned()];
        assert_eq!(now(&state), (ImageCacheStatus::Preparing, roots.clone()));
        let service = Service { running: true, healthy: true, unknown: false };
        state.create("runtime", "registryd", service, "").unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(now(&state), (ImageCacheStatus::Ready, roots.clone()));
        assert_eq!(*started.lock().unwrap(), [roots]);
    }
}
