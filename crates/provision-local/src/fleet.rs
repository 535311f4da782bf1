//! Which machines run and what happens next. No I/O here; the supervisor carries the effects out.

use std::time::{Duration, Instant};

use ichor_provision::MachineStatus;

/// What a boot process exits with when its machine called `reboot(2)` to start again: 128 + SIGHUP.
pub const REBOOTED: i32 = 129;
/// The same for switching off: 128 + SIGINT.
pub const POWERED_OFF: i32 = 130;
/// A machine that ran this long was well; sooner, its next start waits.
const WELL_AFTER: Duration = Duration::from_secs(2);
const RESTART_WAIT_MAX: Duration = Duration::from_secs(5);
const RESTART_WAIT_MIN: Duration = Duration::from_millis(50);

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Boot the machine with this index.
    Boot(usize),
    /// Ask the boot process to shut its machine down.
    Shutdown(i32),
    /// Kill the boot process, and its machine with it.
    Kill(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    Off,
    On { pid: i32, since: Instant },
    Waiting { until: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// As the machine itself likes.
    None,
    /// Off, in order until then.
    Stop { deadline: Instant },
    /// Off, now.
    Cut,
    /// Off and on again.
    Reset,
}

#[derive(Debug)]
struct Slot {
    name: String,
    power: Power,
    status: MachineStatus,
    wish: Wish,
    wait: Duration,
    /// Removed; its place stays, so that those of the others do.
    gone: bool,
}

/// All machines of a cluster.
#[derive(Debug)]
pub(crate) struct Fleet {
    slots: Vec<Slot>,
    stop_wait: Duration,
}

impl Fleet {
    /// All off. A machine may take `stop_wait` to shut down in order.
    pub(crate) fn new(names: impl Iterator<Item = String>, stop_wait: Duration) -> Self {
        Self { slots: names.map(Slot::new).collect(), stop_wait }
    }

    /// A further machine, off; its index.
    pub(crate) fn add(&mut self, name: String) -> usize {
        self.slots.push(Slot::new(name));
        self.slots.len() - 1
    }

    /// Forgets a machine. Not one that runs.
    pub(crate) fn remove(&mut self, at: usize) -> bool {
        let off = self.all_off(&[at]);
        if let Some(slot) = self.slots.get_mut(at).filter(|_| off) {
            slot.gone = true;
        }
        off
    }

    /// The machines there are.
    pub(crate) fn names(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.slots.iter().enumerate();
        all.filter(|(_, slot)| !slot.gone).map(|(at, slot)| (at, slot.name.as_str()))
    }

    /// The name of a machine.
    pub(crate) fn name(&self, at: usize) -> &str {
        self.slots.get(at).map_or("", |slot| slot.name.as_str())
    }

    /// Names and what to tell about them.
    pub(crate) fn status(&self) -> Vec<(String, MachineStatus)> {
        let there = self.slots.iter().filter(|slot| !slot.gone);
        there.map(|slot| (slot.name.clone(), slot.status)).collect()
    }

    /// The indices meant by a name, or all; `None` for an unknown name.
    pub(crate) fn select(&self, name: Option<&str>) -> Option<Vec<usize>> {
        match name {
            None => Some(self.names().map(|(at, _)| at).collect()),
            Some(name) => self.names().find(|(_, own)| *own == name).map(|(at, _)| vec![at]),
        }
    }

    /// Whether none of these runs or is about to.
    pub(crate) fn all_off(&self, which: &[usize]) -> bool {
        which.iter().all(|at| self.slots.get(*at).is_none_or(|slot| slot.power == Power::Off))
    }

    /// Switches a machine on if it is off.
    pub(crate) fn start(&mut self, at: usize) -> Option<Effect> {
        let slot = self.slots.get_mut(at)?;
        let off = slot.power == Power::Off;
        if off {
            slot.wish = Wish::None;
            slot.wait = Duration::ZERO;
        }
        off.then_some(Effect::Boot(at))
    }

    /// Asks a running machine to shut down.
    pub(crate) fn stop(&mut self, at: usize, now: Instant) -> Option<Effect> {
        let slot = self.slots.get_mut(at)?;
        match slot.power {
            Power::On { pid, .. } => {
                slot.wish = Wish::Stop { deadline: now + self.stop_wait };
                Some(Effect::Shutdown(pid))
            }
            Power::Waiting { .. } | Power::Off => {
                slot.switch_off(MachineStatus::Stopped);
                None
            }
        }
    }

    /// Takes a machine's power away; with `again` it comes back.
    pub(crate) fn cut(&mut self, at: usize, again: bool) -> Option<Effect> {
        let slot = self.slots.get_mut(at)?;
        match slot.power {
            Power::On { pid, .. } => {
                slot.wish = if again { Wish::Reset } else { Wish::Cut };
                Some(Effect::Kill(pid))
            }
            Power::Waiting { .. } | Power::Off => {
                slot.switch_off(MachineStatus::Stopped);
                again.then_some(Effect::Boot(at))
            }
        }
    }

    /// The boot process of a machine has started.
    pub(crate) fn booted(&mut self, at: usize, pid: i32, now: Instant) {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.power = Power::On { pid, since: now };
            slot.status = MachineStatus::Running;
        }
    }

    /// A boot process could not be started.
    pub(crate) fn boot_failed(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.switch_off(MachineStatus::Crashed);
        }
    }

    /// A process has ended: `code` is its exit code, or 128 + the signal. Returns its machine's name.
    pub(crate) fn ended(&mut self, pid: i32, code: i32, now: Instant) -> Option<&str> {
        let is = |slot: &&mut Slot| matches!(slot.power, Power::On { pid: own, .. } if own == pid);
        let slot = self.slots.iter_mut().find(is)?;
        let Power::On { since, .. } = slot.power else { return None };
        match (slot.wish, code) {
            (Wish::Stop { .. } | Wish::Cut, _) | (Wish::None, POWERED_OFF) => {
                slot.switch_off(MachineStatus::Stopped);
            }
            (Wish::None | Wish::Reset, REBOOTED) | (Wish::Reset, _) => {
                let well = now.saturating_duration_since(since) >= WELL_AFTER || slot.wish == Wish::Reset;
                slot.wait = match well {
                    true => Duration::ZERO,
                    false => (slot.wait * 2).clamp(RESTART_WAIT_MIN, RESTART_WAIT_MAX),
                };
                slot.wish = Wish::None;
                slot.power = Power::Waiting { until: now + slot.wait };
            }
            (Wish::None, _) => slot.switch_off(MachineStatus::Crashed),
        }
        Some(&slot.name)
    }

    /// What is due: restarts after their wait, power cuts after a stop that took too long.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            match (slot.power, slot.wish) {
                (Power::Waiting { until }, _) if until <= now => effects.push(Effect::Boot(at)),
                (Power::On { pid, .. }, Wish::Stop { deadline }) if deadline <= now => {
                    slot.wish = Wish::Cut;
                    effects.push(Effect::Kill(pid));
                }
                _ => {}
            }
        }
        effects
    }

    /// When [`Fleet::due`] has something next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let of = |slot: &Slot| match (slot.power, slot.wish) {
            (Power::Waiting { until }, _) => Some(until),
            (Power::On { .. }, Wish::Stop { deadline }) => Some(deadline),
            _ => None,
        };
        self.slots.iter().filter_map(of).min()
    }
}

impl Slot {
    fn new(name: String) -> Self {
        Self {
            name,
            power: Power::Off,
            status: MachineStatus::Stopped,
            wish: Wish::None,
            wait: Duration::ZERO,
            gone: false,
        }
    }

    fn switch_off(&mut self, status: MachineStatus) {
        self.power = Power::Off;
        self.status = status;
        self.wish = Wish::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP_WAIT: Duration = Duration::from_secs(60);

    fn one(now: Instant) -> Fleet {
        let mut fleet = Fleet::new(["m".to_owned()].into_iter(), STOP_WAIT);
        assert_eq!(fleet.start(0), Some(Effect::Boot(0)));
        fleet.booted(0, 7, now);
        fleet
    }

    fn status(fleet: &Fleet) -> MachineStatus {
        fleet.status()[0].1
    }

    #[test]
    fn a_reboot_starts_the_machine_again_and_a_power_off_does_not() {
        let now = Instant::now();
        let mut fleet = one(now);
        let later = now + Duration::from_secs(10);
        assert_eq!(fleet.ended(7, REBOOTED, later), Some("m"));
        assert_eq!(status(&fleet), MachineStatus::Running);
        assert_eq!(fleet.due(later), [Effect::Boot(0)]);
        fleet.booted(0, 8, later);
        fleet.ended(8, POWERED_OFF, later);
        assert_eq!(status(&fleet), MachineStatus::Stopped);
        assert_eq!(fleet.next_due(), None);
    }

    #[test]
    fn anything_else_is_a_crash() {
        let now = Instant::now();
        let mut fleet = one(now);
        fleet.ended(7, 1, now);
        assert_eq!(status(&fleet), MachineStatus::Crashed);
        assert_eq!(fleet.start(0), Some(Effect::Boot(0)), "it can be switched on again");
    }

    #[test]
    fn a_machine_that_reboots_at_once_is_slowed_down() {
        let mut now = Instant::now();
        let mut fleet = one(now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            fleet.ended(7, REBOOTED, now);
            let due = fleet.next_due().unwrap();
            waits.push((due - now).as_millis());
            assert!(due == now || fleet.due(now).is_empty());
            now = due;
            assert_eq!(fleet.due(now), [Effect::Boot(0)]);
            fleet.booted(0, 7, now);
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn a_stop_that_takes_too_long_becomes_a_cut() {
        let now = Instant::now();
        let mut fleet = one(now);
        assert_eq!(fleet.stop(0, now), Some(Effect::Shutdown(7)));
        assert!(fleet.due(now).is_empty());
        assert!(!fleet.all_off(&[0]));
        assert_eq!(fleet.due(now + STOP_WAIT), [Effect::Kill(7)]);
        assert!(fleet.due(now + STOP_WAIT).is_empty(), "killed once");
        fleet.ended(7, 137, now);
        assert_eq!(status(&fleet), MachineStatus::Stopped);
        assert!(fleet.all_off(&[0]));
    }

    #[test]
    fn a_stop_wins_over_a_reboot() {
        let now = Instant::now();
        let mut fleet = one(now);
        fleet.stop(0, now);
        fleet.ended(7, REBOOTED, now);
        assert_eq!(status(&fleet), MachineStatus::Stopped);
    }

    #[test]
    fn a_reset_cuts_and_boots() {
        let now = Instant::now();
        let mut fleet = one(now);
        assert_eq!(fleet.cut(0, true), Some(Effect::Kill(7)));
        fleet.ended(7, 137, now);
        assert_eq!(fleet.due(now), [Effect::Boot(0)]);
    }

    #[test]
    fn machines_come_and_go_and_the_others_keep_their_places() {
        let now = Instant::now();
        let mut fleet = one(now);
        assert_eq!(fleet.add("n".to_owned()), 1);
        assert!(!fleet.remove(0), "it runs");
        fleet.cut(0, false);
        fleet.ended(7, 137, now);
        assert!(fleet.remove(0));
        assert_eq!(fleet.select(Some("m")), None);
        assert_eq!(fleet.select(None), Some(vec![1]));
        assert_eq!(fleet.status(), [("n".to_owned(), MachineStatus::Stopped)]);
        assert_eq!(fleet.add("m".to_owned()), 2, "the name is free again");
        assert_eq!(fleet.select(Some("m")), Some(vec![2]));
    }

    #[test]
    fn unknown_names_and_processes_are_nothing() {
        let now = Instant::now();
        let mut fleet = one(now);
        assert_eq!(fleet.select(Some("x")), None);
        assert_eq!(fleet.select(None), Some(vec![0]));
        assert_eq!(fleet.ended(99, 0, now), None);
        assert_eq!(fleet.start(0), None, "it runs already");
    }
}
