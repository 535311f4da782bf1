//! Why an engine stopped. What to do about it in terms of a command line is the caller's to add.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ichor_client::{NodeError, Unreachable, status_text};
use ichor_config::patch::PatchError;
use ichor_health::Unhealthy;
use ichor_provision::ProvisionError;
use ipnet::IpNet;
use tonic::Status;

use crate::upgrade::Obsolete;

/// The result of an engine.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation: the problem, and what was being done when it came up.
pub struct Error(Box<Inner>);

struct Inner {
    /// The outermost first.
    context: Vec<String>,
    problem: Problem,
}

impl Error {
    /// What went wrong.
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }

    /// The same with `context: ` in front of its text.
    pub fn within(mut self, context: impl Into<String>) -> Self {
        self.0.context.insert(0, context.into());
        self
    }

    /// A call to a machine that failed.
    pub fn call(doing: impl Into<String>, status: Status) -> Self {
        Problem::Call { doing: doing.into(), status: Box::new(status) }.into()
    }

    /// A bounded wait that is over.
    pub fn timeout(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Problem::Timeout { what: what.into(), reason: reason.into() }.into()
    }

    /// The cluster or a machine is not as the operation needs it.
    pub fn state(what: impl Into<String>) -> Self {
        Problem::State(what.into()).into()
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self(Box::new(Inner { context: Vec::new(), problem }))
    }
}

impl From<ProvisionError> for Error {
    fn from(error: ProvisionError) -> Self {
        Problem::Provision(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for context in &self.0.context {
            write!(f, "{context}: ")?;
        }
        self.0.problem.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("context", &self.0.context).field("problem", &self.0.problem).finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.problem.source()
    }
}

/// Adds to an error of another crate what was being done.
pub(crate) trait Doing<T> {
    /// Turns the error into [`Problem::Invalid`] with its causes.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: std::error::Error> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| {
            Problem::Invalid { what: what.into(), reason: ichor_health::kube::text_of(&error) }.into()
        })
    }
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A call failed as a whole.
    #[error("{doing}: {}", status_text(status))]
    Call {
        /// The operation.
        doing: String,
        /// The status of the call.
        status: Box<Status>,
    },
    /// A machine answered with an error.
    #[error("{doing}: {error}")]
    Node {
        /// The operation.
        doing: String,
        /// The machine's error.
        error: NodeError,
    },
    /// No endpoint answers.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The Kubernetes API does not answer, or refuses.
    #[error("{doing}: {reason}")]
    Kubernetes {
        /// The operation.
        doing: String,
        /// The error of the client.
        reason: String,
    },
    /// A bounded wait is over.
    #[error("{what}: {reason}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// What was last observed.
        reason: String,
    },
    /// The cluster or a machine is not in the state that the operation needs.
    #[error("{0}")]
    State(String),
    /// Input, or the reply of a machine, that cannot be used.
    #[error("{what}: {reason}")]
    Invalid {
        /// The input.
        what: String,
        /// Why not.
        reason: String,
    },
    /// A file.
    #[error("{doing} {}", path.display())]
    File {
        /// The attempt.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Patches that do not apply.
    #[error("apply the patch to the {name}")]
    Patch {
        /// What the configuration is called.
        name: String,
        /// The configuration before the patch.
        text: String,
        /// Why not.
        #[source]
        source: Box<PatchError>,
    },
    /// Not the address of a Kubernetes API.
    #[error("\"{0}\" is not an address of the Kubernetes API")]
    BadEndpoint(String),
    /// Discovery knows no members.
    #[error("no members of the cluster were discovered")]
    NoMembers,
    /// An image that is not a repository.
    #[error("invalid upgrade options: {component}: invalid image reference: {image}")]
    BadImage {
        /// The component it is for.
        component: &'static str,
        /// What was given.
        image: String,
    },
    /// Not a version of Kubernetes.
    #[error("error creating upgrade path: {end} {text:?} is not a version")]
    BadVersion {
        /// `from` or `to`.
        end: &'static str,
        /// What was given.
        text: String,
    },
    /// An upgrade that skips a minor version, goes back one, or leaves the supported range.
    #[error("unsupported upgrade path {path} (from \"{from}\" to \"{to}\")")]
    UnsupportedUpgrade {
        /// Minors, as `1.33->1.35`.
        path: String,
        /// Present version.
        from: String,
        /// Wanted version.
        to: String,
    },
    /// No component of the control plane runs from an image with a version.
    #[error("failed to detect lowest Kubernetes version")]
    VersionNotDetected,
    /// The new version of Kubernetes removes what is in use.
    #[error("Kubernetes {to} no longer has what is in use:{}", used.iter().map(|item| format!("\n  {item}")).collect::<String>())]
    Removed {
        /// Wanted version.
        to: String,
        /// What is in use.
        used: Vec<Obsolete>,
    },
    /// The provider of the machines failed.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// A check did not pass in time.
    #[error(transparent)]
    Unhealthy(#[from] Unhealthy),
    /// The network of the machines is one of the cluster's own.
    #[error("the network {cidr} of the machines overlaps with {other}, the network of {what}")]
    NetworkOverlap {
        /// Of the machines.
        cidr: IpNet,
        /// The other one.
        other: IpNet,
        /// Whose that is.
        what: &'static str,
    },
    /// Nobody is there to be asked.
    #[error("no control plane of cluster {cluster} runs")]
    NoControlPlaneRuns {
        /// The cluster.
        cluster: String,
    },
    /// The client configuration does not know the cluster.
    #[error("the client configuration has no context for cluster {cluster}")]
    NoContext {
        /// The cluster.
        cluster: String,
    },
    /// A machine was not ready in time.
    #[error("{machine} ({address}) was not ready within {}s: {reason}", after.as_secs())]
    MachineNotReady {
        /// Its name.
        machine: String,
        /// Its address.
        address: String,
        /// How long it was waited for.
        after: Duration,
        /// What was last observed.
        reason: String,
    },
    /// A cluster without a control plane is none.
    #[error("{machine} is the only control plane of {cluster}")]
    OnlyControlPlane {
        /// The machine.
        machine: String,
        /// The cluster.
        cluster: String,
    },
    /// Without a machine the members of etcd could not agree.
    #[error("without {machine} etcd would lose its quorum: of the {others} other members {} do not answer", away.join(", "))]
    QuorumLost {
        /// The machine.
        machine: String,
        /// How many other members vote.
        others: usize,
        /// Those that do not answer.
        away: Vec<String>,
    },
    /// A machine did not leave in time.
    #[error("{machine} did not leave within {} s", after.as_secs())]
    NotLeft {
        /// The machine.
        machine: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A snapshot that does not end with its checksum.
    #[error("sha256 checksum not found (size {size})")]
    SnapshotCut {
        /// How much of it arrived.
        size: u64,
    },
    /// A file that is not a snapshot.
    #[error("{name} is not a snapshot: {reason}")]
    NotASnapshot {
        /// The file.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// Conformance tests failed.
    #[error("tests failed: code {code}")]
    TestsFailed {
        /// Exit status of the tests.
        code: i64,
    },
    /// A machine does not show its issuing authority.
    #[error("the machine does not show its current CA")]
    HiddenAuthority,
}
