//! Where the signer listens and where it finds its secrets.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// The port workers call.
pub const PORT: u16 = 50001;

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

/// An argument that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    /// An option nobody knows.
    #[error("unknown option {0:?}; known are --listen, --runtime")]
    Unknown(String),
    /// An option without its value.
    #[error("{0} needs a value")]
    NoValue(String),
    /// A value that does not fit its option.
    #[error("{option} cannot be {value:?}")]
    BadValue {
        /// The option.
        option: String,
        /// What was given.
        value: String,
    },
}

impl Options {
    /// Reads `--option value` and `--option=value`.
    pub fn parse(args: &[String]) -> Result<Self, BadOption> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (option, value) = match arg.split_once('=') {
                Some((option, value)) => (option, value.to_owned()),
                None => {
                    let value = args.next().ok_or_else(|| BadOption::NoValue(arg.clone()))?;
                    (arg.as_str(), value.clone())
                }
            };
            match option {
                "--listen" => {
                    let bad = |_| BadOption::BadValue { option: option.to_owned(), value: value.clone() };
                    options.listen = value.parse().map_err(bad)?;
                }
                "--runtime" => options.runtime = value.into(),
                other => return Err(BadOption::Unknown(other.to_owned())),
            }
        }
        Ok(options)
    }
}
