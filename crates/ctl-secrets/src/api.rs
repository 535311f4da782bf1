//! Certificates of the node API.
//!
//! A control plane machine issues its own from the cluster's authority. A worker makes a key and a request
//! and has the trust service of a control plane machine sign it. Both accept the authorities that their own
//! configuration names (`machine.ca`, `machine.acceptedCAs`) and no others, whatever a trust service returns.

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_pki::{CertInfo, Leaf, PrivateKey, Request, Role};
use ichor_resource::config::MachineType;
use ichor_resource::k8s::Endpoint;
use ichor_resource::network::NetworkStatus;
use ichor_resource::secrets::{ApiCertificate, CertSAN, OSRootSecret};
use ichor_resource::time::TimeStatus;
use ichor_resource::value::{Ip, PemCertificate, PemCertificateAndKey};
use tracing::debug;

use crate::id;
use crate::issue::{LIFETIME, Memory, issue, network_is_ready, server};
use crate::trust::{SignRequest, Signed, TrustService};

/// One round of asking takes no longer.
const SIGN_MAX: Duration = Duration::from_secs(60);
/// A round that lasts this long is given up for one with other endpoints; before, they may come and go.
const SIGN_LONG: Duration = Duration::from_secs(5);
/// The endpoints of the configuration.
const CONFIGURED: &str = "controlplane";
/// Endpoints in the order of what can be said for them; those that are not listed come last.
const ENDPOINTS: [&str; 2] = [CONFIGURED, "kube-apiserver"];

/// Writes `ApiCertificates`.
#[derive(Debug, Default)]
pub struct Api<S> {
    trust: S,
    memory: Memory<Inputs>,
}

/// What certificates depend on.
#[derive(Debug, PartialEq)]
struct Inputs {
    root: OSRootSecret,
    names: CertSAN,
    is_control_plane: bool,
    /// Control plane machines of the configuration, on a worker. Those that others name come and go as they like.
    configured: Vec<Ip>,
}

impl<S: TrustService> Api<S> {
    /// A controller that asks this trust service on workers.
    pub fn new(trust: S) -> Self {
        Self { trust, memory: Memory::default() }
    }

    fn gather(ctx: &Context) -> Result<Option<Inputs>, ControllerError> {
        let ready = network_is_ready(ctx.get::<NetworkStatus>("status")?.as_deref());
        let (Some(machine), Some(root), Some(names), true) = (
            ctx.get::<MachineType>(MachineType::ID)?,
            ctx.get::<OSRootSecret>(id::OS)?,
            ctx.get::<CertSAN>(id::API)?,
            ready,
        ) else {
            return Ok(None);
        };
        let is_control_plane = machine.machine_type.is_control_plane();
        let configured = ctx.get::<Endpoint>(CONFIGURED)?.filter(|_| !is_control_plane);
        Ok(Some(Inputs {
            root: (*root).clone(),
            names: (*names).clone(),
            is_control_plane,
            configured: configured.map(|found| found.addresses.clone()).unwrap_or_default(),
        }))
    }

    async fn make(&self, inputs: &Inputs, ctx: &Context) -> Result<Option<ApiCertificate>, ControllerError> {
        if inputs.is_control_plane {
            return control_plane(inputs, ctx).await.map(Some);
        }
        let endpoints = endpoints(ctx)?;
        if endpoints.is_empty() {
            debug!("no control plane machine is known yet; certificate request pending");
            ctx.trouble("no address of a control plane machine is known that could sign the certificate");
            return Ok(None);
        }
        self.worker(inputs, endpoints, ctx).await
    }

    async fn worker(
        &self,
        inputs: &Inputs,
        endpoints: Vec<IpAddr>,
        ctx: &Context,
    ) -> Result<Option<ApiCertificate>, ControllerError> {
        let accepted = &inputs.root.accepted_cas;
        let last =
            accepted.last().ok_or_else(|| ControllerError::new("no accepted authority is configured"))?;
        // The signer takes keys of its own family only, and the last authority is the one that signs.
        let key = PrivateKey::generate(CertInfo::parse(&last.crt)?.key_family().leaf_algorithm())?;
        let addresses: Vec<_> = inputs.names.ips.iter().filter_map(Ip::get).collect();
        let csr = Request::make(&key, &inputs.names.fqdn, &[], &inputs.names.dns_names, &addresses)?;
        let request =
            SignRequest { endpoints, accepted_cas: bundle(accepted), token: inputs.root.token.clone(), csr };
        let Some(signed) = self.ask(inputs, &request, ctx).await? else { return Ok(None) };
        let refused =
            |error| ControllerError::new(format!("certificate of the trust service refused: {error}"));
        request.check(&signed.0).map_err(refused)?;
        Ok(Some(ApiCertificate {
            accepted_cas: accepted.clone(),
            client: None,
            server: Some(PemCertificateAndKey { crt: signed.0, key: Bytes::from(key.to_pem()) }),
        }))
    }

    /// Asks until there is an answer, or a better question.
    async fn ask(
        &self,
        inputs: &Inputs,
        request: &SignRequest,
        ctx: &Context,
    ) -> Result<Option<Signed>, ControllerError> {
        let began = tokio::time::Instant::now();
        let mut call = pin!(tokio::time::timeout(SIGN_MAX, self.trust.sign(request.clone())));
        loop {
            tokio::select! {
                biased;
                answer = &mut call => {
                    let late = |_| ControllerError::new("signing took more than a minute");
                    return Ok(Some(answer.map_err(late)??));
                }
                () = ctx.wake().woken() => {}
            }
            let asks_the_same = Self::gather(ctx)?.as_ref() == Some(inputs);
            // Members may claim new addresses all the time; that must not keep an answer from arriving.
            let same_endpoints = began.elapsed() < SIGN_LONG || endpoints(ctx)? == request.endpoints;
            if !(asks_the_same && same_endpoints) {
                ctx.wake().wake();
                return Ok(None);
            }
        }
    }
}

/// The control plane machines to ask, those that are sure first.
fn endpoints(ctx: &Context) -> Result<Vec<IpAddr>, ControllerError> {
    let mut all = ctx.list::<Endpoint>()?;
    let rank = |id: &str| ENDPOINTS.iter().position(|known| *known == id).unwrap_or(ENDPOINTS.len());
    all.sort_by_key(|found| rank(found.id()));
    let mut addresses = Vec::new();
    for address in all.iter().flat_map(|found| found.addresses.iter().filter_map(Ip::get)) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

async fn control_plane(inputs: &Inputs, ctx: &Context) -> Result<ApiCertificate, ControllerError> {
    let authority = inputs
        .root
        .issuing_ca
        .as_ref()
        .ok_or_else(|| ControllerError::new("a control plane machine needs the key of `machine.ca`"))?;
    let client = Leaf::client(&inputs.names.fqdn, [Role::Impersonator.as_str()]).with_lifetime(LIFETIME);
    let mut pairs = issue(authority, vec![server(&inputs.names), client], ctx.now()).await?;
    Ok(ApiCertificate {
        accepted_cas: inputs.root.accepted_cas.clone(),
        client: pairs.pop(),
        server: pairs.pop(),
    })
}

impl<S: TrustService> Controller for Api<S> {
    const NAME: &'static str = "secrets.APIController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<NetworkStatus>().id("status"),
            weak::<OSRootSecret>().id(id::OS),
            weak::<CertSAN>().id(id::API),
            weak::<MachineType>().id(MachineType::ID),
            weak::<TimeStatus>().id("node"),
            weak::<Endpoint>(),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ApiCertificate>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // Wake-ups until here are answered by this pass; later ones end a call that is under way.
        tokio::select! {
            biased;
            () = ctx.wake().woken() => {}
            () = std::future::ready(()) => {}
        }
        let Some(inputs) = Self::gather(ctx)? else { return Ok(()) };
        if let Some(rest) = self.memory.good_for(&inputs, ctx.now()) {
            ctx.requeue_after(rest);
            return Ok(());
        }
        self.memory.forget();
        let Some(certificates) = self.make(&inputs, ctx).await? else { return Ok(()) };
        ctx.modify::<ApiCertificate>(id::API, |spec| spec.clone_from(&certificates))?;
        self.memory.issued(inputs, ctx.now(), ctx);
        Ok(())
    }
}

/// All authorities in one text.
fn bundle(authorities: &[PemCertificate]) -> Bytes {
    let mut all = BytesMut::new();
    for authority in authorities {
        all.extend_from_slice(&authority.crt);
        if !authority.crt.ends_with(b"\n") {
            all.extend_from_slice(b"\n");
        }
    }
    all.freeze()
}
