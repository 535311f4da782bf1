//! From machines that boot to a Kubernetes that works: bootstrap, wait, kubeconfig.

use std::time::{Duration, Instant};

use ichor_client::{Client, status_text};
use ichor_config::talosconfig::ClientConfig;
use ichor_health::{Check, Report, Verdict};
use ichor_wire::machine::{BootstrapRequest, ListRequest};
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::machines::Machines;
use super::{Access, Event, Site, Step, ready};
use crate::error::{Error, Problem, Result};
use crate::event::Sink;
use crate::kubeconfig;

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

/// How far a cluster is brought up.
#[derive(Debug, Clone, Copy)]
pub struct BringUpOptions {
    /// The longest that everything together may take.
    pub limit: Duration,
    /// Bootstrap etcd on the first control plane.
    pub bootstrap: bool,
    /// Wait until machines and Kubernetes are healthy.
    pub wait: bool,
    /// Wait for nodes to be ready too.
    pub nodes: bool,
    /// Fetch the administrator's kubeconfig at the end.
    pub kubeconfig: bool,
}

/// Brings up the Kubernetes of a cluster whose machines have their configuration, and returns its kubeconfig when that
/// was asked for. `config` has the cluster as its current context. An image without Kubernetes ends with machines that are
/// ready.
pub async fn bring_up(
    site: &Site,
    config: &ClientConfig,
    options: &BringUpOptions,
    events: &dyn Sink<Event>,
) -> Result<Option<String>> {
    let bring_up = BringUp::new(config, site, options.limit)?;
    let since = Instant::now();
    events.emit(Event::Step(Step::FirstControlPlane));
    if !bring_up.has_kubernetes().await? {
        if options.wait {
            let access = Access::Configured(config.clone());
            ready::wait(&access, site, &[], options.limit, events, async |_| {}).await?;
            events.emit(Event::Phase { name: "machines", took: since.elapsed() });
        }
        return Ok(None);
    }
    if options.bootstrap {
        events.emit(Event::Step(Step::Bootstrapping));
        bring_up.bootstrap().await?;
    }
    events.emit(Event::Done);
    events.emit(Event::Phase { name: "bootstrap", took: since.elapsed() });
    if !options.wait {
        return Ok(None);
    }
    bring_up.wait(options.nodes, events).await?;
    match options.kubeconfig {
        true => bring_up.kubeconfig().await.map(Some),
        false => Ok(None),
    }
}

/// A cluster that comes up.
pub(super) struct BringUp<'a> {
    site: &'a Site,
    client: Client,
    machines: Machines<'a>,
    deadline: Instant,
}

impl<'a> BringUp<'a> {
    /// Over the client configuration of the cluster; everything together takes no longer than `limit`.
    pub(super) fn new(config: &ClientConfig, site: &'a Site, limit: Duration) -> Result<Self> {
        let (client, machines) = (site.first_client(config)?, Machines::new(config, site)?);
        Ok(Self { site, client, machines, deadline: Instant::now() + limit })
    }

    /// Whether the machines have what Kubernetes needs; waits until the first control plane answers.
    pub(super) async fn has_kubernetes(&self) -> Result<bool> {
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
    async fn bootstrap(&self) -> Result<()> {
        let request = BootstrapRequest { recover_etcd: false, recover_skip_hash_check: false };
        self.insist("etcd to take the bootstrap", || async {
            match self.client.machine().bootstrap(request).await {
                Err(status) if status.code() != Code::AlreadyExists => Err(status),
                _ => Ok(()),
            }
        })
        .await
    }

    /// Waits until everything works, and reports meanwhile what each machine waits for.
    pub(super) async fn wait(&self, nodes_too: bool, events: &dyn Sink<Event>) -> Result<()> {
        tokio::select! {
            result = self.parts(nodes_too, events) => result,
            never = self.machines.report(events) => match never {},
        }
    }

    async fn parts(&self, nodes_too: bool, events: &dyn Sink<Event>) -> Result<()> {
        let fleet = self.site.fleet(&self.client);
        for (part, checks) in PARTS {
            if !nodes_too && NEED_READY_NODES.contains(part) {
                continue;
            }
            let since = Instant::now();
            events.emit(Event::Step(Step::Part(part)));
            let left = self.deadline.saturating_duration_since(since);
            let attempt = |check: Check| fleet.attempt(check);
            let result = ichor_health::run_to_the_end(checks, left, PAUSE_MAX, attempt, |report| {
                events.emit(Event::Waiting(detail(report)));
                true
            });
            result.await.map_err(Problem::Unhealthy)?;
            events.emit(Event::Done);
            events.emit(Event::Phase { name: part, took: since.elapsed() });
        }
        Ok(())
    }

    /// The administrator's kubeconfig, leading to where the Kubernetes API is seen from here.
    async fn kubeconfig(&self) -> Result<String> {
        let text = self.site.fleet(&self.client).kubernetes.kubeconfig().await.map_err(Error::state)?;
        match self.site.kubernetes_servers().first() {
            Some(server) => kubeconfig::redirected(&text, server),
            None => Ok(text),
        }
    }

    /// Calls until it works or the time is over.
    async fn insist<T, F>(&self, what: &str, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, tonic::Status>>,
    {
        let mut patience = CALL_FIRST;
        loop {
            let last = match timeout(patience, call()).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) if status.code() == Code::Unimplemented => {
                    return Err(Error::state(status_text(&status)));
                }
                Ok(Err(status)) => status_text(&status),
                Err(_) => "no answer in time".to_owned(),
            };
            if Instant::now() > self.deadline {
                return Err(Error::timeout(format!("waited for {what}"), last));
            }
            patience = CALL_MAX.min(patience * 3 / 2);
            self.client.reset().await;
            sleep(PAUSE).await;
        }
    }
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
    fn all_checks_but_those_of_sizes_and_opinions_are_waited_for() {
        let waited: Vec<Check> = PARTS.iter().flat_map(|(_, checks)| *checks).copied().collect();
        let left: Vec<Check> = Check::ALL.into_iter().filter(|check| !waited.contains(check)).collect();
        assert_eq!(left, [Check::Memory, Check::Disk, Check::NoDiagnostics]);
    }
}
