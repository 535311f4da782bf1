//! How a worker gets its certificate signed, and how names become addresses.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tonic::metadata::MetadataValue;

use ichor_ctl_cluster::service::Service;
use ichor_ctl_secrets::{Resolve, SignError, SignRequest, Signed, TrustService};
use ichor_rpc::{Channel, ClientTls, Dialer, Endpoint};
use ichor_types::deadlines::{CALL_TRUSTD, RESOLVE};
use ichor_wire::securityapi::CertificateRequest;
use ichor_wire::securityapi::security_service_client::SecurityServiceClient;

use crate::daemons::TRUSTD_PORT;

/// The next control plane machine is asked when those before have not answered within this.
const HEAD_START: Duration = Duration::from_millis(100);

/// Control plane machines asked at the same time.
const PARALLEL: usize = 32;

/// Addresses of one round. The first ones are asked in every round, of the others some by chance.
const ROUND: usize = 64;
const ROUND_SURE: usize = 16;

/// Reasons that a failed round tells.
const REASONS: usize = 8;

/// Asks trustd on the control plane machines, side by side.
#[derive(Debug, Clone)]
pub struct TrustClient {
    port: u16,
    /// Who signed last is asked first.
    signer: Arc<Mutex<Option<IpAddr>>>,
}

impl Default for TrustClient {
    fn default() -> Self {
        Self::on_port(TRUSTD_PORT)
    }
}

impl TrustClient {
    /// A client of trustd on another port than usual.
    pub fn on_port(port: u16) -> Self {
        Self { port, signer: Arc::default() }
    }

    fn signer(&self) -> MutexGuard<'_, Option<IpAddr>> {
        self.signer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attempt(
        &self,
        address: IpAddr,
        tls: ClientTls,
        request: &SignRequest,
    ) -> (IpAddr, Result<Signed, String>) {
        let endpoint = Endpoint::new(address.to_string(), self.port);
        let signed = match tokio::time::timeout(CALL_TRUSTD, ask(endpoint, tls, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} s", CALL_TRUSTD.as_secs())),
        };
        (address, signed)
    }
}

impl TrustService for TrustClient {
    async fn sign(&self, request: SignRequest) -> Result<Signed, SignError> {
        let tls = ClientTls::verified(&request.accepted_cas, None)
            .map_err(|error| SignError(format!("accepted authorities: {error}")))?;
        let last = *self.signer();
        let mut next = round(&request.endpoints, last, &RandomState::new()).into_iter();
        let mut running = FuturesUnordered::new();
        let mut reasons = Vec::new();
        loop {
            if running.len() < PARALLEL {
                running.extend(next.next().map(|address| self.attempt(address, tls.clone(), &request)));
            }
            let more = next.len() > 0 && running.len() < PARALLEL;
            tokio::select! {
                biased;
                answer = running.next() => match answer {
                    Some((address, Ok(signed))) => {
                        *self.signer() = Some(address);
                        return Ok(signed);
                    }
                    Some((address, Err(reason))) => reasons.push(format!("{address}: {reason}")),
                    None => return Err(failure(reasons)),
                },
                () = tokio::time::sleep(HEAD_START), if more => {}
            }
        }
    }
}

/// The addresses of one round, in the order in which they are asked.
fn round(endpoints: &[IpAddr], last: Option<IpAddr>, dice: &RandomState) -> Vec<IpAddr> {
    let last = last.filter(|last| endpoints.contains(last));
    let others = endpoints.iter().copied().filter(|address| Some(*address) != last);
    let mut all: Vec<IpAddr> = last.into_iter().chain(others).collect();
    if all.len() > ROUND {
        all[ROUND_SURE..].sort_by_cached_key(|address| dice.hash_one(address));
        all.truncate(ROUND);
    }
    all
}

fn failure(mut reasons: Vec<String>) -> SignError {
    if reasons.is_empty() {
        return SignError("no control plane address is known".to_owned());
    }
    let more = reasons.len().saturating_sub(REASONS);
    reasons.truncate(REASONS);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    SignError(reasons.join("; "))
}

async fn ask(endpoint: Endpoint, tls: ClientTls, request: &SignRequest) -> Result<Signed, String> {
    let mut client = SecurityServiceClient::new(Channel::new(Dialer::tls([endpoint], tls)));
    let mut call = tonic::Request::new(CertificateRequest { csr: request.csr.clone().into_bytes() });
    let token = MetadataValue::try_from(&request.token).map_err(|_| "the token cannot be sent".to_owned())?;
    call.metadata_mut().insert("token", token);
    let reply = client.certificate(call).await.map_err(|status| status.message().to_owned())?.into_inner();
    request.check(&reply.crt).map_err(|error| format!("its certificate was refused: {error}"))?;
    Ok(Signed(reply.crt.into()))
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
        let found = tokio::time::timeout(RESOLVE, tokio::net::lookup_host((host, 0))).await;
        let found = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_begins_with_those_who_are_sure_and_ends() {
        let addresses: Vec<IpAddr> =
            (0..500u16).map(|n| IpAddr::from([10, 0, (n >> 8) as u8, n as u8])).collect();
        let all = round(&addresses, Some(addresses[400]), &RandomState::new());
        assert_eq!(all.len(), ROUND);
        assert_eq!(all[0], addresses[400], "who signed last");
        assert_eq!(all[1..ROUND_SURE], addresses[..ROUND_SURE - 1]);
        let few = round(&addresses[..3], Some(addresses[400]), &RandomState::new());
        assert_eq!(few, addresses[..3], "an address that is no more is not asked");
    }

    #[test]
    fn a_failure_tells_some_reasons_and_how_many_more() {
        assert_eq!(failure(Vec::new()).0, "no control plane address is known");
        let text = failure((0..10).map(|n| n.to_string()).collect()).0;
        assert_eq!(text, "0; 1; 2; 3; 4; 5; 6; 7; and 2 more");
    }
}
