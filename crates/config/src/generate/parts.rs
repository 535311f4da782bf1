//! The documents of a new configuration, piece by piece.

use ichor_types::MachineType;
use serde_json::json;

use super::{GenerateError, Input, registries};
use crate::{
    document::Document,
    kinds::service::{AutoHostname, HostnameConfig},
    model::{Free, KeyedList, List, Replace},
    v1alpha1::{
        ClusterConfig, Config, MachineConfig,
        cluster::{ClusterNetwork, ControlPlane, Discovery},
        control_plane::{AdmissionPlugin, ApiServer, ControllerManager, Etcd, Proxy, Scheduler},
        features::{Features, HostDns, KubePrism},
        install::InstallConfig,
        kubelet::KubeletConfig,
    },
    values::PemPair,
};

const KUBELET: &str = "ghcr.io/siderolabs/kubelet";
const API_SERVER: &str = "registry.k8s.io/kube-apiserver";
const CONTROLLER_MANAGER: &str = "registry.k8s.io/kube-controller-manager";
const PROXY: &str = "registry.k8s.io/kube-proxy";
const SCHEDULER: &str = "registry.k8s.io/kube-scheduler";
const KUBE_PRISM_PORT: u16 = 7445;
const NO_LOAD_BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// All documents of a configuration: the root, registries, host name.
pub(super) fn documents(input: &Input, mut root: Config) -> Result<Vec<Document>, GenerateError> {
    let more = registries::documents(input, &mut root)?;
    let mut documents = vec![Document::Config(Box::new(root))];
    documents.extend(more);
    if input.options.contract.since(12) {
        let hostname = HostnameConfig { auto: Some(AutoHostname::Stable), ..Default::default() };
        documents.push(Document::HostnameConfig(Box::new(hostname)));
    }
    Ok(documents)
}

fn root(input: &Input, machine: MachineConfig, cluster: ClusterConfig) -> Config {
    Config {
        version: "v1alpha1".to_owned(),
        debug: Some(input.options.debug),
        persist: Some(input.options.persist),
        machine: Some(Box::new(machine)),
        cluster: Some(Box::new(cluster)),
    }
}

fn optional_list<T: Clone>(items: &[T]) -> List<T> {
    if items.is_empty() { List::default() } else { items.to_vec().into() }
}

/// The machine section that all roles share.
fn machine(input: &Input, machine_type: MachineType, ca: PemPair) -> MachineConfig {
    let options = &input.options;
    let contract = options.contract;
    let set = |on: bool| on.then_some(true);
    MachineConfig {
        machine_type: machine_type.as_str().to_owned(),
        token: input.secrets.trustd_token().to_owned(),
        ca: Some(ca),
        cert_sans: options.additional_sans.clone().into(),
        kubelet: Some(KubeletConfig {
            image: input.image(KUBELET),
            default_runtime_seccomp_profile_enabled: set(contract.since(2)),
            disable_manifests_directory: set(contract.since(3)),
            ..Default::default()
        }),
        network: Some(options.network.clone()),
        disks: optional_list(&options.disks),
        install: Some(InstallConfig {
            disk: options.install_disk.clone(),
            image: options.install_image.clone(),
            extra_kernel_args: optional_list(&options.extra_kernel_args),
            wipe: Some(false),
            grub_use_uki_cmdline: set(contract.since(12)),
            ..Default::default()
        }),
        sysctls: options.sysctls.clone().into_iter().collect(),
        features: Some(features(input)),
        ..Default::default()
    }
}

fn features(input: &Input) -> Features {
    let contract = input.options.contract;
    let set = |on: bool| on.then_some(true);
    let port = match input.options.kube_prism_port {
        None if contract.since(6) => Some(KUBE_PRISM_PORT),
        None | Some(0) => None,
        Some(port) => Some(port),
    };
    Features {
        rbac: set(!contract.since(12)),
        stable_hostname: set(contract.since(2) && !contract.since(12)),
        apid_check_ext_key_usage: set(contract.since(3) && !contract.since(12)),
        disk_quota_support: set(contract.since(5)),
        kube_prism: port.map(|port| KubePrism { enabled: Some(true), port: i64::from(port) }),
        host_dns: contract.since(7).then(|| HostDns {
            enabled: Some(true),
            forward_kube_dns_to_host: set(input.options.forward_kube_dns_to_host || contract.since(8)),
            resolve_member_names: None,
        }),
        ..Default::default()
    }
}

/// The cluster section that all roles share.
fn cluster(input: &Input, ca: PemPair) -> Result<ClusterConfig, GenerateError> {
    let options = &input.options;
    let (pods, services) = input.networks();
    let list = |text: &str| Replace(List::from(vec![text.to_owned()]));
    let mut discovery = Discovery { enabled: Some(options.discovery), ..Default::default() };
    if options.contract.since(2) {
        discovery.registries.kubernetes.disabled = Some(true);
    }
    Ok(ClusterConfig {
        id: input.secrets.cluster_id().to_owned(),
        secret: input.secrets.cluster_secret().to_owned(),
        control_plane: Some(ControlPlane { endpoint: Some(input.endpoint_url()?), local_api_server_port: 0 }),
        network: Some(ClusterNetwork {
            cni: options.cni.clone(),
            dns_domain: options.dns_domain.clone(),
            pod_subnets: list(pods),
            service_subnets: list(services),
        }),
        token: input.secrets.bootstrap_token().to_owned(),
        ca: Some(ca),
        discovery: Some(discovery),
        ..Default::default()
    })
}

pub(super) fn worker(input: &Input) -> Result<Config, GenerateError> {
    let without_key = |pair: &PemPair| PemPair { crt: pair.crt.clone(), key: Default::default() };
    let machine = machine(input, MachineType::Worker, without_key(input.secrets.os_ca()?));
    let mut cluster = cluster(input, without_key(input.secrets.kubernetes_ca()?))?;
    if input.options.contract.since(8) {
        cluster.cluster_name.clone_from(&input.cluster_name);
    }
    Ok(root(input, machine, cluster))
}

pub(super) fn control_plane(input: &Input, machine_type: MachineType) -> Result<Config, GenerateError> {
    let options = &input.options;
    let contract = options.contract;
    let secrets = &input.secrets;
    let mut machine = machine(input, machine_type, secrets.os_ca()?.clone());
    if contract.since(8) {
        machine.node_labels.entries_mut().insert(NO_LOAD_BALANCER_LABEL.to_owned(), String::new());
    }
    let mut cluster = cluster(input, secrets.kubernetes_ca()?.clone())?;
    cluster.cluster_name.clone_from(&input.cluster_name);
    if let Some(control_plane) = &mut cluster.control_plane {
        control_plane.local_api_server_port = i64::from(options.local_api_server_port);
    }
    if contract.since(3) {
        cluster.secretbox_encryption_secret = secrets.secretbox_secret().to_owned();
    } else {
        cluster.aescbc_encryption_secret = secrets.aescbc_secret().to_owned();
    }
    cluster.aggregator_ca = Some(secrets.aggregator_ca()?.clone());
    cluster.service_account = Some(secrets.service_account()?.clone());
    cluster.api_server = Some(api_server(input)?);
    let image = |repository| input.image(repository);
    cluster.controller_manager =
        Some(ControllerManager { image: image(CONTROLLER_MANAGER), ..Default::default() });
    cluster.proxy = Some(Proxy { image: image(PROXY), ..Default::default() });
    cluster.scheduler = Some(Scheduler { image: image(SCHEDULER), ..Default::default() });
    cluster.etcd = Some(Etcd { ca: Some(secrets.etcd_ca()?.clone()), ..Default::default() });
    cluster.extra_manifests = Vec::new().into();
    cluster.inline_manifests = Vec::new().into();
    if options.allow_scheduling_on_control_planes {
        if contract.since(2) {
            cluster.allow_scheduling_on_control_planes = Some(true);
        } else {
            cluster.allow_scheduling_on_masters = Some(true);
        }
    }
    Ok(root(input, machine, cluster))
}

fn api_server(input: &Input) -> Result<ApiServer, GenerateError> {
    let contract = input.options.contract;
    let mut sans = Vec::new();
    if !contract.since(12) {
        sans.push(input.endpoint_url()?.hostname().to_owned());
    }
    sans.extend(input.options.additional_sans.iter().cloned());
    let plugins = if contract.since(1) { vec![pod_security()] } else { Vec::new() };
    let audit = if contract.since(3) { audit_policy() } else { Free::default() };
    Ok(ApiServer {
        image: input.image(API_SERVER),
        cert_sans: optional_list(&sans),
        disable_pod_security_policy: (!contract.since(12)).then_some(true),
        admission_control: KeyedList::from(plugins),
        audit_policy: Replace(audit),
        ..Default::default()
    })
}

/// Pod security: baseline is enforced, restricted is only reported, the system namespace is exempt.
fn pod_security() -> AdmissionPlugin {
    AdmissionPlugin {
        name: "PodSecurity".to_owned(),
        configuration: Free::from_json(&json!({
            "apiVersion": "pod-security.admission.config.k8s.io/v1alpha1",
            "kind": "PodSecurityConfiguration",
            "defaults": {
                "enforce": "baseline",
                "enforce-version": "latest",
                "audit": "restricted",
                "audit-version": "latest",
                "warn": "restricted",
                "warn-version": "latest",
            },
            "exemptions": { "usernames": [], "runtimeClasses": [], "namespaces": ["kube-system"] },
        })),
    }
}

/// Log the metadata of every request.
pub(crate) fn audit_policy() -> Free {
    Free::from_json(&json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [{ "level": "Metadata" }],
    }))
}
