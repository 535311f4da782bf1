//! The checks in their order, each with how it is asked.

use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use ichor_wire::machine::EtcdMember;
use serde_json::Value;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::{Code, Status};

use crate::access::{Access, Kubernetes, Objects, Resource};
use crate::checks::{self, Answer, Verdict};
use crate::objects;
use crate::topology::{Machine, Topology};

const MINUTE: Duration = Duration::from_secs(60);

/// A check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The service etcd on control planes.
    EtcdHealthy,
    /// All control planes know the same members.
    EtcdConsistent,
    /// Members are control planes.
    EtcdControlPlanes,
    /// The gateway of every machine answers.
    ApidReady,
    /// Enough memory.
    Memory,
    /// Enough room for data.
    Disk,
    /// Nothing was diagnosed.
    NoDiagnostics,
    /// The kubelet on control planes.
    KubeletHealthy,
    /// Every machine runs.
    Booted,
    /// Every machine is a node.
    NodesReport,
    /// Every control plane has its static pods.
    StaticPods,
    /// The components of the control plane are ready.
    ControlPlaneReady,
    /// All nodes are ready.
    NodesReady,
    /// kube-proxy is ready everywhere.
    KubeProxy,
    /// CoreDNS is ready.
    CoreDns,
    /// No node is closed.
    Schedulable,
}

impl Check {
    /// All of them, in their order.
    pub const ALL: [Check; 16] = [
        Check::EtcdHealthy,
        Check::EtcdConsistent,
        Check::EtcdControlPlanes,
        Check::ApidReady,
        Check::Memory,
        Check::Disk,
        Check::NoDiagnostics,
        Check::KubeletHealthy,
        Check::Booted,
        Check::NodesReport,
        Check::StaticPods,
        Check::ControlPlaneReady,
        Check::NodesReady,
        Check::KubeProxy,
        Check::CoreDns,
        Check::Schedulable,
    ];

    /// What is waited for.
    pub const fn name(self) -> &'static str {
        match self {
            Check::EtcdHealthy => "etcd to be healthy",
            Check::EtcdConsistent => "etcd members to be consistent across nodes",
            Check::EtcdControlPlanes => "etcd members to be control plane nodes",
            Check::ApidReady => "apid to be ready",
            Check::Memory => "all nodes memory sizes",
            Check::Disk => "all nodes disk sizes",
            Check::NoDiagnostics => "no diagnostics",
            Check::KubeletHealthy => "kubelet to be healthy",
            Check::Booted => "all nodes to finish boot sequence",
            Check::NodesReport => "all k8s nodes to report",
            Check::StaticPods => "all control plane static pods to be running",
            Check::ControlPlaneReady => "all control plane components to be ready",
            Check::NodesReady => "all k8s nodes to report ready",
            Check::KubeProxy => "kube-proxy to report ready",
            Check::CoreDns => "coredns to report ready",
            Check::Schedulable => "all k8s nodes to report schedulable",
        }
    }

    /// How long it is waited for.
    pub const fn limit(self) -> Duration {
        match self {
            Check::NoDiagnostics => MINUTE,
            Check::NodesReady => MINUTE.saturating_mul(10),
            _ => MINUTE.saturating_mul(5),
        }
    }

    /// How long one attempt may take; the first one about Kubernetes also fetches a kubeconfig.
    pub const fn attempt(self) -> Duration {
        match self {
            Check::NodesReport => Duration::from_secs(30),
            _ => Duration::from_secs(5),
        }
    }
}

/// A cluster that can be asked.
pub struct Cluster<S, K> {
    /// Its machines.
    pub topology: Topology,
    /// The way to them.
    pub access: Access<S>,
    /// The way to its Kubernetes.
    pub kubernetes: K,
}

impl<S, K> Cluster<S, K>
where
    S: GrpcService<Body> + Clone + Send + Sync,
    S::Future: Send,
    S::Error: Into<StdError>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
    K: Kubernetes,
{
    /// Makes one attempt at a check.
    pub fn attempt(&self, check: Check) -> BoxFuture<'_, Verdict> {
        Box::pin(async move {
            match check {
                Check::EtcdHealthy => self.service("etcd").await,
                Check::KubeletHealthy => self.service("kubelet").await,
                Check::EtcdConsistent => checks::members_agree(&self.members(self.control_planes()).await),
                Check::EtcdControlPlanes => {
                    let first = self.control_planes().get(..1).unwrap_or_default();
                    match self.members(first).await.first() {
                        Some(answer) => checks::members_are_control_planes(answer, self.control_planes()),
                        None => Verdict::Fail("there is no control plane".to_owned()),
                    }
                }
                Check::ApidReady => {
                    let ask = |node: String| async move { self.access.version(&node).await };
                    checks::answered(&self.ask(self.topology.all(), ask).await)
                }
                Check::Memory => self.memory().await,
                Check::Disk => self.disk().await,
                Check::NoDiagnostics => self.diagnostics().await,
                Check::Booted => self.booted().await,
                Check::StaticPods => self.static_pods().await,
                _ => self.kubernetes(check).await.unwrap_or_else(Verdict::Fail),
            }
        })
    }

    fn control_planes(&self) -> &[Machine] {
        self.topology.control_planes()
    }

    /// Asks all `machines` at once.
    async fn ask<T, F>(&self, machines: &[Machine], ask: impl Fn(String) -> F) -> Vec<Answer<T>>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let asked = machines.iter().map(|machine| {
            let answer = ask(machine.address.clone());
            async { (machine.address.clone(), answer.await.map_err(|status| text_of(&status))) }
        });
        join_all(asked).await
    }

    async fn service(&self, id: &str) -> Verdict {
        let ask = |node: String| async move { self.access.services(&node).await };
        checks::service(id, &self.ask(self.control_planes(), ask).await)
    }

    async fn members(&self, machines: &[Machine]) -> Vec<Answer<Vec<EtcdMember>>> {
        self.ask(machines, |node: String| async move { self.access.etcd_members(&node).await }).await
    }

    async fn memory(&self) -> Verdict {
        let ask = |node: String| async move {
            let (_, mode) = self.access.version(&node).await?;
            if mode == CONTAINER {
                return Ok(None);
            }
            self.access.memory(&node).await.map(Some)
        };
        checks::memory(&self.ask(self.topology.all(), ask).await, self.topology.all())
    }

    async fn disk(&self) -> Verdict {
        let ask = |node: String| async move {
            let (_, mode) = self.access.version(&node).await?;
            if mode == CONTAINER {
                return Ok(None);
            }
            let volume =
                self.access.get(&node, "runtime", "VolumeStatuses.block.talos.dev", "EPHEMERAL").await;
            match volume {
                // Machines of old do not know the resource.
                Err(status) if status.code() == Code::PermissionDenied => Ok(None),
                other => Ok(other?.and_then(|volume| volume.spec["size"].as_u64())),
            }
        };
        checks::disk(&self.ask(self.topology.all(), ask).await)
    }

    async fn diagnostics(&self) -> Verdict {
        let ask = |node: String| async move {
            let list = self.access.list(&node, "runtime", "Diagnostics.runtime.talos.dev").await;
            match list {
                Err(status) if status.code() == Code::PermissionDenied => Ok(None),
                other => Ok(Some(other?)),
            }
        };
        let mut answers = Vec::new();
        for (node, answer) in self.ask(self.topology.all(), ask).await {
            let answer = match answer {
                Ok(None) => return Verdict::Skip,
                Ok(Some(list)) => Ok(list),
                Err(error) => Err(error),
            };
            answers.push((node, answer.map(|list| list.iter().map(message_of).collect::<Vec<String>>())));
        }
        checks::no_diagnostics(&answers)
    }

    async fn booted(&self) -> Verdict {
        let ask = |node: String| async move {
            let status =
                self.access.get(&node, "runtime", "MachineStatuses.runtime.talos.dev", "machine").await?;
            Ok(status.map(|status| status.spec).unwrap_or_default())
        };
        checks::booted(&self.ask(self.topology.all(), ask).await)
    }

    async fn static_pods(&self) -> Verdict {
        let ask = |node: String| async move {
            let list = self.access.list(&node, "k8s", "StaticPodStatuses.kubernetes.talos.dev").await?;
            Ok(list.into_iter().map(|status| status.id).collect())
        };
        checks::static_pods(&self.ask(self.control_planes(), ask).await)
    }

    async fn kubernetes(&self, check: Check) -> Result<Verdict, String> {
        let list =
            |what: Objects, selector: String| async move { self.kubernetes.list(what, &selector).await };
        Ok(match check {
            Check::NodesReport => {
                let nodes = list(Objects::Nodes, String::new()).await?;
                checks::nodes_match(self.topology.all(), &nodes.iter().collect::<Vec<_>>())
            }
            Check::ControlPlaneReady => {
                let nodes = list(Objects::Nodes, String::new()).await?;
                let control: Vec<&Value> =
                    nodes.iter().filter(|node| objects::is_control_plane(node)).collect();
                let verdict = checks::nodes_match(self.control_planes(), &control);
                if verdict != Verdict::Pass {
                    return Ok(verdict);
                }
                for app in checks::COMPONENTS {
                    let pods = list(Objects::SystemPods, format!("k8s-app={app}")).await?;
                    let verdict = checks::component(app, &pods, control.len());
                    if verdict != Verdict::Pass {
                        return Ok(verdict);
                    }
                }
                Verdict::Pass
            }
            Check::NodesReady => checks::nodes_ready(&list(Objects::Nodes, String::new()).await?),
            Check::Schedulable => checks::nodes_schedulable(&list(Objects::Nodes, String::new()).await?),
            Check::KubeProxy => {
                let selector = "k8s-app=kube-proxy";
                let sets = list(Objects::SystemDaemonSets, selector.to_owned()).await?;
                let Some(set) = sets.first() else { return Ok(Verdict::Skip) };
                let wanted = set["status"]["desiredNumberScheduled"].as_u64().unwrap_or_default();
                let pods = list(Objects::SystemPods, selector.to_owned()).await?;
                checks::workload_pods(&pods, wanted, "kube-system", selector)
            }
            Check::CoreDns => {
                let selector = "k8s-app=kube-dns";
                let deployments = list(Objects::SystemDeployments, selector.to_owned()).await?;
                let Some(deployment) = deployments.first() else { return Ok(Verdict::Skip) };
                let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
                let pods = list(Objects::SystemPods, selector.to_owned()).await?;
                checks::workload_pods(&pods, wanted, "kube-system", selector)
            }
            // The others are about machines and are asked above.
            _ => Verdict::Skip,
        })
    }
}

/// Machines in this mode share memory and disk with their host.
const CONTAINER: &str = "container";

fn message_of(diagnostic: &Resource) -> String {
    let message = diagnostic.spec["message"].as_str().unwrap_or(&diagnostic.id);
    let details = diagnostic.spec["details"].as_array().into_iter().flatten();
    let details: Vec<&str> = details.filter_map(serde_json::Value::as_str).collect();
    match details.is_empty() {
        true => message.to_owned(),
        false => format!("{message} ({})", details.join("; ")),
    }
}

fn text_of(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        message => message.to_owned(),
    }
}
