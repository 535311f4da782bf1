//! Certificates and kubeconfigs of the Kubernetes control plane.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::Leaf;
use ichor_resource::network::NetworkStatus;
use ichor_resource::secrets::{CertSAN, KubernetesDynamicCert, KubernetesRootSecret, KubernetesSecret};
use ichor_resource::time::TimeStatus;
use ichor_resource::value::{Ip, PemCertificateAndKey};

use crate::id;
use crate::issue::{Memory, enciphering, issue, network_is_ready, time_is_right};
use crate::kubeconfig::Kubeconfig;

const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
const SCHEDULER: &str = "system:kube-scheduler";
const ADMINS: &str = "system:masters";

fn authority(pair: Option<&PemCertificateAndKey>) -> Result<&PemCertificateAndKey, ControllerError> {
    pair.ok_or_else(|| {
        ControllerError::new(
            "a control plane machine needs `cluster.ca` with its key and `cluster.aggregatorCA`",
        )
    })
}

/// Writes `KubernetesSecrets`, whose version restarts the control plane.
#[derive(Debug)]
pub struct Kubernetes {
    memory: Memory<KubernetesRootSecret>,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self { memory: Memory::of(Leaf::YEAR) }
    }
}

/// The root secrets without what no running component depends on.
fn essence(root: &KubernetesRootSecret) -> KubernetesRootSecret {
    KubernetesRootSecret {
        cert_sans: Vec::new(),
        api_server_ips: Vec::new(),
        dns_domain: String::new(),
        bootstrap_token_id: String::new(),
        bootstrap_token_secret: String::new(),
        ..root.clone()
    }
}

async fn kubeconfigs(
    root: &KubernetesRootSecret,
    ctx: &Context,
) -> Result<KubernetesSecret, ControllerError> {
    let authority = authority(root.issuing_ca.as_ref())?;
    let (Some(server), Some(local)) = (&root.endpoint, &root.local_endpoint) else {
        return Err(ControllerError::new("`cluster.controlPlane.endpoint` is not set"));
    };
    let component = |name: &'static str| Kubeconfig {
        cluster: &root.name,
        server: &local.0,
        accepted: &root.accepted_cas,
        common_name: name,
        organization: name,
        lifetime: Leaf::YEAR,
        user: name,
        context: "default",
    };
    let local_admin = Kubeconfig {
        common_name: "talos:admin",
        organization: ADMINS,
        user: "admin",
        context: "admin",
        ..component("admin")
    };
    let admin = Kubeconfig { server: &server.0, ..local_admin.clone() };
    let now = ctx.now();
    Ok(KubernetesSecret {
        controller_manager_kubeconfig: component(CONTROLLER_MANAGER).issue(authority, now).await?,
        scheduler_kubeconfig: component(SCHEDULER).issue(authority, now).await?,
        localhost_admin_kubeconfig: local_admin.issue(authority, now).await?,
        admin_kubeconfig: admin.issue(authority, now).await?,
    })
}

impl Controller for Kubernetes {
    const NAME: &'static str = "secrets.KubernetesController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<KubernetesRootSecret>().id(id::KUBERNETES), weak::<TimeStatus>().id("node")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubernetesSecret>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(root) = ctx.get::<KubernetesRootSecret>(id::KUBERNETES)? else {
            self.memory.forget();
            return Ok(ctx.publish::<KubernetesSecret>([] as [(&str, KubernetesSecret); 0])?);
        };
        if !time_is_right(ctx.get::<TimeStatus>("node")?.as_deref()) {
            return Ok(());
        }
        let inputs = essence(&root);
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let made = kubeconfigs(&root, ctx).await?;
        ctx.modify::<KubernetesSecret>(id::KUBERNETES_CERTS, |spec| spec.clone_from(&made))?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}

/// What the certificates of the API server depend on.
#[derive(Debug, PartialEq)]
struct Inputs {
    issuing_ca: PemCertificateAndKey,
    aggregator_ca: PemCertificateAndKey,
    names: CertSAN,
}

/// Writes `KubernetesDynamicCerts`, which the API server reads anew while it runs.
#[derive(Debug)]
pub struct KubernetesDynamic {
    memory: Memory<Inputs>,
    /// Once it was ready, later changes of the network do not hold certificates back.
    network: bool,
}

impl Default for KubernetesDynamic {
    fn default() -> Self {
        Self { memory: Memory::of(Leaf::YEAR), network: false }
    }
}

impl Controller for KubernetesDynamic {
    const NAME: &'static str = "secrets.KubernetesDynamicCertsController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<NetworkStatus>().id("status"),
            weak::<KubernetesRootSecret>().id(id::KUBERNETES),
            weak::<CertSAN>().id(id::KUBERNETES),
            weak::<TimeStatus>().id("node"),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<KubernetesDynamicCert>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(root) = ctx.get::<KubernetesRootSecret>(id::KUBERNETES)? else {
            self.memory.forget();
            return Ok(ctx.publish::<KubernetesDynamicCert>([] as [(&str, KubernetesDynamicCert); 0])?);
        };
        self.network |= network_is_ready(ctx.get::<NetworkStatus>("status")?.as_deref());
        let ready = self.network && time_is_right(ctx.get::<TimeStatus>("node")?.as_deref());
        let (Some(names), true) = (ctx.get::<CertSAN>(id::KUBERNETES)?, ready) else { return Ok(()) };
        let inputs = Inputs {
            issuing_ca: authority(root.issuing_ca.as_ref())?.clone(),
            aggregator_ca: authority(root.aggregator_ca.as_ref())?.clone(),
            names: (*names).clone(),
        };
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        let addresses = inputs.names.ips.iter().filter_map(Ip::get);
        let server =
            Leaf::server("kube-apiserver").with_names(inputs.names.dns_names.iter().cloned(), addresses);
        let server = Leaf { organizations: vec!["kube-master".to_owned()], ..server };
        let kubelet_client = Leaf::client("apiserver-kubelet-client", [ADMINS]);
        let front_proxy = Leaf::client("front-proxy-client", [] as [&str; 0]);
        let ours = [server, kubelet_client].map(|leaf| enciphering(leaf, Leaf::YEAR)).into();
        let mut pairs = issue(&inputs.issuing_ca, ours, ctx.now()).await?.into_iter();
        let front_proxy = vec![enciphering(front_proxy, Leaf::YEAR)];
        let made = KubernetesDynamicCert {
            api_server: pairs.next(),
            api_server_kubelet_client: pairs.next(),
            front_proxy: issue(&inputs.aggregator_ca, front_proxy, ctx.now()).await?.pop(),
        };
        ctx.modify::<KubernetesDynamicCert>(id::KUBERNETES_DYNAMIC, |spec| spec.clone_from(&made))?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}
