//! Publishes the manifests a new cluster is given.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::k8s::{BootstrapManifestsConfig, Manifest, SingleManifest};
use ichor_resource::secrets::KubernetesRootSecret;
use ichor_resource::value::Object;
use serde_json::Value as Json;

use crate::manifests::{self, Token};

/// Writes `Manifests/*`.
#[derive(Debug, Default)]
pub struct ManifestController;

impl Controller for ManifestController {
    const NAME: &'static str = "k8s.ManifestController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<BootstrapManifestsConfig>().id("manifests"), weak::<KubernetesRootSecret>().id("k8s")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<Manifest>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = ctx.get::<BootstrapManifestsConfig>("manifests")?;
        let secrets = ctx.get::<KubernetesRootSecret>("k8s")?;
        let wanted = match (config, secrets) {
            (Some(config), Some(secrets)) => {
                let token =
                    Token { id: &secrets.bootstrap_token_id, secret: &secrets.bootstrap_token_secret };
                manifests::render(&config, token)
            }
            _ => Vec::new(),
        };
        ctx.publish(wanted.into_iter().map(|(id, objects)| (id, manifest(objects))))?;
        Ok(())
    }
}

/// Objects as a resource.
fn manifest(objects: Vec<Json>) -> Manifest {
    let single = |object| match object {
        Json::Object(map) => Some(SingleManifest { object: Object(map) }),
        _ => None,
    };
    Manifest { items: objects.into_iter().filter_map(single).collect() }
}

#[cfg(test)]
mod tests {
    use ichor_testkit::Harness;

    use super::*;

    #[tokio::test]
    async fn manifests_follow_their_settings() {
        let (state, _clock) = ichor_testkit::state();
        let secrets = KubernetesRootSecret { bootstrap_token_id: "abcdef".into(), ..Default::default() };
        state.create("secrets", "k8s", secrets, "").unwrap();
        let config = BootstrapManifestsConfig { proxy_enabled: true, ..Default::default() };
        state.create("controlplane", "manifests", config, "").unwrap();
        let mut harness = Harness::new(&state, ManifestController).unwrap();
        harness.reconcile().await.unwrap();
        assert_eq!(state.get::<Manifest>("controlplane", "10-kube-proxy").unwrap().items.len(), 3);

        state
            .update_with::<BootstrapManifestsConfig>("controlplane", "manifests", "", |spec, _| {
                spec.proxy_enabled = false
            })
            .unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.get::<Manifest>("controlplane", "10-kube-proxy").is_err());
        assert!(state.get::<Manifest>("controlplane", "00-kubelet-bootstrapping-token").is_ok());
    }
}
