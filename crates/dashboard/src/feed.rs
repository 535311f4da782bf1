//! What the machines tell: watches and logs that run all the time, counters that are asked for now and then.
//!
//! Every task ends with the receiver of its updates, and begins anew after a pause when its stream breaks.

use std::time::Duration;

use ichor_client::json::from_yaml_text;
use ichor_client::lines::Lines;
use ichor_client::resources::{Query, yaml_of};
use ichor_client::{Client, split};
use ichor_wire::common::ContainerDriver;
use ichor_wire::cosi::resource::EventType;
use ichor_wire::machine::{DmesgRequest, LogsRequest};
use tokio::sync::mpsc::Sender;
use tokio::task::{AbortHandle, JoinSet};
use tonic::{Code, Status, Streaming};

use crate::history::Counters;
use crate::model::{News, Update, Watched};

/// Before a broken stream is begun anew.
const PAUSE: Duration = Duration::from_secs(5);
/// A machine that takes longer for its counters is left out this time.
const COUNTERS_MAX: Duration = Duration::from_secs(10);
/// Lines of a log asked for at its beginning.
const TAIL_LINES: i32 = 200;

/// The machines and the way to them.
#[derive(Clone)]
pub struct Feed {
    /// A client for each machine, in the order of the model.
    pub clients: Vec<Client>,
    /// Where updates go; a full queue slows the streams down.
    pub updates: Sender<Update>,
}

impl Feed {
    /// Starts the watches, the versions and the kernel logs of all machines.
    pub fn start(&self, tasks: &mut JoinSet<()>, watched: impl Iterator<Item = Watched> + Clone) {
        for node in 0..self.clients.len() {
            for watched in watched.clone() {
                tasks.spawn(self.clone().keep_watching(node, watched));
            }
            tasks.spawn(self.clone().version(node));
            self.log(tasks, node, "");
        }
    }

    /// Follows a log of a machine; none is the kernel's.
    pub fn log(&self, tasks: &mut JoinSet<()>, node: usize, log: &str) -> AbortHandle {
        tasks.spawn(self.clone().keep_following(node, log.to_owned()))
    }

    async fn keep_watching(self, node: usize, watched: Watched) {
        loop {
            match self.watch(node, watched).await {
                // The machine does not know that type, or does not tell: it will not change its mind.
                Err(status)
                    if matches!(
                        status.code(),
                        Code::NotFound | Code::PermissionDenied | Code::Unimplemented
                    ) =>
                {
                    return;
                }
                _ if self.updates.is_closed() => return,
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn watch(&self, node: usize, (namespace, kind, id): Watched) -> Result<(), Status> {
        let id = id.map(str::to_owned);
        let query = Query { namespace: namespace.to_owned(), resource_type: kind.to_owned(), id };
        let mut watch = self.clients[node].watch(&query).await?;
        self.send(node, News::Forget(kind)).await;
        while let Some(event) = watch.next().await? {
            let gone = match event.event_type() {
                EventType::Created | EventType::Updated => false,
                EventType::Destroyed => true,
                EventType::Bootstrapped | EventType::Errored | EventType::Noop => continue,
            };
            let Some(resource) = &event.resource else { continue };
            let Some(meta) = &resource.metadata else { continue };
            let spec = (!gone).then(|| from_yaml_text(yaml_of(resource)).unwrap_or_default());
            self.send(node, News::Resource(kind, meta.id.clone(), spec)).await;
        }
        Ok(())
    }

    async fn version(self, node: usize) {
        loop {
            if let Ok(reply) = self.clients[node].machine().version(()).await {
                let version =
                    reply.into_inner().messages.into_iter().next().and_then(|version| version.version);
                let tag = version.map(|version| version.tag).unwrap_or_default();
                return self.send(node, News::Version(tag)).await;
            }
            if self.updates.is_closed() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn keep_following(self, node: usize, log: String) {
        let mut first = true;
        loop {
            let ended = self.follow(node, &log, first).await;
            let hopeless = ended.is_err_and(|status| {
                matches!(status.code(), Code::NotFound | Code::PermissionDenied | Code::Unimplemented)
            });
            if hopeless || self.updates.is_closed() {
                return;
            }
            first = false;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self, node: usize, log: &str, from_start: bool) -> Result<(), Status> {
        let mut machine = self.clients[node].machine();
        let mut stream: Streaming<_> = if log.is_empty() {
            machine.dmesg(DmesgRequest { follow: true, tail: !from_start }).await?.into_inner()
        } else {
            let request = LogsRequest {
                namespace: "system".to_owned(),
                id: log.to_owned(),
                driver: ContainerDriver::Containerd.into(),
                follow: true,
                tail_lines: if from_start { TAIL_LINES } else { 0 },
            };
            machine.logs(request).await?.into_inner()
        };
        let mut lines = Lines::default();
        while let Some(data) = stream.message().await? {
            let mut whole = Vec::new();
            lines.push("", &data.bytes, |_, line| whole.push(String::from_utf8_lossy(line).into_owned()));
            if log.is_empty() {
                // Messages of the kernel log are lines already, with or without their end.
                lines.finish(|_, line| whole.push(String::from_utf8_lossy(line).into_owned()));
            }
            for line in whole {
                self.send(node, News::Line(log.to_owned(), line)).await;
            }
        }
        Ok(())
    }

    /// Asks one machine for its counters, and for its processes where they are shown.
    pub async fn look(&self, node: usize, at: f64, processes: bool) {
        let asked = tokio::time::timeout(COUNTERS_MAX, self.counters(node, at)).await;
        let trouble = match asked {
            Ok(Ok(counters)) => {
                self.send(node, News::Counters(Box::new(counters))).await;
                None
            }
            // A machine without configuration answers little, and that is no trouble.
            Ok(Err(status)) if status.code() == Code::Unimplemented => None,
            Ok(Err(status)) => Some(status.message().to_owned()),
            Err(_) => Some("does not answer".to_owned()),
        };
        self.send(node, News::Contact(trouble)).await;
        if processes {
            let reply = tokio::time::timeout(COUNTERS_MAX, self.clients[node].machine().processes(())).await;
            if let Ok(Ok(reply)) = reply {
                let lists = split(reply.into_inner().messages, "").ok;
                let processes = lists.into_iter().flat_map(|(_, list)| list.processes).collect();
                self.send(node, News::Processes(at, processes)).await;
            }
        }
    }

    async fn counters(&self, node: usize, at: f64) -> Result<Counters, Status> {
        let ask = || self.clients[node].machine();
        let (mut a, mut b, mut c, mut d, mut e) = (ask(), ask(), ask(), ask(), ask());
        let (stat, memory, load, network, disk) = tokio::join!(
            a.system_stat(()),
            b.memory(()),
            c.load_avg(()),
            d.network_device_stats(()),
            e.disk_stats(())
        );
        let stat = stat?.into_inner().messages.into_iter().next().unwrap_or_default();
        let memory = memory?.into_inner().messages.into_iter().next().unwrap_or_default();
        let load = load?.into_inner().messages.into_iter().next().unwrap_or_default();
        let network = network.map(|reply| reply.into_inner().messages.into_iter().next().unwrap_or_default());
        let disk = disk.map(|reply| reply.into_inner().messages.into_iter().next().unwrap_or_default());
        let network = network.unwrap_or_default();
        let disk = disk.unwrap_or_default().total.unwrap_or_default();
        // What a machine tells itself is no traffic.
        let outside = network.devices.iter().filter(|device| device.name != "lo");
        let traffic = outside.fold((0, 0), |(rx, tx), device| (rx + device.rx_bytes, tx + device.tx_bytes));
        Ok(Counters {
            at,
            cores: stat.cpu.len(),
            cpu: stat.cpu_total.unwrap_or_default(),
            boot_time: stat.boot_time,
            running: stat.process_running,
            memory: memory.meminfo.unwrap_or_default(),
            load: [load.load1, load.load5, load.load15],
            network: traffic,
            disk: (disk.read_sectors, disk.write_sectors),
        })
    }

    async fn send(&self, node: usize, news: News) {
        // Nobody listens any more: the dashboard is closing.
        let _ = self.updates.send(Update { node, news }).await;
    }
}
