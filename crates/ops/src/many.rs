//! One action on many machines at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ichor_client::track::{Plan, TrackError, follow as track};
use ichor_client::{Client, NodeError, status_text};
use ichor_wire::machine::DmesgRequest;
use tokio::sync::mpsc;
use tonic::Status;

use crate::event::Sink;

/// Messages between machines and the sink; a slow sink slows the followers down.
const QUEUE: usize = 256;
/// Kernel log lines kept for a machine that fails.
const KERNEL_LINES: usize = 1000;

/// What becomes of an action on one of the machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A machine is at this point.
    Progress {
        /// The machine.
        node: String,
        /// Where it is.
        text: String,
    },
    /// The action failed on a machine.
    Failed {
        /// The machine.
        node: String,
        /// Why.
        error: String,
        /// The end of its kernel log, where that was asked for.
        kernel_log: Vec<String>,
    },
}

enum News {
    Progress(String, String),
    Kernel(String, String),
    Done(String, Result<(), TrackError>),
}

/// Starts the action on every machine and follows each to its end. Returns the machines on which it failed.
pub async fn follow<A, F>(
    machines: Vec<(String, Client)>,
    plan: Plan,
    kernel_log: bool,
    action: A,
    events: &dyn Sink<Event>,
) -> Vec<String>
where
    A: Fn(Client) -> F + Send + Sync + 'static,
    F: Future<Output = Result<String, Status>> + Send,
{
    let action = Arc::new(action);
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let mut open = machines.len();
    for (node, client) in machines {
        let (sender, action) = (sender.clone(), Arc::clone(&action));
        if kernel_log {
            tokio::spawn(kernel_lines(client.clone(), node.clone(), sender.clone()));
        }
        tokio::spawn(async move {
            let report = |text: &str| {
                // Progress may be dropped when the sink is too slow; the result never is.
                let _ = sender.try_send(News::Progress(node.clone(), text.to_owned()));
            };
            let result = track(&client, plan, |client| action(client), report).await;
            let _ = sender.send(News::Done(node.clone(), result)).await;
        });
    }
    drop(sender);
    let mut kernel: BTreeMap<String, VecDeque<String>> = BTreeMap::new();
    let mut failed = Vec::new();
    while open > 0 {
        let Some(news) = receiver.recv().await else { break };
        match news {
            News::Progress(node, text) => events.emit(Event::Progress { node, text }),
            News::Kernel(node, line) => {
                let lines = kernel.entry(node).or_default();
                if lines.len() == KERNEL_LINES {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
            News::Done(node, result) => {
                open -= 1;
                if let Err(error) = result {
                    let kernel_log = kernel.remove(&node).unwrap_or_default().into();
                    let error = ichor_health::kube::text_of(&error);
                    events.emit(Event::Failed { node: node.clone(), error, kernel_log });
                    failed.push(node);
                }
            }
        }
    }
    failed
}

/// Starts the action on every machine and leaves it at that. Returns the errors of machines that refused.
pub async fn start<A, F>(machines: Vec<(String, Client)>, action: A) -> Vec<NodeError>
where
    A: Fn(Client) -> F,
    F: Future<Output = Result<String, Status>>,
{
    let asks = machines.into_iter().map(|(node, client)| {
        let ask = action(client);
        async move { (node, ask.await) }
    });
    let answers = futures_util::future::join_all(asks).await;
    let failed = answers.into_iter().filter_map(|(node, answer)| Some((node, answer.err()?)));
    failed
        .map(|(node, status)| NodeError { node, text: status_text(&status), code: Some(status.code()) })
        .collect()
}

async fn kernel_lines(client: Client, node: String, sender: mpsc::Sender<News>) {
    let Ok(stream) = client.machine().dmesg(DmesgRequest { follow: true, tail: true }).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(data)) = stream.message().await {
        let line = String::from_utf8_lossy(&data.bytes).into_owned();
        if sender.send(News::Kernel(node.clone(), line)).await.is_err() {
            return;
        }
    }
}
