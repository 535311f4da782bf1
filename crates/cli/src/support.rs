//! What a support archive holds of one machine, and how each part is obtained.

use std::collections::BTreeMap;

use ichor_client::resources::Query;
use ichor_client::{Client, sort, status_text};
use ichor_wire::common::{ContainerDriver, Data};
use ichor_wire::cosi::resource::Resource;
use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use ichor_wire::cosi::resource::meta::resource_definition_spec::Sensitivity;
use ichor_wire::machine::{ContainersRequest, DmesgRequest, LogsRequest, ReadRequest};
use jiff::Timestamp;
use tonic::{Response, Status, Streaming};

use crate::cmd::{inspect, mounts, service, version};
use crate::explain;
use crate::failure::Failure;
use crate::output::resource;
use crate::session::Session;
use crate::tabs::Table;
use crate::{identity, text};

/// The most one part may take.
const PART_MAX: usize = 64 * 1024 * 1024;

/// One file of the archive.
pub enum Collector {
    /// The kernel log.
    Dmesg,
    /// The log of a service.
    Log {
        /// Where it goes in the archive.
        file: String,
        /// The log's id.
        id: String,
        /// In the containers of Kubernetes.
        kubernetes: bool,
    },
    /// The graph of controllers and resources.
    Dependencies,
    /// Mounted filesystems.
    Mounts,
    /// PCI devices.
    Devices,
    /// Counters of disks.
    Io,
    /// Running processes.
    Processes,
    /// Versions here and there.
    Summary,
    /// All resources of a type.
    Resources(Box<ResourceDefinitionSpec>),
    /// The state of a service.
    State(String),
}

/// Everything there is to collect of a machine, and what could not even be listed.
pub async fn collectors(client: &Client, session: &Session) -> (Vec<Collector>, Vec<String>) {
    let mut errors = Vec::new();
    let log = |id: &str| Collector::Log { file: format!("{id}.log"), id: id.to_owned(), kubernetes: false };
    let mut list = vec![
        Collector::Dmesg,
        log("controller-runtime"),
        log("dns-resolve-cache"),
        Collector::Dependencies,
        Collector::Mounts,
        Collector::Devices,
        Collector::Io,
        Collector::Processes,
        Collector::Summary,
    ];
    match client.definitions().await {
        Ok((_, definitions)) => {
            list.extend(definitions.iter().map(|spec| Collector::Resources(Box::new(spec.clone()))));
        }
        Err(status) => errors.push(format!("resources: {}", status_text(&status))),
    }
    let request = ContainersRequest { namespace: "k8s.io".into(), driver: ContainerDriver::Cri.into() };
    match client.machine().containers(request).await {
        Ok(reply) => {
            for container in reply.into_inner().messages.into_iter().flat_map(|reply| reply.containers) {
                let Some(pod) = container.pod_id.strip_prefix("kube-system/") else { continue };
                if container.status == "SANDBOX_READY" {
                    continue;
                }
                let exited = if container.pid == 0 { "-exited" } else { "" };
                let file = format!("kubernetes-logs/kube-system/{pod}{exited}.log");
                list.push(Collector::Log { file, id: container.id, kubernetes: true });
            }
        }
        Err(status) => errors.push(format!("kubernetes-logs: {}", status_text(&status))),
    }
    match client.machine().service_list(()).await {
        Ok(reply) => {
            let replies = ichor_client::split(reply.into_inner().messages, &session.label).ok;
            for found in replies.into_iter().flat_map(|(_, reply)| reply.services) {
                let file = format!("service-logs/{}.log", found.id);
                list.push(Collector::Log { file, id: found.id.clone(), kubernetes: false });
                list.push(Collector::State(found.id));
            }
        }
        Err(status) => errors.push(format!("service-logs: {}", status_text(&status))),
    }
    (list, errors)
}

impl Collector {
    /// The name of the file, below the machine's directory.
    pub fn name(&self) -> String {
        match self {
            Self::Dmesg => "dmesg.log".to_owned(),
            Self::Log { file, .. } => file.clone(),
            Self::Dependencies => "dependencies.dot".to_owned(),
            Self::Mounts => "mounts".to_owned(),
            Self::Devices => "devices".to_owned(),
            Self::Io => "io".to_owned(),
            Self::Processes => "processes".to_owned(),
            Self::Summary => "summary".to_owned(),
            Self::Resources(spec) => format!("resources/{}.yaml", spec.resource_type.to_lowercase()),
            Self::State(id) => format!("service-logs/{id}.state"),
        }
    }

    /// Obtains the content.
    pub async fn run(&self, session: &Session, client: &Client) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Dmesg => {
                let request = DmesgRequest { follow: false, tail: false };
                drain(session, client.machine().dmesg(request).await).await
            }
            Self::Log { id, kubernetes, .. } => {
                let (namespace, driver) = match kubernetes {
                    true => ("k8s.io", ContainerDriver::Cri),
                    false => ("system", ContainerDriver::Containerd),
                };
                let request = LogsRequest {
                    namespace: namespace.to_owned(),
                    id: id.clone(),
                    driver: driver.into(),
                    follow: false,
                    tail_lines: -1,
                };
                drain(session, client.machine().logs(request).await).await
            }
            Self::Dependencies => {
                let edges = inspect::edges(session, client).await?;
                let mut kinds: BTreeMap<String, Vec<Resource>> = BTreeMap::new();
                let (_, definitions) = client.definitions().await.map_err(plain)?;
                for edge in &edges {
                    let Ok(definition) = definitions.resolve(&edge.resource_type) else { continue };
                    if let Ok(found) = client.list(&all_of(definition)).await {
                        kinds.insert(edge.resource_type.clone(), found);
                    }
                }
                Ok(inspect::graph_with_resources(&edges, &kinds).into_bytes())
            }
            Self::Mounts => {
                let reply = client.machine().mounts(()).await.map_err(plain)?.into_inner();
                let replies = session.gather("error getting mounts", Ok(reply.messages))?;
                Ok(without_first_column(&mounts::table_text(&replies)).into_bytes())
            }
            Self::Devices => {
                let request = ReadRequest { path: "/proc/bus/pci/devices".to_owned() };
                drain(session, client.machine().read(request).await).await
            }
            Self::Io => {
                let reply = client.machine().disk_stats(()).await.map_err(plain)?.into_inner();
                let mut table = Table::with_header([
                    "NAME",
                    "IO_TIME",
                    "IO_TIME_WEIGHTED",
                    "DISK_WRITE_SECTORS",
                    "DISK_READ_SECTORS",
                ]);
                for stat in reply.messages.into_iter().flat_map(|reply| reply.devices) {
                    let numbers =
                        [stat.io_time_ms, stat.io_time_weighted_ms, stat.write_sectors, stat.read_sectors];
                    table.row([stat.name].into_iter().chain(numbers.map(|number| number.to_string())));
                }
                Ok(table.take().into_bytes())
            }
            Self::Processes => self.processes(client).await,
            Self::Summary => {
                let reply = client.machine().version(()).await.map_err(plain)?.into_inner();
                let mut out = version::client_text(&identity::version(), false);
                out.push_str("Server:\n");
                for found in reply.messages {
                    out.push_str(&version::info_text(&found.version.unwrap_or_default()));
                }
                Ok(out.into_bytes())
            }
            Self::Resources(spec) => {
                let found = client.list(&all_of(spec)).await.map_err(plain)?;
                let secret = spec.sensitivity() == Sensitivity::Sensitive;
                Ok(resource::bare_documents(&found, secret).into_bytes())
            }
            Self::State(id) => {
                let reply = client.machine().service_list(()).await.map_err(plain)?.into_inner();
                let lists = session.gather("error listing services", Ok(reply.messages))?;
                let detail = service::detail_text(&lists, id, Timestamp::now());
                // The first line names the machine, which the directory does already.
                Ok(detail.split_once('\n').map_or("", |(_, rest)| rest).as_bytes().to_vec())
            }
        }
    }

    async fn processes(&self, client: &Client) -> Result<Vec<u8>, Failure> {
        let reply = client.machine().processes(()).await.map_err(plain)?.into_inner();
        let mut table =
            Table::with_header(["PID", "STATE", "THREADS", "CPU-TIME", "VIRTMEM", "RESMEM", "COMMAND"]);
        for process in reply.messages.into_iter().flat_map(|reply| reply.processes) {
            table.row([
                format!("{:6}", process.pid),
                process.state.clone(),
                format!("{:4}", process.threads),
                format!("{:8.2}", process.cpu_time),
                format!("{:>7}", text::bytes(process.virtual_memory)),
                format!("{:>7}", text::bytes(process.resident_memory)),
                crate::cmd::processes::command_line(&process),
            ]);
        }
        Ok(table.take().into_bytes())
    }
}

fn all_of(spec: &ResourceDefinitionSpec) -> Query {
    Query { namespace: spec.default_namespace.clone(), resource_type: spec.resource_type.clone(), id: None }
}

fn plain(status: Status) -> Failure {
    Failure::new(status_text(&status))
}

/// Drops the column of the machine's name.
fn without_first_column(table: &str) -> String {
    let width = table.lines().next().unwrap_or_default().find("FILESYSTEM").unwrap_or_default();
    table.lines().map(|line| format!("{}\n", line.get(width..).unwrap_or_default())).collect()
}

/// Everything a stream brings, up to a bound.
async fn drain(
    session: &Session,
    stream: Result<Response<Streaming<Data>>, Status>,
) -> Result<Vec<u8>, Failure> {
    let mut stream = stream.map_err(plain)?.into_inner();
    let mut content = Vec::new();
    while let Some(message) = stream.message().await.map_err(plain)? {
        let (_, data) = sort(message, &session.label)
            .map_err(|error| explain::nodes("error reading", std::slice::from_ref(&error)))?;
        content.extend_from_slice(&data.bytes);
        if content.len() > PART_MAX {
            break;
        }
    }
    Ok(content)
}
