//! Everything that one certificate can read of one machine.

use std::collections::BTreeSet;
use std::io::Read as _;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use ichor_live::Fleet;
use ichor_pki::Authority;
use ichor_rpc::Channel;
use ichor_wire::common::{ContainerDriver, ContainerdNamespace};
use ichor_wire::cosi::resource as cosi;
use ichor_wire::{machine, time};
use prost::Message;

use super::CALL_MAX;
use crate::door::{certificate, channel};

/// The most that is taken of one answer.
const ANSWER_MAX: usize = 256 << 20;
/// Directories whose names are listed, and whose files an administrator copies.
const DIRECTORIES: [&str; 9] = [
    "/system",
    "/etc",
    "/run",
    "/opt",
    "/var/lib/kubelet",
    "/var/lib/etcd",
    "/var/log",
    "/var/system",
    "/usr/etc",
];
/// Where secrets are files.
const SECRET_DIRECTORIES: [&str; 6] = [
    "/system/secrets",
    "/system/state",
    "/system/config",
    "/system/etc",
    "/etc/kubernetes",
    "/var/lib/kubelet/pki",
];

/// Something that was read.
pub(super) struct Found {
    /// The call, and what it was about.
    pub name: String,
    /// What came.
    pub bytes: Vec<u8>,
}

/// The resource types and namespaces of a cluster, as its administrator is told.
pub(super) fn types(fleet: &Fleet) -> Vec<String> {
    let list = fleet.ok(&["-n", &fleet.address(0), "get", "rd", "-o", "yaml"]).unwrap();
    let types: BTreeSet<String> = list
        .lines()
        .filter_map(|line| line.strip_prefix("    type: ").or_else(|| line.strip_prefix("  type: ")))
        .map(str::to_owned)
        .collect();
    let known: BTreeSet<String> =
        ichor_resource::catalogue().map(|known| known.type_name.to_owned()).collect();
    let missing: Vec<_> = known.difference(&types).collect();
    assert!(missing.is_empty(), "types that `get rd` does not show: {missing:?}");
    types.into_iter().collect()
}

/// One caller and one machine.
pub(super) struct Sweep<'a> {
    channel: Channel<Full<Bytes>>,
    types: &'a [String],
}

impl<'a> Sweep<'a> {
    pub(super) fn new(
        fleet: &Fleet,
        machine: u8,
        authority: &Authority,
        roles: &[&str],
        types: &'a [String],
    ) -> Self {
        let pair = certificate(authority, roles);
        Self { channel: channel(&fleet.loopback(machine), authority, Some(&pair)), types }
    }

    /// Everything but files.
    pub(super) async fn answers(&self) -> Vec<Found> {
        let mut all = self.resources().await;
        all.extend(self.facts().await);
        all.extend(self.logs().await);
        all
    }

    /// Every type in every namespace.
    async fn resources(&self) -> Vec<Found> {
        let mut all = Vec::new();
        for (namespace, _) in ichor_resource::meta::NAMESPACES {
            for type_name in self.types {
                let request = cosi::ListRequest {
                    namespace: (*namespace).to_owned(),
                    r#type: type_name.clone(),
                    options: None,
                };
                let name = format!("{namespace}/{type_name}");
                all.extend(self.call("/cosi.resource.State/List", &name, &request).await);
            }
        }
        all
    }

    /// The calls without, or with few, arguments. None of them changes anything.
    async fn facts(&self) -> Vec<Found> {
        let mut all = Vec::new();
        for method in [
            "CPUFreqStats",
            "CPUInfo",
            "DiskStats",
            "EtcdAlarmList",
            "EtcdMemberList",
            "EtcdSnapshot",
            "EtcdStatus",
            "Hostname",
            "Kubeconfig",
            "LoadAvg",
            "LogsContainers",
            "Memory",
            "Mounts",
            "NetworkDeviceStats",
            "Processes",
            "ServiceList",
            "SystemStat",
            "Version",
        ] {
            all.extend(self.call(&format!("/machine.MachineService/{method}"), "", &()).await);
        }
        for path in [
            "/inspect.InspectService/ControllerRuntimeDependencies",
            "/storage.StorageService/Disks",
            "/time.TimeService/Time",
            "/cluster.ClusterService/HealthCheck",
        ] {
            all.extend(self.call(path, "", &()).await);
        }
        let dmesg = machine::DmesgRequest { follow: false, tail: false };
        all.extend(self.call("/machine.MachineService/Dmesg", "", &dmesg).await);
        let events = machine::EventsRequest { tail_events: -1, ..Default::default() };
        all.extend(self.call("/machine.MachineService/Events", "", &events).await);
        let netstat = machine::NetstatRequest {
            filter: 0,
            feature: Some(machine::netstat_request::Feature { pid: true }),
            l4proto: Some(Default::default()),
            netns: Some(Default::default()),
        };
        all.extend(self.call("/machine.MachineService/Netstat", "", &netstat).await);
        for interface in ["lo", "eth0"] {
            let capture = machine::PacketCaptureRequest {
                interface: interface.to_owned(),
                snap_len: 65_536,
                ..Default::default()
            };
            all.extend(self.call("/machine.MachineService/PacketCapture", interface, &capture).await);
        }
        for namespace in [ContainerdNamespace::NsCri, ContainerdNamespace::NsSystem] {
            let images = machine::ImageListRequest { namespace: namespace.into() };
            all.extend(self.call("/machine.MachineService/ImageList", "", &images).await);
        }
        for server in ["/dev/../system/state/config.yaml", "/dev/null"] {
            let check = time::TimeRequest { server: server.to_owned() };
            all.extend(self.call("/time.TimeService/TimeCheck", server, &check).await);
        }
        for target in ["", "etcd", "kubelet", "cri", "apid", "trustd", "machined"] {
            let why = ichor_wire::ichor::node::WhyRequest { target: target.to_owned(), ..Default::default() };
            all.extend(self.call("/ichor.node.NodeService/Why", target, &why).await);
        }
        let config = machine::GenerateClientConfigurationRequest {
            roles: vec!["os:reader".to_owned()],
            ..Default::default()
        };
        // A new key of the caller's own is none of the cluster's; only administrators get one.
        let _ = self.call("/machine.MachineService/GenerateClientConfiguration", "", &config).await;
        all
    }

    /// The logs of services and of containers.
    async fn logs(&self) -> Vec<Found> {
        let mut all = Vec::new();
        let lists = self.call("/machine.MachineService/LogsContainers", "", &()).await;
        for list in lists.iter().flat_map(|found| messages::<machine::LogsContainersResponse>(&found.bytes)) {
            for id in list.messages.into_iter().flat_map(|message| message.ids) {
                all.extend(self.log("system", ContainerDriver::Containerd, &id).await);
            }
        }
        for (namespace, driver) in [
            ("system", ContainerDriver::Containerd),
            ("k8s.io", ContainerDriver::Cri),
            ("k8s.io", ContainerDriver::Containerd),
        ] {
            let request =
                machine::ContainersRequest { namespace: namespace.to_owned(), driver: driver.into() };
            let stats = machine::StatsRequest { namespace: namespace.to_owned(), driver: driver.into() };
            all.extend(self.call("/machine.MachineService/Stats", namespace, &stats).await);
            let found = self.call("/machine.MachineService/Containers", namespace, &request).await;
            let lists = found.iter().flat_map(|found| messages::<machine::ContainersResponse>(&found.bytes));
            let containers: Vec<_> =
                lists.flat_map(|list| list.messages).flat_map(|list| list.containers).collect();
            all.extend(found);
            for container in containers {
                all.extend(self.log(namespace, driver, &container.id).await);
            }
        }
        all
    }

    async fn log(&self, namespace: &str, driver: ContainerDriver, id: &str) -> Vec<Found> {
        let request = machine::LogsRequest {
            namespace: namespace.to_owned(),
            id: id.to_owned(),
            driver: driver.into(),
            follow: false,
            tail_lines: -1,
        };
        self.call("/machine.MachineService/Logs", id, &request).await
    }

    /// Names, sizes and links of files; and the files themselves, for those who may.
    pub(super) async fn files(&self) -> Vec<Found> {
        let mut all = Vec::new();
        for root in DIRECTORIES {
            let list = machine::ListRequest {
                root: root.to_owned(),
                recurse: true,
                report_xattrs: true,
                ..Default::default()
            };
            all.extend(self.call("/machine.MachineService/List", root, &list).await);
            let usage =
                machine::DiskUsageRequest { all: true, paths: vec![root.to_owned()], ..Default::default() };
            all.extend(self.call("/machine.MachineService/DiskUsage", root, &usage).await);
        }
        for root in SECRET_DIRECTORIES {
            let copy = machine::CopyRequest { root_path: root.to_owned() };
            for archive in self.call("/machine.MachineService/Copy", root, &copy).await {
                let parts = messages::<ichor_wire::common::Data>(&archive.bytes);
                let packed: Vec<u8> = parts.into_iter().flat_map(|part| part.bytes.to_vec()).collect();
                all.extend(unpack(root, &packed));
            }
        }
        let read = machine::ReadRequest { path: "/system/state/config.yaml".to_owned() };
        for file in self.call("/machine.MachineService/Read", "config.yaml", &read).await {
            let parts = messages::<ichor_wire::common::Data>(&file.bytes);
            let bytes = parts.into_iter().flat_map(|part| part.bytes.to_vec()).collect();
            all.push(Found { name: file.name, bytes });
        }
        all
    }

    /// What a call gives, its error included; nothing when it is refused at the door.
    async fn call(&self, path: &str, about: &str, request: &impl Message) -> Vec<Found> {
        let name = format!("{} {about}", path.rsplit('/').next().unwrap_or(path));
        let message = request.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0][..], &length, &message].concat();
        let request = Request::post(format!("https://machine{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let mut bytes = BytesMut::new();
        let mut words = String::new();
        let collect = async {
            let Ok(response) = self.channel.send(request).await else { return };
            let (head, mut body) = response.into_parts();
            words.push_str(&format!("{:?}", head.headers));
            while let Some(Ok(frame)) = body.frame().await {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                    if bytes.len() > ANSWER_MAX {
                        return;
                    }
                } else if let Some(trailers) = frame.trailers_ref() {
                    words.push_str(&format!("{trailers:?}"));
                }
            }
        };
        let limit =
            if path.ends_with("Copy") || path.ends_with("EtcdSnapshot") { 30 * CALL_MAX } else { CALL_MAX };
        // A stream that goes on has given what it has by then.
        let _ = tokio::time::timeout(limit, collect).await;
        if words.contains("\"grpc-status\": \"7\"") && bytes.is_empty() {
            return Vec::new();
        }
        let mut all = vec![Found { name: format!("{name}, headers"), bytes: words.into_bytes() }];
        if !bytes.is_empty() {
            all.push(Found { name, bytes: bytes.to_vec() });
        }
        all
    }
}

/// The messages in the body of an answer; headers are none.
fn messages<M: Message + Default>(mut body: &[u8]) -> Vec<M> {
    let mut found = Vec::new();
    while let Some((header, rest)) = body.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        found.extend(M::decode(message));
        body = rest;
    }
    found
}

/// The files of an archive.
fn unpack(root: &str, packed: &[u8]) -> Vec<Found> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    let Ok(entries) = archive.entries() else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|mut entry| {
            let name = format!("{root}/{}", entry.path().ok()?.display());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).ok()?;
            (!bytes.is_empty()).then_some(Found { name, bytes })
        })
        .collect()
}
