//! A trust service that signs with whatever authority a test gives it: what a member with root on it could serve.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use ichor_pki::{Authority, ExtendedUsage, Grant, KeyPair, KeyUsage, Leaf, Request as CertificateSigning};
use ichor_rpc::ServerTls;
use ichor_rpc::server::{Grpc, Limits, serve_tls};
use ichor_rpc::services::Services;
use ichor_wire::securityapi::security_service_server::{SecurityService, SecurityServiceServer};
use ichor_wire::securityapi::{CertificateRequest, CertificateResponse};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// A running trust service; clones are handles on the same one.
#[derive(Clone)]
pub struct FakeTrustd {
    signer: Arc<Mutex<Authority>>,
    token: Arc<str>,
    asked: Arc<AtomicUsize>,
}

impl FakeTrustd {
    /// Serves on the listener with a server certificate, on the runtime of the caller. Requests must carry the token; they are signed
    /// by `signer`, which is handed back as the authority to trust.
    ///
    /// # Panics
    /// Where the certificate is none.
    pub fn serve(listener: TcpListener, identity: &KeyPair, token: &str, signer: Authority) -> Self {
        let tls = ServerTls::new();
        tls.set_certificate(&identity.crt, &identity.key).expect("a server certificate");
        let service =
            Self { signer: Arc::new(Mutex::new(signer)), token: token.into(), asked: Arc::default() };
        let services = Services::new().with(SecurityServiceServer::new(service.clone()));
        let config = tls.server_only().expect("a server configuration");
        let make = move |peer| Grpc::new(services.clone(), peer);
        tokio::spawn(serve_tls(listener, config, Limits::default(), CancellationToken::new(), make));
        service
    }

    /// How many certificates it was asked for.
    pub fn asked(&self) -> usize {
        self.asked.load(Relaxed)
    }

    /// Signs with another authority from now on.
    pub fn sign_with(&self, signer: Authority) {
        *self.signer.lock().unwrap_or_else(PoisonError::into_inner) = signer;
    }
}

#[tonic::async_trait]
impl SecurityService for FakeTrustd {
    async fn certificate(
        &self,
        request: Request<CertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        self.asked.fetch_add(1, Relaxed);
        if request.metadata().get("token").is_none_or(|token| token.as_bytes() != self.token.as_bytes()) {
            return Err(Status::unauthenticated("wrong token"));
        }
        let grant = Grant {
            key_usage: KeyUsage::Signature,
            extended_usage: ExtendedUsage::Server,
            keep_organizations: false,
            lifetime: Leaf::DAY,
        };
        let refused = |error: ichor_pki::PkiError| Status::invalid_argument(error.to_string());
        let csr = CertificateSigning::from_pem(&request.get_ref().csr).map_err(refused)?;
        let signer = self.signer.lock().unwrap_or_else(PoisonError::into_inner);
        let crt = signer.sign_request(&csr, &grant, Timestamp::now()).map_err(refused)?;
        let ca = signer.crt_pem().as_bytes().to_vec();
        Ok(Response::new(CertificateResponse { ca, crt: crt.into_bytes() }))
    }
}
