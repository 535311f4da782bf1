//! `containers`, `stats`, `restart`: containers of the system or of Kubernetes.

use ichor_wire::common::ContainerDriver;
use ichor_wire::machine::{Container, ContainersRequest, RestartRequest, Stats, StatsRequest};

use crate::failure::Failure;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Flag, Group};
use crate::tabs::Table;

static FLAGS: &[Flag] = &[
    Flag::switch("kubernetes", "look in the containers of Kubernetes").short('k'),
    Flag::switch("use-cri", "ask the container runtime of Kubernetes").hidden(),
];

/// `containers`.
pub static CONTAINERS: Command = Command {
    name: "containers",
    aliases: &["c"],
    group: Group::Machines,
    about: "List containers",
    examples: &["containers", "containers -k"],
    flags: FLAGS,
    run: Some(containers),
    ..Command::EMPTY
};

/// `stats`.
pub static STATS: Command = Command {
    name: "stats",
    group: Group::Machines,
    about: "Show memory and CPU time of containers",
    flags: FLAGS,
    run: Some(stats),
    ..Command::EMPTY
};

/// `restart`.
pub static RESTART: Command = Command {
    name: "restart",
    group: Group::Machines,
    about: "Restart a container",
    examples: &["restart -k kube-system/coredns-…:coredns"],
    args: Args::between("<id>", 1, 1),
    flags: FLAGS,
    run: Some(restart),
    ..Command::EMPTY
};

/// The namespace and driver the flags stand for.
pub fn place(call: &Call) -> (String, i32) {
    match call.on("kubernetes") || call.on("use-cri") {
        true => ("k8s.io".to_owned(), ContainerDriver::Cri.into()),
        false => ("system".to_owned(), ContainerDriver::Containerd.into()),
    }
}

fn containers(call: &Call) -> Result<(), Failure> {
    let (namespace, driver) = place(call);
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let request = ContainersRequest { namespace, driver };
        let reply = session.ask(session.all().machine().containers(request)).await;
        let replies =
            session.gather("error getting container list", reply.map(|reply| reply.into_inner().messages))?;
        print(&containers_text(replies))
    })
}

fn stats(call: &Call) -> Result<(), Failure> {
    let (namespace, driver) = place(call);
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().stats(StatsRequest { namespace, driver })).await;
        let replies =
            session.gather("error getting stats", reply.map(|reply| reply.into_inner().messages))?;
        print(&stats_text(replies))
    })
}

fn restart(call: &Call) -> Result<(), Failure> {
    let (namespace, driver) = place(call);
    let request = RestartRequest { namespace, id: call.arg(0).to_owned(), driver };
    let connection = call.connection();
    block_on(async {
        let session = Session::open(&connection).await?;
        let reply = session.ask(session.all().machine().restart(request)).await;
        session.gather("error restarting process", reply.map(|reply| reply.into_inner().messages))?;
        Ok(())
    })
}

/// A container of a pod is drawn below it.
fn shown(id: &str, pod: &str) -> String {
    if id == pod { id.to_owned() } else { format!("└─ {id}") }
}

/// The table of containers.
pub fn containers_text(replies: Vec<(String, Container)>) -> String {
    let mut table = Table::with_header(["NODE", "NAMESPACE", "ID", "IMAGE", "PID", "STATUS"]);
    for (node, mut reply) in replies {
        reply.containers.sort_by(|a, b| a.id.cmp(&b.id));
        for container in reply.containers {
            let id = shown(&container.id, &container.pod_id);
            let pid = container.pid.to_string();
            table.row([node.clone(), container.namespace, id, container.image, pid, container.status]);
        }
    }
    table.take()
}

/// The table of what containers use.
pub fn stats_text(replies: Vec<(String, Stats)>) -> String {
    let mut table = Table::with_header(["NODE", "NAMESPACE", "ID", "MEMORY(MB)", "CPU"]);
    for (node, mut reply) in replies {
        reply.stats.sort_by(|a, b| a.id.cmp(&b.id));
        for stat in reply.stats {
            let id = shown(&stat.id, &stat.pod_id);
            let memory = format!("{:.2}", stat.memory_usage as f64 * 1e-6);
            table.row([node.clone(), stat.namespace, id, memory, stat.cpu_usage.to_string()]);
        }
    }
    table.take()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_wire::machine::{ContainerInfo, Stat};

    use super::*;

    #[test]
    fn containers_of_a_pod_are_drawn_below_it() {
        let container = |id: &str, pod: &str, pid: u32| ContainerInfo {
            namespace: "k8s.io".into(),
            id: id.into(),
            pod_id: pod.into(),
            image: "pause".into(),
            pid,
            status: "CONTAINER_RUNNING".into(),
            ..ContainerInfo::default()
        };
        let containers = vec![container("ns/pod:app", "ns/pod", 12), container("ns/pod", "ns/pod", 11)];
        let replies = vec![("n".to_owned(), Container { metadata: None, containers })];
        expect![[r#"
            NODE   NAMESPACE   ID              IMAGE   PID   STATUS
            n      k8s.io      ns/pod          pause   11    CONTAINER_RUNNING
            n      k8s.io      └─ ns/pod:app   pause   12    CONTAINER_RUNNING
        "#]]
        .assert_eq(&containers_text(replies));
    }

    #[test]
    fn memory_is_in_powers_of_a_thousand() {
        let stat = Stat { id: "a".into(), pod_id: "a".into(), memory_usage: 1_500_000, ..Stat::default() };
        let replies = vec![("n".to_owned(), Stats { metadata: None, stats: vec![stat] })];
        assert!(stats_text(replies).ends_with("a    1.50         0\n"));
    }
}
