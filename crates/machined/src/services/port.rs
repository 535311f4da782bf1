//! Where processes come from.

use std::fmt;
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;

use super::BoxFuture;
use super::spec::{ContainerSpec, ProcessSpec};

/// A process of a service, as the port knows it.
#[derive(Debug)]
pub struct Process {
    /// The port's name for it.
    pub handle: u64,
    /// Its process id.
    pub pid: i32,
    /// Reading end of its output.
    pub output: Option<OwnedFd>,
    /// Told when it has exited.
    pub exit: oneshot::Receiver<ExitKind>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// It called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal: {}", signal_name(*signal)),
        }
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        1 => "hangup".to_owned(),
        2 => "interrupt".to_owned(),
        6 => "aborted".to_owned(),
        9 => "killed".to_owned(),
        11 => "segmentation fault".to_owned(),
        13 => "broken pipe".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

/// A process that could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SpawnError {
    /// What failed.
    pub reason: String,
}

/// Starts and signals processes.
pub trait ProcessPort: Send + Sync {
    /// Starts a process for a service.
    fn spawn(&self, name: &str, spec: &ProcessSpec) -> BoxFuture<'static, Result<Process, SpawnError>>;

    /// Signals a process; one that has exited is left alone.
    fn signal(&self, handle: u64, signal: i32);

    /// Gives up an exited process: its status and output are known.
    fn release(&self, handle: u64);
}

/// Makes the roots of containers.
pub trait ImagePort: Send + Sync {
    /// Pulls and unpacks the image where that is still to be done and makes a fresh root for the service. The process
    /// comes back complete: with its root, and with what the image says of arguments and environment.
    fn prepare(&self, id: &str, spec: &ContainerSpec) -> BoxFuture<'static, Result<ProcessSpec, String>>;
}
