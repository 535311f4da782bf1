//! Whatever stands in a request, the machine API answers it: with a message or a status, never with a panic, and it
//! answers the next one.

#[path = "api/bench.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod bench;

use std::time::Duration;

use bytes::Bytes;
use ichor_fuzz::{Target, shape};
use ichor_rpc::{Channel, Raw};
use ichor_wire::{machine, storage, time};
use prost::Message;
use tonic::{Code, Status};

/// Methods that take a message and neither stop the machine nor leave it.
const METHODS: &[&str] = &[
    "/machine.MachineService/Copy",
    "/machine.MachineService/List",
    "/machine.MachineService/DiskUsage",
    "/machine.MachineService/Read",
    "/machine.MachineService/Logs",
    "/machine.MachineService/Dmesg",
    "/machine.MachineService/Events",
    "/machine.MachineService/Containers",
    "/machine.MachineService/Stats",
    "/machine.MachineService/Restart",
    "/machine.MachineService/ServiceStart",
    "/machine.MachineService/Netstat",
    "/machine.MachineService/PacketCapture",
    "/machine.MachineService/MetaWrite",
    "/machine.MachineService/MetaDelete",
    "/machine.MachineService/ImageList",
    "/machine.MachineService/ImagePull",
    "/machine.MachineService/Upgrade",
    "/machine.MachineService/ApplyConfiguration",
    "/machine.MachineService/GenerateClientConfiguration",
    "/storage.StorageService/BlockDeviceWipe",
];

/// Messages of a stream that are looked at.
const MESSAGES_MAX: usize = 4;

/// A stream that has nothing to say is left alone.
const WAIT: Duration = Duration::from_millis(20);

fn seeds() -> Vec<Vec<u8>> {
    use machine::netstat_request::{Feature, L4proto, NetNs};
    let path = "/proc/sys/kernel".to_owned();
    let netstat = machine::NetstatRequest {
        filter: 1,
        feature: Some(Feature { pid: true }),
        l4proto: Some(L4proto { tcp: true, udp6: true, ..L4proto::default() }),
        netns: Some(NetNs { hostnetwork: true, netns: vec!["x".into()], allnetns: false }),
    };
    let capture = machine::PacketCaptureRequest {
        interface: "lo".into(),
        promiscuous: true,
        snap_len: 9,
        bpf_filter: vec![machine::BpfInstruction { op: 6, jt: 0, jf: 0, k: 1 }],
    };
    let wipe = storage::BlockDeviceWipeDescriptor { device: "sda".into(), ..Default::default() };
    let bodies = [
        machine::CopyRequest { root_path: path.clone() }.encode_to_vec(),
        machine::ListRequest { root: path.clone(), recurse: true, types: vec![1, 2], ..Default::default() }
            .encode_to_vec(),
        machine::DiskUsageRequest { recursion_depth: 2, all: true, threshold: -5, paths: vec![path.clone()] }
            .encode_to_vec(),
        machine::LogsRequest { namespace: "system".into(), id: "apid".into(), ..Default::default() }
            .encode_to_vec(),
        machine::EventsRequest { tail_events: -1, ..Default::default() }.encode_to_vec(),
        netstat.encode_to_vec(),
        capture.encode_to_vec(),
        machine::MetaWriteRequest { key: 10, value: b"x".to_vec() }.encode_to_vec(),
        machine::ImagePullRequest { namespace: 1, reference: "nginx".into() }.encode_to_vec(),
        storage::BlockDeviceWipeRequest { devices: vec![wipe] }.encode_to_vec(),
        time::TimeRequest { server: "/dev/null".into() }.encode_to_vec(),
    ];
    let mut seeds = Vec::new();
    for (method, body) in (0_u8..).zip(METHODS).flat_map(|(at, _)| bodies.iter().map(move |body| (at, body)))
    {
        seeds.push([&[method], &body[..]].concat());
    }
    seeds
}

#[test]
fn requests() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let bench = runtime.block_on(bench::Bench::start());
    let channel = bench.channel();
    Target::binary("api-requests").seeds(seeds()).rounds(3_000).len_max(2048).run(|input| {
        let Some((at, body)) = input.split_first() else { return String::new() };
        let method = METHODS[usize::from(*at) % METHODS.len()];
        let outcome = runtime.block_on(call(&bench, &channel, method, Bytes::copy_from_slice(body)));
        assert!(!outcome.contains("panic"), "{method}: {outcome}");
        format!("{at} {}", shape(&outcome))
    });
    let alive = runtime.block_on(async { bench.machine().version(bench.as_reader(())).await });
    assert!(alive.is_ok());
}

async fn call(bench: &bench::Bench, channel: &Channel, method: &'static str, body: Bytes) -> String {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    let path = http::uri::PathAndQuery::from_static(method);
    let answer = async {
        let mut stream = grpc.server_streaming(bench.as_admin(body), path, Raw).await?.into_inner();
        for _ in 0..MESSAGES_MAX {
            match tokio::time::timeout(WAIT, stream.message()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) | Err(_) => break,
                Ok(Err(status)) => return Err(status),
            }
        }
        Ok(())
    };
    match tokio::time::timeout(Duration::from_secs(20), answer).await {
        Ok(Ok(())) => "ok".to_owned(),
        Ok(Err(status)) => {
            let status: Status = status;
            // Only what asks containerd may miss it; the API itself is there.
            let containerd = status.message().contains("containerd.sock");
            assert!(containerd || status.code() != Code::Unavailable, "{method}: {status}");
            format!("{:?} {}", status.code(), status.message())
        }
        Err(_) => panic!("{method} did not answer"),
    }
}
