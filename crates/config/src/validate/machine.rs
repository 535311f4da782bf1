//! Rules of the root document, mainly its `machine` section.

use ichor_types::{MachineType, subnet};

use super::{Mode, Report, cluster, labels, network, runtime_spec};
use crate::{
    model::Path,
    v1alpha1::{Config, MachineConfig, encryption::Encryption, install::InstallConfig},
};

/// Fields of the kubelet configuration that are not for people to set.
pub const KUBELET_PROTECTED: [&str; 13] = [
    "apiVersion",
    "authentication",
    "authorization",
    "cgroupRoot",
    "kind",
    "kubeletCgroups",
    "port",
    "protectKernelDefaults",
    "resolvConf",
    "rotateCertificates",
    "systemCgroups",
    "staticPodPath",
    "seccompDefault",
];

/// Roles that workloads may be given on the machine API.
const ROLES: [&str; 5] = ["os:admin", "os:operator", "os:reader", "os:etcd:backup", "os:impersonator"];

pub(super) fn check(report: &mut Report<'_>, config: &Config, mode: Mode) {
    let path = Path::of("machine");
    let Some(machine) = config.machine.as_deref() else {
        report.error(&path, "machine instructions are required");
        return;
    };
    let machine_type = machine.machine_type.parse::<MachineType>();
    let is_control_plane = machine_type.as_ref().is_ok_and(|kind| kind.is_control_plane());
    cluster::check(report, config.cluster.as_deref(), is_control_plane);
    if mode.requires_install {
        check_install(report, machine.install.as_ref(), mode);
    }
    if mode.in_container {
        check_container(report, machine);
    }
    check_role(report, config, machine);
    if let Some(network) = &machine.network {
        network::check(report, network);
    }
    check_disks(report, machine);
    check_kubelet(report, machine);
    check_runtime_spec(report, machine);
    if let Some(encryption) = &machine.system_disk_encryption {
        let path = path.key("systemDiskEncryption");
        let volumes =
            [("EPHEMERAL", "ephemeral", &encryption.ephemeral), ("STATE", "state", &encryption.state)];
        for (label, key, volume) in volumes {
            if let Some(volume) = volume {
                check_encryption(report, &path.key(key), label, volume);
            }
        }
    }
    check_kubespan(report, config, machine);
    check_logging(report, machine);
    check_extensions(report, machine);
    labels::check_labels(report, &path.key("nodeLabels"), &machine.node_labels);
    labels::check_annotations(report, &path.key("nodeAnnotations"), &machine.node_annotations);
    labels::check_taints(report, &path.key("nodeTaints"), &machine.node_taints);
    check_features(report, machine, is_control_plane);
    if config.persist == Some(false) {
        report.error(&Path::of("persist"), ".persist should be enabled");
    }
}

fn check_install(report: &mut Report<'_>, install: Option<&InstallConfig>, mode: Mode) {
    let path = Path::of("machine.install");
    let Some(install) = install else {
        report.error(&path, format!("install instructions are required in {:?} mode", mode.name));
        return;
    };
    let selector = install.disk_selector.as_ref().map(|selector| selector.expression());
    let mut selects = false;
    match selector {
        Some(Err(error)) => {
            report.error(&path.key("diskSelector"), format!("install disk selector is invalid: {error}"));
        }
        Some(Ok(_)) => selects = true,
        None => {}
    }
    if install.disk.is_empty() && !selects {
        report.error(&path.key("disk"), "either install disk or diskSelector should be defined");
    }
    if !install.extra_kernel_args.is_empty() && install.grub_use_uki_cmdline == Some(true) {
        let message = "install.extraKernelArgs and install.grubUseUKICmdline can't be used together";
        report.error(&path.key("extraKernelArgs"), message);
    }
}

fn check_container(report: &mut Report<'_>, machine: &MachineConfig) {
    let dns = machine.features.as_ref().and_then(|features| features.host_dns.as_ref());
    let path = Path::of("machine.features.hostDNS");
    if dns.and_then(|dns| dns.enabled) != Some(true) {
        let message =
            "feature HostDNS should be enabled in container mode (.machine.features.hostDNS.enabled)";
        report.error(&path.key("enabled"), message);
    }
    if dns.and_then(|dns| dns.forward_kube_dns_to_host) != Some(true) {
        let message = "feature HostDNS should forward kube-dns to host in container mode \
                       (.machine.features.hostDNS.forwardKubeDNSToHost)";
        report.error(&path.key("forwardKubeDNSToHost"), message);
    }
}

/// Rules that depend on the role: which keys and certificates must or must not be there.
fn check_role(report: &mut Report<'_>, config: &Config, machine: &MachineConfig) {
    let path = Path::of("machine");
    let written = &machine.machine_type;
    let role = written.parse::<MachineType>();
    if let Ok(role) = role
        && role.as_str() != written
    {
        let message = format!("use {:?} instead of {written:?} for machine type", role.as_str());
        report.warn(&path.key("type"), message);
    }
    let ca = machine.ca.as_ref();
    if ca.is_none() && machine.accepted_cas.is_empty() {
        let message = "issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)";
        report.error(&path.key("ca"), message);
    }
    match role {
        Ok(MachineType::Init | MachineType::ControlPlane) => {
            let cluster = config.cluster.as_deref();
            let network = cluster.and_then(|cluster| cluster.network.as_ref());
            cluster::check_cni(report, network.and_then(|network| network.cni.as_ref()));
            match ca {
                None => report.error(&path.key("ca"), "issuing CA is required (.machine.ca)"),
                Some(ca) if ca.key.0.is_empty() => {
                    let message = "issuing CA key is required for controlplane nodes (.machine.ca.key)";
                    report.error(&path.key("ca").key("key"), message);
                }
                Some(_) => {}
            }
        }
        Ok(MachineType::Worker | MachineType::Unknown) => check_worker(report, config, machine),
        Err(error) => {
            let help = crate::suggest::did_you_mean(written, MachineType::NAMES.into_iter())
                .unwrap_or_else(|| format!("allowed: {}", MachineType::NAMES.join(", ")));
            report.error_with_help(&path.key("type"), error.to_string(), Some(help));
        }
    }
}

fn check_worker(report: &mut Report<'_>, config: &Config, machine: &MachineConfig) {
    let path = Path::of("machine");
    let message = "virtual (shared) IP is not allowed on non-controlplane nodes";
    let devices = machine.network.as_ref().map_or(&[][..], |network| &network.interfaces);
    for (i, device) in devices.iter().enumerate() {
        let at = path.key("network").key("interfaces").index(i);
        if device.vip.is_some() {
            report.error(&at.key("vip"), message);
        }
        for (j, _) in device.vlans.iter().enumerate().filter(|(_, vlan)| vlan.vip.is_some()) {
            report.error(&at.key("vlans").index(j).key("vip"), message);
        }
    }
    if let Some(ca) = &machine.ca {
        if !ca.key.0.is_empty() {
            let message = "issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)";
            report.error(&path.key("ca").key("key"), message);
        }
        if ca.crt.0.is_empty() && machine.accepted_cas.is_empty() {
            let message = "trusted CA certificates are required on non-controlplane nodes (.machine.ca.crt, \
                           .machine.acceptedCAs)";
            report.error(&path.key("ca").key("crt"), message);
        }
    }
    let cluster_ca = config.cluster.as_deref().and_then(|cluster| cluster.ca.as_ref());
    if cluster_ca.is_some_and(|ca| !ca.key.0.is_empty()) {
        let message = "issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)";
        report.error(&Path::of("cluster.ca.key"), message);
    }
}

fn check_disks(report: &mut Report<'_>, machine: &MachineConfig) {
    for (i, disk) in machine.disks.iter().enumerate() {
        let last = disk.partitions.len().saturating_sub(1);
        for (j, _) in disk.partitions[..last].iter().enumerate().filter(|(_, part)| part.size.0 == 0) {
            let message = format!(
                "partition for disk {:?} is set to occupy full disk, but it's not the last partition in the list",
                disk.device
            );
            report.error(&Path::of("machine.disks").index(i).key("partitions").index(j), message);
        }
    }
}

fn check_kubelet(report: &mut Report<'_>, machine: &MachineConfig) {
    let Some(kubelet) = &machine.kubelet else { return };
    let path = Path::of("machine.kubelet");
    let subnets = kubelet.node_ip.as_ref().map_or(&[][..], |node_ip| &node_ip.valid_subnets);
    for (i, text) in subnets.iter().enumerate().filter(|(_, text)| !subnet::is_valid_filter(text)) {
        let text = text.strip_prefix('!').unwrap_or(text);
        let at = path.key("nodeIP").key("validSubnets").index(i);
        report.error(&at, format!("kubelet nodeIP subnet is not valid: {text:?}"));
    }
    for field in KUBELET_PROTECTED {
        if kubelet.extra_config.get(field).is_some() {
            let message = format!("kubelet configuration field {field:?} can't be overridden");
            report.error(&path.key("extraConfig").key(field), message);
        }
    }
}

fn check_runtime_spec(report: &mut Report<'_>, machine: &MachineConfig) {
    let path = Path::of("machine.baseRuntimeSpecOverrides");
    let overrides = machine.base_runtime_spec_overrides.entries();
    runtime_spec::check(overrides, &path, &mut |at, problem| {
        report.error(at, format!("failed to unmarshal base runtime spec overrides: {problem}"));
    });
}

fn check_encryption(report: &mut Report<'_>, path: &Path, label: &str, encryption: &Encryption) {
    let path = path.key("keys");
    if encryption.keys.is_empty() {
        report.error(&path, format!("partition {label:?}: no encryption keys provided"));
    }
    for (i, key) in encryption.keys.iter().enumerate() {
        let at = path.index(i);
        let slot = key.slot;
        if encryption.keys[..i].iter().any(|earlier| earlier.slot == slot) {
            let message = format!("partition {label:?}: encryption key slot {slot} is already in use");
            report.error(&at.key("slot"), message);
        }
        let typed =
            key.node_id.is_some() || key.static_key.is_some() || key.kms.is_some() || key.tpm.is_some();
        if !typed {
            let message = format!(
                "partition {label:?}: encryption key at slot {slot} doesn't have the configuration parameters"
            );
            report.error(&at, message);
        }
    }
}

fn check_kubespan(report: &mut Report<'_>, config: &Config, machine: &MachineConfig) {
    let kubespan = machine.network.as_ref().and_then(|network| network.kubespan.as_ref());
    let Some(kubespan) = kubespan.filter(|kubespan| kubespan.enabled == Some(true)) else { return };
    let cluster = config.cluster.as_deref();
    let why = "when .machine.network.kubespan is enabled";
    let discovery = cluster.and_then(|cluster| cluster.discovery.as_ref());
    if discovery.and_then(|discovery| discovery.enabled) != Some(true) {
        let message = format!(".cluster.discovery should be enabled {why}");
        report.error(&Path::of("cluster.discovery.enabled"), message);
    }
    for (key, set) in [
        ("id", cluster.is_some_and(|cluster| !cluster.id.is_empty())),
        ("secret", cluster.is_some_and(|cluster| !cluster.secret.is_empty())),
    ] {
        if !set {
            report.error(&Path::of("cluster").key(key), format!(".cluster.{key} should be set {why}"));
        }
    }
    let endpoints = kubespan.filters.as_ref().map_or(&[][..], |filters| &filters.endpoints);
    let path = Path::of("machine.network.kubespan.filters.endpoints");
    for (i, text) in endpoints.iter().enumerate().filter(|(_, text)| !subnet::is_valid_filter(text)) {
        let text = text.strip_prefix('!').unwrap_or(text);
        report.error(&path.index(i), format!("KubeSpan endpoint filer is not valid: {text:?}"));
    }
}

fn check_logging(report: &mut Report<'_>, machine: &MachineConfig) {
    let Some(logging) = &machine.logging else { return };
    for (i, destination) in logging.destinations.iter().enumerate() {
        let path = Path::of("machine.logging.destinations").index(i);
        let at = path.key("endpoint");
        match &destination.endpoint {
            None => report.error(&at, "empty logging endpoint"),
            Some(url) => {
                if url.host.is_empty() {
                    report.error(&at, "empty logging endpoint's host");
                }
                if !matches!(url.scheme.as_str(), "tcp" | "udp") {
                    report.error(&at, format!("unexpected logging endpoint scheme {:?}", url.scheme));
                }
            }
        }
        if destination.format != "json_lines" {
            let help = Some("allowed: json_lines".to_owned());
            let message = format!("unknown logging format {:?}", destination.format);
            report.error_with_help(&path.key("format"), message, help);
        }
    }
}

fn check_extensions(report: &mut Report<'_>, machine: &MachineConfig) {
    let Some(install) = &machine.install else { return };
    let path = Path::of("machine.install.extensions");
    for (i, extension) in install.extensions.iter().enumerate() {
        if install.extensions[..i].iter().any(|earlier| earlier.image == extension.image) {
            let message = format!("duplicate system extension {:?}", extension.image);
            report.error(&path.index(i).key("image"), message);
        }
    }
    if !install.extensions.is_empty() {
        let message = ".machine.install.extensions is deprecated, please see \
                       https://www.talos.dev/latest/talos-guides/install/boot-assets/";
        report.warn(&path, message);
    }
}

fn check_features(report: &mut Report<'_>, machine: &MachineConfig, is_control_plane: bool) {
    let Some(features) = &machine.features else { return };
    let path = Path::of("machine.features");
    let access = features.kubernetes_talos_api_access.as_ref();
    if let Some(access) = access.filter(|access| access.enabled == Some(true)) {
        let at = path.key("kubernetesTalosAPIAccess");
        if !is_control_plane {
            let message = "feature Kubernetes Talos API Access can only be enabled on control plane machines";
            report.error(&at.key("enabled"), message);
        }
        for (i, role) in access.allowed_roles.iter().enumerate() {
            if !ROLES.contains(&role.as_str()) {
                let help = crate::suggest::did_you_mean(role, ROLES.into_iter())
                    .unwrap_or_else(|| format!("allowed: {}", ROLES.join(", ")));
                let message =
                    format!("invalid role {role:?} in allowed roles for Kubernetes Talos API Access");
                report.error_with_help(&at.key("allowedRoles").index(i), message, Some(help));
            }
        }
    }
    let algorithm = features.node_address_sort_algorithm.as_str();
    if !matches!(algorithm.to_lowercase().as_str(), "" | "v1" | "v2") {
        let error = format!("{algorithm} does not belong to AddressSortAlgorithm values");
        let help = Some("allowed: v1, v2".to_owned());
        let message = format!("invalid node address sort algorithm: {error}");
        report.error_with_help(&path.key("nodeAddressSortAlgorithm"), message, help);
    }
}
