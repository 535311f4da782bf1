//! Containers through containerd's own services.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ichor_wire::containerd::{
    Container as Wire, KillRequest, ListContainersRequest, ListContainersResponse, ListImagesRequest,
    ListImagesResponse, ListTasksRequest, ListTasksResponse, Metric, MetricsRequest, MetricsResponse,
    MetricsV1, MetricsV2, Task, TaskStatus,
};
use prost::Message;
use serde_json::Value;
use tonic::Status;

use crate::{Client, Container, Metrics};

/// Labels the container runtime interface leaves on what it makes.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Annotations of a container's specification.
const LOG_DIRECTORY: &str = "io.kubernetes.cri.sandbox-log-directory";
const RESTARTS: &str = "io.kubernetes.container.restartCount";

const SIGTERM: u32 = 15;

impl Client {
    /// All containers with a process, or the one that `id` names.
    pub(crate) async fn inspect(&self, namespace: &str, id: Option<&str>) -> Result<Vec<Container>, Status> {
        let (filters, whole_pod) = id.map(filters).unwrap_or_default();
        let found: ListContainersResponse = self
            .call(
                "/containerd.services.containers.v1.Containers/List",
                namespace,
                &ListContainersRequest { filters },
            )
            .await?;
        let tasks: ListTasksResponse =
            self.call("/containerd.services.tasks.v1.Tasks/List", namespace, &ListTasksRequest {}).await?;
        let tasks: HashMap<String, Task> =
            tasks.tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
        let (images, metrics) = match id {
            Some(_) => Default::default(),
            None => (self.image_names(namespace).await?, self.metrics(namespace).await),
        };
        let mut containers: Vec<Container> = found
            .containers
            .iter()
            .filter(|wire| !(whole_pod && wire.labels.contains_key(CONTAINER_NAME)))
            .filter_map(|wire| Some(container(wire, tasks.get(&wire.id)?, &images, &metrics)))
            .collect();
        if id.is_some() {
            containers.truncate(1);
            if let Some(container) = containers.first_mut().filter(|found| found.log.is_none()) {
                container.log = self.log(namespace, container, &found.containers).await;
            }
            return Ok(containers);
        }
        Ok(by_pod(containers))
    }

    /// Signals the first process of a container.
    pub(crate) async fn terminate(&self, namespace: &str, id: &str) -> Result<(), Status> {
        let request = KillRequest { container_id: id.to_owned(), signal: SIGTERM };
        self.call::<()>("/containerd.services.tasks.v1.Tasks/Kill", namespace, &request).await
    }

    async fn image_names(&self, namespace: &str) -> Result<Images, Status> {
        let request = ListImagesRequest { filters: Vec::new() };
        let found: ListImagesResponse =
            self.call("/containerd.services.images.v1.Images/List", namespace, &request).await?;
        let mut images = Images::default();
        for image in found.images {
            let digest = image.target.map(|target| target.digest).unwrap_or_default();
            // The runtime interface names every image a second time, by its digest.
            if !image.name.starts_with("sha256:") {
                images.names.insert(digest.clone(), image.name.clone());
            }
            images.digests.insert(image.name, digest);
        }
        Ok(images)
    }

    /// What every container uses. A runtime that cannot tell is no reason to hide the containers.
    async fn metrics(&self, namespace: &str) -> HashMap<String, Metrics> {
        let request = MetricsRequest { filters: Vec::new() };
        let found: Result<MetricsResponse, Status> =
            self.call("/containerd.services.tasks.v1.Tasks/Metrics", namespace, &request).await;
        let found = found.map(|found| found.metrics).unwrap_or_default();
        found.into_iter().filter_map(|metric| Some((metric.id.clone(), usage(metric)?))).collect()
    }

    /// The log of a container in a pod: the directory is known to the pod's sandbox only.
    async fn log(&self, namespace: &str, container: &Container, found: &[Wire]) -> Option<PathBuf> {
        let wire = found.iter().find(|wire| wire.id == container.id)?;
        let restarts = annotation(wire, RESTARTS).unwrap_or_else(|| "0".to_owned());
        let (pod_namespace, pod) = container.pod.split_once('/')?;
        let filters = vec![format!("{},{}", label(POD_NAMESPACE, pod_namespace), label(POD_NAME, pod))];
        let siblings: ListContainersResponse = self
            .call(
                "/containerd.services.containers.v1.Containers/List",
                namespace,
                &ListContainersRequest { filters },
            )
            .await
            .ok()?;
        let directory = siblings.containers.iter().find_map(|wire| annotation(wire, LOG_DIRECTORY))?;
        let inside = container.display.contains(':');
        inside.then(|| Path::new(&directory).join(&container.name).join(format!("{restarts}.log")))
    }
}

/// Names by digest, and digests by name.
#[derive(Default)]
struct Images {
    names: HashMap<String, String>,
    digests: HashMap<String, String>,
}

fn label(name: &str, value: &str) -> String {
    format!("labels.{name:?}=={value:?}")
}

/// What to ask containerd for when a user names a container, and whether the pod itself is meant.
fn filters(id: &str) -> (Vec<String>, bool) {
    let Some((namespace, pod)) = id.split_once('/').filter(|(namespace, _)| !namespace.is_empty()) else {
        return (vec![format!("id=={id:?}")], false);
    };
    let (pod, name) = match pod.rsplit_once(':') {
        Some((pod, name)) if !pod.is_empty() => (pod, name),
        _ => (pod, ""),
    };
    let mut filter = format!("{},{}", label(POD_NAMESPACE, namespace), label(POD_NAME, pod));
    if !name.is_empty() {
        filter = format!("{filter},{}", label(CONTAINER_NAME, name));
    }
    (vec![filter], name.is_empty())
}

fn container(wire: &Wire, task: &Task, images: &Images, metrics: &HashMap<String, Metrics>) -> Container {
    let mut display = wire.id.clone();
    if let (Some(namespace), Some(pod)) = (wire.labels.get(POD_NAMESPACE), wire.labels.get(POD_NAME)) {
        display = format!("{namespace}/{pod}");
    }
    let pod = display.clone();
    let mut name = wire.id.clone();
    if let Some(inside) = wire.labels.get(CONTAINER_NAME) {
        name.clone_from(inside);
        display = format!("{display}:{inside}");
    }
    let digest = images.digests.get(&wire.image).cloned().unwrap_or_default();
    let running = task.status() == TaskStatus::Running;
    Container {
        display,
        name,
        id: wire.id.clone(),
        uid: String::new(),
        image: images.names.get(&digest).cloned().unwrap_or(digest),
        pod,
        status: task.status().as_str_name().to_owned(),
        pid: task.pid,
        network_namespace: String::new(),
        metrics: metrics.get(&wire.id).copied().filter(|_| running),
        log: None,
        sandbox: annotation(wire, LOG_DIRECTORY).is_some(),
    }
}

fn annotation(wire: &Wire, name: &str) -> Option<String> {
    let spec: Value = serde_json::from_slice(&wire.spec.as_ref()?.value).ok()?;
    Some(spec.get("annotations")?.get(name)?.as_str()?.to_owned())
}

/// Reads the counters of one container; those of an unknown kind are `None`.
pub(crate) fn usage(metric: Metric) -> Option<Metrics> {
    let data = metric.data?;
    match data.type_url.rsplit('/').next()? {
        "io.containerd.cgroups.v1.Metrics" => {
            let found = MetricsV1::decode(&*data.value).ok()?;
            let memory = found.memory.unwrap_or_default();
            let used = memory.usage.unwrap_or_default().usage;
            Some(Metrics {
                memory: used.saturating_sub(memory.total_inactive_file),
                cpu: found.cpu.and_then(|cpu| cpu.usage).unwrap_or_default().total,
            })
        }
        "io.containerd.cgroups.v2.Metrics" => {
            let found = MetricsV2::decode(&*data.value).ok()?;
            Some(Metrics {
                memory: found.memory.unwrap_or_default().usage,
                cpu: found.cpu.unwrap_or_default().usage_usec.saturating_mul(1000),
            })
        }
        _ => None,
    }
}

/// Containers as if each had a process.
pub(crate) fn all_running(found: &[Wire]) -> Vec<Container> {
    let task = Task { pid: 1, status: TaskStatus::Running.into(), ..Task::default() };
    by_pod(found.iter().map(|wire| container(wire, &task, &Images::default(), &HashMap::new())).collect())
}

/// Puts the containers of a pod behind its first one, pods in the order they were found.
fn by_pod(containers: Vec<Container>) -> Vec<Container> {
    let mut order: HashMap<String, usize> = HashMap::new();
    for container in &containers {
        let next = order.len();
        order.entry(container.pod.clone()).or_insert(next);
    }
    let mut containers = containers;
    containers.sort_by_key(|container| order.get(&container.pod).copied().unwrap_or(usize::MAX));
    containers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_name_containers_in_several_ways() {
        let pod = "labels.\"io.kubernetes.pod.namespace\"==\"kube-system\",labels.\"io.kubernetes.pod.name\"==\"p-1\"";
        assert_eq!(filters("apid"), (vec!["id==\"apid\"".to_owned()], false));
        assert_eq!(filters("kube-system/p-1"), (vec![pod.to_owned()], true));
        let container = format!("{pod},labels.\"io.kubernetes.container.name\"==\"c\"");
        assert_eq!(filters("kube-system/p-1:c"), (vec![container], false));
        assert_eq!(filters("a\"b"), (vec!["id==\"a\\\"b\"".to_owned()], false));
    }

    #[test]
    fn both_kinds_of_counters_are_read() {
        use ichor_wire::containerd::{metrics_v1, metrics_v2};
        let metric = |kind: &str, value: Vec<u8>| Metric {
            id: "x".into(),
            data: Some(prost_types::Any { type_url: format!("io.containerd.cgroups.{kind}.Metrics"), value }),
        };
        let v1 = MetricsV1 {
            cpu: Some(metrics_v1::Cpu { usage: Some(metrics_v1::cpu::Usage { total: 5 }) }),
            memory: Some(metrics_v1::Memory {
                total_inactive_file: 30,
                usage: Some(metrics_v1::memory::Entry { usage: 100 }),
            }),
        };
        let found = usage(metric("v1", v1.encode_to_vec())).unwrap();
        assert_eq!(found, Metrics { memory: 70, cpu: 5 });
        let v2 = MetricsV2 {
            cpu: Some(metrics_v2::Cpu { usage_usec: 5 }),
            memory: Some(metrics_v2::Memory { usage: 9 }),
        };
        let found = usage(metric("v2", v2.encode_to_vec())).unwrap();
        assert_eq!(found, Metrics { memory: 9, cpu: 5000 });
        assert_eq!(usage(metric("v3", Vec::new())), None);
        assert_eq!(usage(metric("v2", vec![0xff; 3])), None);
    }
}
