//! Names and addresses to put into certificates.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::network::{HostnameStatus, NodeAddress};
use ichor_resource::secrets::{CertSAN, KubernetesRootSecret, OSRootSecret};
use ichor_resource::value::Ip;

use crate::id;

pub(crate) const HOSTNAME: &str = "hostname";
/// Addresses of the node that are not of pods or services, ever seen since boot.
pub(crate) const OWN_ADDRESSES: &str = "accumulative-no-k8s";
/// All addresses of the node ever seen since boot.
const ALL_ADDRESSES: &str = "accumulative";

/// Collects names and addresses in any order and gives them out sorted, once each.
#[derive(Debug, Default)]
struct Names {
    // IPv4 sorts before IPv6.
    addresses: BTreeSet<IpAddr>,
    names: BTreeSet<String>,
    fqdn: String,
}

impl Names {
    fn address(&mut self, address: impl Into<Option<IpAddr>>) {
        self.addresses.extend(address.into());
    }

    fn name(&mut self, name: &str) {
        let name = name.trim_end_matches('.');
        if !name.is_empty() {
            self.names.insert(name.to_owned());
        }
    }

    /// A name or an address, whichever the text is.
    fn either(&mut self, text: &str) {
        match text.parse() {
            Ok(address) => self.address(Some(address)),
            Err(_) => self.name(text),
        }
    }

    /// The host name, short and full; the full one is who the certificate is for.
    fn host(&mut self, host: &HostnameStatus) {
        self.name(&host.hostname);
        self.fqdn = fqdn(host);
        self.name(&self.fqdn.clone());
    }

    fn node(&mut self, node: &NodeAddress) {
        self.addresses.extend(node.addresses.iter().filter_map(|prefix| Some(prefix.get()?.addr())));
    }

    fn into_spec(self) -> CertSAN {
        CertSAN {
            ips: self.addresses.into_iter().map(Ip::from).collect(),
            dns_names: self.names.into_iter().collect(),
            fqdn: self.fqdn,
        }
    }
}

/// Host and domain name in one.
pub(crate) fn fqdn(host: &HostnameStatus) -> String {
    match host.domainname.trim_end_matches('.') {
        "" => host.hostname.trim_end_matches('.').to_owned(),
        domain => format!("{}.{domain}", host.hostname),
    }
}

fn network_inputs(addresses: &'static str) -> [Input; 2] {
    [weak::<HostnameStatus>().id(HOSTNAME), weak::<NodeAddress>().id(addresses)]
}

/// The names of this node, once it has any.
fn node_names(ctx: &Context, addresses: &str) -> Result<Option<Names>, ControllerError> {
    let (Some(host), Some(node)) = (ctx.get::<HostnameStatus>(HOSTNAME)?, ctx.get::<NodeAddress>(addresses)?)
    else {
        return Ok(None);
    };
    let mut names = Names::default();
    names.host(&host);
    names.node(&node);
    Ok(Some(names))
}

/// Names for the certificates of the node API: `CertSANs/api`.
#[derive(Debug, Default)]
pub struct ApiCertSans;

impl Controller for ApiCertSans {
    const NAME: &'static str = "secrets.APICertSANsController";

    fn inputs(&self) -> Vec<Input> {
        let [host, node] = network_inputs(OWN_ADDRESSES);
        vec![weak::<OSRootSecret>().id(id::OS), host, node]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<CertSAN>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(root) = ctx.get::<OSRootSecret>(id::OS)? else {
            return Ok(ctx.publish::<CertSAN>([] as [(&str, CertSAN); 0])?);
        };
        let Some(mut names) = node_names(ctx, OWN_ADDRESSES)? else { return Ok(()) };
        root.cert_san_ips.iter().for_each(|ip| names.address(ip.get()));
        root.cert_san_dns_names.iter().for_each(|name| names.name(name));
        Ok(ctx.publish([(id::API, names.into_spec())])?)
    }
}

/// Names for the certificate of the maintenance service: `CertSANs/maintenance`.
#[derive(Debug, Default)]
pub struct MaintenanceCertSans;

impl Controller for MaintenanceCertSans {
    const NAME: &'static str = "secrets.MaintenanceCertSANsController";

    fn inputs(&self) -> Vec<Input> {
        network_inputs(ALL_ADDRESSES).into()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<CertSAN>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // A machine without a configuration may have no name, and must be reachable all the same.
        let Some(node) = ctx.get::<NodeAddress>(ALL_ADDRESSES)? else { return Ok(()) };
        let mut names = Names::default();
        if let Some(host) = ctx.get::<HostnameStatus>(HOSTNAME)? {
            names.host(&host);
        }
        names.node(&node);
        names.either("127.0.0.1");
        names.either("::1");
        let mut spec = names.into_spec();
        spec.fqdn = "maintenance-service.talos.dev".to_owned();
        Ok(ctx.publish([(id::MAINTENANCE, spec)])?)
    }
}

/// Names for the certificate of the API server: `CertSANs/k8s`.
#[derive(Debug, Default)]
pub struct KubernetesCertSans;

impl Controller for KubernetesCertSans {
    const NAME: &'static str = "secrets.KubernetesCertSANsController";

    fn inputs(&self) -> Vec<Input> {
        let [host, node] = network_inputs(OWN_ADDRESSES);
        vec![weak::<KubernetesRootSecret>().id(id::KUBERNETES), host, node]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<CertSAN>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(root) = ctx.get::<KubernetesRootSecret>(id::KUBERNETES)? else {
            return Ok(ctx.publish::<CertSAN>([] as [(&str, CertSAN); 0])?);
        };
        let Some(mut names) = node_names(ctx, OWN_ADDRESSES)? else { return Ok(()) };
        let endpoint =
            root.endpoint.as_ref().map(|url| ichor_config::values::Url::parse(&url.0)).transpose()?;
        endpoint.iter().for_each(|url| names.either(url.hostname()));
        root.cert_sans.iter().for_each(|san| names.either(san));
        for name in ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"] {
            names.name(name);
        }
        names.name(&format!("kubernetes.default.svc.{}", root.dns_domain));
        root.api_server_ips.iter().for_each(|ip| names.address(ip.get()));
        names.either("127.0.0.1");
        Ok(ctx.publish([(id::KUBERNETES, names.into_spec())])?)
    }
}
