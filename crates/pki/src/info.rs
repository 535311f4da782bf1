//! What a certificate says, read once into plain values.

use std::net::IpAddr;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

use crate::{KeyFamily, PkiError, RoleSet, oid, text};

/// The parts of a certificate that the project looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertInfo {
    /// Subject CN; empty when there is none.
    pub common_name: String,
    /// Subject O values, in order.
    pub organizations: Vec<String>,
    /// Issuer CN, else its first O; empty when there is neither.
    pub issuer: String,
    /// Serial number, hexadecimal, lower case.
    pub serial: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it is a certificate authority.
    pub is_ca: bool,
    /// Extended key usages as dotted numbers, in order.
    pub extended_usages: Vec<String>,
    /// Standard base64 of SHA-256 over the public key (SPKI).
    pub spki_fingerprint: String,
    pub(crate) spki: Vec<u8>,
    pub(crate) subject_der: Vec<u8>,
    pub(crate) subject_key_id: Vec<u8>,
}

/// id-kp-clientAuth.
const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";

impl CertInfo {
    /// Reads the first certificate of `pem`.
    pub fn parse(pem: impl AsRef<[u8]>) -> Result<Self, PkiError> {
        Self::from_der(&text::certificates(pem.as_ref())?.swap_remove(0))
    }

    /// Reads all certificates of `pem`.
    pub fn parse_all(pem: impl AsRef<[u8]>) -> Result<Vec<Self>, PkiError> {
        text::certificates(pem.as_ref())?.iter().map(|der| Self::from_der(der)).collect()
    }

    /// Reads a DER certificate.
    pub fn from_der(der: &[u8]) -> Result<Self, PkiError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| PkiError::BadCertificate)?;
        if !rest.is_empty() {
            return Err(PkiError::BadCertificate);
        }
        let subject = certificate.subject();
        let issuer = certificate.issuer();
        let validity = certificate.validity();
        let spki = certificate.public_key().raw.to_vec();
        let mut info = CertInfo {
            common_name: subject.iter_common_name().next().map(string).unwrap_or_default(),
            organizations: subject.iter_organization().map(string).collect(),
            issuer: issuer
                .iter_common_name()
                .chain(issuer.iter_organization())
                .next()
                .map(string)
                .unwrap_or_default(),
            serial: hex(certificate.raw_serial()),
            not_before: stamp(validity.not_before.timestamp())?,
            not_after: stamp(validity.not_after.timestamp())?,
            dns_names: Vec::new(),
            addresses: Vec::new(),
            is_ca: certificate.is_ca(),
            extended_usages: Vec::new(),
            spki_fingerprint: fingerprint(&spki),
            spki,
            subject_der: subject.as_raw().to_vec(),
            subject_key_id: Vec::new(),
        };
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => {
                    for name in &names.general_names {
                        match name {
                            GeneralName::DNSName(name) => info.dns_names.push((*name).to_owned()),
                            GeneralName::IPAddress(octets) => info.addresses.extend(address(octets)),
                            _ => {}
                        }
                    }
                }
                ParsedExtension::SubjectKeyIdentifier(id) => info.subject_key_id = id.0.to_vec(),
                _ => {}
            }
            if extension.oid.as_bytes() == oid::EXTENDED_KEY_USAGE {
                info.extended_usages = usages(extension.value).ok_or(PkiError::BadCertificate)?;
            }
        }
        Ok(info)
    }

    /// The organizations as roles of the node API.
    pub fn roles(&self) -> RoleSet {
        RoleSet::parse(&self.organizations)
    }

    /// The family of the public key.
    pub fn key_family(&self) -> KeyFamily {
        // The algorithm stands at the start of the key, before any bits of the key itself.
        let head = &self.spki[..self.spki.len().min(24)];
        let names = |kind: &[u8]| head.windows(kind.len()).any(|window| window == kind);
        if names(oid::RSA) {
            KeyFamily::Rsa
        } else if names(oid::EC_PUBLIC_KEY) {
            KeyFamily::Ecdsa
        } else {
            KeyFamily::Ed25519
        }
    }

    /// Whether the extended key usage is exactly client authentication, as the node API demands.
    pub fn is_client_only(&self) -> bool {
        self.extended_usages == [CLIENT_AUTH]
    }

    /// Checks the validity at `now`.
    pub fn check_time(&self, now: Timestamp) -> Result<(), PkiError> {
        if now > self.not_after {
            return Err(PkiError::Expired { not_after: self.not_after });
        }
        if now < self.not_before {
            return Err(PkiError::NotYetValid { not_before: self.not_before });
        }
        Ok(())
    }
}

/// The fingerprint of a public key, as `--cert-fingerprint` takes it.
pub fn fingerprint(spki: &[u8]) -> String {
    STANDARD.encode(digest::digest(&digest::SHA256, spki))
}

pub(crate) fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Every purpose of an ExtKeyUsageSyntax, in order. By hand: the parser sorts them into flags.
fn usages(value: &[u8]) -> Option<Vec<String>> {
    let (crate::der::SEQUENCE, mut rest, []) = crate::der::split(value)? else { return None };
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (crate::der::OID, content, after) = crate::der::split(rest)? else { return None };
        found.push(Oid::new(content.into()).to_id_string());
        rest = after;
    }
    Some(found)
}

fn string(attribute: &AttributeTypeAndValue<'_>) -> String {
    attribute.as_str().map(str::to_owned).unwrap_or_default()
}

fn stamp(seconds: i64) -> Result<Timestamp, PkiError> {
    Timestamp::from_second(seconds).map_err(|_| PkiError::BadCertificate)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
