//! The dashboard: several machines on the whole screen, live.
//!
//! [`model`] holds what is known and what keys do, [`view`] draws it; both are pure. [`feed`] listens to the
//! machines, [`terminal`] has the terminal. Nothing is drawn more than once a second unless a key asks for it.

pub mod feed;
pub mod form;
pub mod history;
pub mod model;
pub mod terminal;
pub mod view;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use ichor_wire::machine::MetaWriteRequest;
use ratatui::crossterm::event::{Event, EventStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use self::feed::Feed;
use self::model::{Model, Page, Reaction};
use self::terminal::Terminal;
use crate::failure::{Context as _, Failure};
use crate::session::Session;

/// The shortest time between two drawings that no key asked for.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// Updates that wait to be taken in; streams wait when it is full.
const QUEUE: usize = 512;
/// A machine that takes longer to keep a configuration has not kept it.
const SAVE_MAX: Duration = Duration::from_secs(5);

/// Shows the machines of the session until somebody leaves.
pub async fn run(session: &Session, every: Duration) -> Result<(), Failure> {
    let mut terminal = Terminal::open().plain()?;
    let mut events = EventStream::new();
    let (updates, mut inbox) = mpsc::channel(QUEUE);
    let nodes = session.each().to_vec();
    let feed = Feed { clients: nodes.iter().map(|node| session.node(node)).collect(), updates };
    let mut tasks = JoinSet::new();
    feed.start(&mut tasks);
    let mut state = State {
        model: Model::new(&nodes),
        feed,
        drawn: None,
        dirty: true,
        started: Instant::now(),
        looks: JoinSet::new(),
        service_log: None,
    };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = state.drawn.map_or_else(Instant::now, |drawn| drawn + DRAW_EVERY);
        tokio::select! {
            update = inbox.recv() => {
                let mut update = update;
                // Whatever has arrived makes one drawing.
                while let Some(one) = update {
                    state.dirty |= state.model.apply(one);
                    update = inbox.try_recv().ok();
                }
            }
            event = events.next() => match state.react(event.transpose().plain()?) {
                Reaction::Quit => return Ok(()),
                Reaction::Nothing => {}
                Reaction::Draw => state.draw(&mut terminal).plain()?,
                Reaction::Save => {
                    state.save().await;
                    state.draw(&mut terminal).plain()?;
                }
                Reaction::Look => {
                    state.look_at_current(&mut tasks);
                    state.draw(&mut terminal).plain()?;
                }
            },
            _ = ticks.tick() => state.look_at_all(),
            () = tokio::time::sleep_until(next), if state.dirty => state.draw(&mut terminal).plain()?,
        }
    }
}

struct State {
    model: Model,
    feed: Feed,
    drawn: Option<Instant>,
    dirty: bool,
    started: Instant,
    looks: JoinSet<()>,
    service_log: Option<AbortHandle>,
}

impl State {
    /// What an event of the terminal asks for; without a terminal there is nothing left to do.
    fn react(&mut self, event: Option<Event>) -> Reaction {
        match event {
            None => Reaction::Quit,
            Some(Event::Key(key)) => self.model.press(key),
            Some(Event::Resize(..)) => Reaction::Draw,
            Some(_) => Reaction::Nothing,
        }
    }

    fn draw(&mut self, terminal: &mut Terminal) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        terminal.draw(|area, buffer| view::draw(&self.model, area, buffer, now))?;
        self.drawn = Some(Instant::now());
        self.dirty = false;
        Ok(())
    }

    /// Asks all machines for their counters, unless the last round is still under way.
    fn look_at_all(&mut self) {
        while self.looks.try_join_next().is_some() {}
        if !self.looks.is_empty() || self.model.paused {
            return;
        }
        for node in 0..self.feed.clients.len() {
            self.look(node);
        }
    }

    /// Hands the machine what the form holds.
    async fn save(&mut self) {
        let client = &self.feed.clients[self.model.current];
        let Some(form) = &mut self.model.form else { return };
        form.message = match form.configuration() {
            Err(mistake) => mistake,
            Ok(text) => {
                let request = MetaWriteRequest { key: form::META_KEY, value: text.into_bytes() };
                let saved = tokio::time::timeout(SAVE_MAX, client.machine().meta_write(request)).await;
                match saved {
                    Ok(Ok(_)) => "saved in META; a metal machine uses it from now on".to_owned(),
                    Ok(Err(status)) => format!("not saved: {}", status.message()),
                    Err(_) => "not saved: the machine does not answer".to_owned(),
                }
            }
        };
    }

    fn look(&mut self, node: usize) {
        let at = self.started.elapsed().as_secs_f64();
        let processes = self.model.page == Page::Monitor && node == self.model.current;
        let feed = self.feed.clone();
        self.looks.spawn(async move { feed.look(node, at, processes).await });
    }

    /// Gets what the page and machine that are shown now need.
    fn look_at_current(&mut self, tasks: &mut JoinSet<()>) {
        let node = self.model.current;
        if self.model.page == Page::Monitor {
            self.look(node);
        }
        if self.model.page == Page::Logs {
            if let Some(running) = self.service_log.take() {
                running.abort();
            }
            let log = self.model.log.clone();
            // The kernel's log is always followed.
            if !log.is_empty() {
                self.model.forget_log(node, &log);
                self.service_log = Some(self.feed.log(tasks, node, &log));
            }
        }
    }
}
