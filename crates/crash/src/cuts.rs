//! What a power cut may leave.

use std::collections::BTreeSet;

use ichor_boot::plan::Volume;
use ichor_fuzz::Random;

use crate::Kind;
use crate::disk::{Domain, Event, Part, State, Write};
use crate::meta::Values;

/// A plan to be cut short.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What it is.
    pub name: String,
    /// The boot loader.
    pub kind: Kind,
    /// The disk before.
    pub before: State,
    /// What is written.
    pub events: Vec<Event>,
    /// What may be started by default, all through.
    pub defaults: Vec<u32>,
    /// What may be started once.
    pub trials: Vec<u32>,
    /// Whether nothing at all may be there to start.
    pub is_install: bool,
    /// What META may hold, all through.
    pub metas: Vec<Values>,
    /// What the configuration may be, all through.
    pub configs: Vec<Option<Vec<u8>>>,
}

/// What goes through the log of XFS.
fn is_metadata((on, write): &(Domain, Write)) -> bool {
    *on == Domain::Volume(Volume::Boot) && !matches!(write, Write::Data { .. })
}

fn is_first(write: &Write) -> bool {
    matches!(write, Write::Name { part: Part::First, .. })
}

/// Calls `judge` with what each power cut leaves, as the boot loader sees it and as the kernel does after it replayed its
/// log, and with the place of the cut. After each write those before it that were not flushed are there all, all but one,
/// one alone, or a random part of them, `samples` times.
pub fn each(
    scenario: &Scenario,
    random: &mut Random,
    samples: usize,
    mut judge: impl FnMut(State, State, String),
) {
    let mut durable = scenario.before.clone();
    let mut pending: Vec<(Domain, Write)> = Vec::new();
    judge(durable.clone(), durable.clone(), format!("{}: before", scenario.name));
    for (at, event) in scenario.events.iter().enumerate() {
        match event {
            Event::Barrier(barrier) => {
                pending.retain(|(on, write)| {
                    let flushed = barrier.covers(*on, write);
                    if flushed {
                        durable.apply(write);
                    }
                    !flushed
                });
                continue;
            }
            Event::Write(on, write) => pending.push((*on, write.clone())),
        }
        let last = pending.len() - 1;
        // Those without the last write were seen one write earlier.
        let mut subsets: BTreeSet<Vec<usize>> = BTreeSet::new();
        subsets.insert((0..=last).collect());
        subsets.insert(vec![last]);
        for one in 0..last {
            subsets.insert((0..=last).filter(|other| *other != one).collect());
            subsets.insert(vec![one, last]);
        }
        for _ in 0..samples {
            subsets.insert((0..last).filter(|_| random.chance(2)).chain([last]).collect());
        }
        for subset in subsets {
            let (mut raw, mut replayed) = (durable.clone(), durable.clone());
            // The log has everything up to some point, which is not before anything that is in its place already.
            let in_place =
                subset.iter().filter(|index| is_metadata(&pending[**index])).max().map_or(0, |at| at + 1);
            let logged = in_place + random.below(pending.len() + 1 - in_place);
            // Names are exchanged in one entry of the log, which is there before either of them is in its place.
            let is_split = logged > 0 && is_first(&pending[logged - 1].1);
            let logged = if is_split { logged + 1 } else { logged };
            for (index, (_, write)) in pending.iter().enumerate() {
                let written = subset.contains(&index);
                if written {
                    raw.apply(write);
                }
                let found = if is_metadata(&pending[index]) { index < logged } else { written };
                if found {
                    replayed.apply(write);
                }
            }
            if let (true, Some(Event::Write(_, second))) =
                (logged > pending.len(), scenario.events.get(at + 1))
            {
                replayed.apply(second);
            }
            judge(raw, replayed, format!("{}: event {at}, {subset:?} of {}", scenario.name, last + 1));
        }
    }
}

/// What is there for certain when the plan was carried out to its end.
pub fn finished(scenario: &Scenario) -> State {
    let mut durable = scenario.before.clone();
    let mut pending: Vec<(Domain, &Write)> = Vec::new();
    for event in &scenario.events {
        match event {
            Event::Write(domain, write) => pending.push((*domain, write)),
            Event::Barrier(barrier) => pending.retain(|(domain, write)| {
                let flushed = barrier.covers(*domain, write);
                if flushed {
                    durable.apply(write);
                }
                !flushed
            }),
        }
    }
    durable
}
