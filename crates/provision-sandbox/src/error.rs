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
pub(crate) enum SetupError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    State(#[from] ProvisionError),
    #[error("{what}")]
    Step {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("address {0} is in use by another program; stop it, or choose another network with --cidr")]
    AddressInUse(SocketAddr),
    #[error("no cgroup hierarchy is in use on this host; mount one at /sys/fs/cgroup")]
    NoCgroups,
    #[error(
        "cgroup {group} has no controller {missing}: the groups above it do not hand it down; check cgroup_disable= \
         on the kernel command line, or, inside of a container, that its own root group holds no processes"
    )]
    NoControllers { group: String, missing: String },
}

impl SetupError {
    /// For `map_err` on a step without a file.
    pub(crate) fn step(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Step { what, source }
    }

    /// For `map_err` on a step with a file.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// The error and its causes on one line.
    pub(crate) fn sentence(&self) -> String {
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
