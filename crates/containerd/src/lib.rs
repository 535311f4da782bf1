//! A small client of containerd: what a node shows of containers and images, and the little it does to them.
//!
//! Two ways lead to containers, as in every tool: containerd's own services, by namespace, and the container
//! runtime interface that Kubernetes uses. Both give the same [`Container`].

mod call;
mod cri;
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod image;
mod inspect;
mod pods;
pub mod reference;
mod root;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use ichor_rpc::Channel;
use tonic::Status;

pub use image::Image;
pub use root::ImageRoot;

/// The namespace of Kubernetes' containers.
pub const KUBERNETES: &str = "k8s.io";
/// The namespace of the node's own containers.
pub const SYSTEM: &str = "system";

/// How containers are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// containerd's own services.
    Containerd,
    /// The container runtime interface.
    Cri,
}

/// What a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Bytes of memory.
    pub memory: u64,
    /// Nanoseconds of processor time.
    pub cpu: u64,
}

/// A container, or the sandbox of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// As users name it: the id, or `namespace/pod:container`.
    pub display: String,
    /// Its name inside its pod.
    pub name: String,
    /// As the runtime names it.
    pub id: String,
    /// The pod's uid; sandboxes only.
    pub uid: String,
    /// Name of its image, or the digest when it has no name.
    pub image: String,
    /// The pod it belongs to; without pods, itself.
    pub pod: String,
    /// `RUNNING`, `STOPPED` and so on.
    pub status: String,
    /// Its first process; 0 without one.
    pub pid: u32,
    /// The name of its network namespace; sandboxes only.
    pub network_namespace: String,
    /// What it uses, while it runs.
    pub metrics: Option<Metrics>,
    /// The file its output goes to.
    pub log: Option<PathBuf>,
    /// Whether it is the sandbox of a pod.
    pub sandbox: bool,
}

/// A connection to containerd, made when it is first needed.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
}

impl Client {
    /// All containers that run.
    ///
    /// # Errors
    /// `Unavailable` when containerd does not answer, else what it says.
    pub async fn containers(&self, driver: Driver, namespace: &str) -> Result<Vec<Container>, Status> {
        match driver {
            Driver::Containerd => self.inspect(namespace, None).await,
            Driver::Cri => self.pods().await,
        }
    }

    /// One container, by its id or as `namespace/pod:container`.
    ///
    /// # Errors
    /// As [`Client::containers`].
    pub async fn container(
        &self,
        driver: Driver,
        namespace: &str,
        id: &str,
    ) -> Result<Option<Container>, Status> {
        match driver {
            Driver::Containerd => {
                let found = self.inspect(namespace, Some(id)).await?;
                Ok(found.into_iter().next())
            }
            Driver::Cri => self.pod_container(id).await,
        }
    }

    /// Ends a container; what restarts it is somebody else's.
    ///
    /// # Errors
    /// As [`Client::containers`].
    pub async fn stop(&self, driver: Driver, namespace: &str, container: &Container) -> Result<(), Status> {
        match driver {
            Driver::Containerd => self.terminate(namespace, &container.id).await,
            Driver::Cri => self.stop_pod_container(container).await,
        }
    }
}
