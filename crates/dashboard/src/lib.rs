//! The dashboard: machines on the whole screen, live. `ichorctl dashboard` shows several of them, the console of a
//! machine itself.
//!
//! [`model`] holds what is known and what keys do, [`view`] draws it; both are pure. [`feed`] listens to the
//! machines, [`run()`] brings them together with keys and a [`Screen`]. [`console`] is the program of a machine's own
//! console. Nothing is drawn more than once a second unless a key asks for it.

pub mod code;
pub mod console;
pub mod feed;
pub mod form;
pub mod history;
pub mod keys;
pub mod model;
pub mod view;

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ichor_client::Client;
use ichor_wire::machine::{MetaDeleteRequest, MetaWriteRequest};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyEvent;
use ratatui::layout::Rect;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tonic::{Code, Status};

use self::feed::Feed;
use self::model::{Model, Page, Reaction};

/// The shortest time between two drawings that no key asked for.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// Updates that wait to be taken in; streams wait when it is full.
const QUEUE: usize = 512;
/// A machine that takes longer to keep a configuration has not kept it.
const SAVE_MAX: Duration = Duration::from_secs(5);

/// Where the dashboard is drawn.
pub trait Screen {
    /// Draws a frame.
    ///
    /// # Errors
    /// When the screen is gone.
    fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()>;
}

/// What comes from the keyboard and the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
}

/// Shows the machines of the model, each with its client, until somebody leaves or input ends.
///
/// # Errors
/// When the screen or the input is gone.
pub async fn run(
    model: Model,
    clients: Vec<Client>,
    every: Duration,
    mut inputs: mpsc::Receiver<io::Result<Input>>,
    screen: &mut impl Screen,
) -> io::Result<()> {
    let (updates, mut inbox) = mpsc::channel(QUEUE);
    let feed = Feed { clients, updates };
    let mut tasks = JoinSet::new();
    feed.start(&mut tasks, model.watched());
    let mut state = State {
        model,
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
            input = inputs.recv() => match state.react(input.transpose()?) {
                Reaction::Quit => return Ok(()),
                Reaction::Nothing => {}
                Reaction::Draw => state.draw(screen)?,
                Reaction::Save => {
                    state.save().await;
                    state.draw(screen)?;
                }
                Reaction::Look => {
                    state.look_at_current(&mut tasks);
                    state.draw(screen)?;
                }
            },
            _ = ticks.tick() => state.look_at_all(),
            () = tokio::time::sleep_until(next), if state.dirty => state.draw(screen)?,
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
    /// What an input asks for; without any more of it there is nothing left to do.
    fn react(&mut self, input: Option<Input>) -> Reaction {
        match input {
            None => Reaction::Quit,
            Some(Input::Key(key)) => self.model.press(key),
            Some(Input::Resized) => Reaction::Draw,
        }
    }

    fn draw(&mut self, screen: &mut impl Screen) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        screen.draw(|area, buffer| view::draw(&self.model, area, buffer, now))?;
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

    /// Hands the machine what the open form holds.
    async fn save(&mut self) {
        let client = &self.feed.clients[self.model.current];
        if let Some(form) = &mut self.model.form {
            form.message = match form.configuration() {
                Err(mistake) => mistake,
                Ok(text) => match write(client, form::META_KEY, text).await {
                    Ok(()) => "saved in META; a metal machine uses it from now on".to_owned(),
                    Err(reason) => reason,
                },
            };
        }
        if let Some(form) = &mut self.model.code {
            form.message = match form.value() {
                Err(mistake) => mistake,
                Ok("") => match delete(client, code::META_KEY).await {
                    Ok(()) => "the code is deleted".to_owned(),
                    Err(reason) => reason,
                },
                Ok(text) => match write(client, code::META_KEY, text.to_owned()).await {
                    Ok(()) => "saved in META; the next download uses it".to_owned(),
                    Err(reason) => reason,
                },
            };
        }
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

async fn write(client: &Client, key: u32, text: String) -> Result<(), String> {
    let mut machine = client.machine();
    let request = MetaWriteRequest { key, value: text.into_bytes() };
    kept(tokio::time::timeout(SAVE_MAX, machine.meta_write(request)).await)
}

async fn delete(client: &Client, key: u32) -> Result<(), String> {
    let mut machine = client.machine();
    match tokio::time::timeout(SAVE_MAX, machine.meta_delete(MetaDeleteRequest { key })).await {
        // What is not there need not be deleted.
        Ok(Err(status)) if status.code() == Code::NotFound => Ok(()),
        answer => kept(answer),
    }
}

fn kept<T>(answer: Result<Result<T, Status>, tokio::time::error::Elapsed>) -> Result<(), String> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(format!("not saved: {}", status.message())),
        Err(_) => Err("not saved: the machine does not answer".to_owned()),
    }
}
