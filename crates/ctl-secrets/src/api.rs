//! Certificates of the node API.
//!
//! A control plane machine issues its own from the cluster's authority. A worker makes a key and a request
//! and has the trust service of a control plane machine sign it.

use std::collections::BTreeSet;
use std::net::IpAddr;
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
use crate::trust::{SignRequest, TrustService};

/// One round of asking takes no longer.
const SIGN_MAX: Duration = Duration::from_secs(60);

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
    /// Control plane machines to ask; `None` where this machine issues itself.
    endpoints: Option<Vec<IpAddr>>,
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
        let endpoints = if machine.machine_type.is_control_plane() {
            None
        } else {
            let all = ctx.list::<Endpoint>()?;
            let addresses: BTreeSet<_> =
                all.iter().flat_map(|found| found.addresses.iter().filter_map(Ip::get)).collect();
            if addresses.is_empty() {
                debug!("no control plane machine is known yet, the certificate waits");
                ctx.trouble("no address of a control plane machine is known that could sign the certificate");
                return Ok(None);
            }
            Some(addresses.into_iter().collect())
        };
        Ok(Some(Inputs { root: (*root).clone(), names: (*names).clone(), endpoints }))
    }

    async fn make(&self, inputs: &Inputs, ctx: &Context) -> Result<Option<ApiCertificate>, ControllerError> {
        match &inputs.endpoints {
            None => control_plane(inputs, ctx).await.map(Some),
            Some(endpoints) => self.worker(inputs, endpoints, ctx).await,
        }
    }

    async fn worker(
        &self,
        inputs: &Inputs,
        endpoints: &[IpAddr],
        ctx: &Context,
    ) -> Result<Option<ApiCertificate>, ControllerError> {
        let accepted = &inputs.root.accepted_cas;
        let last =
            accepted.last().ok_or_else(|| ControllerError::new("no accepted authority is configured"))?;
        // The signer takes keys of its own family only, and the last authority is the one that signs.
        let key = PrivateKey::generate(CertInfo::parse(&last.crt)?.key_family().leaf_algorithm())?;
        let addresses: Vec<_> = inputs.names.ips.iter().filter_map(Ip::get).collect();
        let csr = Request::make(&key, &inputs.names.fqdn, &[], &inputs.names.dns_names, &addresses)?;
        let request = SignRequest {
            endpoints: endpoints.to_vec(),
            accepted_cas: bundle(accepted),
            token: inputs.root.token.clone(),
            csr,
        };
        let call = tokio::time::timeout(SIGN_MAX, self.trust.sign(request));
        let signed = tokio::select! {
            biased;
            answer = call => answer.map_err(|_| ControllerError::new("signing took more than a minute"))??,
            // The inputs may have changed: look again instead of waiting for an answer to an old question.
            () = ctx.wake().woken() => {
                ctx.wake().wake();
                return Ok(None);
            }
        };
        Ok(Some(ApiCertificate {
            accepted_cas: split(&signed.ca),
            client: None,
            server: Some(PemCertificateAndKey { crt: signed.crt, key: Bytes::from(key.to_pem()) }),
        }))
    }
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

/// Each certificate of a bundle by itself.
fn split(bundle: &Bytes) -> Vec<PemCertificate> {
    const END: &[u8] = b"-----END CERTIFICATE-----";
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(at) = bundle[start..].windows(END.len()).position(|window| window == END) {
        let mut end = start + at + END.len();
        if bundle.get(end) == Some(&b'\n') {
            end += 1;
        }
        found.push(PemCertificate { crt: bundle.slice(start..end) });
        start = end;
    }
    found
}
