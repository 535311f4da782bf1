//! The decision: is the token right, and what does the certificate say. No I/O here.

use ichor_pki::random::secrets_equal;
use ichor_pki::{Authority, ExtendedUsage, Grant, KeyUsage, Leaf, PkiError, Request};
use ichor_resource::secrets::OSRootSecret;
use jiff::Timestamp;
use tonic::Status;

/// The cluster's authority and token, ready for use.
pub(crate) struct Signer {
    authority: Authority,
    token: String,
    accepted: Vec<u8>,
}

/// A signed certificate with the authorities to trust.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) ca: Vec<u8>,
    pub(crate) crt: String,
}

impl Signer {
    /// Reads the root secrets.
    pub(crate) fn new(root: &OSRootSecret) -> Result<Self, PkiError> {
        let issuing = root.issuing_ca.as_ref().ok_or(PkiError::NoPem { expected: "certificate" })?;
        let authority = Authority::from_pem(&issuing.crt, &issuing.key)?;
        let mut certificates: Vec<&[u8]> = root.accepted_cas.iter().map(|found| found.crt.as_ref()).collect();
        if !certificates.contains(&issuing.crt.as_ref()) {
            certificates.push(&issuing.crt);
        }
        let mut accepted = Vec::new();
        for certificate in certificates {
            accepted.extend_from_slice(certificate);
            if !certificate.ends_with(b"\n") {
                accepted.push(b'\n');
            }
        }
        Ok(Self { authority, token: root.token.clone(), accepted })
    }

    /// Whether the caller knows the token.
    pub(crate) fn admits(&self, token: Option<&[u8]>) -> Result<(), Status> {
        match token {
            Some(token) if !self.token.is_empty() && secrets_equal(token, self.token.as_bytes()) => Ok(()),
            // The code is Unknown, as clients have always seen it.
            _ => Err(Status::unknown("Unauthenticated")),
        }
    }

    /// Signs a worker's request.
    pub(crate) fn sign(&self, csr: &[u8], now: Timestamp) -> Result<Signed, Status> {
        let request = Request::from_pem(csr).map_err(|error| match error {
            PkiError::NoPem { .. } => Status::invalid_argument("failed to decode CSR"),
            other => Status::invalid_argument(format!("failed to parse CSR: {other}")),
        })?;
        let grant = Grant {
            key_usage: KeyUsage::Signature,
            extended_usage: ExtendedUsage::Server,
            // Roles are not handed out on the word of whoever knows the token.
            keep_organizations: false,
            lifetime: Leaf::DAY,
        };
        let crt = self
            .authority
            .sign_request(&request, &grant, now)
            .map_err(|error| Status::internal(format!("failed to sign CSR: {error}")))?;
        Ok(Signed { ca: self.accepted.clone(), crt })
    }
}

#[cfg(test)]
mod tests {
    use ichor_pki::{CertInfo, KeyAlgorithm, PrivateKey};
    use ichor_resource::value::{PemCertificate, PemCertificateAndKey};
    use tonic::Code;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("a time")
    }

    fn authority() -> Authority {
        Authority::generate(KeyAlgorithm::Ed25519, "talos", now(), Authority::TEN_YEARS).expect("authority")
    }

    fn signer(authority: &Authority, others: &[&Authority]) -> Signer {
        let pair = authority.to_pair();
        Signer::new(&OSRootSecret {
            issuing_ca: Some(PemCertificateAndKey { crt: pair.crt.into(), key: pair.key.into() }),
            accepted_cas: others
                .iter()
                .map(|other| PemCertificate { crt: other.crt_pem().to_owned().into() })
                .collect(),
            token: "abc.def".to_owned(),
            ..OSRootSecret::default()
        })
        .expect("signer")
    }

    #[test]
    fn only_the_token_opens() {
        let signer = signer(&authority(), &[]);
        assert!(signer.admits(Some(b"abc.def")).is_ok());
        for wrong in [None, Some(&b""[..]), Some(b"abc.deg"), Some(b"abc.def ")] {
            let status = signer.admits(wrong).expect_err("refused");
            assert_eq!((status.code(), status.message()), (Code::Unknown, "Unauthenticated"));
        }
    }

    #[test]
    fn a_worker_gets_a_server_certificate_without_roles() {
        let (authority, other) = (authority(), authority());
        let key = PrivateKey::generate(KeyAlgorithm::Ed25519).expect("key");
        let names = ["worker".to_owned()];
        let csr =
            Request::make(&key, "worker", &["os:admin".to_owned()], &names, &["10.5.0.3".parse().unwrap()])
                .expect("request");
        let signed = signer(&authority, &[&other]).sign(csr.as_bytes(), now()).expect("signed");
        let info = CertInfo::parse(&signed.crt).expect("certificate");
        assert_eq!((info.common_name.as_str(), info.organizations.len()), ("worker", 0));
        assert_eq!(info.dns_names, names);
        assert_eq!(info.extended_usages, ["1.3.6.1.5.5.7.3.1"]);
        assert_eq!(info.not_after.as_second(), now().as_second() + 24 * 3600);
        assert_eq!(
            String::from_utf8(signed.ca).unwrap(),
            format!("{}{}", other.crt_pem(), authority.crt_pem())
        );
    }

    #[test]
    fn bad_requests_have_their_codes() {
        let signer = signer(&authority(), &[]);
        let status = signer.sign(b"nonsense", now()).expect_err("refused");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "failed to decode CSR"));
        let empty = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
        assert_eq!(signer.sign(empty.as_bytes(), now()).expect_err("refused").code(), Code::InvalidArgument);
        // A key of another family than the authority's cannot be signed for.
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).expect("key");
        let csr = Request::make(&key, "worker", &[], &[], &[]).expect("request");
        assert_eq!(signer.sign(csr.as_bytes(), now()).expect_err("refused").code(), Code::Internal);
    }
}
