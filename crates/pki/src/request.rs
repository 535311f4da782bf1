//! Certificate requests (PKCS#10): made on the node that wants a certificate, read by the signer.

use std::net::IpAddr;

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::info::address;
use crate::{KeyFamily, PkiError, PrivateKey, der, oid, text, usage};

/// A request as its signer reads it. Decoded, not yet believed: see [`Request::verify`].
#[derive(Debug)]
pub struct Request {
    info: Vec<u8>,
    algorithm: Vec<u8>,
    signature: Vec<u8>,
    public_key: Vec<u8>,
    spki: Vec<u8>,
    /// RDNs of the subject, each a list of (attribute type, whole attribute).
    rdns: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    dns_names: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl Request {
    /// Makes a request signed by `key`, as PEM.
    pub fn make(
        key: &PrivateKey,
        common_name: &str,
        organizations: &[String],
        dns_names: &[String],
        addresses: &[IpAddr],
    ) -> Result<String, PkiError> {
        let subject = usage::subject(organizations, common_name);
        let attributes = match usage::alternative_names(dns_names, addresses, subject.len() == 2)? {
            None => Vec::new(),
            Some(names) => {
                let extensions = der::nest(der::SEQUENCE, &[names]);
                let attribute = der::nest(
                    der::SEQUENCE,
                    &[der::element(der::OID, oid::EXTENSION_REQUEST), der::nest(der::SET, &[extensions])],
                );
                vec![attribute]
            }
        };
        let info = der::nest(
            der::SEQUENCE,
            &[der::unsigned(&[0]), subject, key.spki().to_vec(), der::nest(der::context(0), &attributes)],
        );
        let signature = der::bits(&key.sign(&info)?);
        let whole = der::nest(der::SEQUENCE, &[info, key.signature_algorithm(), signature]);
        Ok(text::encode(text::CERTIFICATE_REQUEST, &whole))
    }

    /// Decodes a request.
    pub fn from_pem(pem: impl AsRef<[u8]>) -> Result<Self, PkiError> {
        let block = text::first(pem.as_ref(), "certificate request")?;
        let (rest, request) =
            X509CertificationRequest::from_der(block.contents()).map_err(|_| PkiError::BadRequest)?;
        if !rest.is_empty() {
            return Err(PkiError::BadRequest);
        }
        let info = &request.certification_request_info;
        let mut rdns = Vec::new();
        for rdn in info.subject.iter_rdn() {
            let mut attributes = Vec::new();
            for attribute in rdn.iter() {
                let kind = attribute.attr_type().as_bytes().to_vec();
                let value = attribute.attr_value();
                let tag = u8::try_from(value.header.tag().0).map_err(|_| PkiError::BadRequest)?;
                let whole =
                    der::nest(der::SEQUENCE, &[der::element(der::OID, &kind), der::element(tag, value.data)]);
                attributes.push((kind, whole));
            }
            rdns.push(attributes);
        }
        let mut dns_names = Vec::new();
        let mut addresses = Vec::new();
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                    GeneralName::IPAddress(octets) => {
                        addresses.push(address(octets).ok_or(PkiError::BadRequest)?);
                    }
                    _ => {}
                }
            }
        }
        Ok(Self {
            info: info.raw.to_vec(),
            algorithm: request.signature_algorithm.algorithm.as_bytes().to_vec(),
            signature: request.signature_value.data.to_vec(),
            public_key: info.subject_pki.subject_public_key.data.to_vec(),
            spki: info.subject_pki.raw.to_vec(),
            rdns,
            dns_names,
            addresses,
        })
    }

    /// Checks that the request was signed by the key it names.
    pub fn verify(&self) -> Result<(), PkiError> {
        match signed(&self.algorithm, &self.public_key, &self.info, &self.signature) {
            true => Ok(()),
            false => Err(PkiError::RequestSignature),
        }
    }

    /// DNS names asked for.
    pub fn dns_names(&self) -> &[String] {
        &self.dns_names
    }

    /// Addresses asked for.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(crate) fn spki(&self) -> &[u8] {
        &self.spki
    }

    pub(crate) fn family(&self) -> KeyFamily {
        match self.algorithm.as_slice() {
            oid::ED25519 => KeyFamily::Ed25519,
            oid::RSA_SHA256 | oid::RSA_SHA384 | oid::RSA_SHA512 => KeyFamily::Rsa,
            _ => KeyFamily::Ecdsa,
        }
    }

    /// The subject as DER, with or without its organizations.
    pub(crate) fn subject(&self, keep_organizations: bool) -> Vec<u8> {
        let mut rdns = Vec::new();
        for rdn in &self.rdns {
            let kept: Vec<Vec<u8>> = rdn
                .iter()
                .filter(|(kind, _)| keep_organizations || kind != oid::ORGANIZATION)
                .map(|(_, whole)| whole.clone())
                .collect();
            if !kept.is_empty() {
                rdns.push(der::set_of(kept));
            }
        }
        der::nest(der::SEQUENCE, &rdns)
    }
}

/// Whether `proof`, over `message`, was made with the key; what is signed in a way nobody uses was not.
pub(crate) fn signed(algorithm: &[u8], public_key: &[u8], message: &[u8], proof: &[u8]) -> bool {
    let algorithm: &'static dyn VerificationAlgorithm = match algorithm {
        oid::ED25519 => &signature::ED25519,
        oid::ECDSA_SHA256 => &signature::ECDSA_P256_SHA256_ASN1,
        oid::ECDSA_SHA384 => &signature::ECDSA_P384_SHA384_ASN1,
        oid::ECDSA_SHA512 => &signature::ECDSA_P521_SHA512_ASN1,
        oid::RSA_SHA256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        oid::RSA_SHA384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        oid::RSA_SHA512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        _ => return false,
    };
    UnparsedPublicKey::new(algorithm, public_key).verify(message, proof).is_ok()
}
