//! Containers: what runs, what it uses, what it says; and images.
//!
//! The node's own daemons are plain processes here. Clients expect them among the containers of the `system`
//! namespace, and find them there.

use std::path::Path;

use futures_util::stream;
use tonic::{Response, Status};

use ichor_containerd::{Client, Container, Driver, KUBERNETES, Metrics, SYSTEM, reference};
use ichor_sys::cgroup::{self, Cgroups};
use ichor_wire::common::{ContainerDriver, ContainerdNamespace};
use ichor_wire::{common, machine};

use super::log_file;
use super::reply::{Replies, streaming};
use crate::lanes::HOST;
use crate::node::Paths;
use crate::services::ServiceManager;

const SIGTERM: i32 = 15;

/// Containers of one namespace.
pub async fn containers(
    paths: &Paths,
    services: &ServiceManager,
    request: machine::ContainersRequest,
) -> Result<Response<machine::ContainersResponse>, Status> {
    let driver = driver(request.driver, &request.namespace)?;
    let namespace = request.namespace;
    let containers = all(paths, services, driver, &namespace)
        .await?
        .into_iter()
        .map(|found| machine::ContainerInfo {
            namespace: namespace.clone(),
            id: found.display,
            image: found.image,
            pid: found.pid,
            status: found.status,
            pod_id: found.pod,
            name: found.name,
            network_namespace: found.network_namespace,
            internal_id: found.id,
            uid: found.uid,
        })
        .collect();
    let message = machine::Container { metadata: None, containers };
    Ok(Response::new(machine::ContainersResponse { messages: vec![message] }))
}

/// Memory and processor time of the containers of one namespace.
pub async fn stats(
    paths: &Paths,
    services: &ServiceManager,
    request: machine::StatsRequest,
) -> Result<Response<machine::StatsResponse>, Status> {
    let driver = driver(request.driver, &request.namespace)?;
    let namespace = request.namespace;
    let stats = all(paths, services, driver, &namespace)
        .await?
        .into_iter()
        .filter_map(|found| {
            let metrics = found.metrics?;
            Some(machine::Stat {
                namespace: namespace.clone(),
                id: found.display,
                memory_usage: metrics.memory,
                cpu_usage: metrics.cpu,
                pod_id: found.pod,
                name: found.name,
            })
        })
        .collect();
    let message = machine::Stats { metadata: None, stats };
    Ok(Response::new(machine::StatsResponse { messages: vec![message] }))
}

/// Ends a container; whoever runs it starts it again.
pub async fn restart(
    paths: &Paths,
    services: &ServiceManager,
    request: machine::RestartRequest,
) -> Result<Response<machine::RestartResponse>, Status> {
    let driver = driver(request.driver, &request.namespace)?;
    let namespace = request.namespace.as_str();
    let own = match namespace {
        SYSTEM => daemons(paths, services).await?.into_iter().find(|found| found.id == request.id),
        _ => None,
    };
    match own.and_then(|daemon| i32::try_from(daemon.pid).ok()) {
        Some(pid) => ichor_sys::signal::send(pid, SIGTERM)
            .map_err(|error| Status::unknown(format!("signal {:?}: {error}", request.id)))?,
        None => {
            let (client, container) = find(paths, driver, namespace, &request.id).await?;
            client.stop(driver, namespace, &container).await?;
        }
    }
    let message = machine::Restart { metadata: None };
    Ok(Response::new(machine::RestartResponse { messages: vec![message] }))
}

/// Streams the log of a container.
pub async fn logs(
    paths: &Paths,
    request: machine::LogsRequest,
) -> Result<Response<Replies<common::Data>>, Status> {
    let driver = driver(request.driver, &request.namespace)?;
    let (_, container) = find(paths, driver, &request.namespace, &request.id).await?;
    let path = container.log.ok_or_else(|| Status::unknown("no log available"))?;
    log_file::stream(path, usize::try_from(request.tail_lines).ok(), request.follow).await
}

/// Streams the images of a namespace.
pub async fn image_list(
    paths: &Paths,
    request: machine::ImageListRequest,
) -> Result<Response<Replies<machine::ImageListResponse>>, Status> {
    let namespace = image_namespace(request.namespace)?;
    let client = client(&paths.containerd);
    let images = client.images(namespace).await?;
    // Sizes are asked for one image at a time, as fast as the caller reads.
    Ok(streaming(stream::unfold((client, images.into_iter()), move |(client, mut images)| async move {
        let image = images.next()?;
        let size = client.image_size(namespace, &image).await.unwrap_or(0);
        let message = machine::ImageListResponse {
            metadata: None,
            name: image.name,
            digest: image.digest,
            size,
            created_at: image.created,
        };
        Some((Ok(message), (client, images)))
    })))
}

/// Pulls an image.
pub async fn image_pull(
    paths: &Paths,
    request: machine::ImagePullRequest,
) -> Result<Response<machine::ImagePullResponse>, Status> {
    let namespace = image_namespace(request.namespace)?;
    let name = reference::normalize(&request.reference).ok_or_else(|| {
        Status::invalid_argument(format!("invalid image reference {:?}", request.reference))
    })?;
    client(&paths.containerd).pull(namespace, &name).await.map_err(|status| match status.code() {
        tonic::Code::NotFound => Status::not_found(format!("error pulling image: {}", status.message())),
        _ => status,
    })?;
    let message = machine::ImagePull { metadata: None };
    Ok(Response::new(machine::ImagePullResponse { messages: vec![message] }))
}

fn image_namespace(asked: i32) -> Result<&'static str, Status> {
    match ContainerdNamespace::try_from(asked) {
        Ok(ContainerdNamespace::NsCri) => Ok(KUBERNETES),
        Ok(ContainerdNamespace::NsSystem) => Ok(SYSTEM),
        Ok(ContainerdNamespace::NsUnknown) => Err(Status::invalid_argument("invalid namespace NS_UNKNOWN")),
        Err(_) => Err(Status::invalid_argument(format!("invalid namespace {asked}"))),
    }
}

fn driver(asked: i32, namespace: &str) -> Result<Driver, Status> {
    match ContainerDriver::try_from(asked) {
        Ok(ContainerDriver::Containerd) => Ok(Driver::Containerd),
        Ok(ContainerDriver::Cri) if namespace == KUBERNETES => Ok(Driver::Cri),
        Ok(ContainerDriver::Cri) => Err(Status::unknown("CRI inspector is supported only for K8s namespace")),
        Err(_) => Err(Status::unknown(format!("unsupported driver \"{asked}\""))),
    }
}

fn client(socket: &Path) -> Client {
    Client::new(socket)
}

/// Where the containers of a namespace are: the node has one containerd, unless it was given a second one.
fn socket<'a>(paths: &'a Paths, namespace: &str, own: &'a Path) -> &'a Path {
    if namespace == SYSTEM && own.exists() { own } else { &paths.containerd }
}

async fn all(
    paths: &Paths,
    services: &ServiceManager,
    driver: Driver,
    namespace: &str,
) -> Result<Vec<Container>, Status> {
    let mut found = match namespace {
        SYSTEM => daemons(paths, services).await?,
        _ => Vec::new(),
    };
    let own = paths.system_containerd();
    let socket = socket(paths, namespace, &own);
    // A node without containerd has no other containers. Tools that gather everything about a node ask for
    // them first, and would take an error for the end.
    if socket.exists() {
        found.extend(client(socket).containers(driver, namespace).await?);
    }
    Ok(found)
}

async fn find(
    paths: &Paths,
    driver: Driver,
    namespace: &str,
    id: &str,
) -> Result<(Client, Container), Status> {
    let missing = || Status::unknown(format!("container {id:?} not found"));
    let own = paths.system_containerd();
    let socket = socket(paths, namespace, &own);
    if namespace == SYSTEM && !socket.exists() {
        return Err(missing());
    }
    let client = client(socket);
    let container = client.container(driver, namespace, id).await?.ok_or_else(missing)?;
    Ok((client, container))
}

/// The services that other systems of this kind run in containers; some of ours do, too.
async fn daemons(paths: &Paths, services: &ServiceManager) -> Result<Vec<Container>, Status> {
    let contained = |id: &str| matches!(id, "apid" | "trustd" | "etcd" | "kubelet") || id.starts_with("ext-");
    let running: Vec<(String, i32)> =
        services.processes().into_iter().filter(|(id, _)| contained(id)).collect();
    let found = HOST.run(move || {
        let groups = Cgroups::detect(Path::new(cgroup::MOUNT_POINT)).ok();
        running.into_iter().map(|(id, pid)| daemon(id, pid, groups.as_ref())).collect::<Vec<_>>()
    });
    let mut found = found.await?;
    if paths.containerd.exists() {
        let client = client(&paths.containerd);
        for container in &mut found {
            // Only those with the root of an image have one.
            if let Ok(image) = client.root_image(SYSTEM, &container.id).await {
                container.image = image;
            }
        }
    }
    Ok(found)
}

fn daemon(id: String, pid: i32, groups: Option<&Cgroups>) -> Container {
    let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok().and_then(|text| group_of(&text));
    let metrics = groups.zip(group).map(|(groups, group)| Metrics {
        memory: groups.memory_used(&group).unwrap_or(0),
        cpu: groups.cpu_time(&group).map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
    });
    Container {
        display: id.clone(),
        name: id.clone(),
        pod: id.clone(),
        id,
        status: "RUNNING".to_owned(),
        pid: u32::try_from(pid).unwrap_or(0),
        metrics,
        ..Container::default()
    }
}

/// The group of a process, from what the kernel lists: the one of memory, or the only one.
fn group_of(text: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers, path))
    });
    let wanted = |(controllers, _): &(&str, &str)| {
        controllers.is_empty() || controllers.split(',').any(|name| name == "memory")
    };
    lines.find(wanted).map(|(_, path)| path.trim_start_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_process_is_found_in_both_kinds_of_lists() {
        assert_eq!(group_of("0::/podruntime/kubelet\n").as_deref(), Some("podruntime/kubelet"));
        let split = "12:pids:/x\n3:memory:/podruntime/etcd\n1:name=systemd:/y\n";
        assert_eq!(group_of(split).as_deref(), Some("podruntime/etcd"));
        assert_eq!(group_of("nonsense"), None);
    }

    #[test]
    fn drivers_and_namespaces_are_checked() {
        assert_eq!(driver(ContainerDriver::Containerd.into(), "anything").unwrap(), Driver::Containerd);
        assert_eq!(driver(ContainerDriver::Cri.into(), KUBERNETES).unwrap(), Driver::Cri);
        let refused = driver(ContainerDriver::Cri.into(), SYSTEM).unwrap_err();
        assert_eq!(refused.message(), "CRI inspector is supported only for K8s namespace");
        assert_eq!(driver(7, SYSTEM).unwrap_err().message(), "unsupported driver \"7\"");
        assert_eq!(image_namespace(ContainerdNamespace::NsSystem.into()).unwrap(), SYSTEM);
        assert_eq!(image_namespace(0).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
