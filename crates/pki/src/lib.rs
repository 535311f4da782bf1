//! Keys, certificate authorities, requests, roles; the only crate that names the crypto provider.
//!
//! Pure apart from random bytes: no clock (every function that needs the time takes it) and no I/O.
//!
//! ```
//! use ichor_pki::{Authority, CertInfo, KeyAlgorithm, Leaf};
//!
//! let now = jiff::Timestamp::from_second(1_700_000_000)?;
//! let authority = Authority::generate(KeyAlgorithm::Ed25519, "talos", now, Authority::TEN_YEARS)?;
//! let admin = authority.issue(&Leaf::client("", ["os:admin"]).with_lifetime(Leaf::YEAR), now)?;
//! assert_eq!(CertInfo::parse(&admin.crt)?.organizations, ["os:admin"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod authority;
pub mod check;
mod der;
mod digest;
mod error;
mod info;
mod key;
mod oid;
pub mod pkcs7;
pub mod primitive;
mod provider;
pub mod random;
mod request;
mod role;
pub mod seal;
mod text;
mod usage;

pub use authority::{Authority, Grant, KeyPair};
pub use digest::{sha256, sha256_reader};
pub use error::PkiError;
pub use info::{CertInfo, fingerprint};
pub use key::{KeyAlgorithm, KeyFamily, PrivateKey};
pub use provider::{certified_key, install_provider, provider, roots};
pub use request::Request;
pub use role::{Role, RoleSet};
pub use usage::{ExtendedUsage, KeyUsage, Leaf};
