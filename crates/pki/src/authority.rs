//! Certificate authorities: made, read, and put to use.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::usage::{self, ExtendedUsage, KeyUsage, Leaf};
use crate::{CertInfo, KeyAlgorithm, PkiError, PrivateKey, Request, check, der, random, text};

/// A certificate and its private key, both as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// The certificate.
    pub crt: String,
    /// The private key.
    pub key: String,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("crt", &self.crt).finish_non_exhaustive()
    }
}

/// What the signer of a request allows, whatever the request asks for.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Key usage.
    pub key_usage: KeyUsage,
    /// Extended key usage.
    pub extended_usage: ExtendedUsage,
    /// Whether the organizations (roles) of the request are taken over.
    pub keep_organizations: bool,
    /// How long the certificate is valid, from `now`.
    pub lifetime: Duration,
}

/// A certificate authority with its key.
pub struct Authority {
    key: PrivateKey,
    crt_pem: String,
    /// Subject, as DER.
    subject: Vec<u8>,
    subject_key_id: Vec<u8>,
    info: CertInfo,
}

impl Authority {
    /// The life of the authorities a cluster is made with.
    pub const TEN_YEARS: Duration = Duration::from_secs(87_600 * 60 * 60);

    /// Makes a self-signed authority. An empty `organization` gives an empty subject.
    pub fn generate(
        algorithm: KeyAlgorithm,
        organization: &str,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Self, PkiError> {
        Self::generate_at(algorithm, organization, &[], now, lifetime)
    }

    /// The same with addresses at which it is met itself.
    pub fn generate_at(
        algorithm: KeyAlgorithm,
        organization: &str,
        addresses: &[IpAddr],
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<Self, PkiError> {
        let key = PrivateKey::generate(algorithm)?;
        let organizations: &[String] = if organization.is_empty() { &[] } else { &[organization.to_owned()] };
        let subject = usage::subject(organizations, "");
        let subject_key_id = random::bytes::<20>()?.to_vec();
        let mut extensions = vec![
            usage::authority_key_usage(),
            usage::extended_key_usage(ExtendedUsage::Both),
            usage::authority_constraint(),
            usage::subject_key_id(&subject_key_id),
        ];
        extensions.extend(usage::alternative_names(&[], addresses, is_empty(&subject))?);
        let tbs = Tbs {
            issuer: &subject,
            subject: &subject,
            spki: key.spki(),
            not_before: now,
            not_after: later(now, lifetime)?,
            extensions: &extensions,
        };
        let crt = tbs.sign(&key)?;
        let info = CertInfo::from_der(&crt)?;
        Ok(Self { key, crt_pem: text::encode(text::CERTIFICATE, &crt), subject, subject_key_id, info })
    }

    /// Reads an authority; certificate and key must belong together and the certificate must be a CA.
    pub fn from_pem(crt: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, PkiError> {
        let key = PrivateKey::from_pem(key)?;
        let der = text::certificates(crt.as_ref())?.swap_remove(0);
        let info = CertInfo::from_der(&der)?;
        check::matches(&info, &key)?;
        if !info.is_ca {
            return Err(PkiError::NotAuthority);
        }
        Ok(Self {
            key,
            subject: info.subject_der.clone(),
            subject_key_id: info.subject_key_id.clone(),
            crt_pem: text::encode(text::CERTIFICATE, &der),
            info,
        })
    }

    /// The certificate as PEM.
    pub fn crt_pem(&self) -> &str {
        &self.crt_pem
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// Certificate and key as PEM.
    pub fn to_pair(&self) -> KeyPair {
        KeyPair { crt: self.crt_pem.clone(), key: self.key_pem() }
    }

    /// What the certificate says.
    pub fn info(&self) -> &CertInfo {
        &self.info
    }

    /// The authority's key.
    pub fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Makes a key of the authority's family and a certificate for it.
    pub fn issue(&self, leaf: &Leaf, now: Timestamp) -> Result<KeyPair, PkiError> {
        let key = PrivateKey::generate(self.key.family().leaf_algorithm())?;
        let crt = self.certify(leaf, key.spki(), now)?;
        Ok(KeyPair { crt, key: key.to_pem() })
    }

    /// Makes a certificate for a key that exists already.
    pub fn issue_for(&self, leaf: &Leaf, key: &PrivateKey, now: Timestamp) -> Result<String, PkiError> {
        self.certify(leaf, key.spki(), now)
    }

    fn certify(&self, leaf: &Leaf, spki: &[u8], now: Timestamp) -> Result<String, PkiError> {
        let subject = usage::subject(&leaf.organizations, &leaf.common_name);
        let names = usage::alternative_names(&leaf.dns_names, &leaf.addresses, is_empty(&subject))?;
        self.sign_leaf(
            &subject,
            spki,
            (leaf.key_usage, leaf.extended_usage),
            names,
            (earlier(now, leaf.backdate)?, later(now, leaf.lifetime)?),
        )
    }

    /// Signs a request: subject, DNS names and addresses are the request's, the rest is the grant's.
    ///
    /// The request's own signature is checked first, and its key family must be the authority's.
    pub fn sign_request(&self, request: &Request, grant: &Grant, now: Timestamp) -> Result<String, PkiError> {
        request.verify()?;
        if request.family() != self.key.family() {
            return Err(PkiError::FamilyMismatch { authority: self.key.family() });
        }
        let subject = request.subject(grant.keep_organizations);
        let names = usage::alternative_names(request.dns_names(), request.addresses(), is_empty(&subject))?;
        self.sign_leaf(
            &subject,
            request.spki(),
            (grant.key_usage, grant.extended_usage),
            names,
            (now, later(now, grant.lifetime)?),
        )
    }

    fn sign_leaf(
        &self,
        subject: &[u8],
        spki: &[u8],
        (key_usage, extended_usage): (KeyUsage, ExtendedUsage),
        names: Option<Vec<u8>>,
        (not_before, not_after): (Timestamp, Timestamp),
    ) -> Result<String, PkiError> {
        let mut extensions =
            vec![usage::leaf_key_usage(key_usage), usage::extended_key_usage(extended_usage)];
        if !self.subject_key_id.is_empty() && subject != self.subject {
            extensions.push(usage::authority_key_id(&self.subject_key_id));
        }
        extensions.extend(names);
        let tbs =
            Tbs { issuer: &self.subject, subject, spki, not_before, not_after, extensions: &extensions };
        Ok(text::encode(text::CERTIFICATE, &tbs.sign(&self.key)?))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("info", &self.info).finish_non_exhaustive()
    }
}

struct Tbs<'a> {
    issuer: &'a [u8],
    subject: &'a [u8],
    spki: &'a [u8],
    not_before: Timestamp,
    not_after: Timestamp,
    extensions: &'a [Vec<u8>],
}

impl Tbs<'_> {
    fn sign(&self, key: &PrivateKey) -> Result<Vec<u8>, PkiError> {
        let algorithm = key.signature_algorithm();
        let extensions = der::nest(der::SEQUENCE, self.extensions);
        let tbs = der::nest(
            der::SEQUENCE,
            &[
                der::nest(der::context(0), &[der::unsigned(&[2])]),
                der::unsigned(&serial()?),
                algorithm.clone(),
                self.issuer.to_vec(),
                usage::validity(self.not_before, self.not_after)?,
                self.subject.to_vec(),
                self.spki.to_vec(),
                der::nest(der::context(3), &[extensions]),
            ],
        );
        let signature = der::bits(&key.sign(&tbs)?);
        Ok(der::nest(der::SEQUENCE, &[tbs, algorithm, signature]))
    }
}

/// Uniform below 2^128, but not zero: RFC 5280 wants a positive number.
fn serial() -> Result<[u8; 16], PkiError> {
    let serial = random::bytes::<16>()?;
    Ok(if serial == [0; 16] { [1; 16] } else { serial })
}

fn is_empty(subject: &[u8]) -> bool {
    subject.len() == 2
}

fn later(now: Timestamp, by: Duration) -> Result<Timestamp, PkiError> {
    now.checked_add(by).map_err(|_| PkiError::BadValidity)
}

fn earlier(now: Timestamp, by: Duration) -> Result<Timestamp, PkiError> {
    now.checked_sub(by).map_err(|_| PkiError::BadValidity)
}
