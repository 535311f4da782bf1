//! Which image a component runs when the configuration names none, and which version an image has. Pure.

/// The version of Kubernetes that goes with this system.
pub const KUBERNETES: &str = "v1.35.0";

/// The image of a Kubernetes component.
pub fn kubernetes(component: &str) -> String {
    format!("registry.k8s.io/{component}:{KUBERNETES}")
}

/// The image of the kubelet.
pub fn kubelet() -> String {
    format!("ghcr.io/siderolabs/kubelet:{KUBERNETES}")
}

/// The image of the cluster's DNS.
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.13.2";
/// The image of the default network.
pub const FLANNEL: &str = "ghcr.io/siderolabs/flannel:v0.27.4";

/// The one that is given, or the default.
pub fn or(given: Option<&String>, default: impl Into<String>) -> String {
    given.filter(|image| !image.is_empty()).cloned().unwrap_or_else(|| default.into())
}

/// Major and minor version in the tag of an image. What cannot be read counts as new.
pub fn version(image: &str) -> (u32, u32) {
    const NEW: (u32, u32) = (1, 99);
    let image = image.split('@').next().unwrap_or_default();
    let Some((_, tag)) = image.rsplit_once(':') else { return NEW };
    let mut numbers = tag.trim_start_matches('v').split(['.', '-', '+']);
    let mut number = || numbers.next()?.parse().ok();
    match (number(), number()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => NEW,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_tags() {
        for (image, want) in [
            ("registry.k8s.io/kube-proxy:v1.35.0", (1, 35)),
            ("registry.k8s.io/kube-proxy:v1.30.2@sha256:00", (1, 30)),
            ("localhost:5000/kube-proxy:1.29.0-rc.1", (1, 29)),
            ("localhost:5000/kube-proxy", (1, 99)),
            ("kube-proxy:latest", (1, 99)),
            ("kube-proxy", (1, 99)),
        ] {
            assert_eq!(version(image), want, "{image}");
        }
    }
}
