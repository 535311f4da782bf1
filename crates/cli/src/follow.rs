//! Shows an action on several machines at once, and where each of them is.

use std::collections::BTreeMap;
use std::io::{Write as _, stderr};
use std::sync::{Mutex, PoisonError};

use ichor_client::Client;
use ichor_client::track::Plan;
use ichor_ops::Sink;
use ichor_ops::many::{self, Event};
use tonic::Status;

use crate::explain;
use crate::failure::Failure;
use crate::session::{Session, errors_text};
use crate::term;

/// Starts the action on every machine and follows each to its end.
pub async fn all<A, F>(session: &Session, plan: Plan, debug: bool, action: A) -> Result<(), Failure>
where
    A: Fn(Client) -> F + Send + Sync + 'static,
    F: Future<Output = Result<String, Status>> + Send,
{
    let machines = session.nodes.iter().map(|node| (node.clone(), session.node(node))).collect();
    let screen = Screen(Mutex::new(Frame::new(&session.nodes)));
    let failed = many::follow(machines, plan, debug, action, &screen).await;
    if failed.is_empty() { Ok(()) } else { Err(Failure::told()) }
}

/// Starts the action on every machine and leaves it at that.
pub async fn start_only<A, F>(session: &Session, name: &str, action: A) -> Result<(), Failure>
where
    A: Fn(Client) -> F,
    F: Future<Output = Result<String, Status>>,
{
    let machines = session.each().iter().map(|node| (node.clone(), session.node(node))).collect();
    let failed = many::start(machines, action).await;
    if failed.is_empty() {
        return Ok(());
    }
    if failed.len() == session.each().len() {
        return Err(explain::nodes(&format!("error executing {name}"), &failed));
    }
    term::red(&errors_text(&failed));
    Err(Failure::told())
}

/// One line for each machine: redrawn in place on a terminal, printed on change elsewhere.
struct Screen(Mutex<Frame>);

struct Frame {
    live: bool,
    nodes: Vec<String>,
    lines: BTreeMap<String, String>,
    drawn: usize,
}

impl Sink<Event> for Screen {
    fn emit(&self, event: Event) {
        let mut screen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Progress { node, text } => screen.show(&node, &text),
            Event::Failed { node, error, kernel_log } => {
                screen.show(&node, &format!("error: {error}"));
                // What is drawn stays; the next frame starts below.
                screen.drawn = 0;
                if !kernel_log.is_empty() {
                    eprintln!("kernel log of {node}:");
                    kernel_log.iter().for_each(|line| eprintln!("    {}", line.trim_end()));
                }
            }
        }
    }
}

impl Frame {
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
}
