//! What can be wrong with keys and certificates.

use jiff::Timestamp;

use crate::KeyFamily;

/// A key, certificate or request that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// The system gave no random bytes.
    #[error("no random bytes from the system")]
    Random,
    /// Key generation failed inside the provider.
    #[error("key generation failed")]
    Generate,
    /// Signing failed inside the provider.
    #[error("signing failed")]
    Sign,
    /// Input that holds no PEM block of the wanted kind.
    #[error("no {expected} in PEM found")]
    NoPem {
        /// What was looked for.
        expected: &'static str,
    },
    /// A PEM block with another label.
    #[error("expected a {expected} in PEM, found `{found}`")]
    Label {
        /// What was looked for.
        expected: &'static str,
        /// The label that was there.
        found: String,
    },
    /// Input beyond any sensible size.
    #[error("{expected} is larger than {limit} bytes")]
    TooLarge {
        /// What was looked for.
        expected: &'static str,
        /// The largest size read.
        limit: usize,
    },
    /// A private key that does not decode.
    #[error("private key does not decode")]
    BadKey,
    /// A certificate that does not decode.
    #[error("certificate does not decode")]
    BadCertificate,
    /// A certificate request that does not decode.
    #[error("certificate request does not decode")]
    BadRequest,
    /// A certificate request whose own signature is wrong.
    #[error("signature of the certificate request does not verify")]
    RequestSignature,
    /// A request made with a key of another family than the authority's.
    #[error("certificate request uses a key of another family than the {authority} authority")]
    FamilyMismatch {
        /// The authority's family.
        authority: KeyFamily,
    },
    /// A certificate and a key that do not belong together.
    #[error("private key does not match the certificate")]
    KeyMismatch,
    /// A certificate that none of the given authorities signed.
    #[error("certificate is not signed by an accepted certificate authority")]
    UnknownAuthority,
    /// A certificate that must be an authority and is none.
    #[error("certificate is not a certificate authority")]
    NotAuthority,
    /// A certificate whose time is over.
    #[error("certificate expired at {not_after}")]
    Expired {
        /// The end of its validity.
        not_after: Timestamp,
    },
    /// A certificate whose time has not come.
    #[error("certificate is not valid before {not_before}")]
    NotYetValid {
        /// The start of its validity.
        not_before: Timestamp,
    },
    /// A name that a certificate cannot carry.
    #[error("`{name}` cannot be a DNS name of a certificate")]
    BadName {
        /// The name.
        name: String,
    },
    /// A date that a certificate cannot carry.
    #[error("validity is outside of the years a certificate can name")]
    BadValidity,
    /// A verifier or configuration that rustls refused.
    #[error("TLS configuration")]
    Tls(#[source] rustls::Error),
}
