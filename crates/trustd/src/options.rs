//! Where the signer listens and where it finds its secrets.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ichor_rpc::options::{self, BadOption};

/// The port workers call.
pub(crate) const PORT: u16 = 50001;

/// The settings of the signer; the defaults are those of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where workers connect.
    pub listen: SocketAddr,
    /// The State service with the signer's own resources.
    pub runtime: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)),
            runtime: "/system/run/trustd/runtime.sock".into(),
        }
    }
}

/// All options.
const KNOWN: &str = "--listen, --runtime";

impl Options {
    /// Reads `--option value` and `--option=value`.
    pub fn parse(args: &[String]) -> Result<Self, BadOption> {
        let mut parsed = Self::default();
        options::read(args, KNOWN, |option, value| {
            match option {
                "--listen" => parsed.listen = options::parse(option, value)?,
                "--runtime" => parsed.runtime = value.into(),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(parsed)
    }
}
