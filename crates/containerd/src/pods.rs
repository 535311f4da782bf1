//! The end of all pods, when a machine stops.

use std::time::Duration;

use ichor_wire::cri::{PodSandboxFilter, PodSandboxStatusRequest, StopPodSandboxRequest};
use tonic::{Code, Status};

use crate::Client;

/// One pod may take this long to stop; the whole is bound by the caller.
const STOP_MAX: Duration = Duration::from_secs(120);

/// Pods of the node's own network.
const NETWORK_OF_NODE: i32 = 2;

/// The part of a sandbox's status that says how it is connected.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<SandboxStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxStatus {
    #[prost(message, optional, tag = "6")]
    linux: Option<LinuxStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxStatus {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<Namespaces>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespaces {
    #[prost(message, optional, tag = "2")]
    options: Option<NamespaceOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NamespaceOptions {
    #[prost(int32, tag = "1")]
    network: i32,
}

impl Client {
    /// Stops all pods, and removes them where asked: first those with a network of their own, then those of the
    /// node's, on which the network of the first may depend.
    ///
    /// # Errors
    /// The first failure; all pods were tried then.
    pub async fn stop_pods(&self, remove: bool) -> Result<(), Status> {
        let (mut own, mut of_node) = (Vec::new(), Vec::new());
        for sandbox in self.sandboxes(PodSandboxFilter::default()).await? {
            match self.shares_network(&sandbox.id).await {
                Ok(true) => of_node.push(sandbox.id),
                Ok(false) => own.push(sandbox.id),
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        let mut result = Ok(());
        for wave in [own, of_node] {
            let mut stops = tokio::task::JoinSet::new();
            for id in wave {
                let client = self.clone();
                stops.spawn(async move { client.stop_pod(id, remove).await });
            }
            while let Some(stopped) = stops.join_next().await {
                let stopped = stopped.unwrap_or_else(|error| Err(Status::internal(error.to_string())));
                result = result.and(stopped);
            }
        }
        result
    }

    async fn shares_network(&self, id: &str) -> Result<bool, Status> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let found: StatusResponse =
            self.call("/runtime.v1.RuntimeService/PodSandboxStatus", "", &request).await?;
        let options = found.status.and_then(|status| status.linux?.namespaces?.options);
        Ok(options.is_some_and(|options| options.network == NETWORK_OF_NODE))
    }

    async fn stop_pod(&self, id: String, remove: bool) -> Result<(), Status> {
        // Both requests have the id alone, in the same place.
        let request = StopPodSandboxRequest { pod_sandbox_id: id };
        let fine = |result: Result<(), Status>| match result {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            other => other,
        };
        fine(self.call_within("/runtime.v1.RuntimeService/StopPodSandbox", "", &request, STOP_MAX).await)?;
        if !remove {
            return Ok(());
        }
        fine(self.call_within("/runtime.v1.RuntimeService/RemovePodSandbox", "", &request, STOP_MAX).await)
    }
}
