//! What can go wrong while a fleet or a machine is made; told to the user as one sentence.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ichor_net::NetError;
use ichor_provision::ProvisionError;
use ichor_sys::mount::MountError;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The cluster's own state.
    #[error(transparent)]
    State(#[from] ProvisionError),
    /// Something without a file.
    #[error("{what}")]
    Step {
        /// The attempt.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something with a file.
    #[error("{what} {}", path.display())]
    File {
        /// The attempt.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error("address {0} is in use by another program; stop it, or choose another network with --cidr")]
    AddressInUse(SocketAddr),
    /// What only one provider knows of.
    #[error(transparent)]
    Own(Box<dyn Error + Send + Sync>),
}

impl SetupError {
    /// For `map_err` on a step without a file.
    pub fn step(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Step { what, source }
    }

    /// For `map_err` on a step with a file.
    pub fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// The error and its causes on one line.
    pub fn sentence(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text.replace('\n', " ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_on_the_same_line() {
        let error = SetupError::file("open", "/x")(io::ErrorKind::NotFound.into());
        assert_eq!(error.sentence(), "open /x: entity not found");
    }
}
