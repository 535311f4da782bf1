//! Follows an action on several machines at once and shows where each of them is.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Write as _, stderr};
use std::sync::Arc;

use ichor_client::track::{Plan, TrackError, follow};
use ichor_client::{Client, NodeError, status_text};
use ichor_wire::machine::DmesgRequest;
use tokio::sync::mpsc;
use tonic::Status;

use crate::explain;
use crate::failure::{Failure, chain};
use crate::session::{Session, errors_text};
use crate::term;

/// Messages between machines and terminal; a slow terminal slows the followers down.
const QUEUE: usize = 256;
/// Kernel log lines kept for a machine that fails.
const KERNEL_LINES: usize = 1000;

enum News {
    Says(String, String),
    Kernel(String, String),
    Done(String, Result<(), TrackError>),
}

/// Starts the action on every machine and follows each to its end.
pub async fn all<A, F>(session: &Session, plan: Plan, debug: bool, action: Arc<A>) -> Result<(), Failure>
where
    A: Fn(Client) -> F + Send + Sync + 'static,
    F: Future<Output = Result<String, Status>> + Send,
{
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    for node in &session.nodes {
        let (client, node, sender, action) =
            (session.node(node), node.clone(), sender.clone(), Arc::clone(&action));
        if debug {
            tokio::spawn(kernel_log(client.clone(), node.clone(), sender.clone()));
        }
        tokio::spawn(async move {
            let report = |text: &str| {
                // Progress may be dropped when the terminal is too slow; the result never is.
                let _ = sender.try_send(News::Says(node.clone(), text.to_owned()));
            };
            let result = follow(&client, plan, |client| action(client), report).await;
            let _ = sender.send(News::Done(node.clone(), result)).await;
        });
    }
    drop(sender);
    let mut screen = Screen::new(&session.nodes);
    let mut kernel: BTreeMap<String, VecDeque<String>> = BTreeMap::new();
    let mut open = session.nodes.len();
    let mut failed = false;
    while open > 0 {
        let Some(news) = receiver.recv().await else { break };
        match news {
            News::Says(node, text) => screen.show(&node, &text),
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
                    failed = true;
                    screen.show(&node, &format!("error: {}", chain(&error)));
                    screen.leave();
                    dump(&node, kernel.get(&node));
                }
            }
        }
    }
    screen.leave();
    if failed { Err(Failure::told()) } else { Ok(()) }
}

/// Starts the action on every machine and leaves it at that.
pub async fn start_only<A, F>(session: &Session, name: &str, action: A) -> Result<(), Failure>
where
    A: Fn(Client) -> F,
    F: Future<Output = Result<String, Status>>,
{
    let asks = session.each().iter().map(|node| {
        let ask = action(session.node(node));
        async move { (node, ask.await) }
    });
    let mut failed = Vec::new();
    for (node, answer) in futures_util::future::join_all(asks).await {
        if let Err(status) = answer {
            failed.push(NodeError {
                node: node.clone(),
                text: status_text(&status),
                code: Some(status.code()),
            });
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    if failed.len() == session.each().len() {
        return Err(explain::nodes(&format!("error executing {name}"), &failed));
    }
    term::red(&errors_text(&failed));
    Err(Failure::told())
}

fn dump(node: &str, lines: Option<&VecDeque<String>>) {
    let Some(lines) = lines else { return };
    eprintln!("kernel log of {node}:");
    for line in lines {
        eprintln!("    {}", line.trim_end());
    }
}

async fn kernel_log(client: Client, node: String, sender: mpsc::Sender<News>) {
    let Ok(stream) = client.machine().dmesg(DmesgRequest { follow: true, tail: true }).await else { return };
    let mut stream = stream.into_inner();
    while let Ok(Some(data)) = stream.message().await {
        let line = String::from_utf8_lossy(&data.bytes).into_owned();
        if sender.send(News::Kernel(node.clone(), line)).await.is_err() {
            return;
        }
    }
}

/// One line for each machine: redrawn in place on a terminal, printed on change elsewhere.
struct Screen {
    live: bool,
    nodes: Vec<String>,
    lines: BTreeMap<String, String>,
    drawn: usize,
}

impl Screen {
    fn new(nodes: &[String]) -> Self {
        Self { live: term::is_live(), nodes: nodes.to_vec(), lines: BTreeMap::new(), drawn: 0 }
    }

    fn show(&mut self, node: &str, text: &str) {
        if !self.live {
            eprintln!("{node:?}: {text}");
            return;
        }
        self.lines.insert(node.to_owned(), text.to_owned());
        let mut frame = String::new();
        if self.drawn > 0 {
            frame.push_str(&format!("\x1b[{}A\x1b[J", self.drawn));
        }
        frame.push_str(&format!("watching nodes: [{}]\n", self.nodes.join(" ")));
        for node in &self.nodes {
            let line = self.lines.get(node).map(String::as_str).unwrap_or_default();
            frame.push_str(&format!("    * {node}: {line}\n"));
        }
        self.drawn = self.nodes.len() + 1;
        let _ = stderr().write_all(frame.as_bytes());
    }

    /// What is drawn stays; the next frame starts below.
    fn leave(&mut self) {
        self.drawn = 0;
    }
}
