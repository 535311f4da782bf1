//! Checks that only a node makes: whether it can run the Kubernetes that is asked for.

use ichor_types::VersionContract;

use crate::{
    diagnostic::{Diagnostic, Diagnostics, Stage},
    document::Document,
    documents::Documents,
    model::Path,
};

/// Oldest and newest minor release of Kubernetes that this release runs.
const KUBERNETES_MINORS: (u64, u64) = (30, 35);

impl Documents {
    /// Checks the images of the kubelet and, on control planes, of the control plane: their version must be
    /// one that this release runs. `release` is the version of the system, for the message.
    pub fn validate_images(&self, release: &str) -> Result<(), Diagnostics> {
        let root = self.iter().find(|document| matches!(document, Document::Config(_)));
        let (Some(document), Some(machine)) = (root, self.machine()) else { return Ok(()) };
        let kubelet = machine.kubelet.as_ref().map_or("", |kubelet| kubelet.image.as_str());
        let mut images = vec![("kubelet", "machine.kubelet.image", kubelet)];
        if let Some(cluster) = self.cluster().filter(|_| self.machine_type().is_control_plane()) {
            let server = cluster.api_server.as_ref().map_or("", |server| server.image.as_str());
            let manager = cluster.controller_manager.as_ref().map_or("", |manager| manager.image.as_str());
            let scheduler = cluster.scheduler.as_ref().map_or("", |scheduler| scheduler.image.as_str());
            images.extend([
                ("kube-apiserver", "cluster.apiServer.image", server),
                ("kube-controller-manager", "cluster.controllerManager.image", manager),
                ("kube-scheduler", "cluster.scheduler.image", scheduler),
            ]);
        }
        let mut items = Vec::new();
        for (name, path, image) in images {
            let Err(error) = check_image(image, release) else { continue };
            let path = Path::of(path);
            let base = Diagnostic::error(Stage::Validate, format!("{name} image is not valid: {error}"));
            let span = self.locate(document, &path);
            items.push(Diagnostic { document: document.title(), path, span, ..base });
        }
        if items.is_empty() { Ok(()) } else { Err(Diagnostics { items, ..Default::default() }) }
    }
}

fn check_image(image: &str, release: &str) -> Result<(), String> {
    // No image means the default one, which fits.
    if image.is_empty() {
        return Ok(());
    }
    let bad =
        |why: String| format!("failed to parse Kubernetes version from image reference {image:?}: {why}");
    let (_, tag) =
        image.rsplit_once(":v").ok_or_else(|| bad(format!("invalid image reference: {image:?}")))?;
    let version = tag.split('@').next().unwrap_or(tag);
    let contract: VersionContract =
        version.parse().map_err(|_| bad(format!("invalid version {version:?}")))?;
    let (oldest, newest) = KUBERNETES_MINORS;
    let minor = u64::from(contract.minor);
    let word = if contract.major < 1 || minor < oldest {
        "old"
    } else if contract.major > 1 || minor > newest {
        "new"
    } else {
        return Ok(());
    };
    let release = release.trim_start_matches('v');
    Err(format!("version of Kubernetes {version} is too {word} to be used with Talos {release}"))
}

#[cfg(test)]
mod tests {
    use super::check_image;

    #[test]
    fn only_versions_in_the_window_are_fine() {
        let old = "version of Kubernetes 1.29.9 is too old to be used with Talos 1.12.1";
        let new = "version of Kubernetes 1.36.0 is too new to be used with Talos 1.12.1";
        for (image, want) in [
            ("", Ok(())),
            ("ghcr.io/siderolabs/kubelet:v1.30.0", Ok(())),
            ("kubelet:v1.35.99@sha256:abc", Ok(())),
            ("localhost:5000/kubelet:v1.29.9", Err(old)),
            ("kubelet:v1.36.0", Err(new)),
        ] {
            assert_eq!(check_image(image, "v1.12.1"), want.map_err(str::to_owned), "{image}");
        }
        assert!(check_image("kubelet:latest", "v1.12.1").unwrap_err().contains("invalid image reference"));
    }
}
