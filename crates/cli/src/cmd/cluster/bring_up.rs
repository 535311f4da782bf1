//! From machines that answer to a Kubernetes that works: bootstrap, wait, kubeconfig, with the time of each part.

use std::time::{Duration, Instant};

use ichor_client::profile::{Overrides, Profile};
use ichor_client::{Client, status_text};
use ichor_config::talosconfig::ClientConfig;
use ichor_health::{Check, Kind, Report, Topology, Verdict};
use ichor_provision::{Cluster, Machine, MachineKind};
use ichor_wire::machine::{BootstrapRequest, ListRequest};
use tokio::time::{sleep, timeout};
use tonic::Code;

use crate::failure::{Failure, chain};
use crate::fleet::{self, Fleet, KUBERNETES_PORT};
use crate::session::Session;
use crate::tabs::Table;
use crate::term::Progress;

/// Between two attempts to bootstrap.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts at a check.
const PAUSE_MAX: Duration = Duration::from_millis(300);
/// The first call: a machine without a network yet swallows it, and has one before an answer could come.
const CALL_FIRST: Duration = Duration::from_millis(300);
/// Later calls, each half as long again as the one before.
const CALL_MAX: Duration = Duration::from_secs(5);
/// What runs containers; an image without it has no Kubernetes.
const RUNTIME_PROGRAM: &str = "/usr/bin/containerd";

/// The parts of the way, each with what is checked. Sizes are not: they are as the person chose them.
const PARTS: &[(&str, &[Check])] = &[
    ("etcd", &[Check::EtcdHealthy, Check::EtcdConsistent, Check::EtcdControlPlanes]),
    ("machines", &[Check::ApidReady, Check::KubeletHealthy, Check::Booted]),
    ("control plane", &[Check::NodesReport, Check::StaticPods, Check::ControlPlaneReady]),
    ("nodes", &[Check::NodesReady]),
    ("network and DNS", &[Check::KubeProxy, Check::CoreDns]),
    ("scheduling", &[Check::Schedulable]),
];

/// Parts that need a network for pods, which a cluster may lack on purpose.
const NEED_READY_NODES: [&str; 3] = ["nodes", "network and DNS", "scheduling"];

/// How long each part took.
#[derive(Debug, Default)]
pub struct Times(Vec<(String, Duration)>);

impl Times {
    /// Notes a part that began at `since`.
    pub fn note(&mut self, part: &str, since: Instant) {
        self.0.push((part.to_owned(), since.elapsed()));
    }

    /// A line for each part and one for all of them.
    pub fn text(&self) -> String {
        let mut table = Table::with_header(["PHASE", "TIME"]);
        let seconds = |time: Duration| format!("{:.1}s", time.as_secs_f64());
        for (part, time) in &self.0 {
            table.row([part.clone(), seconds(*time)]);
        }
        table.row(["total".to_owned(), seconds(self.0.iter().map(|(_, time)| *time).sum())]);
        table.take()
    }
}

/// A cluster that was just made.
pub struct BringUp<'a> {
    cluster: &'a Cluster,
    client: Client,
    deadline: Instant,
}

impl<'a> BringUp<'a> {
    /// Over the client configuration of the cluster; everything together takes no longer than `limit`.
    pub fn new(config: &ClientConfig, cluster: &'a Cluster, limit: Duration) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::new(chain(error));
        let endpoints =
            cluster.control_planes().take(1).map(|machine| machine.loopback.to_string()).collect();
        let overrides = Overrides { endpoints, ..Overrides::default() };
        let profile = Profile::resolve(config, &overrides).map_err(|error| failed(&error))?;
        let client = profile.client().map_err(|error| failed(&error))?;
        Ok(Self { cluster, client, deadline: Instant::now() + limit })
    }

    /// Whether the machines have what Kubernetes needs; waits until the first control plane answers.
    pub async fn has_kubernetes(&self) -> Result<bool, Failure> {
        let request = ListRequest { root: RUNTIME_PROGRAM.to_owned(), ..ListRequest::default() };
        self.insist("the first control plane to answer", || async {
            let listed = async {
                let mut stream = self.client.machine().list(request.clone()).await?.into_inner();
                let file = stream.message().await?;
                Ok::<_, tonic::Status>(file.is_some_and(|file| file.error.is_empty() && file.size > 0))
            };
            match listed.await {
                // The machine answers, and has none.
                Err(status) if status.message().contains("no such file") => Ok(false),
                other => other,
            }
        })
        .await
    }

    /// Starts etcd on the first control plane. A machine that is not that far yet is asked again.
    pub async fn bootstrap(&self) -> Result<(), Failure> {
        let request = BootstrapRequest { recover_etcd: false, recover_skip_hash_check: false };
        self.insist("etcd to take the bootstrap", || async {
            match self.client.machine().bootstrap(request).await {
                Err(status) if status.code() != Code::AlreadyExists => Err(status),
                _ => Ok(()),
            }
        })
        .await
    }

    /// Waits until everything works.
    pub async fn wait(
        &self,
        nodes_too: bool,
        progress: &mut Progress,
        times: &mut Times,
    ) -> Result<(), Failure> {
        let fleet = self.fleet()?;
        for (part, checks) in PARTS {
            if !nodes_too && NEED_READY_NODES.contains(part) {
                continue;
            }
            let since = Instant::now();
            progress.step(format!("waiting for {part}"));
            let left = self.deadline.saturating_duration_since(since);
            let attempt = |check: Check| fleet.attempt(check);
            let result = ichor_health::run(checks, left, PAUSE_MAX, attempt, |report| {
                progress.tick(&detail(report));
                true
            });
            result.await.map_err(|unhealthy| {
                Failure::new(unhealthy.to_string())
                    .hint("the machines go on; look again with `ichorctl health --server=false`")
            })?;
            progress.done();
            times.note(part, since);
        }
        Ok(())
    }

    /// The administrator's kubeconfig, leading through the loopback of this host.
    pub async fn kubeconfig(&self) -> Result<String, Failure> {
        let text = self.fleet()?.kubernetes.kubeconfig().await.map_err(Failure::new)?;
        crate::kubeconfig::redirected(&text, &servers(self.cluster)[0])
    }

    fn fleet(&self) -> Result<Fleet, Failure> {
        let nodes = vec![];
        let session = Session::over_client(self.client.clone(), nodes, true);
        fleet::over(fleet::access(&session), topology(self.cluster), &[], &servers(self.cluster)[0])
    }

    /// Calls until it works or the time is over.
    async fn insist<T, F>(&self, what: &str, call: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let mut patience = CALL_FIRST;
        loop {
            let last = match timeout(patience, call()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) if status.code() == Code::Unimplemented => {
                    return Err(Failure::new(status_text(&status)));
                }
                Ok(Err(status)) => status_text(&status),
                Err(_) => "no answer in time".to_owned(),
            };
            if Instant::now() > self.deadline {
                return Err(Failure::new(format!("waited for {what}: {last}")));
            }
            patience = CALL_MAX.min(patience * 3 / 2);
            self.client.reset().await;
            sleep(PAUSE).await;
        }
    }
}

/// The machines of a cluster, as its checks know them.
pub fn topology(cluster: &Cluster) -> Topology {
    let machine = |machine: &Machine| {
        let kind = match machine.kind {
            MachineKind::ControlPlane => Kind::ControlPlane,
            MachineKind::Worker => Kind::Worker,
        };
        ichor_health::Machine::at(machine.address.to_string(), kind)
    };
    Topology::new(cluster.machines.iter().map(machine).collect())
}

/// Where the Kubernetes API of the cluster is seen from this host; the cluster's endpoint comes first.
pub fn servers(cluster: &Cluster) -> Vec<String> {
    let endpoint = cluster.endpoint().map(ichor_provision::loopback);
    let others = cluster.control_planes().map(|machine| machine.loopback);
    let others = others.filter(|loopback| Some(*loopback) != endpoint);
    endpoint.into_iter().chain(others).map(|host| format!("https://{host}:{KUBERNETES_PORT}")).collect()
}

fn detail(report: &Report) -> String {
    match &report.verdict {
        Some(Verdict::Fail(reason)) => format!("{}: {reason}", report.check.name()),
        _ => report.check.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_told_with_its_time_and_all_together() {
        let times = Times(vec![
            ("start".to_owned(), Duration::from_millis(1240)),
            ("etcd".to_owned(), Duration::from_millis(3000)),
        ]);
        assert_eq!(times.text(), "PHASE   TIME\nstart   1.2s\netcd    3.0s\ntotal   4.2s\n");
    }

    #[test]
    fn all_checks_but_those_of_sizes_and_opinions_are_waited_for() {
        let waited: Vec<Check> = PARTS.iter().flat_map(|(_, checks)| *checks).copied().collect();
        let left: Vec<Check> = Check::ALL.into_iter().filter(|check| !waited.contains(check)).collect();
        assert_eq!(left, [Check::Memory, Check::Disk, Check::NoDiagnostics]);
    }
}
