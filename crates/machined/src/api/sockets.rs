//! The socket table of this node and of the network namespaces on it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tonic::{Response, Status};

use ichor_net::netns;
use ichor_net::sockets::{self, Socket, Table};
use ichor_wire::machine::{self, connect_record, netstat_request};

use super::reply::io_text;
use crate::lanes::HOST;

/// Sockets in one answer; about 12 MB.
const SOCKETS_MAX: usize = 100_000;

/// Network namespaces looked into by one call.
const NAMESPACES_MAX: usize = 1024;

/// Where network namespaces have names.
const NAMESPACES: &str = "/run/netns";

/// The tables of the thread that looks.
const TABLES: &str = "/proc/thread-self/net";

/// Lists sockets.
pub async fn netstat(request: machine::NetstatRequest) -> Result<Response<machine::NetstatResponse>, Status> {
    let missing = |what: &str| Status::invalid_argument(format!("the request names no {what}"));
    let filter = netstat_request::Filter::try_from(request.filter)
        .map_err(|_| Status::invalid_argument(format!("unknown filter {}", request.filter)))?;
    let feature = request.feature.ok_or_else(|| missing("features"))?;
    let tables = tables(&request.l4proto.ok_or_else(|| missing("protocols"))?);
    let wanted = request.netns.ok_or_else(|| missing("network namespaces"))?;
    let connectrecord = HOST.run(move || list(filter, &tables, &wanted, feature.pid)).await??;
    let message = machine::Netstat { metadata: None, connectrecord };
    Ok(Response::new(machine::NetstatResponse { messages: vec![message] }))
}

fn tables(asked: &netstat_request::L4proto) -> Vec<Table> {
    [
        (asked.tcp, Table::Tcp),
        (asked.tcp6, Table::Tcp6),
        (asked.udp, Table::Udp),
        (asked.udp6, Table::Udp6),
        (asked.udplite, Table::UdpLite),
        (asked.udplite6, Table::UdpLite6),
        (asked.raw, Table::Raw),
        (asked.raw6, Table::Raw6),
    ]
    .into_iter()
    .filter_map(|(wanted, table)| wanted.then_some(table))
    .collect()
}

/// A namespace to look into; the node's own has no name.
fn namespaces(wanted: &netstat_request::NetNs) -> Result<Vec<Option<String>>, Status> {
    let mut names: Vec<Option<String>> = wanted.hostnetwork.then_some(None).into_iter().collect();
    if wanted.allnetns {
        let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.extend(found.take(NAMESPACES_MAX).map(Some));
        names.sort_unstable();
    } else {
        for name in &wanted.netns {
            let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
            if !plain || names.len() > NAMESPACES_MAX {
                return Err(Status::invalid_argument(format!("invalid network namespace {name:?}")));
            }
            names.push(Some(name.clone()));
        }
    }
    Ok(names)
}

fn list(
    filter: netstat_request::Filter,
    tables: &[Table],
    wanted: &netstat_request::NetNs,
    with_processes: bool,
) -> Result<Vec<machine::ConnectRecord>, Status> {
    let mut records = Vec::new();
    for name in namespaces(wanted)? {
        let left = SOCKETS_MAX - records.len();
        let look = || read(tables, filter, left);
        let found = match &name {
            None => look(),
            Some(name) => {
                let path = PathBuf::from(NAMESPACES).join(name);
                match File::open(&path) {
                    Ok(namespace) => netns::run_in(namespace.as_fd(), look).and_then(|found| found),
                    // Gone since the directory was read.
                    Err(_) if wanted.allnetns => continue,
                    Err(error) => return Err(Status::not_found(io_text("open", &path, &error))),
                }
            }
        };
        match found {
            Ok(found) => {
                let name = name.unwrap_or_default();
                records.extend(found.iter().map(|socket| record(socket, &name)));
            }
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                return Err(Status::resource_exhausted(format!(
                    "more than {SOCKETS_MAX} sockets; ask for fewer protocols or for those that listen"
                )));
            }
            Err(_) if wanted.allnetns && name.is_some() => {}
            Err(error) => return Err(Status::unknown(format!("read the socket tables: {error}"))),
        }
    }
    if with_processes {
        let mut owners = owners();
        for record in &mut records {
            record.process = Some(owners.remove(&record.inode).unwrap_or_default());
        }
    }
    Ok(records)
}

fn read(tables: &[Table], filter: netstat_request::Filter, max: usize) -> io::Result<Vec<Socket>> {
    use netstat_request::Filter;
    let keep = |socket: &Socket| match filter {
        Filter::All => true,
        Filter::Connected => socket.is_connected(),
        Filter::Listening => socket.is_listening(),
    };
    let mut found = Vec::new();
    for table in tables {
        found.extend(sockets::read(Path::new(TABLES), *table, max - found.len(), keep)?);
    }
    Ok(found)
}

/// Who has which socket open, by inode.
fn owners() -> HashMap<u64, connect_record::Process> {
    let mut owners = HashMap::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that is gone, or not ours to look at, owns nothing we can tell.
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut name = None;
        for entry in open.flatten() {
            let Some(inode) = fs::read_link(entry.path()).ok().and_then(|link| socket_inode(&link)) else {
                continue;
            };
            let name = name.get_or_insert_with(|| process_name(&process.path()));
            owners.entry(inode).or_insert_with(|| connect_record::Process { pid, name: name.clone() });
        }
    }
    owners
}

/// What a process calls itself. Several of the node's daemons are one program, so the name of the program
/// says less than the first argument, where that is a name at all.
fn process_name(process: &Path) -> String {
    let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
    let args = read("cmdline");
    let first = args.split(|byte| *byte == 0).next().unwrap_or_default();
    let first = String::from_utf8_lossy(first.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    match first.is_empty() || first.contains([' ', ':']) {
        true => String::from_utf8_lossy(&read("comm")).trim_end().to_owned(),
        false => first.into_owned(),
    }
}

/// `socket:[12345]`.
fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn record(socket: &Socket, namespace: &str) -> machine::ConnectRecord {
    machine::ConnectRecord {
        l4proto: socket.table.name().to_owned(),
        localip: socket.local.0.to_string(),
        localport: socket.local.1.into(),
        remoteip: socket.remote.0.to_string(),
        remoteport: socket.remote.1.into(),
        state: socket.state.into(),
        txqueue: socket.tx_queue,
        rxqueue: socket.rx_queue,
        tr: socket.timer.into(),
        timerwhen: socket.timer_when,
        retrnsmt: socket.retransmits,
        uid: socket.uid,
        timeout: socket.timeout,
        inode: socket.inode,
        r#ref: socket.references,
        pointer: socket.pointer,
        // Clients look into it without asking.
        process: Some(connect_record::Process::default()),
        netns: namespace.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(filter: netstat_request::Filter, pid: bool) -> machine::NetstatRequest {
        machine::NetstatRequest {
            filter: filter.into(),
            feature: Some(netstat_request::Feature { pid }),
            l4proto: Some(netstat_request::L4proto { tcp: true, ..netstat_request::L4proto::default() }),
            netns: Some(netstat_request::NetNs { hostnetwork: true, ..netstat_request::NetNs::default() }),
        }
    }

    async fn ask(request: machine::NetstatRequest) -> Vec<machine::ConnectRecord> {
        netstat(request).await.unwrap().into_inner().messages.remove(0).connectrecord
    }

    #[tokio::test]
    async fn a_listener_and_a_connection_of_this_test_are_told_apart() {
        use netstat_request::Filter;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = client.local_addr().unwrap().port();
        let mine = |records: Vec<machine::ConnectRecord>| -> Vec<machine::ConnectRecord> {
            records.into_iter().filter(|record| record.localport == port).collect()
        };
        let listening = mine(ask(request(Filter::Listening, true)).await);
        assert_eq!(listening.len(), 1);
        assert_eq!(listening[0].state(), connect_record::State::Listen);
        let process = listening[0].process.as_ref().unwrap();
        assert_eq!(process.pid, std::process::id());
        assert!(!process.name.is_empty());
        let mut connected = mine(ask(request(Filter::Connected, false)).await);
        // A connection of another test may have the same port at another address.
        connected.retain(|record| record.remoteport == u32::from(own));
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].process.as_ref().unwrap().pid, 0);
        assert!(mine(ask(request(Filter::All, false)).await).len() >= 2);
    }

    #[tokio::test]
    async fn half_a_request_and_bad_namespaces_are_refused() {
        use tonic::Code;
        let good = request(netstat_request::Filter::All, false);
        let named = |name: &str| {
            let netns = vec![name.to_owned()];
            let netns = netstat_request::NetNs { netns, ..netstat_request::NetNs::default() };
            machine::NetstatRequest { netns: Some(netns), ..good.clone() }
        };
        for (bad, code) in [
            (machine::NetstatRequest::default(), Code::InvalidArgument),
            (machine::NetstatRequest { netns: None, ..good.clone() }, Code::InvalidArgument),
            (machine::NetstatRequest { filter: 9, ..good.clone() }, Code::InvalidArgument),
            (named("../../proc/1/ns/net"), Code::InvalidArgument),
            (named(".."), Code::InvalidArgument),
            (named("no-such-namespace"), Code::NotFound),
        ] {
            assert_eq!(netstat(bad.clone()).await.unwrap_err().code(), code, "{bad:?}");
        }
    }
}
