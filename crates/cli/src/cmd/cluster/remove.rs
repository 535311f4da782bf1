//! `cluster remove`: machines leave a cluster that runs, in order.

use std::time::{Duration, Instant};

use ichor_client::Client;
use ichor_config::talosconfig::ClientConfig;
use ichor_health::objects;
use ichor_kube::{Delete, Kind, Select, Target};
use ichor_provision::{Cluster, Machine, MachineKind, MachineStatus, Provider as _};
use ichor_provision_sandbox::Sandbox;
use ichor_wire::machine::{EtcdMember, EtcdMemberStatus, EtcdRemoveMemberByIdRequest, ResetRequest};
use tokio::time::{sleep, timeout};

use super::add::{client, context_of, follow};
use super::{bring_up, failed, sandbox};
use crate::failure::Failure;
use crate::fleet::{self, Fleet};
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag};
use crate::term::{self, Progress};
use crate::{explain, profile};

/// The command.
pub static REMOVE: Command = Command {
    name: "remove",
    aliases: &["rm"],
    about: "Take machines out of a cluster that runs",
    long: "Takes machines out of a cluster that runs, one after the other. A machine is drained, leaves etcd and is wiped,\n\
           as `reset` does; then it is removed, and its node with it. What would cost etcd its quorum is refused.\n\n\
           The address of the Kubernetes API stays, whichever machine goes.",
    examples: &["cluster remove --name lab lab-worker-1", "cluster remove --name lab 10.5.0.3"],
    args: Args::between("MACHINE...", 1, usize::MAX),
    flags: &[
        Flag::switch("force", "do not let it say goodbye, and do not mind the quorum").short('f'),
        Flag::duration("wait-timeout", "10m0s", "give up waiting for a machine after this time"),
        Flag::text("talosconfig", "client configuration with the cluster's context").complete(Complete::File),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// Between two looks at a machine that goes.
const LOOK: Duration = Duration::from_millis(200);
/// How long a member of etcd may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long Kubernetes may take to forget a node.
const FORGET_MAX: Duration = Duration::from_secs(60);

fn run(call: &Call) -> Result<(), Failure> {
    let provider = sandbox(call)?;
    let location = profile::locate_at(call.some_text("talosconfig"))?;
    let (mut config, path) = profile::open_at(&location)?;
    for name in &call.args {
        let before = provider.show(call.text("name")).map_err(|error| failed(&error))?;
        let machine = find(&before, name)?;
        let mut progress = Progress::new();
        let mut after = before.clone();
        let work = async {
            after = one(call, &provider, &config, &before, &machine, &mut progress).await?;
            Ok(())
        };
        block_on(work).inspect_err(|_| progress.failed())?;
        progress.done();
        config = follow(config, &before, &after);
        profile::save(&config, &path)?;
        eprintln!("removed {} ({}) from {}", machine.name, machine.address, before.name);
    }
    Ok(())
}

/// A machine by its name or one of its addresses.
fn find(cluster: &Cluster, name: &str) -> Result<Machine, Failure> {
    let is = |machine: &&Machine| {
        machine.name == name || machine.address.to_string() == name || machine.loopback.to_string() == name
    };
    match cluster.machines.iter().find(is) {
        Some(machine) => Ok(machine.clone()),
        None => cluster.machine(name).cloned().map_err(|error| failed(&error)),
    }
}

async fn one(
    call: &Call,
    provider: &Sandbox,
    config: &ClientConfig,
    cluster: &Cluster,
    machine: &Machine,
    progress: &mut Progress,
) -> Result<Cluster, Failure> {
    let force = call.on("force");
    if machine.kind == MachineKind::ControlPlane && cluster.control_planes().count() == 1 {
        return Err(Failure::new(format!("{} is the only control plane of {}", machine.name, cluster.name))
            .hint("add another one first with `ichorctl cluster add`, or remove all with `ichorctl cluster destroy`"));
    }
    let goodbye = context_of(config, cluster).and_then(|config| Goodbye::new(&config, cluster, machine));
    let goodbye = match goodbye {
        Ok(goodbye) => Some(goodbye),
        Err(failure) if force => {
            term::warn(&format!("nobody is told that {} goes: {failure}", machine.name));
            None
        }
        Err(failure) => return Err(failure),
    };
    if let Some(goodbye) = &goodbye {
        let said = goodbye.say(provider, force, call.duration("wait-timeout"), progress).await;
        match said {
            Err(failure) if force => term::warn(&failure.to_string()),
            other => other?,
        }
    }
    let after = provider.remove(&cluster.name, &machine.name, &mut |step| progress.step(step));
    let after = after.map_err(|error| failed(&error))?;
    if let Some(goodbye) = &goodbye {
        progress.step("removing its node");
        if let Err(reason) = goodbye.forget_node().await {
            term::warn(&format!(
                "Kubernetes still has a node of it: {reason}; remove it with `kubectl delete node {}`",
                machine.name
            ));
        }
    }
    Ok(after)
}

/// A machine's way out of the cluster.
struct Goodbye<'a> {
    cluster: &'a Cluster,
    machine: &'a Machine,
    /// Of the other control planes.
    client: Client,
    fleet: Fleet,
}

impl<'a> Goodbye<'a> {
    fn new(config: &ClientConfig, cluster: &'a Cluster, machine: &'a Machine) -> Result<Self, Failure> {
        let client = client(config, cluster, &machine.name)?;
        let session = Session::over_client(client.clone(), Vec::new(), true);
        let others: Vec<Machine> =
            cluster.machines.iter().filter(|other| other.name != machine.name).cloned().collect();
        let left = Cluster { machines: others, ..cluster.clone() };
        let servers = bring_up::servers(&left);
        let fleet = fleet::over(fleet::access(&session), bring_up::topology(&left), &[], &servers[0])?;
        Ok(Self { cluster, machine, client, fleet })
    }

    /// Has the machine leave, and waits until it is off.
    async fn say(
        &self,
        provider: &Sandbox,
        force: bool,
        limit: Duration,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let name = &self.machine.name;
        progress.step(format!("looking whether {name} may go"));
        self.client.connect().await.map_err(|error| explain::unreachable(&error))?;
        let member = self.member().await?;
        if let Some((member, others)) = &member
            && !force
        {
            self.check_quorum(member, others).await?;
        }
        let runs = self.machine.status == MachineStatus::Running;
        if runs && !force {
            progress.step(format!("{name} leaves the cluster"));
            self.leave(provider, limit, progress).await?;
        }
        // One that cannot speak for itself any more is spoken for; what left by itself is not there.
        let left = if member.is_some() { self.member().await? } else { None };
        if let Some((member, _)) = left {
            progress.step(format!("removing {name} from etcd"));
            let request = EtcdRemoveMemberByIdRequest { member_id: member.id };
            let removed = self.client.machine().etcd_remove_member_by_id(request).await;
            removed.map_err(|status| explain::status("remove the member of etcd", &status))?;
        }
        Ok(())
    }

    /// The machine's member of etcd, and all others; nothing where there is no etcd, or none of it.
    async fn member(&self) -> Result<Option<(EtcdMember, Vec<EtcdMember>)>, Failure> {
        if self.machine.kind == MachineKind::Worker {
            return Ok(None);
        }
        let failed = |what: &'static str| move |status: tonic::Status| explain::status(what, &status);
        let services = self.fleet.access.services("").await.map_err(failed("list services"))?;
        if !services.iter().any(|service| service.id == "etcd") {
            return Ok(None);
        }
        let mut members = self.fleet.access.etcd_members("").await.map_err(failed("list members of etcd"))?;
        let own = members.iter().position(|member| at(member, &self.machine.address.to_string()));
        Ok(own.map(|own| (members.swap_remove(own), members)))
    }

    /// Refuses when those who are left could not agree on anything.
    async fn check_quorum(&self, member: &EtcdMember, others: &[EtcdMember]) -> Result<(), Failure> {
        if member.is_learner {
            return Ok(());
        }
        let voters: Vec<&EtcdMember> = others.iter().filter(|other| !other.is_learner).collect();
        let mut away = Vec::new();
        for voter in &voters {
            let machine = self.cluster.control_planes().find(|own| at(voter, &own.address.to_string()));
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
        Err(Failure::new(format!(
            "without {} etcd would lose its quorum: of the {} other members {} do not answer",
            self.machine.name,
            voters.len(),
            away.join(", ")
        ))
        .hint("bring them back or remove them first; --force removes it all the same"))
    }

    /// Whether the member of a machine answers now.
    async fn answers(&self, machine: &Machine) -> bool {
        let mut machine = self.fleet.access.machine(&machine.address.to_string());
        let Ok(Ok(reply)) = timeout(ANSWER_MAX, machine.etcd_status(())).await else { return false };
        let led = |status: &EtcdMemberStatus| status.leader != 0;
        reply.into_inner().messages.iter().any(|message| message.member_status.as_ref().is_some_and(led))
    }

    async fn leave(
        &self,
        provider: &Sandbox,
        limit: Duration,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let node = self.client.to(ichor_client::Target::Node(self.machine.address.to_string()));
        let request = ResetRequest { graceful: true, reboot: false, ..ResetRequest::default() };
        let asked = node.machine().reset(request).await;
        asked.map_err(|status| explain::status("reset", &status))?;
        let since = Instant::now();
        loop {
            let shown = provider.show(&self.cluster.name).map_err(|error| failed(&error))?;
            let status = shown.machine(&self.machine.name).map_err(|error| failed(&error))?.status;
            if status != MachineStatus::Running {
                return Ok(());
            }
            if since.elapsed() > limit {
                return Err(Failure::new(format!(
                    "{} did not leave within {} s",
                    self.machine.name,
                    limit.as_secs()
                ))
                .hint("it goes on; look at it with `ichorctl dmesg`, or remove it with --force"));
            }
            progress.tick("waiting until it is off");
            sleep(LOOK).await;
        }
    }

    /// Removes the node with the machine's address.
    async fn forget_node(&self) -> Result<(), String> {
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

    async fn try_forget_node(&self) -> Result<(), String> {
        let services = self.fleet.access.services("").await.map_err(|status| status.message().to_owned())?;
        if !services.iter().any(|service| service.id == "kubelet") {
            return Ok(());
        }
        let kubernetes = self.fleet.kubernetes.client().await?;
        let nodes = kubernetes.list(&Kind::NODES, "", Select::default()).await;
        let nodes = nodes.map_err(|error| error.chain())?;
        let address = self.machine.address.to_string();
        for node in nodes.items.iter().filter(|node| objects::node_addresses(node).contains(&address)) {
            let target = Target::new(Kind::NODES, "", objects::name(node));
            match kubernetes.delete(&target, Delete::default()).await {
                Err(error) if !error.is_not_found() => return Err(error.chain()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a member is at this address.
fn at(member: &EtcdMember, address: &str) -> bool {
    let host = format!("://{address}:");
    member.peer_urls.iter().any(|url| url.contains(&host))
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
        let member =
            EtcdMember { peer_urls: vec!["https://10.5.0.20:2380".to_owned()], ..EtcdMember::default() };
        assert!(at(&member, "10.5.0.20") && !at(&member, "10.5.0.2"));
    }
}
