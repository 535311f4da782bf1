//! Whether a changed configuration takes effect at once or only after a reboot.

use crate::{
    diff,
    documents::Documents,
    model::Field,
    v1alpha1::{Config, MachineConfig, features::Features},
};

/// What a change of configuration means for a running machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Keys whose change needs a reboot, in the order they are written.
    pub reboot: Vec<String>,
    /// Unified diff of those changes alone; empty if there are none.
    pub diff: String,
}

impl Plan {
    /// True if everything takes effect without a reboot.
    pub fn is_hot(&self) -> bool {
        self.reboot.is_empty()
    }

    /// Why the change cannot be applied at once.
    pub fn reason(&self) -> String {
        format!("this config change can't be applied in immediate mode\ndiff:{}", self.diff)
    }
}

/// Compares the active configuration with a new one. Only the root document can force a reboot.
pub fn plan(old: &Documents, new: &Documents) -> Plan {
    let (Some(before), Some(after)) = (old.root(), new.root()) else {
        let reboot =
            if old.root().is_some() != new.root().is_some() { vec!["v1alpha1".to_owned()] } else { vec![] };
        let diff = if reboot.is_empty() { String::new() } else { diff::diff(old, new) };
        return Plan { reboot, diff };
    };
    let mut cold = after.clone();
    take_hot_fields(&mut cold, before);
    if cold == *before {
        return Plan { reboot: Vec::new(), diff: String::new() };
    }
    let encode = |config: &Config| ichor_yaml::emit(&config.encode());
    Plan { reboot: changed_keys(before, &cold), diff: diff::diff_text(&encode(before), &encode(&cold)) }
}

/// Takes over from the active configuration whatever may change at run time.
fn take_hot_fields(new: &mut Config, old: &Config) {
    new.debug = old.debug;
    new.cluster.clone_from(&old.cluster);
    let (Some(machine), Some(active)) = (&mut new.machine, &old.machine) else { return };
    let MachineConfig {
        ca,
        accepted_cas,
        time,
        cert_sans,
        install,
        network,
        sysfs,
        sysctls,
        logging,
        control_plane,
        kubelet,
        kernel,
        registries,
        pods,
        seccomp_profiles,
        node_annotations,
        node_labels,
        node_taints,
        features,
        // The rest needs a reboot.
        machine_type: _,
        token: _,
        disks: _,
        files: _,
        env: _,
        system_disk_encryption: _,
        udev: _,
        base_runtime_spec_overrides: _,
    } = &mut **machine;
    ca.clone_from(&active.ca);
    accepted_cas.clone_from(&active.accepted_cas);
    time.clone_from(&active.time);
    cert_sans.clone_from(&active.cert_sans);
    install.clone_from(&active.install);
    network.clone_from(&active.network);
    sysfs.clone_from(&active.sysfs);
    sysctls.clone_from(&active.sysctls);
    logging.clone_from(&active.logging);
    control_plane.clone_from(&active.control_plane);
    kubelet.clone_from(&active.kubelet);
    kernel.clone_from(&active.kernel);
    registries.clone_from(&active.registries);
    pods.clone_from(&active.pods);
    seccomp_profiles.clone_from(&active.seccomp_profiles);
    node_annotations.clone_from(&active.node_annotations);
    node_labels.clone_from(&active.node_labels);
    node_taints.clone_from(&active.node_taints);
    if let (Some(features), Some(active)) = (features, &active.features) {
        let Features {
            kubernetes_talos_api_access,
            kube_prism,
            host_dns,
            image_cache,
            node_address_sort_algorithm,
            rbac: _,
            stable_hostname: _,
            apid_check_ext_key_usage: _,
            disk_quota_support: _,
        } = features;
        kubernetes_talos_api_access.clone_from(&active.kubernetes_talos_api_access);
        kube_prism.clone_from(&active.kube_prism);
        host_dns.clone_from(&active.host_dns);
        image_cache.clone_from(&active.image_cache);
        node_address_sort_algorithm.clone_from(&active.node_address_sort_algorithm);
    }
}

/// Keys of the root and the machine section that differ.
fn changed_keys(old: &Config, new: &Config) -> Vec<String> {
    let (old, new) = (old.encode(), new.encode());
    let mut keys = Vec::new();
    let text = |node: Option<&ichor_yaml::Node>| node.map(ichor_yaml::emit);
    for field in Config::INFO.fields.iter().filter(|field| field.key != "machine") {
        if text(old.get(field.key)) != text(new.get(field.key)) {
            keys.push(field.key.to_owned());
        }
    }
    let section = |node: &ichor_yaml::Node, key: &str| text(node.get("machine").and_then(|m| m.get(key)));
    for field in MachineConfig::INFO.fields {
        if section(&old, field.key) != section(&new, field.key) {
            keys.push(format!("machine.{}", field.key));
        }
    }
    if keys.is_empty() {
        keys.push("machine".to_owned());
    }
    keys
}
