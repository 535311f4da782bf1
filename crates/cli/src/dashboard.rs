//! The dashboard on the terminal that ichorctl runs in.

mod terminal;

use std::time::Duration;

use futures_util::StreamExt as _;
use ichor_dashboard::Input;
use ichor_dashboard::model::Model;
use ratatui::crossterm::event::{Event, EventStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::terminal::Terminal;
use crate::failure::{Context as _, Failure};
use crate::session::Session;

/// Keys that wait to be taken in.
const KEYS: usize = 64;

/// Shows the machines of the session until somebody leaves.
pub async fn run(session: &Session, every: Duration) -> Result<(), Failure> {
    let mut terminal = Terminal::open().plain()?;
    let (sender, inputs) = mpsc::channel(KEYS);
    // Reading ends with this function.
    let mut reading = JoinSet::new();
    reading.spawn(async move {
        let mut events = EventStream::new();
        while let Some(event) = events.next().await {
            let input = match event {
                Ok(Event::Key(key)) => Ok(Input::Key(key)),
                Ok(Event::Resize(..)) => Ok(Input::Resized),
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            if sender.send(input).await.is_err() {
                return;
            }
        }
    });
    let nodes = session.each().to_vec();
    let clients = nodes.iter().map(|node| session.node(node)).collect();
    ichor_dashboard::run(Model::new(&nodes), clients, every, inputs, &mut terminal).await.plain()
}
