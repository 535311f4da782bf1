//! Shows the life of a cluster: one step after the other, and how long each part took.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ichor_ops::Sink;
use ichor_ops::cluster::{Event, Step};

use crate::failure::Failure;
use crate::tabs::Table;
use crate::term::{self, Progress};

/// Renders events on standard error and keeps the times.
#[derive(Default)]
pub(super) struct Screen(Mutex<State>);

#[derive(Default)]
struct State {
    progress: Progress,
    times: Times,
}

impl Screen {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step.
    pub(super) fn step(&self, text: String) {
        self.state().progress.step(text);
    }

    /// Ends the running step, well or not.
    pub(super) fn finish<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let progress = &mut self.state().progress;
        match &result {
            Ok(_) => progress.done(),
            Err(_) => progress.failed(),
        }
        result
    }

    /// A line for each part and one for all of them.
    pub(super) fn times(&self) -> String {
        self.state().times.text()
    }
}

impl Sink<Event> for Screen {
    fn emit(&self, event: Event) {
        let state = &mut *self.state();
        match event {
            Event::Step(step) => state.progress.step(text(&step)),
            Event::Waiting(detail) => state.progress.tick(&detail),
            Event::Done => state.progress.done(),
            Event::Phase { name, took } => state.times.0.push((name, took)),
            Event::LeaveSkipped { machine, reason } => {
                term::warn(&format!("nobody is told that {machine} goes: {reason}"));
            }
            Event::LeaveFailed { reason } => term::warn(&reason),
            Event::NodeRemains { machine, reason } => term::warn(&format!(
                "Kubernetes still has a node of it: {reason}; remove it with `kubectl delete node {machine}`"
            )),
        }
    }
}

fn text(step: &Step) -> String {
    match step {
        Step::Generating => "generating secrets and configurations".to_owned(),
        Step::Provider(text) => text.clone(),
        Step::FirstControlPlane => "waiting for the first control plane".to_owned(),
        Step::Bootstrapping => "bootstrapping etcd".to_owned(),
        Step::Part(part) => format!("waiting for {part}"),
        Step::Machine { name, address } => format!("waiting for {name} ({address})"),
        Step::ReadingConfiguration => "reading the configuration of the cluster".to_owned(),
        Step::NewMachines => "waiting for the new machines".to_owned(),
        Step::CheckingLeave { machine } => format!("looking whether {machine} may go"),
        Step::Leaving { machine } => format!("{machine} leaves the cluster"),
        Step::RemovingMember { machine } => format!("removing {machine} from etcd"),
        Step::RemovingNode => "removing its node".to_owned(),
    }
}

/// How long each part took.
#[derive(Debug, Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    fn text(&self) -> String {
        let mut table = Table::with_header(["PHASE", "TIME"]);
        let seconds = |time: Duration| format!("{:.1}s", time.as_secs_f64());
        for (part, time) in &self.0 {
            table.row([(*part).to_owned(), seconds(*time)]);
        }
        table.row(["total".to_owned(), seconds(self.0.iter().map(|(_, time)| *time).sum())]);
        table.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_told_with_its_time_and_all_together() {
        let times =
            Times(vec![("start", Duration::from_millis(1240)), ("etcd", Duration::from_millis(3000))]);
        assert_eq!(times.text(), "PHASE   TIME\nstart   1.2s\netcd    3.0s\ntotal   4.2s\n");
    }
}
