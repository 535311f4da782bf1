//! What can go wrong with machines. Each text is one sentence that names the thing and the way out.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// A provider's failure.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The name is taken.
    #[error(
        "cluster {name} exists already; look at it with `ichorctl cluster show --name {name}`, remove it with `ichorctl cluster destroy --name {name}`, or choose another --name"
    )]
    Exists {
        /// Cluster.
        name: String,
    },
    /// No such cluster.
    #[error("there is no cluster {name}; `ichorctl cluster list` shows those that are")]
    NoSuchCluster {
        /// Cluster.
        name: String,
    },
    /// No such machine.
    #[error(
        "cluster {cluster} has no machine {name}; `ichorctl cluster show --name {cluster}` lists its machines"
    )]
    NoSuchMachine {
        /// Cluster.
        cluster: String,
        /// Machine.
        name: String,
    },
    /// Two at once.
    #[error("another command changes the machines of cluster {name}; try again when it is done")]
    Busy {
        /// Cluster.
        name: String,
    },
    /// Not a possible name.
    #[error("{name:?} is not a name; use lower-case letters, digits and dashes, at most 63")]
    BadName {
        /// What was given.
        name: String,
    },
    /// Twice the same name.
    #[error("two machines are called {name}")]
    SameMachineTwice {
        /// Machine.
        name: String,
    },
    /// More machines than addresses.
    #[error("network {cidr} has no room for {machines} machines; choose a larger one with --cidr")]
    NetworkTooSmall {
        /// Network.
        cidr: IpNet,
        /// How many were asked for.
        machines: usize,
    },
    /// No such provider.
    #[error("provider \"{name}\" is not offered yet")]
    UnknownProvider {
        /// What was given.
        name: String,
    },
    /// No such setting.
    #[error("there is no setting {name}; this provider has {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    UnknownSetting {
        /// What was given.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A setting whose value cannot be.
    #[error("setting {name}: \"{value}\" is not {expected}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// A setting with a value that it does not know.
    #[error("setting {name}: \"{value}\" is none of {}", known.join(", "))]
    NotOneOf {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        known: Vec<&'static str>,
    },
    /// A setting that nothing stands behind yet.
    #[error("--{name} is not offered yet: {reason}; leave it out")]
    NotOffered {
        /// The setting.
        name: &'static str,
        /// What is missing.
        reason: &'static str,
    },
    /// Two settings of which only one can be.
    #[error("--{first} and --{second} exclude each other; leave one of them out")]
    Contradiction {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Programs or files that machines are made of.
    #[error("machines of {provider} need what is not there: {}; {help}", things.join(", "))]
    Missing {
        /// The provider.
        provider: &'static str,
        /// All of them.
        things: Vec<String>,
        /// The command that helps.
        help: &'static str,
    },
    /// A network of a family that the provider does not have.
    #[error("machines on this host need one IPv4 network, such as 10.5.0.0/24; choose it with --cidr")]
    UnsupportedNetwork,
    /// All networks are taken.
    #[error("no network is free for the cluster")]
    NoFreeNetwork,
    /// No layout of container images.
    #[error(
        "there are no container images at {}; build them with `make components`, or leave --images out",
        path.display()
    )]
    NoImages {
        /// Where they should be.
        path: PathBuf,
    },
    /// Not root.
    #[error("{what} needs root; run the command again with sudo")]
    NotRoot {
        /// What was to be done.
        what: &'static str,
    },
    /// No image.
    #[error("there is no root image at {}; build it with `make build` or name another with --image", path.display())]
    NoImage {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Somebody else listens there.
    #[error("address {address} is in use by another program; stop it, or choose another network with --cidr")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// A file or directory.
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
    /// A state file nobody can read.
    #[error("the state file {} is damaged; remove the cluster with `ichorctl cluster destroy`", path.display())]
    DamagedState {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The cluster's supervisor is not there.
    #[error(
        "the supervisor of cluster {name} does not run; remove the cluster with `ichorctl cluster destroy --name {name}`, or start it again with `ichorctl cluster start --name {name}`"
    )]
    NotRunning {
        /// Cluster.
        name: String,
    },
    /// The process that keeps the machines ended before it said how it went.
    #[error("the supervisor of cluster {name} ended early; its log is {}", log.display())]
    EndedEarly {
        /// Cluster.
        name: String,
        /// Where to look.
        log: PathBuf,
    },
    /// Making or changing machines failed.
    #[error("{text}")]
    Failed {
        /// What the supervisor said.
        text: String,
    },
    /// A bounded wait is over.
    #[error("{what} took longer than {seconds} s; the log is {}", log.display())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// Where to look.
        log: PathBuf,
    },
}
