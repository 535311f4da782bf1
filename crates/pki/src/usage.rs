//! What a certificate may be used for, and for whom: usages, names, validity, as extensions.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::{PkiError, der, oid};

/// Key usage bits in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUsage {
    /// digitalSignature.
    Signature,
    /// digitalSignature and keyEncipherment.
    SignatureAndEncipherment,
}

/// Extended key usages in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedUsage {
    /// serverAuth alone.
    Server,
    /// clientAuth alone.
    Client,
    /// serverAuth and clientAuth.
    Both,
}

/// A leaf certificate to issue.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Subject CN; empty for none.
    pub common_name: String,
    /// Subject O values; roles in the node API.
    pub organizations: Vec<String>,
    /// DNS names of the subject.
    pub dns_names: Vec<String>,
    /// Addresses of the subject.
    pub addresses: Vec<IpAddr>,
    /// Key usage.
    pub key_usage: KeyUsage,
    /// Extended key usage.
    pub extended_usage: ExtendedUsage,
    /// How long it is valid, from `now`.
    pub lifetime: Duration,
    /// How long before `now` it starts to be valid.
    pub backdate: Duration,
}

impl Leaf {
    /// The life of a node's own certificates.
    pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    /// The life of a user's certificate.
    pub const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// A certificate for a server: digitalSignature, serverAuth, one day.
    pub fn server(common_name: impl Into<String>) -> Self {
        Self {
            common_name: common_name.into(),
            organizations: Vec::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            key_usage: KeyUsage::Signature,
            extended_usage: ExtendedUsage::Server,
            lifetime: Self::DAY,
            backdate: Duration::ZERO,
        }
    }

    /// A certificate for a client: digitalSignature, clientAuth, one day, these organizations.
    pub fn client<T: Into<String>>(
        common_name: impl Into<String>,
        organizations: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            organizations: organizations.into_iter().map(Into::into).collect(),
            extended_usage: ExtendedUsage::Client,
            ..Self::server(common_name)
        }
    }

    /// The same, for these names and addresses.
    pub fn with_names<T: Into<String>>(
        mut self,
        dns_names: impl IntoIterator<Item = T>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        self.dns_names = dns_names.into_iter().map(Into::into).collect();
        self.addresses = addresses.into_iter().collect();
        self
    }

    /// The same, valid for so long.
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }
}

/// A subject as Go writes it: one RDN with all organizations, then one with the common name.
pub(crate) fn subject(organizations: &[String], common_name: &str) -> Vec<u8> {
    let attribute = |kind, value| der::nest(der::SEQUENCE, &[der::element(der::OID, kind), der::text(value)]);
    let mut rdns = Vec::new();
    if !organizations.is_empty() {
        rdns.push(der::set_of(
            organizations.iter().map(|value| attribute(oid::ORGANIZATION, value)).collect(),
        ));
    }
    if !common_name.is_empty() {
        rdns.push(der::set_of(vec![attribute(oid::COMMON_NAME, common_name)]));
    }
    der::nest(der::SEQUENCE, &rdns)
}

/// The Validity element.
pub(crate) fn validity(not_before: Timestamp, not_after: Timestamp) -> Result<Vec<u8>, PkiError> {
    Ok(der::nest(der::SEQUENCE, &[time(not_before)?, time(not_after)?]))
}

pub(crate) fn time(stamp: Timestamp) -> Result<Vec<u8>, PkiError> {
    let at = stamp.to_zoned(TimeZone::UTC).datetime();
    let rest =
        format!("{:02}{:02}{:02}{:02}{:02}Z", at.month(), at.day(), at.hour(), at.minute(), at.second());
    // RFC 5280 §4.1.2.5: two-digit years up to 2049, four digits from 2050.
    match at.year() {
        year @ 1950..=2049 => Ok(der::element(der::UTC_TIME, format!("{:02}{rest}", year % 100).as_bytes())),
        year @ 2050..=9999 => Ok(der::element(der::GENERALIZED_TIME, format!("{year:04}{rest}").as_bytes())),
        _ => Err(PkiError::BadValidity),
    }
}

fn extension(kind: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![der::element(der::OID, kind)];
    if critical {
        parts.push(der::element(der::BOOLEAN, &[0xff]));
    }
    parts.push(der::element(der::OCTET_STRING, value));
    der::nest(der::SEQUENCE, &parts)
}

pub(crate) fn leaf_key_usage(usage: KeyUsage) -> Vec<u8> {
    // Content of the bit string: number of unused bits, then the bits from the left.
    let bits: [u8; 2] = match usage {
        KeyUsage::Signature => [7, 0x80],
        KeyUsage::SignatureAndEncipherment => [5, 0xa0],
    };
    extension(oid::KEY_USAGE, true, &der::element(der::BIT_STRING, &bits))
}

/// digitalSignature and keyCertSign.
pub(crate) fn authority_key_usage() -> Vec<u8> {
    extension(oid::KEY_USAGE, true, &der::element(der::BIT_STRING, &[2, 0x84]))
}

pub(crate) fn extended_key_usage(usage: ExtendedUsage) -> Vec<u8> {
    let kinds: &[&[u8]] = match usage {
        ExtendedUsage::Server => &[oid::SERVER_AUTH],
        ExtendedUsage::Client => &[oid::CLIENT_AUTH],
        ExtendedUsage::Both => &[oid::SERVER_AUTH, oid::CLIENT_AUTH],
    };
    let kinds: Vec<_> = kinds.iter().map(|kind| der::element(der::OID, kind)).collect();
    extension(oid::EXTENDED_KEY_USAGE, false, &der::nest(der::SEQUENCE, &kinds))
}

pub(crate) fn authority_constraint() -> Vec<u8> {
    let yes = der::element(der::BOOLEAN, &[0xff]);
    extension(oid::BASIC_CONSTRAINTS, true, &der::nest(der::SEQUENCE, &[yes]))
}

pub(crate) fn subject_key_id(id: &[u8]) -> Vec<u8> {
    extension(oid::SUBJECT_KEY_ID, false, &der::element(der::OCTET_STRING, id))
}

pub(crate) fn authority_key_id(id: &[u8]) -> Vec<u8> {
    let id = der::element(0x80, id);
    extension(oid::AUTHORITY_KEY_ID, false, &der::nest(der::SEQUENCE, &[id]))
}

/// The names extension; none without names. `critical` when the subject is empty.
pub(crate) fn alternative_names(
    dns_names: &[String],
    addresses: &[IpAddr],
    critical: bool,
) -> Result<Option<Vec<u8>>, PkiError> {
    if dns_names.is_empty() && addresses.is_empty() {
        return Ok(None);
    }
    let mut names = Vec::new();
    for name in dns_names {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(PkiError::BadName { name: name.clone() });
        }
        names.push(der::element(0x82, name.as_bytes()));
    }
    for address in addresses {
        names.push(match address {
            IpAddr::V4(v4) => der::element(0x87, &v4.octets()),
            IpAddr::V6(v6) => der::element(0x87, &v6.octets()),
        });
    }
    Ok(Some(extension(oid::SUBJECT_ALT_NAME, critical, &der::nest(der::SEQUENCE, &names))))
}
