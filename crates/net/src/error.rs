//! What can go wrong between us and the kernel's network.

use std::fmt;
use std::io;

/// The kernel's answer to a request it refused: an error number and, often, a sentence.
#[derive(Debug)]
pub struct KernelError {
    /// The error number as an I/O error.
    pub source: io::Error,
    /// The kernel's own explanation; empty when it gave none.
    pub text: String,
}

impl KernelError {
    /// The raw error number, or 0 when the failure did not come from the kernel.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

impl From<io::Error> for KernelError {
    fn from(source: io::Error) -> Self {
        Self { source, text: String::new() }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            write!(f, "{}", self.source)
        } else {
            write!(f, "{}: {}", self.source, self.text)
        }
    }
}

impl std::error::Error for KernelError {}

/// A network operation that failed; the text names the operation and the link.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No socket to talk through.
    #[error("open {what}")]
    Open {
        /// Which socket.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{operation} {subject}")]
    Request {
        /// What was asked, such as `add address`.
        operation: &'static str,
        /// What it was asked of, such as `10.5.0.2/24 on eth0`.
        subject: String,
        /// The kernel's answer.
        #[source]
        source: KernelError,
    },
    /// There is no link of that name.
    #[error("no link {link}")]
    NoLink {
        /// The name looked for.
        link: String,
    },
    /// The name cannot be a link's.
    #[error("bad link name {name:?}: 1 to 15 bytes without `/` and blanks")]
    BadName {
        /// The name given.
        name: String,
    },
}

impl NetError {
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { source, .. } => source.raw_os_error(),
            Self::Request { source, .. } => source.source.raw_os_error(),
            Self::NoLink { .. } | Self::BadName { .. } => None,
        }
    }

    /// True when the object to create is there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// True when the object to change or remove is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::NoLink { .. })
            || matches!(self.errno(), Some(libc::ENODEV | libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL))
    }

    /// True when a route waits for its link to come up or its gateway to be in reach.
    pub fn is_unreachable(&self) -> bool {
        matches!(self.errno(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN))
    }

    /// True when the kernel finds the request senseless; a route from an address that is not assigned is.
    pub fn is_invalid(&self) -> bool {
        self.errno() == Some(libc::EINVAL)
    }

    /// True when the kernel lacks this kind of link or feature.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
    }
}
