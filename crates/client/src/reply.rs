//! Replies of several machines: who said what, and who failed.

use std::fmt;

use ichor_wire::common::Metadata;
use ichor_wire::ichor::node;
use ichor_wire::{cluster, common, inspect, machine, storage, time};
use tonic::{Code, Status};

/// A message that says which machine it comes from.
pub trait Reply {
    /// The metadata the endpoint added, when it asked several machines.
    fn metadata(&self) -> Option<&Metadata>;
}

macro_rules! replies {
    ($($message:ty),* $(,)?) => {$(
        impl Reply for $message {
            fn metadata(&self) -> Option<&Metadata> {
                self.metadata.as_ref()
            }
        }
    )*};
}

replies!(
    cluster::HealthCheckProgress,
    common::Data,
    common::Empty,
    inspect::ControllerRuntimeDependency,
    machine::ApplyConfiguration,
    machine::Bootstrap,
    machine::Container,
    machine::DiskUsageInfo,
    machine::EtcdAlarm,
    machine::EtcdAlarmDisarm,
    machine::EtcdDefragment,
    machine::EtcdDowngradeCancel,
    machine::EtcdDowngradeEnable,
    machine::EtcdDowngradeValidate,
    machine::EtcdForfeitLeadership,
    machine::EtcdLeaveCluster,
    machine::EtcdMembers,
    machine::EtcdRecover,
    machine::EtcdRemoveMemberById,
    machine::EtcdStatus,
    machine::Event,
    machine::FileInfo,
    machine::GenerateClientConfiguration,
    machine::Hostname,
    machine::ImageListResponse,
    machine::ImagePull,
    machine::LogsContainer,
    machine::Memory,
    machine::MetaDelete,
    machine::MetaWrite,
    machine::Mounts,
    machine::Netstat,
    machine::Process,
    machine::Reboot,
    machine::Reset,
    machine::Restart,
    machine::Rollback,
    machine::ServiceList,
    machine::ServiceRestart,
    machine::ServiceStart,
    machine::ServiceStop,
    machine::Shutdown,
    machine::Stats,
    machine::Upgrade,
    machine::Version,
    storage::BlockDeviceWipe,
    node::EtcdRebuild,
    node::Why,
    storage::Disks,
    time::Time,
);

/// What one machine answered in place of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeError {
    /// The machine, as it was named in the call.
    pub node: String,
    /// The error in full.
    pub text: String,
    /// The status code, when the endpoint passed it on.
    pub code: Option<Code>,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.text)
    }
}

impl std::error::Error for NodeError {}

/// Replies and failures, each with its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split<T> {
    /// Machines that answered.
    pub ok: Vec<(String, T)>,
    /// Machines that did not.
    pub failed: Vec<NodeError>,
}

/// Sorts one message: the machine it is from, and whether it is a failure.
pub fn sort<T: Reply>(message: T, peer: &str) -> Result<(String, T), NodeError> {
    let Some(metadata) = message.metadata() else {
        return Ok((peer.to_owned(), message));
    };
    let node = if metadata.hostname.is_empty() { peer } else { &metadata.hostname }.to_owned();
    if metadata.error.is_empty() && metadata.status.is_none() {
        return Ok((node, message));
    }
    let code = metadata.status.as_ref().map(|status| Code::from_i32(status.code));
    let text = match &metadata.status {
        Some(status) if metadata.error.is_empty() => rpc_text(Code::from_i32(status.code), &status.message),
        _ => metadata.error.clone(),
    };
    Err(NodeError { node, text, code })
}

/// Sorts the messages of a unary reply. A message without a machine's name is from `peer`.
pub fn split<T: Reply>(messages: Vec<T>, peer: &str) -> Split<T> {
    let mut split = Split { ok: Vec::with_capacity(messages.len()), failed: Vec::new() };
    for message in messages {
        match sort(message, peer) {
            Ok(reply) => split.ok.push(reply),
            Err(failure) => split.failed.push(failure),
        }
    }
    split
}

/// The text of a status in the spelling that every client of this API uses.
pub fn status_text(status: &Status) -> String {
    rpc_text(status.code(), status.message())
}

fn rpc_text(code: Code, message: &str) -> String {
    // The one code whose name is spelled with one letter more here.
    if code == Code::Cancelled {
        return format!("rpc error: code = Canceled desc = {message}");
    }
    format!("rpc error: code = {code:?} desc = {message}")
}

#[cfg(test)]
mod tests {
    use ichor_wire::common::Metadata;
    use ichor_wire::google::rpc;
    use ichor_wire::machine::Hostname;

    use super::*;

    fn from(node: &str, error: &str) -> Hostname {
        let metadata = Metadata { hostname: node.into(), error: error.into(), status: None };
        Hostname { metadata: Some(metadata), hostname: format!("host-{node}") }
    }

    #[test]
    fn failures_are_told_from_replies() {
        let split =
            split(vec![from("a", ""), from("b", "rpc error: code = Unavailable desc = gone")], "peer");
        assert_eq!(split.ok.len(), 1);
        assert_eq!(split.ok[0].0, "a");
        assert_eq!(split.failed[0].to_string(), "b: rpc error: code = Unavailable desc = gone");
    }

    #[test]
    fn a_reply_without_a_name_is_from_the_peer() {
        let split = split(vec![Hostname { metadata: None, hostname: "x".into() }], "10.5.0.2");
        assert_eq!(split.ok[0].0, "10.5.0.2");
    }

    #[test]
    fn a_bare_status_is_a_failure_too() {
        let status = rpc::Status { code: 12, message: "no".into(), details: Vec::new() };
        let metadata = Metadata { hostname: "a".into(), error: String::new(), status: Some(status) };
        let failure = sort(Hostname { metadata: Some(metadata), hostname: String::new() }, "").unwrap_err();
        assert_eq!(failure.code, Some(Code::Unimplemented));
        assert_eq!(failure.text, "rpc error: code = Unimplemented desc = no");
    }
}
