//! Why an image could not be made.

use std::io;
use std::path::PathBuf;

use crate::pe::PeError;

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An input could not be read.
    #[error("read {}", path.display())]
    Read {
        /// The input.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The output could not be written.
    #[error("write {}", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Something does not fit where it has to go.
    #[error("{what} has {len} bytes, at most {max} fit")]
    TooLarge {
        /// The thing.
        what: String,
        /// Its size.
        len: u64,
        /// The room.
        max: u64,
    },
    /// A PE file is not as expected.
    #[error("{what}")]
    Pe {
        /// The file.
        what: String,
        /// The cause.
        #[source]
        source: PeError,
    },
    /// An input is not what it is said to be, or a value is out of range.
    #[error("{what}: {reason}")]
    Bad {
        /// The input or value.
        what: String,
        /// What is wrong with it, and the way out.
        reason: String,
    },
}

impl Error {
    /// An input or a value that is refused.
    pub(crate) fn bad(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Bad { what: what.into(), reason: reason.into() }
    }
}
