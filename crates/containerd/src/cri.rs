//! Containers through the container runtime interface.

use std::collections::HashMap;
use std::path::PathBuf;

use ichor_wire::cri::{
    Container as Wire, ContainerFilter, ContainerState, ContainerStatusRequest, ContainerStatusResponse,
    ListContainerStatsResponse, ListContainersRequest, ListContainersResponse, ListImagesResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxFilter, PodSandboxState,
    PodSandboxStateValue, PodSandboxStatusRequest, PodSandboxStatusResponse, StopContainerRequest,
    StopPodSandboxRequest,
};
use serde_json::Value;
use tonic::{Code, Status};

use crate::inspect::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE};
use crate::{Client, Container, Metrics};

/// Seconds a container gets to end by itself.
const GRACE_S: i64 = 10;
/// Letters of an id that are shown.
const SHORT: usize = 12;

impl Client {
    /// All pods that are ready, each with its containers.
    pub(crate) async fn pods(&self) -> Result<Vec<Container>, Status> {
        let ready = PodSandboxFilter {
            state: Some(PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() }),
            label_selector: HashMap::new(),
        };
        let sandboxes = self.sandboxes(ready).await?;
        let containers = self.all(HashMap::new()).await?;
        let stats: ListContainerStatsResponse =
            self.call("/runtime.v1.RuntimeService/ListContainerStats", "", &()).await?;
        let images: ListImagesResponse = self.call("/runtime.v1.ImageService/ListImages", "", &()).await?;
        let images: HashMap<String, String> = images
            .images
            .into_iter()
            .filter_map(|image| Some((image.id, image.repo_tags.into_iter().next()?)))
            .collect();
        let stats: HashMap<String, Metrics> = stats
            .stats
            .into_iter()
            .map(|stats| {
                let memory = stats.memory.and_then(|memory| memory.working_set_bytes);
                let cpu = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds);
                let id = stats.attributes.map(|attributes| attributes.id).unwrap_or_default();
                (id, Metrics { memory: memory.map_or(0, |v| v.value), cpu: cpu.map_or(0, |v| v.value) })
            })
            .collect();

        let mut found = Vec::new();
        for sandbox in sandboxes {
            let Some(pod) = still_there(self.sandbox(&sandbox).await)? else { continue };
            found.push(pod);
            for wire in containers.iter().filter(|wire| wire.pod_sandbox_id == sandbox.id) {
                let Some(mut container) = still_there(self.describe(wire).await)? else { continue };
                container.metrics = stats.get(&wire.id).copied();
                found.push(container);
            }
        }
        for container in &mut found {
            if let Some(name) = images.get(&container.image) {
                container.image.clone_from(name);
            }
        }
        Ok(found)
    }

    /// The container or sandbox that `namespace/pod[:container[:id]]` names.
    pub(crate) async fn pod_container(&self, id: &str) -> Result<Option<Container>, Status> {
        let mut parts = id.splitn(2, '/');
        let (Some(namespace), Some(rest)) = (parts.next(), parts.next()) else { return Ok(None) };
        let mut parts = rest.splitn(3, ':');
        let pod = parts.next().unwrap_or_default();
        let mut labels = HashMap::from([
            (POD_NAME.to_owned(), pod.to_owned()),
            (POD_NAMESPACE.to_owned(), namespace.to_owned()),
        ]);
        let Some(name) = parts.next().filter(|name| !name.is_empty()) else {
            let filter = PodSandboxFilter {
                state: Some(PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() }),
                label_selector: labels,
            };
            return match self.sandboxes(filter).await?.first() {
                Some(sandbox) => self.sandbox(sandbox).await.map(Some),
                None => Ok(None),
            };
        };
        labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
        let found = self.all(labels).await?;
        let wanted = parts.next().unwrap_or_default();
        match found.iter().find(|wire| wire.id.contains(wanted)) {
            Some(wire) => self.describe(wire).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn stop_pod_container(&self, container: &Container) -> Result<(), Status> {
        let limit = std::time::Duration::from_secs(GRACE_S.unsigned_abs() * 2);
        if container.sandbox {
            let request = StopPodSandboxRequest { pod_sandbox_id: container.id.clone() };
            return self.call_within("/runtime.v1.RuntimeService/StopPodSandbox", "", &request, limit).await;
        }
        let request = StopContainerRequest { container_id: container.id.clone(), timeout: GRACE_S };
        self.call_within("/runtime.v1.RuntimeService/StopContainer", "", &request, limit).await
    }

    pub(crate) async fn sandboxes(&self, filter: PodSandboxFilter) -> Result<Vec<PodSandbox>, Status> {
        let request = ListPodSandboxRequest { filter: Some(filter) };
        let found: ListPodSandboxResponse =
            self.call("/runtime.v1.RuntimeService/ListPodSandbox", "", &request).await?;
        Ok(found.items)
    }

    async fn all(&self, label_selector: HashMap<String, String>) -> Result<Vec<Wire>, Status> {
        let request = ListContainersRequest { filter: Some(ContainerFilter { label_selector }) };
        let found: ListContainersResponse =
            self.call("/runtime.v1.RuntimeService/ListContainers", "", &request).await?;
        Ok(found.containers)
    }

    async fn sandbox(&self, sandbox: &PodSandbox) -> Result<Container, Status> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.id.clone(), verbose: true };
        let status: PodSandboxStatusResponse =
            self.call("/runtime.v1.RuntimeService/PodSandboxStatus", "", &request).await?;
        let info = verbose(&status.info);
        let metadata = sandbox.metadata.clone().unwrap_or_default();
        let pod = format!("{}/{}", metadata.namespace, metadata.name);
        Ok(Container {
            display: pod.clone(),
            name: pod.clone(),
            id: sandbox.id.clone(),
            uid: metadata.uid,
            image: info.get("image").and_then(Value::as_str).unwrap_or_default().to_owned(),
            pod,
            status: sandbox.state().as_str_name().to_owned(),
            pid: pid(&info),
            network_namespace: network_namespace(&info).unwrap_or_default(),
            // The sandbox itself does nothing.
            metrics: Some(Metrics::default()),
            log: None,
            sandbox: true,
        })
    }

    async fn describe(&self, wire: &Wire) -> Result<Container, Status> {
        let request = ContainerStatusRequest { container_id: wire.id.clone(), verbose: true };
        let status: ContainerStatusResponse =
            self.call("/runtime.v1.RuntimeService/ContainerStatus", "", &request).await?;
        let label = |name: &str| wire.labels.get(name).map(String::as_str).unwrap_or_default();
        let pod = format!("{}/{}", label(POD_NAMESPACE), label(POD_NAME));
        let name = wire.metadata.clone().unwrap_or_default().name;
        let short = wire.id.get(..SHORT).unwrap_or(&wire.id);
        let log = status.status.map(|status| status.log_path).filter(|path| !path.is_empty());
        Ok(Container {
            display: format!("{pod}:{name}:{short}"),
            name,
            id: wire.id.clone(),
            uid: String::new(),
            image: wire.image_ref.clone(),
            pod,
            status: ContainerState::as_str_name(&wire.state()).to_owned(),
            pid: pid(&verbose(&status.info)),
            network_namespace: String::new(),
            metrics: None,
            log: log.map(PathBuf::from),
            sandbox: false,
        })
    }
}

/// What went away between the list and the look at it belongs to no list.
fn still_there(found: Result<Container, Status>) -> Result<Option<Container>, Status> {
    match found {
        Err(status) if status.code() == Code::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// What containerd tells besides, as JSON in a text.
fn verbose(info: &HashMap<String, String>) -> Value {
    info.get("info").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn pid(info: &Value) -> u32 {
    info.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)
}

/// What the verbose part of an answer says.
pub(crate) fn with_info(info: &HashMap<String, String>) -> Container {
    let info = verbose(info);
    Container {
        pid: pid(&info),
        network_namespace: network_namespace(&info).unwrap_or_default(),
        ..Container::default()
    }
}

fn network_namespace(info: &Value) -> Option<String> {
    let namespaces = info.get("runtimeSpec")?.get("linux")?.get("namespaces")?.as_array()?;
    let network =
        namespaces.iter().find(|namespace| namespace.get("type").is_some_and(|kind| kind == "network"))?;
    Some(network.get("path")?.as_str()?.rsplit('/').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_namespace_of_a_sandbox_is_known_by_its_name() {
        let text = r#"{"pid":42,"image":"sha256:1","runtimeSpec":{"linux":{"namespaces":[
            {"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}]}}}"#;
        let info = verbose(&HashMap::from([("info".to_owned(), text.to_owned())]));
        assert_eq!(pid(&info), 42);
        assert_eq!(network_namespace(&info).unwrap(), "cni-1");
        let empty = verbose(&HashMap::from([("info".to_owned(), "nonsense".to_owned())]));
        assert_eq!((pid(&empty), network_namespace(&empty)), (0, None));
    }
}
