//! Machines leave a cluster that runs, in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ichor_client::Client;
use ichor_config::talosconfig::ClientConfig;
use ichor_health::objects;
use ichor_kube::{Delete, Kind, Select, Target};
use ichor_provision::{Machine, MachineKind, MachineStatus, Provider};
use ichor_wire::machine::{EtcdMember, EtcdMemberStatus, EtcdRemoveMemberByIdRequest, ResetRequest};
use tokio::time::{sleep, timeout};

use super::{Event, Site, Step, provided, shown};
use crate::error::{Error, Problem, Result};
use crate::event::Sink;
use crate::fleet::Fleet;

/// Between two looks at a machine that goes.
const LOOK: Duration = Duration::from_millis(200);
/// How long a member of etcd may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long Kubernetes may take to forget a node.
const FORGET_MAX: Duration = Duration::from_secs(60);

/// How a machine is removed.
#[derive(Debug, Clone, Copy)]
pub struct RemoveOptions {
    /// Remove it although it cannot leave in order, or the quorum of etcd is lost.
    pub force: bool,
    /// How long it may take to leave.
    pub limit: Duration,
}

/// Has a machine leave etcd, discovery and Kubernetes, and removes it. `config` has the cluster as its current context;
/// without one only a forced removal is possible, of which nobody is told.
pub async fn remove(
    provider: &Arc<dyn Provider>,
    site: &Site,
    machine: &Machine,
    config: Option<&ClientConfig>,
    options: RemoveOptions,
    events: &dyn Sink<Event>,
) -> Result<Site> {
    let cluster = &site.cluster;
    if machine.kind == MachineKind::ControlPlane && cluster.control_planes().count() == 1 {
        let (machine, cluster) = (machine.name.clone(), cluster.name.clone());
        return Err(Problem::OnlyControlPlane { machine, cluster }.into());
    }
    let leave = match config {
        Some(config) => Leave::new(config, site, machine),
        None => Err(Problem::NoContext { cluster: cluster.name.clone() }.into()),
    };
    let leave = match leave {
        Ok(leave) => Some(leave),
        Err(error) if options.force => {
            let (machine, reason) = (machine.name.clone(), error.to_string());
            events.emit(Event::LeaveSkipped { machine, reason });
            None
        }
        Err(error) => return Err(error),
    };
    if let Some(leave) = &leave {
        match leave.run(provider, options, events).await {
            Err(error) if options.force => events.emit(Event::LeaveFailed { reason: error.to_string() }),
            other => other?,
        }
    }
    let (name, own) = (cluster.name.clone(), machine.name.clone());
    let after = provided(provider, events, move |provider, steps| provider.remove(&name, &own, steps));
    let after = Site::new(&**provider, after.await?);
    if let Some(leave) = &leave {
        events.emit(Event::Step(Step::RemovingNode));
        if let Err(reason) = leave.forget_node().await {
            events.emit(Event::NodeRemains { machine: machine.name.clone(), reason });
        }
    }
    events.emit(Event::Done);
    Ok(after)
}

/// A machine's way out of the cluster.
struct Leave<'a> {
    site: &'a Site,
    machine: &'a Machine,
    /// Of the other control planes.
    client: Client,
    fleet: Fleet,
}

impl<'a> Leave<'a> {
    fn new(config: &ClientConfig, site: &'a Site, machine: &'a Machine) -> Result<Self> {
        let client = site.client(config, &machine.name)?;
        let fleet = site.without(&machine.name).fleet(&client);
        Ok(Self { site, machine, client, fleet })
    }

    /// Has the machine leave, and waits until it is off.
    async fn run(
        &self,
        provider: &Arc<dyn Provider>,
        options: RemoveOptions,
        events: &dyn Sink<Event>,
    ) -> Result<()> {
        let machine = self.machine.name.clone();
        events.emit(Event::Step(Step::CheckingLeave { machine: machine.clone() }));
        self.client.connect().await.map_err(Problem::Unreachable)?;
        let member = self.member().await?;
        if let Some((member, others)) = &member
            && !options.force
        {
            self.check_quorum(member, others).await?;
        }
        let runs = self.machine.status == MachineStatus::Running;
        if runs && !options.force {
            events.emit(Event::Step(Step::Leaving { machine: machine.clone() }));
            self.leave(provider, options.limit, events).await?;
        }
        // One that cannot speak for itself any more is spoken for; what left by itself is not there.
        let left = if member.is_some() { self.member().await? } else { None };
        if let Some((member, _)) = left {
            events.emit(Event::Step(Step::RemovingMember { machine }));
            let request = EtcdRemoveMemberByIdRequest { member_id: member.id };
            let removed = self.client.machine().etcd_remove_member_by_id(request).await;
            removed.map_err(|status| Error::call("remove the member of etcd", status))?;
        }
        Ok(())
    }

    /// The machine's member of etcd, and all others; nothing where there is no etcd, or none of it.
    async fn member(&self) -> Result<Option<(EtcdMember, Vec<EtcdMember>)>> {
        if self.machine.kind == MachineKind::Worker {
            return Ok(None);
        }
        let failed = |what: &'static str| move |status: tonic::Status| Error::call(what, status);
        let services = self.fleet.access.services("").await.map_err(failed("list services"))?;
        if !services.iter().any(|service| service.id == "etcd") {
            return Ok(None);
        }
        let mut members = self.fleet.access.etcd_members("").await.map_err(failed("list members of etcd"))?;
        let own = members.iter().position(|member| is_at(member, self.machine));
        Ok(own.map(|own| (members.swap_remove(own), members)))
    }

    /// Refuses when those who are left could not agree on anything.
    async fn check_quorum(&self, member: &EtcdMember, others: &[EtcdMember]) -> Result<()> {
        if member.is_learner {
            return Ok(());
        }
        let voters: Vec<&EtcdMember> = others.iter().filter(|other| !other.is_learner).collect();
        let mut away = Vec::new();
        for voter in &voters {
            let machine = self.site.cluster.control_planes().find(|own| is_at(voter, own));
            let answers = match machine {
                Some(machine) => self.answers(machine).await,
                None => false,
            };
            if !answers {
                away.push(voter.hostname.clone());
            }
        }
        if keeps_quorum(voters.len(), away.len()) {
            return Ok(());
        }
        Err(Problem::QuorumLost { machine: self.machine.name.clone(), others: voters.len(), away }.into())
    }

    /// Whether the member of a machine answers now.
    async fn answers(&self, machine: &Machine) -> bool {
        let mut machine = self.fleet.access.machine(&machine.address());
        let Ok(Ok(reply)) = timeout(ANSWER_MAX, machine.etcd_status(())).await else { return false };
        let led = |status: &EtcdMemberStatus| status.leader != 0;
        reply.into_inner().messages.iter().any(|message| message.member_status.as_ref().is_some_and(led))
    }

    async fn leave(
        &self,
        provider: &Arc<dyn Provider>,
        limit: Duration,
        events: &dyn Sink<Event>,
    ) -> Result<()> {
        let node = self.client.to(ichor_client::Target::Node(self.machine.address()));
        let request = ResetRequest { graceful: true, reboot: false, ..ResetRequest::default() };
        let asked = node.machine().reset(request).await;
        asked.map_err(|status| Error::call("reset", status))?;
        let since = Instant::now();
        loop {
            let shown = shown(provider, &self.site.cluster.name).await?;
            if shown.machine(&self.machine.name)?.status != MachineStatus::Running {
                return Ok(());
            }
            if since.elapsed() > limit {
                return Err(Problem::NotLeft { machine: self.machine.name.clone(), after: limit }.into());
            }
            events.emit(Event::Waiting("waiting until it is off".to_owned()));
            sleep(LOOK).await;
        }
    }

    /// Removes the node with the machine's address.
    async fn forget_node(&self) -> std::result::Result<(), String> {
        let since = Instant::now();
        loop {
            let reason = match self.try_forget_node().await {
                Ok(()) => return Ok(()),
                Err(reason) => reason,
            };
            if since.elapsed() > FORGET_MAX {
                return Err(reason);
            }
            self.fleet.kubernetes.forget().await;
            sleep(LOOK).await;
        }
    }

    async fn try_forget_node(&self) -> std::result::Result<(), String> {
        let services = self.fleet.access.services("").await.map_err(|status| status.message().to_owned())?;
        if !services.iter().any(|service| service.id == "kubelet") {
            return Ok(());
        }
        let kubernetes = self.fleet.kubernetes.client().await?;
        let nodes = kubernetes.list(&Kind::NODES, "", Select::default()).await;
        let nodes = nodes.map_err(|error| error.chain())?;
        let ours = |node: &&serde_json::Value| {
            objects::node_addresses(node).iter().any(|address| self.machine.has_address(address))
        };
        for node in nodes.items.iter().filter(ours) {
            let target = Target::new(Kind::NODES, "", objects::name(node));
            match kubernetes.delete(&target, Delete::default()).await {
                Err(error) if !error.is_not_found() => return Err(error.chain()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a member is that of a machine.
fn is_at(member: &EtcdMember, machine: &Machine) -> bool {
    machine.addresses.iter().any(|address| {
        let host = match address.is_ipv6() {
            true => format!("://[{address}]:"),
            false => format!("://{address}:"),
        };
        member.peer_urls.iter().any(|url| url.contains(&host))
    })
}

/// Whether `voters` can agree when `away` of them are not there.
fn keeps_quorum(voters: usize, away: usize) -> bool {
    voters > 0 && voters - away.min(voters) > voters / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_left_must_be_able_to_agree() {
        for (voters, away, keeps) in [
            (0, 0, false),
            (1, 0, true),
            (1, 1, false),
            (2, 0, true),
            (2, 1, false),
            (3, 1, true),
            (4, 2, false),
        ] {
            assert_eq!(keeps_quorum(voters, away), keeps, "{away} of {voters} are away");
        }
    }

    #[test]
    fn a_member_is_known_by_its_whole_address() {
        let machine = |address: &str| Machine {
            name: "a".to_owned(),
            kind: MachineKind::ControlPlane,
            addresses: vec![address.parse().unwrap()],
            id: None,
            kernel_args: Vec::new(),
            resources: Default::default(),
            status: MachineStatus::Running,
        };
        let member = |url: &str| EtcdMember { peer_urls: vec![url.to_owned()], ..EtcdMember::default() };
        let old = member("https://10.5.0.20:2380");
        assert!(is_at(&old, &machine("10.5.0.20")) && !is_at(&old, &machine("10.5.0.2")));
        assert!(is_at(&member("https://[fd00::2]:2380"), &machine("fd00::2")));
    }
}
