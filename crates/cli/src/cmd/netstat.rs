//! `netstat`: sockets of machines and of pods.

use std::collections::BTreeMap;

use ichor_wire::common::ContainerDriver;
use ichor_wire::machine::connect_record::{State, TimerActive};
use ichor_wire::machine::netstat_request::{Feature, Filter, L4proto, NetNs};
use ichor_wire::machine::{ConnectRecord, ContainersRequest, Netstat, NetstatRequest};

use crate::failure::Failure;
use crate::flags::flags;
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Flag, Group};
use crate::tabs::Table;

/// The command.
pub static NETSTAT: Command = Command {
    name: "netstat",
    aliases: &["ss"],
    group: Group::Machines,
    about: "List network connections and sockets",
    long: "Lists sockets of the machines, TCP and UDP and connected ones unless told otherwise. With NAMESPACE/POD\n\
           the sockets of that pod are listed, when it has a network of its own.",
    examples: &["netstat -l -p", "netstat -a -t -4", "netstat -k", "netstat kube-system/coredns-…"],
    args: Args::between("", 0, 1),
    flags: &[
        Flag::switch("all", "list sockets in every state (default: connected)").short('a'),
        Flag::switch("extend", "show user and inode").short('x'),
        Flag::switch("ipv4", "list IPv4 only").short('4'),
        Flag::switch("ipv6", "list IPv6 only").short('6'),
        Flag::switch("listening", "list listening sockets").short('l'),
        Flag::switch("pods", "list sockets of Kubernetes pods too").short('k'),
        Flag::switch("programs", "show the process of each socket").short('p'),
        Flag::switch("raw", "list raw sockets").short('w'),
        Flag::switch("tcp", "list TCP").short('t'),
        Flag::switch("timers", "show timers").short('o'),
        Flag::switch("udp", "list UDP").short('u'),
        Flag::switch("udplite", "list UDP-Lite").short('U'),
        Flag::switch("verbose", "list all transport protocols").short('v'),
    ],
    run: Some(run),
    ..Command::EMPTY
};

/// Pods by machine and network namespace.
type Pods = BTreeMap<String, BTreeMap<String, String>>;

flags! {
    /// The command line, resolved.
    NetstatFlags {
        connection: connection(),
        pod: some_arg(0),
        pods: on("pods"),
        verbose: on("verbose"),
        tcp: on("tcp"),
        udp: on("udp"),
        udplite: on("udplite"),
        raw: on("raw"),
        ipv4: on("ipv4"),
        ipv6: on("ipv6"),
        all: on("all"),
        listening: on("listening"),
        programs: on("programs"),
        extend: on("extend"),
        timers: on("timers"),
    }
}

fn run(call: &Call) -> Result<(), Failure> {
    let flags = NetstatFlags::of(call);
    if flags.pods && flags.pod.is_some() {
        return Err(Failure::new("cannot use --pods and specify a pod").hint("leave one of them out"));
    }
    let mut request = request(&flags);
    block_on(async {
        let session = Session::open(&flags.connection).await?;
        let mut client = session.all();
        let mut pods = Pods::new();
        if flags.pods || flags.pod.is_some() {
            pods = find_pods(&session).await?;
        }
        if let Some(wanted) = &flags.pod {
            let wanted = wanted.to_lowercase();
            let found = pods.iter().find_map(|(node, names)| {
                let (netns, _) = names.iter().find(|(_, name)| **name == wanted)?;
                Some((node.clone(), netns.clone()))
            });
            let Some((node, netns)) = found else {
                return Err(Failure::new(format!("pod {wanted} not found"))
                    .hint("`ichorctl netstat -k` shows the pods that have a network of their own"));
            };
            client = session.node(&node);
            request.netns = Some(NetNs { hostnetwork: false, netns: vec![netns], allnetns: false });
        }
        let reply = session.ask(client.machine().netstat(request)).await;
        let replies =
            session.gather("error getting sockets", reply.map(|reply| reply.into_inner().messages))?;
        print(&table_text(&replies, &Shown::of(&flags), &pods))
    })
}

fn request(flags: &NetstatFlags) -> NetstatRequest {
    let (tcp, udp, udplite, raw) = match flags.verbose {
        true => (true, true, true, true),
        false => (flags.tcp, flags.udp, flags.udplite, flags.raw),
    };
    let none = !(tcp || udp || udplite || raw);
    let (tcp, udp) = (tcp || none, udp || none);
    let v4 = flags.ipv4 || !flags.ipv6;
    let v6 = flags.ipv6 || !flags.ipv4;
    let filter = match (flags.all, flags.listening) {
        (true, _) => Filter::All,
        (false, true) => Filter::Listening,
        (false, false) => Filter::Connected,
    };
    NetstatRequest {
        filter: filter.into(),
        feature: Some(Feature { pid: flags.programs }),
        l4proto: Some(L4proto {
            tcp: tcp && v4,
            tcp6: tcp && v6,
            udp: udp && v4,
            udp6: udp && v6,
            udplite: udplite && v4,
            udplite6: udplite && v6,
            raw: raw && v4,
            raw6: raw && v6,
        }),
        netns: Some(NetNs { hostnetwork: true, netns: Vec::new(), allnetns: flags.pods }),
    }
}

async fn find_pods(session: &Session) -> Result<Pods, Failure> {
    let request = ContainersRequest { namespace: "k8s.io".into(), driver: ContainerDriver::Cri.into() };
    let reply = session.ask(session.all().machine().containers(request)).await;
    let replies =
        session.gather("error getting containers", reply.map(|reply| reply.into_inner().messages))?;
    let mut pods = Pods::new();
    for (node, reply) in replies {
        let with_network = reply
            .containers
            .into_iter()
            .filter(|found| !found.network_namespace.is_empty() && found.pid != 0 && found.id == found.pod_id)
            .map(|found| (found.network_namespace, found.id));
        pods.entry(node).or_default().extend(with_network);
    }
    Ok(pods)
}

/// The columns that were asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    extend: bool,
    programs: bool,
    pods: bool,
    timers: bool,
}

impl Shown {
    fn of(flags: &NetstatFlags) -> Self {
        Self { extend: flags.extend, programs: flags.programs, pods: flags.pods, timers: flags.timers }
    }
}

/// The table; nothing at all without sockets.
pub fn table_text(replies: &[(String, Netstat)], shown: &Shown, pods: &Pods) -> String {
    if replies.iter().all(|(_, reply)| reply.connectrecord.is_empty()) {
        return String::new();
    }
    let mut header = vec!["NODE", "Proto", "Recv-Q", "Send-Q", "Local Address", "Foreign Address", "State"];
    if shown.extend {
        header.extend(["Uid", "Inode"]);
    }
    if shown.programs {
        header.push("PID/Program name");
    }
    if shown.pods {
        header.push("Pod");
    }
    if shown.timers {
        header.push("Timer");
    }
    let mut table = Table::with_header(header);
    for (node, reply) in replies {
        for record in &reply.connectrecord {
            table.row(cells(node, record, shown, pods));
        }
    }
    table.take()
}

fn cells(node: &str, record: &ConnectRecord, shown: &Shown, pods: &Pods) -> Vec<String> {
    let remote_port = match record.remoteport {
        0 => "*".to_owned(),
        port => port.to_string(),
    };
    // Sockets without a connection have this state, and nothing to say about it.
    let state = match State::try_from(record.state) {
        Ok(State::Close) => String::new(),
        Ok(state) => state.as_str_name().to_owned(),
        Err(_) => record.state.to_string(),
    };
    let mut cells = vec![
        node.to_owned(),
        record.l4proto.clone(),
        record.rxqueue.to_string(),
        record.txqueue.to_string(),
        format!("{}:{}", record.localip, record.localport),
        format!("{}:{remote_port}", record.remoteip),
        state,
    ];
    if shown.extend {
        cells.extend([record.uid.to_string(), record.inode.to_string()]);
    }
    if shown.programs {
        cells.push(match &record.process {
            Some(process) if process.pid != 0 => format!("{}/{}", process.pid, process.name),
            _ => "-".to_owned(),
        });
    }
    if shown.pods {
        let names = pods.get(node).filter(|_| !record.netns.is_empty());
        cells.push(match names {
            Some(names) => names.get(&record.netns).cloned().unwrap_or_default(),
            None => "-".to_owned(),
        });
    }
    if shown.timers {
        let timer = TimerActive::try_from(record.tr).unwrap_or_default().as_str_name().to_lowercase();
        let when = record.timerwhen as f64 / 100.0;
        cells.push(format!("{timer} ({when:.2}/{}/{})", record.retrnsmt, record.timeout));
    }
    cells
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ichor_wire::machine::connect_record::Process;

    use super::*;

    fn record(state: State, remote_port: u32) -> ConnectRecord {
        ConnectRecord {
            l4proto: "tcp".into(),
            localip: "10.5.0.2".into(),
            localport: 50000,
            remoteip: "10.5.0.1".into(),
            remoteport: remote_port,
            state: state.into(),
            timerwhen: 250,
            process: Some(Process { pid: 6, name: "apid".into() }),
            ..ConnectRecord::default()
        }
    }

    #[test]
    fn port_zero_is_a_star_and_closed_is_no_state() {
        let connectrecord = vec![record(State::Listen, 0), record(State::Close, 7)];
        let replies = [("n".to_owned(), Netstat { metadata: None, connectrecord })];
        let shown = Shown { extend: true, programs: true, pods: false, timers: true };
        expect![[r#"
            NODE   Proto   Recv-Q   Send-Q   Local Address    Foreign Address   State    Uid   Inode   PID/Program name   Timer
            n      tcp     0        0        10.5.0.2:50000   10.5.0.1:*        LISTEN   0     0       6/apid             off (2.50/0/0)
            n      tcp     0        0        10.5.0.2:50000   10.5.0.1:7                 0     0       6/apid             off (2.50/0/0)
        "#]]
        .assert_eq(&table_text(&replies, &shown, &Pods::new()));
        assert_eq!(table_text(&[("n".to_owned(), Netstat::default())], &shown, &Pods::new()), "");
    }
}
