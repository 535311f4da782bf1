//! Which changes of a configuration a running machine can take.

use ichor_config::Documents;
use ichor_config::v1alpha1::Config;
use ichor_config::v1alpha1::features::Features;

/// Whether `new` can replace `current` without a reboot. Only the root document can stand in the way.
pub fn is_hot(current: Option<&Documents>, new: &Documents) -> bool {
    let root =
        |documents: Option<&Documents>| documents.and_then(Documents::root).cloned().unwrap_or_default();
    let (current, new) = (root(current), root(Some(new)));
    cold_parts(&current, new) == current
}

/// `new` with everything a running machine can take replaced by what it has.
fn cold_parts(current: &Config, mut new: Config) -> Config {
    new.debug = current.debug;
    new.cluster.clone_from(&current.cluster);
    if let (Some(new), Some(current)) = (new.machine.as_deref_mut(), current.machine.as_deref()) {
        new.ca.clone_from(&current.ca);
        new.accepted_cas.clone_from(&current.accepted_cas);
        new.time.clone_from(&current.time);
        new.cert_sans.clone_from(&current.cert_sans);
        new.install.clone_from(&current.install);
        new.network.clone_from(&current.network);
        new.sysfs.clone_from(&current.sysfs);
        new.sysctls.clone_from(&current.sysctls);
        new.logging.clone_from(&current.logging);
        new.control_plane.clone_from(&current.control_plane);
        new.kubelet.clone_from(&current.kubelet);
        new.kernel.clone_from(&current.kernel);
        new.registries.clone_from(&current.registries);
        new.pods.clone_from(&current.pods);
        new.seccomp_profiles.clone_from(&current.seccomp_profiles);
        new.node_annotations.clone_from(&current.node_annotations);
        new.node_labels.clone_from(&current.node_labels);
        new.node_taints.clone_from(&current.node_taints);
        if let (Some(new), Some(current)) = (&mut new.features, &current.features) {
            cold_features(current, new);
        }
    }
    new
}

fn cold_features(current: &Features, new: &mut Features) {
    new.kubernetes_talos_api_access.clone_from(&current.kubernetes_talos_api_access);
    new.kube_prism.clone_from(&current.kube_prism);
    new.host_dns.clone_from(&current.host_dns);
    new.image_cache.clone_from(&current.image_cache);
    new.node_address_sort_algorithm.clone_from(&current.node_address_sort_algorithm);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        "version: v1alpha1\nmachine:\n  type: worker\n  token: a\ncluster:\n  clusterName: x\n";

    #[track_caller]
    fn check(new: &str, hot: bool) {
        let load = |text: &str| Documents::load(text.as_bytes()).unwrap();
        assert_eq!(is_hot(Some(&load(BASE)), &load(new)), hot, "{new}");
    }

    #[test]
    fn the_same_is_hot() {
        check(BASE, true);
    }

    #[test]
    fn cluster_labels_and_other_documents_are_hot() {
        check(&BASE.replace("clusterName: x", "clusterName: y"), true);
        check(&BASE.replace("token: a", "token: a\n  nodeLabels: {a: b}"), true);
        check(&format!("{BASE}---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n"), true);
    }

    #[test]
    fn role_token_and_environment_need_a_reboot() {
        check(&BASE.replace("type: worker", "type: controlplane"), false);
        check(&BASE.replace("token: a", "token: b"), false);
        check(&BASE.replace("token: a", "token: a\n  env: {A: b}"), false);
    }

    #[test]
    fn without_a_configuration_everything_new_is_cold() {
        assert!(!is_hot(None, &Documents::load(BASE.as_bytes()).unwrap()));
    }
}
