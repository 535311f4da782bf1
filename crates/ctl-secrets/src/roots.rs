//! Root secrets, straight from the machine configuration.

use std::net::IpAddr;

use bytes::Bytes;
use ichor_config::v1alpha1::{ClusterConfig, Config, MachineConfig as MachineSection};
use ichor_config::values::{PemCert, PemPair};
use ichor_cosi::{Context, ControllerError, Transform, TransformController, Typed};
use ichor_ctl::Configuration;
use ichor_resource::Id;
use ichor_resource::config::MachineConfig;
use ichor_resource::secrets::{EtcdRootSecret, KubeletSecret, KubernetesRootSecret, OSRootSecret};
use ichor_resource::value::{Ip, PemCertificate, PemCertificateAndKey, PemKey, Url};
use ichor_types::MachineType;

use crate::id;

/// Where the API server listens when the configuration does not say.
const API_SERVER_PORT: i64 = 6443;
/// Where the local load balancer listens when the configuration does not say.
const KUBE_PRISM_PORT: i64 = 7445;
const DNS_DOMAIN: &str = "cluster.local";
const SERVICE_SUBNET: &str = "10.96.0.0/12";

/// The two halves of a root document that has both.
struct Root<'a> {
    machine: &'a MachineSection,
    cluster: &'a ClusterConfig,
}

impl<'a> Root<'a> {
    fn of(config: &'a Config) -> Option<Self> {
        Some(Self { machine: config.machine.as_deref()?, cluster: config.cluster.as_deref()? })
    }

    fn is_control_plane(&self) -> bool {
        self.machine.machine_type.parse().is_ok_and(MachineType::is_control_plane)
    }
}

/// True for the active configuration of a machine that `wanted` picks.
fn applies(input: &Typed<MachineConfig>, wanted: impl Fn(&Root<'_>) -> bool) -> bool {
    // A configuration that does not parse was never active; no secrets come of it.
    *input.id() == *MachineConfig::ACTIVE
        && Configuration::of(input)
            .is_ok_and(|documents| documents.root().and_then(Root::of).is_some_and(|root| wanted(&root)))
}

/// Fills an output from the root document.
fn fill(input: &Typed<MachineConfig>, fill: impl FnOnce(&Root<'_>)) -> Result<(), ControllerError> {
    if let Some(root) = Configuration::of(input)?.root().and_then(Root::of) {
        fill(&root);
    }
    Ok(())
}

fn pair(pair: &PemPair) -> PemCertificateAndKey {
    PemCertificateAndKey {
        crt: Bytes::copy_from_slice(&pair.crt.0),
        key: Bytes::copy_from_slice(&pair.key.0),
    }
}

/// A pair that can sign; one without its key is nothing to issue from.
fn signing(ca: Option<&PemPair>) -> Option<PemCertificateAndKey> {
    ca.filter(|ca| !ca.key.0.is_empty()).map(pair)
}

/// The accepted authorities, then the issuing one.
fn accepted(extra: &[PemCert], ca: Option<&PemPair>) -> Vec<PemCertificate> {
    let issuing = ca.map(|ca| &ca.crt.0).into_iter();
    let crts = extra.iter().map(|ca| &ca.crt.0).chain(issuing).filter(|crt| !crt.is_empty());
    crts.map(|crt| PemCertificate { crt: Bytes::copy_from_slice(crt) }).collect()
}

/// Token id and secret of `<id>.<secret>`.
fn token_parts(token: &str) -> (String, String) {
    let (id, secret) = token.split_once('.').unwrap_or((token, ""));
    (id.to_owned(), secret.to_owned())
}

fn or_default(value: i64, default: i64) -> i64 {
    if value == 0 { default } else { value }
}

fn api_server_port(cluster: &ClusterConfig) -> i64 {
    or_default(cluster.control_plane.as_ref().map_or(0, |plane| plane.local_api_server_port), API_SERVER_PORT)
}

fn cluster_endpoint(cluster: &ClusterConfig) -> Option<Url> {
    let endpoint = cluster.control_plane.as_ref()?.endpoint.as_ref()?;
    Some(Url(endpoint.to_string()))
}

/// The CA, token and names of the node API.
#[derive(Debug, Default)]
pub struct OsRoot;

/// Writes `OSRootSecrets`.
pub type RootOs = TransformController<OsRoot>;

impl Transform for OsRoot {
    const NAME: &'static str = "secrets.RootOSController";
    type Input = MachineConfig;
    type Output = OSRootSecret;

    fn output_id(&self, input: &Typed<MachineConfig>) -> Option<Id> {
        applies(input, |_| true).then(|| id::OS.into())
    }

    fn transform(
        &mut self,
        _: &Context,
        input: &Typed<MachineConfig>,
        output: &mut OSRootSecret,
    ) -> Result<(), ControllerError> {
        fill(input, |Root { machine, .. }| {
            let (ips, names): (Vec<_>, Vec<_>) = machine
                .cert_sans
                .iter()
                .map(|san| san.parse::<IpAddr>().map_err(|_| san))
                .partition(Result::is_ok);
            let mut names: Vec<String> = names.into_iter().filter_map(Result::err).cloned().collect();
            if pods_may_ask(machine) {
                names.extend(["talos".to_owned(), "talos.default".to_owned()]);
            }
            *output = OSRootSecret {
                issuing_ca: signing(machine.ca.as_ref()),
                accepted_cas: accepted(&machine.accepted_cas, machine.ca.as_ref()),
                cert_san_ips: ips.into_iter().flatten().map(Ip::from).collect(),
                cert_san_dns_names: names,
                token: machine.token.clone(),
            };
        })
    }
}

/// Whether pods reach the node API under a service name.
fn pods_may_ask(machine: &MachineSection) -> bool {
    let access = machine.features.as_ref().and_then(|features| features.kubernetes_talos_api_access.as_ref());
    access.and_then(|access| access.enabled).unwrap_or(false)
}

/// The CA of etcd, on control plane machines.
#[derive(Debug, Default)]
pub struct EtcdRoot;

/// Writes `EtcdRootSecrets`.
pub type RootEtcd = TransformController<EtcdRoot>;

impl Transform for EtcdRoot {
    const NAME: &'static str = "secrets.RootEtcdController";
    type Input = MachineConfig;
    type Output = EtcdRootSecret;

    fn output_id(&self, input: &Typed<MachineConfig>) -> Option<Id> {
        applies(input, |root| root.is_control_plane()).then(|| id::ETCD.into())
    }

    fn transform(
        &mut self,
        _: &Context,
        input: &Typed<MachineConfig>,
        output: &mut EtcdRootSecret,
    ) -> Result<(), ControllerError> {
        fill(input, |Root { cluster, .. }| {
            output.etcd_ca = cluster.etcd.as_ref().and_then(|etcd| etcd.ca.as_ref()).map(pair);
        })
    }
}

/// CAs, keys and endpoint of Kubernetes, on control plane machines.
#[derive(Debug, Default)]
pub struct KubernetesRoot;

/// Writes `KubernetesRootSecrets`.
pub type RootKubernetes = TransformController<KubernetesRoot>;

impl Transform for KubernetesRoot {
    const NAME: &'static str = "secrets.RootKubernetesController";
    type Input = MachineConfig;
    type Output = KubernetesRootSecret;

    fn output_id(&self, input: &Typed<MachineConfig>) -> Option<Id> {
        applies(input, |root| root.is_control_plane()).then(|| id::KUBERNETES.into())
    }

    fn transform(
        &mut self,
        _: &Context,
        input: &Typed<MachineConfig>,
        output: &mut KubernetesRootSecret,
    ) -> Result<(), ControllerError> {
        fill(input, |Root { machine, cluster }| {
            let network = cluster.network.as_ref();
            let (token_id, token_secret) = token_parts(&cluster.token);
            *output = KubernetesRootSecret {
                name: cluster.cluster_name.clone(),
                endpoint: cluster_endpoint(cluster),
                local_endpoint: Some(local_endpoint(machine, cluster)),
                cert_sans: cluster.api_server.as_ref().map_or_else(Vec::new, |api| api.cert_sans.to_vec()),
                api_server_ips: service_ips(network.map_or(&[], |network| &**network.service_subnets)),
                dns_domain: network
                    .map(|network| network.dns_domain.as_str())
                    .filter(|domain| !domain.is_empty())
                    .unwrap_or(DNS_DOMAIN)
                    .to_owned(),
                issuing_ca: signing(cluster.ca.as_ref()),
                accepted_cas: accepted(&cluster.accepted_cas, cluster.ca.as_ref()),
                service_account: cluster
                    .service_account
                    .as_ref()
                    .map(|key| PemKey { key: Bytes::copy_from_slice(&key.key.0) }),
                aggregator_ca: cluster.aggregator_ca.as_ref().map(pair),
                aes_cbc_encryption_secret: cluster.aescbc_encryption_secret.clone(),
                bootstrap_token_id: token_id,
                bootstrap_token_secret: token_secret,
                secretbox_encryption_secret: cluster.secretbox_encryption_secret.clone(),
            };
        })
    }
}

/// The first address of each service network, which is where the API server answers inside the cluster.
fn service_ips(subnets: &[String]) -> Vec<Ip> {
    let default = [SERVICE_SUBNET.to_owned()];
    let subnets = if subnets.is_empty() { &default } else { subnets };
    let nets = subnets.iter().filter_map(|subnet| subnet.trim().parse::<ipnet::IpNet>().ok());
    nets.filter_map(|net| match net.network() {
        IpAddr::V4(base) => {
            u32::from(base).checked_add(1).map(|addr| Ip::from(std::net::Ipv4Addr::from(addr)))
        }
        IpAddr::V6(base) => {
            u128::from(base).checked_add(1).map(|addr| Ip::from(std::net::Ipv6Addr::from(addr)))
        }
    })
    .collect()
}

/// What kubelet needs to join.
#[derive(Debug, Default)]
pub struct KubeletRoot;

/// Writes `KubeletSecrets`.
pub type Kubelet = TransformController<KubeletRoot>;

impl Transform for KubeletRoot {
    const NAME: &'static str = "secrets.KubeletController";
    type Input = MachineConfig;
    type Output = KubeletSecret;

    fn output_id(&self, input: &Typed<MachineConfig>) -> Option<Id> {
        applies(input, |root| root.cluster.ca.is_some()).then(|| id::KUBELET.into())
    }

    fn transform(
        &mut self,
        _: &Context,
        input: &Typed<MachineConfig>,
        output: &mut KubeletSecret,
    ) -> Result<(), ControllerError> {
        fill(input, |root| {
            let (token_id, token_secret) = token_parts(&root.cluster.token);
            let mut accepted_cas = accepted(&root.cluster.accepted_cas, root.cluster.ca.as_ref());
            // Kubelet has the issuing authority first; all others have it last.
            accepted_cas.rotate_right(1);
            *output = KubeletSecret {
                endpoint: kubelet_endpoint(root),
                accepted_cas,
                bootstrap_token_id: token_id,
                bootstrap_token_secret: token_secret,
            };
        })
    }
}

/// The local load balancer where it runs, else the local API server, else the cluster's endpoint.
fn kubelet_endpoint(root: &Root<'_>) -> Option<Url> {
    if root.is_control_plane() || kube_prism(root.machine).is_some() {
        return Some(local_endpoint(root.machine, root.cluster));
    }
    cluster_endpoint(root.cluster)
}

/// Where a control plane machine meets the API server: through the local load balancer if there is one.
fn local_endpoint(machine: &MachineSection, cluster: &ClusterConfig) -> Url {
    Url(match kube_prism(machine) {
        Some(port) => format!("https://127.0.0.1:{port}"),
        None => format!("https://localhost:{}", api_server_port(cluster)),
    })
}

/// The port of the local load balancer, if it runs.
fn kube_prism(machine: &MachineSection) -> Option<i64> {
    let prism = machine.features.as_ref()?.kube_prism.as_ref()?;
    (prism.enabled == Some(true)).then(|| or_default(prism.port, KUBE_PRISM_PORT))
}
