//! Logs, kernel log and events as streams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use jiff::Timestamp;
use tonic::{Response, Status};

use ichor_observe::{LogManager, LogReader, LogRing, Start};
use ichor_sys::kmsg;
use ichor_wire::{common, machine};

use super::reply::{Replies, data, data_error, streaming};
use crate::events::{Events, Tail};
use crate::reactor;

/// Bytes of a log in one message.
const LOG_CHUNK: usize = 16 * 1024;

/// Log id of the kernel.
pub const KERNEL: &str = "kernel";

/// Whether the log of a service is meant, and not that of a container.
pub fn is_service(request: &machine::LogsRequest) -> bool {
    request.namespace == "system" || request.id == "kubelet"
}

/// Streams the log of a service.
pub fn logs(
    logs: &LogManager,
    request: &machine::LogsRequest,
) -> Result<Response<Replies<common::Data>>, Status> {
    let ring = logs.get(&request.id).map_err(|error| Status::unknown(error.to_string()))?;
    let start = match usize::try_from(request.tail_lines) {
        Ok(lines) => Start::TailLines(lines),
        Err(_) => Start::Oldest,
    };
    let reader = match request.follow {
        true => ring.follow(start),
        false => ring.reader(start),
    };
    Ok(streaming(stream::unfold(reader, |mut reader| async move {
        let bytes = reader.next(LOG_CHUNK).await?;
        Some((Ok(data(bytes)), reader))
    })))
}

/// Streams kernel messages, one record per message.
pub fn dmesg(
    own_kernel_log: bool,
    logs: &LogManager,
    request: machine::DmesgRequest,
) -> Result<Response<Replies<common::Data>>, Status> {
    if own_kernel_log {
        return kernel_records(request);
    }
    // The kernel log of a sandbox is the host's, neighbours included. What the node itself would
    // have written there is kept in a ring.
    let ring = logs.ring(KERNEL);
    Ok(streaming(ring_lines(&ring, request)))
}

fn ring_lines(
    ring: &Arc<LogRing>,
    request: machine::DmesgRequest,
) -> impl futures_util::Stream<Item = Result<common::Data, Status>> + Send + use<> {
    let start = if request.tail { Start::End } else { Start::Oldest };
    let reader = if request.follow { ring.follow(start) } else { ring.reader(start) };
    stream::unfold(Lines { reader, partial: Vec::new(), ready: VecDeque::new() }, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok(data(line)), lines))
    })
}

/// Cuts a log into lines.
struct Lines {
    reader: LogReader,
    partial: Vec<u8>,
    ready: VecDeque<Bytes>,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            let Some(bytes) = self.reader.next(LOG_CHUNK).await else {
                let rest = std::mem::take(&mut self.partial);
                return (!rest.is_empty()).then(|| rest.into());
            };
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                self.partial.extend_from_slice(piece);
                if piece.ends_with(b"\n") {
                    self.ready.push_back(std::mem::take(&mut self.partial).into());
                }
            }
        }
    }
}

fn kernel_records(request: machine::DmesgRequest) -> Result<Response<Replies<common::Data>>, Status> {
    let start = if request.tail { kmsg::Start::End } else { kmsg::Start::Oldest };
    let reader = kmsg::Reader::open(start)
        .map_err(|error| Status::unknown(format!("open the kernel log: {error}")))?;
    let ready = reactor::readable(&reader)
        .map_err(|error| Status::unknown(format!("watch the kernel log: {error}")))?;
    let boot = boot_time();
    let follow = request.follow;
    Ok(streaming(stream::unfold(Some((reader, ready)), move |open| async move {
        let (mut reader, ready) = open?;
        loop {
            match reader.try_next() {
                Ok(Some(record)) => {
                    return Some((Ok(data(format_record(&record, boot))), Some((reader, ready))));
                }
                Ok(None) if !follow => return None,
                Ok(None) => match ready.readable().await {
                    Ok(mut guard) => guard.clear_ready(),
                    Err(error) => return Some((Ok(data_error(error.to_string())), None)),
                },
                Err(error) => return Some((Ok(data_error(error.to_string())), None)),
            }
        }
    })))
}

/// When the kernel's clock began.
pub fn boot_time() -> Timestamp {
    let up = ichor_sys::host::uptime();
    Timestamp::now().checked_sub(up).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// One record as the API shows it, with its newline.
pub fn format_record(record: &kmsg::Record, boot: Timestamp) -> String {
    let at = boot.checked_add(record.clock).unwrap_or(boot);
    format!("{}: {:>7}: [{at}]: {}\n", record.facility_name(), record.priority_name(), record.message)
}

/// Streams events: hello, history, then what comes.
pub fn events(
    events: &Events,
    request: &machine::EventsRequest,
) -> Result<Response<Replies<machine::Event>>, Status> {
    let tail = Tail::from_request(request).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let actor = request.with_actor_id.as_str();
    let hello = events.hello(actor);
    let watch = events.watch(&tail, Some(actor));
    Ok(streaming(stream::unfold((Some(hello), watch), |(hello, mut watch)| async move {
        match hello {
            Some(hello) => Some((Ok(hello), (None, watch))),
            None => {
                let event = watch.next().await?;
                Some((Ok(event.encode()), (None, watch)))
            }
        }
    })))
}

/// Copies the kernel's own records into the ring `kernel`, for as long as the node runs.
pub async fn keep_kernel_log(ring: Arc<LogRing>) {
    /// Records taken before others get a turn.
    const BURST: usize = 64;
    let opened = kmsg::Reader::open(kmsg::Start::Oldest).and_then(|reader| {
        let ready = reactor::readable(&reader)?;
        Ok((reader, ready))
    });
    let Ok((mut reader, ready)) = opened else { return };
    let boot = boot_time();
    loop {
        for _ in 0..BURST {
            match reader.try_next() {
                Ok(Some(record)) => ring.write(format_record(&record, boot).as_bytes()),
                Ok(None) => match ready.readable().await {
                    Ok(mut guard) => guard.clear_ready(),
                    Err(_) => return,
                },
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    async fn text(response: Response<Replies<common::Data>>) -> Vec<String> {
        response
            .into_inner()
            .map(|part| String::from_utf8(part.unwrap().bytes.to_vec()).unwrap())
            .collect()
            .await
    }

    fn request(id: &str, tail_lines: i32) -> machine::LogsRequest {
        machine::LogsRequest {
            namespace: "system".into(),
            id: id.into(),
            tail_lines,
            ..machine::LogsRequest::default()
        }
    }

    #[tokio::test]
    async fn a_service_log_is_streamed_whole_or_from_its_tail() {
        let manager = LogManager::new();
        manager.ring("apid").write(b"one\ntwo\n");
        assert_eq!(text(logs(&manager, &request("apid", -1)).unwrap()).await, ["one\ntwo\n"]);
        assert_eq!(text(logs(&manager, &request("apid", 1)).unwrap()).await, ["two\n"]);
        let error = logs(&manager, &request("nope", -1)).err().unwrap();
        assert_eq!(error.message(), "log \"nope\" was not registered");
    }

    #[test]
    fn logs_of_services_and_containers_are_told_apart() {
        assert!(is_service(&request("apid", -1)));
        let kubernetes = |id: &str| machine::LogsRequest { namespace: "k8s.io".into(), ..request(id, -1) };
        assert!(is_service(&kubernetes("kubelet")) && !is_service(&kubernetes("kube-system/p:c")));
    }

    #[tokio::test]
    async fn kernel_lines_come_one_per_message() {
        let manager = LogManager::new();
        manager.ring(KERNEL).write(b"first\nsecond\nhalf");
        let lines = text(dmesg(false, &manager, machine::DmesgRequest::default()).unwrap()).await;
        assert_eq!(lines, ["first\n", "second\n", "half"]);
        let tail = machine::DmesgRequest { follow: false, tail: true };
        assert!(text(dmesg(false, &manager, tail).unwrap()).await.is_empty());
    }

    #[test]
    fn a_record_is_formatted_as_clients_expect() {
        let record = kmsg::Record::parse(b"6,1,1500000,-;hello world\n").unwrap();
        let boot = Timestamp::from_second(1_700_000_000).unwrap();
        assert_eq!(format_record(&record, boot), "kern:    info: [2023-11-14T22:13:21.5Z]: hello world\n");
    }

    #[tokio::test]
    async fn events_begin_with_hello_and_history() {
        let ring = Events::default();
        ring.publish(machine::RestartEvent { cmd: 1 });
        let request = machine::EventsRequest { tail_events: -1, ..machine::EventsRequest::default() };
        let mut stream = events(&ring, &request).unwrap().into_inner();
        let hello = stream.next().await.unwrap().unwrap();
        assert_eq!(hello.data, Some(prost_types::Any::default()));
        let event = stream.next().await.unwrap().unwrap();
        assert_eq!(event.data.unwrap().type_url, "talos/runtime/machine.RestartEvent");
    }
}
