//! How a worker gets its certificate signed, and how names become addresses.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tonic::metadata::MetadataValue;

use ichor_ctl_cluster::service::Service;
use ichor_ctl_secrets::{Resolve, SignError, SignRequest, Signed, TrustService};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_wire::securityapi::CertificateRequest;
use ichor_wire::securityapi::security_service_client::SecurityServiceClient;

use crate::daemons::TRUSTD_PORT;

/// One control plane machine gets this long.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// Names resolve within this, or not at all.
const RESOLVE_MAX: Duration = Duration::from_secs(10);

/// Asks trustd on the control plane machines, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrustClient;

impl TrustService for TrustClient {
    async fn sign(&self, request: SignRequest) -> Result<Signed, SignError> {
        let tls = ClientTls::verified(&request.accepted_cas, None)
            .map_err(|error| SignError(format!("accepted authorities: {error}")))?;
        let mut reasons = Vec::new();
        for endpoint in &request.endpoints {
            match tokio::time::timeout(ATTEMPT_MAX, ask(*endpoint, tls.clone(), &request)).await {
                Ok(Ok(signed)) => return Ok(signed),
                Ok(Err(reason)) => reasons.push(format!("{endpoint}: {reason}")),
                Err(_) => reasons.push(format!("{endpoint}: no answer within {} s", ATTEMPT_MAX.as_secs())),
            }
        }
        match reasons.is_empty() {
            true => Err(SignError("no control plane address is known".to_owned())),
            false => Err(SignError(reasons.join("; "))),
        }
    }
}

async fn ask(endpoint: IpAddr, tls: ClientTls, request: &SignRequest) -> Result<Signed, String> {
    let dialer = Dialer::tls([Endpoint::new(endpoint.to_string(), TRUSTD_PORT)], tls);
    let mut client = SecurityServiceClient::new(Channel::new(dialer));
    let mut call = tonic::Request::new(CertificateRequest { csr: request.csr.clone().into_bytes() });
    let token = MetadataValue::try_from(&request.token).map_err(|_| "the token cannot be sent".to_owned())?;
    call.metadata_mut().insert("token", token);
    let reply = client.certificate(call).await.map_err(|status| status.message().to_owned())?.into_inner();
    Ok(Signed { ca: reply.ca.into(), crt: reply.crt.into() })
}

/// Connects to a discovery service: that of a control plane is where trustd is.
pub fn discovery(service: &Service) -> Result<(Endpoint, Channel), String> {
    match service {
        Service::Own { address, accepted } => {
            let tls = ClientTls::verified(accepted, None)
                .map_err(|error| format!("accepted authorities: {error}"))?;
            let endpoint = Endpoint::new(address.to_string(), TRUSTD_PORT);
            Ok((endpoint.clone(), Channel::new(Dialer::tls([endpoint], tls))))
        }
        Service::Outside { endpoint, insecure: true } => {
            Ok((endpoint.clone(), Channel::new(Dialer::tcp(endpoint.clone()))))
        }
        Service::Outside { endpoint, insecure: false } => Err(format!(
            "discovery service {endpoint}: services outside of the cluster cannot be reached over https yet; leave \
             cluster.discovery.registries.service.endpoint empty to let the control planes serve it"
        )),
    }
}

/// Resolves names as the system does.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found = tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host((host, 0))).await;
        let found = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}
