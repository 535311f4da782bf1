//! Shows the life of a cluster: one step after the other, and how long each part took.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ichor_ops::Sink;
use ichor_ops::cluster::{Event, MachineState, Step};

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
    machines: Patience,
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
            Event::Machines(machines) if state.progress.is_live() => state.progress.below(lines(&machines)),
            Event::Machines(machines) => {
                for line in state.machines.overdue(&machines, Instant::now()) {
                    eprintln!("{line}");
                }
            }
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

/// Lines below a step; more would not fit on a terminal, and what does not fit cannot be drawn anew.
const LINES_MAX: usize = 10;

/// A line for each machine that is not ready; of many, the first ones and how many more there are.
fn lines(machines: &[MachineState]) -> Vec<String> {
    let width = machines.iter().map(|machine| machine.name.len()).max().unwrap_or_default();
    let line = |machine: &MachineState| {
        let waits_for = machine.waits_for.as_deref()?;
        Some(format!("    {:width$}  {waits_for}", machine.name))
    };
    let mut lines: Vec<String> = machines.iter().filter_map(line).collect();
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("    and {more} more"));
    }
    lines
}

/// Where nothing can be redrawn, a machine gets a line when it has waited long for the same thing, and one for each thing.
#[derive(Debug, Default)]
struct Patience(Vec<(String, String, Option<Instant>)>);

impl Patience {
    /// How long a machine waits before that is worth a line.
    const LONG: Duration = Duration::from_secs(10);

    /// Lines for the machines that have waited long.
    fn overdue(&mut self, machines: &[MachineState], now: Instant) -> Vec<String> {
        self.0.retain(|(name, text, _)| {
            machines.iter().any(|machine| machine.name == *name && machine.waits_for.as_ref() == Some(text))
        });
        let mut lines = Vec::new();
        for MachineState { name, waits_for } in machines {
            let Some(text) = waits_for else { continue };
            let Some((_, _, since)) = self.0.iter_mut().find(|(known, _, _)| known == name) else {
                self.0.push((name.clone(), text.clone(), Some(now)));
                continue;
            };
            if since.is_some_and(|since| now.duration_since(since) >= Self::LONG) {
                lines.push(format!("  {name}: {text}"));
                *since = None;
            }
        }
        lines
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

    fn state(name: &str, waits_for: &str) -> MachineState {
        let waits_for = (!waits_for.is_empty()).then(|| waits_for.to_owned());
        MachineState { name: name.to_owned(), waits_for }
    }

    #[test]
    fn machines_that_wait_get_a_line_below_the_step() {
        let machines =
            [state("lab-controlplane-1", "booting"), state("lab-worker-1", "no answer"), state("c", "")];
        assert_eq!(
            lines(&machines),
            ["    lab-controlplane-1  booting", "    lab-worker-1        no answer"]
        );
    }

    #[test]
    fn lines_of_many_machines_are_bounded() {
        let machines: Vec<_> = (0..200).map(|number| state(&number.to_string(), "booting")).collect();
        let lines = lines(&machines);
        assert_eq!((lines.len(), lines[LINES_MAX].as_str()), (LINES_MAX + 1, "    and 190 more"));
    }

    #[test]
    fn without_a_terminal_a_machine_gets_one_line_for_each_thing_it_waits_long_for() {
        let mut patience = Patience::default();
        let start = Instant::now();
        let mut after = |seconds, waits_for| {
            patience.overdue(&[state("a", waits_for)], start + Duration::from_secs(seconds))
        };
        assert_eq!(after(0, "etcd"), [""; 0]);
        assert_eq!(after(9, "etcd"), [""; 0]);
        assert_eq!(after(10, "etcd"), ["  a: etcd"]);
        assert_eq!(after(30, "etcd"), [""; 0]);
        assert_eq!(after(31, "kubelet"), [""; 0]);
        assert_eq!(after(42, "kubelet"), ["  a: kubelet"]);
        assert_eq!(after(60, ""), [""; 0]);
    }
}
