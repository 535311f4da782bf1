//! Values with a text form of their own: URLs, certificates, sizes, addresses, ports, expressions.

mod bytes;
mod network;
mod size;
mod text;
mod url;

pub(crate) use bytes::base64_error;
pub use bytes::{Base64, PemBytes, PemCert, PemKey, PemPair, REDACTED};
pub use network::{Addr, AddrPort, PortRange, Prefix, RoutingTable};
pub use size::{ByteSize, DiskSize, Size, SizeMatcher, SizeOperator};
pub use text::{Expression, FileMode, ManifestText};
pub use url::{BadUrl, Url};
