//! What a machine shows and does through its API, on live machines and through the client library.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Duration, Instant};

use ichor_bpf::LinkType;
use ichor_client::Client;
use ichor_client::profile::{Overrides, Profile};
use ichor_config::talosconfig::ClientConfig;
use ichor_live::Fleet;
use ichor_wire::machine::{self, netstat_request};
use tonic::{Code, Status};

/// Longest wait for anything.
const WAIT: Duration = Duration::from_secs(90);

fn client(fleet: &Fleet) -> Client {
    ichor_pki::install_provider();
    let file = std::fs::read(fleet.home().join(".talos/config")).unwrap();
    let config = ClientConfig::load(&file).unwrap();
    let profile = Profile::resolve(&config, &Overrides::default()).unwrap();
    profile.client().unwrap().to_node(fleet.address(0))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), work).await.unwrap() })
}

async fn bytes(mut stream: tonic::Streaming<ichor_wire::common::Data>) -> (Vec<u8>, String) {
    let (mut all, mut error) = (Vec::new(), String::new());
    while let Some(part) = stream.message().await.unwrap() {
        all.extend_from_slice(&part.bytes);
        error.push_str(&part.metadata.map(|metadata| metadata.error).unwrap_or_default());
    }
    (all, error)
}

async fn read(client: &Client, path: &str) -> String {
    let request = machine::ReadRequest { path: path.into() };
    let stream = client.machine().read(request).await.unwrap().into_inner();
    String::from_utf8_lossy(&bytes(stream).await.0).into_owned()
}

async fn copy(client: &Client, path: &str) -> (BTreeMap<String, (tar::EntryType, Vec<u8>)>, String) {
    let request = machine::CopyRequest { root_path: path.into() };
    let stream = client.machine().copy(request).await.unwrap().into_inner();
    let (packed, error) = bytes(stream).await;
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(&packed[..])).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let name = entry.path().unwrap().display().to_string();
        found.insert(name, (entry.header().entry_type(), content));
    }
    (found, error)
}

async fn containers(client: &Client) -> Vec<machine::ContainerInfo> {
    let request = machine::ContainersRequest { namespace: "system".into(), driver: 0 };
    client.machine().containers(request).await.unwrap().into_inner().messages.remove(0).containers
}

#[test]
fn the_machine_shows_its_daemons_sockets_files_and_counters() {
    let fleet = Fleet::create("apilook", 83, 1, 0, &[]).unwrap();
    let client = client(&fleet);
    run(async {
        let apid = containers(&client).await.into_iter().find(|found| found.id == "apid").unwrap();
        assert!(apid.pid > 1 && apid.status == "RUNNING", "{apid:?}");
        let start = Instant::now();
        loop {
            let stats = machine::StatsRequest { namespace: "system".into(), driver: 0 };
            let stats = client.machine().stats(stats).await.unwrap().into_inner().messages.remove(0).stats;
            let apid_stat = stats.iter().find(|found| found.id == "apid").unwrap();
            if apid_stat.memory_usage > 0 && apid_stat.cpu_usage > 0 {
                break;
            }
            assert!(start.elapsed() < WAIT, "{apid_stat:?}");
        }

        let listening = machine::NetstatRequest {
            filter: netstat_request::Filter::Listening.into(),
            feature: Some(netstat_request::Feature { pid: true }),
            l4proto: Some(netstat_request::L4proto { tcp: true, tcp6: true, ..Default::default() }),
            netns: Some(netstat_request::NetNs { hostnetwork: true, ..Default::default() }),
        };
        let sockets = client.machine().netstat(listening).await.unwrap().into_inner().messages.remove(0);
        let door = sockets.connectrecord.iter().find(|socket| socket.localport == 50000).unwrap();
        let owner = door.process.as_ref().unwrap();
        assert_eq!((owner.pid, owner.name.as_str(), door.uid), (apid.pid, "apid", 50), "{door:?}");

        let processes = client.machine().processes(()).await.unwrap().into_inner().messages.remove(0);
        let init = processes.processes.iter().find(|process| process.pid == 1).unwrap();
        assert_eq!((init.ppid, init.command.as_str()), (0, "init"));
        assert!(processes.processes.iter().all(|process| !process.executable.is_empty()));

        let (etc, error) = copy(&client, "/etc").await;
        assert_eq!(error, "");
        assert!(etc["hosts"].1.starts_with(b"127.0.0.1"), "{:?}", etc["hosts"]);
        let (dev, _) = copy(&client, "/dev").await;
        assert_eq!(dev["null"].0, tar::EntryType::Char);
        let (run, error) = copy(&client, "/system/run").await;
        assert!(!run.contains_key("machined/machine.sock"));
        assert!(error.contains("machine.sock\": archive/tar: sockets not supported"), "{error}");
        let (groups, _) = copy(&client, "/sys/fs/cgroup").await;
        let procs = groups.iter().find(|(name, _)| name.ends_with("system/apid/cgroup.procs")).unwrap();
        assert_eq!(String::from_utf8_lossy(&procs.1.1).trim(), apid.pid.to_string());

        let usage = machine::DiskUsageRequest {
            recursion_depth: 1,
            paths: vec!["/usr".into(), "/no/such".into(), "/etc".into()],
            ..Default::default()
        };
        let mut stream = client.machine().disk_usage(usage).await.unwrap().into_inner();
        let mut names = Vec::new();
        while let Some(info) = stream.message().await.unwrap() {
            names.push((info.name, info.error.is_empty()));
        }
        assert_eq!(
            names,
            [("/usr".to_owned(), true), ("/no/such".to_owned(), false), ("/etc".to_owned(), true)]
        );
    });
    fleet.destroy().unwrap();
}

#[test]
fn a_capture_sees_the_callers_packets_and_ends_with_the_caller() {
    let fleet = Fleet::create("apipcap", 84, 1, 0, &[]).unwrap();
    let client = client(&fleet);
    run(async {
        // Packet sockets that take every protocol; the node's own take one each.
        let sockets = async || {
            let table = read(&client, "/proc/net/packet").await;
            table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0003")).count()
        };
        let before = sockets().await;
        let filter = ichor_bpf::compile("tcp port 50000", LinkType::Ethernet).unwrap();
        let request = machine::PacketCaptureRequest {
            interface: "eth0".into(),
            promiscuous: true,
            snap_len: 60,
            bpf_filter: filter
                .iter()
                .map(|i| machine::BpfInstruction {
                    op: i.op.into(),
                    jt: i.jt.into(),
                    jf: i.jf.into(),
                    k: i.k,
                })
                .collect(),
        };
        let mut stream = client.machine().packet_capture(request).await.unwrap().into_inner();
        let mut file = Vec::new();
        let start = Instant::now();
        while records(&file).len() < 5 {
            client.machine().hostname(()).await.unwrap();
            let part = tokio::time::timeout(WAIT, stream.message()).await.unwrap().unwrap().unwrap();
            file.extend_from_slice(&part.bytes);
            assert!(start.elapsed() < 2 * WAIT, "{} packets", records(&file).len());
        }
        assert_eq!(sockets().await, before + 1);
        for (length, data) in records(&file) {
            assert!(data.len() <= 60 && length >= data.len());
            assert!(ichor_bpf::run(&filter, &data) > 0, "{data:?}");
        }
        drop(stream);
        let start = Instant::now();
        while sockets().await > before {
            assert!(start.elapsed() < WAIT, "the capture goes on without its caller");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let missing = machine::PacketCaptureRequest { interface: "eth9".into(), ..Default::default() };
        let mut stream = client.machine().packet_capture(missing).await;
        let error = match &mut stream {
            Ok(stream) => stream.get_mut().message().await.unwrap_err(),
            Err(status) => Status::new(status.code(), status.message()),
        };
        assert_eq!((error.code(), error.message()), (Code::NotFound, "interface \"eth9\" not found"));
    });
    fleet.destroy().unwrap();
}

/// The packets of a capture file: their length on the wire and what was kept.
fn records(file: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let word = |at: usize| -> Option<usize> {
        let word = file.get(at..at + 4)?;
        Some(u32::from_le_bytes(word.try_into().unwrap()) as usize)
    };
    let mut found = Vec::new();
    let mut at = 24;
    while let (Some(kept), Some(length)) = (word(at + 8), word(at + 12)) {
        let Some(data) = file.get(at + 16..at + 16 + kept) else { break };
        found.push((length, data.to_vec()));
        at += 16 + kept;
    }
    found
}

#[test]
fn a_daemon_is_restarted_and_meta_survives_a_reboot() {
    let fleet = Fleet::create("apido", 85, 1, 0, &[]).unwrap();
    let client = client(&fleet);
    run(async {
        let apid = async || containers(&client).await.into_iter().find(|c| c.id == "apid").unwrap().pid;
        let before = apid().await;
        let restart = machine::RestartRequest { namespace: "system".into(), id: "apid".into(), driver: 0 };
        // The daemon that carries the answer is the one that ends; both outcomes are good.
        let _ = client.machine().restart(restart).await;
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WAIT, "apid did not come back");
            let request = machine::ContainersRequest { namespace: "system".into(), driver: 0 };
            if let Ok(reply) = client.machine().containers(request).await {
                let found = &reply.get_ref().messages[0].containers;
                if found.iter().any(|c| c.id == "apid" && c.pid != before && c.pid != 0) {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let write = machine::MetaWriteRequest { key: 0x0a, value: b"kept".to_vec() };
        client.machine().meta_write(write).await.unwrap();
    });
    let node = fleet.address(0);
    let kept = ["-n", &node, "get", "metakeys", "0x0a", "-o", "yaml"];
    fleet.says(&kept, |shown| shown.contains("kept")).unwrap();
    fleet.ok(&["-n", &node, "reboot"]).unwrap();
    fleet.says(&kept, |shown| shown.contains("kept")).unwrap();
    fleet.destroy().unwrap();
}
