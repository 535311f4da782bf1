//! Random lives of a machine: installed, upgraded well and badly, rolled back, its power cut anywhere, its firmware
//! forgetting. Whatever happens, the last good slot is not written to, and something that starts is selected.
//!
//! `ICHOR_BOOT_HISTORIES` is the number of lives (a million without it), `ICHOR_BOOT_SEED` begins elsewhere.

use ichor_boot::slots::{Boot, BootId, BootPath, Judge, Next, Op, Other, Slot, Slots, Start, Trial};
use ichor_fuzz::Random;

const LIVES: u64 = 1_000_000;
const EVENTS: usize = 24;

/// How a system turns out when it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Good,
    /// Stops before machined; the power has to be cycled.
    Hangs,
    /// The kernel or init panics, and the machine reboots.
    Panics,
    /// Comes up and never gets healthy.
    Sick,
    /// Gets healthy after the deadline.
    Late,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct System {
    number: u32,
    kind: Kind,
    /// It was healthy after a start through the firmware.
    proven: bool,
    /// Starts through the boot loader before it was the default.
    trials: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    Torn,
    Whole(System),
}

/// The power is gone in the middle of something.
struct Cut;

struct Running {
    slot: Slot,
    boot: BootId,
    slots: Slots,
    judge: Option<Judge>,
}

/// What outlives a power cut, and what runs.
struct Machine<'r> {
    random: &'r mut Random,
    /// systemd-boot keeps the default in a variable, which firmware may lose, and in a file; GRUB in a file.
    has_variables: bool,
    contents: [Content; 2],
    variable: Option<Slot>,
    file: Option<Slot>,
    one_shot: Option<Slot>,
    record: Option<Slots>,
    /// The number of the system that is to be there whatever happens.
    last_good: u32,
    installing: bool,
    next_number: u32,
    next_boot: u128,
    running: Option<Running>,
    /// What happened, when somebody wants to read it.
    trace: Option<Vec<String>>,
    commits: u32,
}

fn at(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

impl<'r> Machine<'r> {
    fn new(random: &'r mut Random, is_traced: bool) -> Self {
        let has_variables = random.chance(2);
        Self {
            random,
            has_variables,
            contents: [Content::Nothing; 2],
            variable: None,
            file: None,
            one_shot: None,
            record: None,
            last_good: 0,
            installing: false,
            next_number: 1,
            next_boot: 1,
            running: None,
            trace: is_traced.then(Vec::new),
            commits: 0,
        }
    }

    fn check(&self, holds: bool, what: &str) {
        assert!(holds, "{what}\n{}", self.trace.as_deref().unwrap_or_default().join("\n"));
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(text());
        }
    }

    fn system(&self, slot: Slot) -> Option<System> {
        match self.contents[at(slot)] {
            Content::Whole(system) => Some(system),
            Content::Nothing | Content::Torn => None,
        }
    }

    /// What the boot loader starts without being told otherwise.
    fn default(&self) -> Option<Slot> {
        if self.has_variables { self.variable.or(self.file) } else { self.file }
    }

    fn carry_out(&mut self, ops: &[Op], kind: Kind) -> Result<(), Cut> {
        for op in ops {
            let cut = self.random.chance(24);
            self.note(|| format!("  {op:?}{}", if cut { " (power cut)" } else { "" }));
            match *op {
                // Written or not: either may be what is found.
                _ if cut && self.random.chance(2) && !matches!(op, Op::Write(_)) => return Err(Cut),
                Op::Disarm => self.one_shot = None,
                Op::Write(slot) => self.write(slot, kind, cut)?,
                Op::Arm(slot) => {
                    self.check(self.system(slot).is_some(), "armed something incomplete");
                    self.one_shot = Some(slot);
                }
                Op::SetDefault(slot) => self.set_default(slot, cut)?,
                Op::Save(slots) => self.record = Some(slots),
            }
            if cut {
                return Err(Cut);
            }
        }
        Ok(())
    }

    fn write(&mut self, slot: Slot, kind: Kind, cut: bool) -> Result<(), Cut> {
        if !self.installing {
            let is_last_good = self.system(slot).is_some_and(|system| system.number == self.last_good);
            self.check(!is_last_good, "the last good slot is written to");
            self.check(self.default() == Some(slot.other()), "the default is written to");
            self.check(self.file == Some(slot.other()), "the default is lost with the variables");
            self.check(self.one_shot.is_none(), "something that may be started is written to");
        }
        self.contents[at(slot)] = Content::Torn;
        if cut {
            return Err(Cut);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.contents[at(slot)] = Content::Whole(System { number, kind, proven: false, trials: 0 });
        Ok(())
    }

    fn set_default(&mut self, slot: Slot, cut: bool) -> Result<(), Cut> {
        let system = self.system(slot);
        self.check(system.is_some(), "an incomplete default");
        let Some(system) = system else { return Err(Cut) };
        let allowed = system.proven || self.installing || system.number == self.last_good;
        self.check(allowed, "a slot that was never healthy is made the default");
        self.last_good = system.number;
        if self.has_variables {
            self.variable = Some(slot);
            if cut {
                return Err(Cut);
            }
        }
        self.file = Some(slot);
        Ok(())
    }

    fn install(&mut self, kind: Kind) {
        self.note(|| format!("install {kind:?}"));
        self.contents = [Content::Nothing; 2];
        (self.variable, self.file, self.one_shot, self.record) = (None, None, None, None);
        self.installing = true;
        let (_, ops) = Slots::install();
        let done = self.carry_out(&ops, kind).is_ok();
        self.installing = !done;
    }

    /// Power on, or a reboot through the firmware.
    fn power_on(&mut self) {
        if self.has_variables && self.random.chance(30) {
            self.note(|| "firmware loses its variables".into());
            (self.variable, self.one_shot) = (None, None);
            // Both at once, a power cut between variable and file and the loss of the variable: the way back is next.
            if let Some(system) = self.default().and_then(|slot| self.system(slot)) {
                self.last_good = system.number;
            }
        }
        let asked = self.one_shot.take();
        let Some(slot) = asked.or(self.default()) else {
            self.check(false, "nothing is selected");
            return;
        };
        self.note(|| format!("firmware starts {slot}"));
        let Content::Whole(system) = &mut self.contents[at(slot)] else {
            self.check(false, "what is selected does not start");
            return;
        };
        if asked.is_some() {
            system.trials += 1;
        }
        let system = *system;
        self.check(system.trials <= 1, "a trial is started twice");
        self.check(asked.is_some() || system.number == self.last_good, "not the last good slot is started");
        if matches!(system.kind, Kind::Hangs | Kind::Panics) {
            self.check(asked.is_some(), "the default does not come up");
            return;
        }
        self.come_up(slot, BootPath::Firmware);
    }

    fn come_up(&mut self, slot: Slot, path: BootPath) {
        let boot = BootId(self.next_boot);
        self.next_boot += 1;
        self.start_machined(slot, path, boot);
    }

    /// Starts machined, which is not always the start of a machine.
    fn start_machined(&mut self, slot: Slot, path: BootPath, id: BootId) {
        let default = self.default();
        let mut slots = match (self.record, default) {
            (Some(record), _) => record,
            // No record: lost, or never made.
            (None, Some(default)) => {
                // Without a record, what is started by default counts as good.
                if let Content::Whole(system) = &mut self.contents[at(default)] {
                    system.proven = true;
                }
                Slots::found(default, self.system(default.other()).is_some())
            }
            (None, None) => Slots::found(slot, false),
        };
        let decision = slots.boot(&Boot { slot: Some(slot), path, id, default });
        self.note(|| format!("  {slot} by {path:?}: {slots:?}, {:?}", decision.next));
        if self.carry_out(&decision.ops, Kind::Good).is_err() {
            return;
        }
        let judge = match decision.next {
            Next::Run => None,
            Next::Judge(judge) => {
                self.check(path == BootPath::Firmware && judge.slot() == slot, "judged the wrong boot");
                Some(judge)
            }
            Next::Restart => return,
        };
        self.running = Some(Running { slot, boot: id, slots, judge });
    }

    fn event(&mut self) {
        let Some(mut running) = self.running.take() else { return self.power_on() };
        let kind = self.system(running.slot).map_or(Kind::Good, |system| system.kind);
        match self.random.below(10) {
            0 => self.note(|| "power cut".into()),
            1 => self.note(|| "reboot".into()),
            2 | 3 => {
                let new = *self.random.pick(&[
                    Kind::Good,
                    Kind::Good,
                    Kind::Hangs,
                    Kind::Panics,
                    Kind::Sick,
                    Kind::Late,
                ]);
                self.note(|| format!("upgrade to {new:?}"));
                let ops = running.slots.upgrade(Start::OneShot, running.boot);
                if self.carry_out(&ops, new).is_ok() && self.random.chance(4) {
                    // The reboot is not asked for at once: something else comes between.
                    running.judge = None;
                    self.running = Some(running);
                }
            }
            4 => {
                self.note(|| "rollback".into());
                // Asked for by a person: a slot that nobody has a record of may be tried once more.
                if let Content::Whole(system) = &mut self.contents[at(running.slots.target())] {
                    system.trials = 0;
                }
                match running.slots.rollback(running.boot) {
                    // A cut and a reboot are the same from here.
                    Ok(ops) => drop(self.carry_out(&ops, Kind::Good)),
                    Err(_) => self.running = Some(running),
                }
            }
            5 if running.slots.may_kexec() || self.random.chance(4) => {
                // The default is what a kernel loads; some do it although they may not.
                self.note(|| "kexec".into());
                let default = running.slots.default();
                self.check(self.system(default).is_some(), "kexec of something incomplete");
                self.come_up(default, BootPath::Kexec);
            }
            6 => {
                self.note(|| "machined restarts".into());
                let (slot, boot) = (running.slot, running.boot);
                let path = if running.judge.is_some() { BootPath::Firmware } else { BootPath::Kexec };
                self.start_machined(slot, path, boot);
            }
            7 if self.random.chance(8) => {
                self.note(|| "META is lost".into());
                self.record = None;
            }
            _ => self.judge(running, kind),
        }
    }

    fn judge(&mut self, mut running: Running, kind: Kind) {
        let Some(judge) = &running.judge else {
            self.running = Some(running);
            return;
        };
        if kind == Kind::Good {
            self.note(|| "healthy".into());
            if let Content::Whole(system) = &mut self.contents[at(running.slot)] {
                system.proven = true;
            }
            let ops = running.slots.commit(judge);
            self.commits += 1;
            running.judge = None;
            if self.carry_out(&ops, Kind::Good).is_ok() {
                self.check(running.slots.is_good(running.slot), "committed and not good");
                self.check(self.default() == Some(running.slot), "committed and not the default");
                self.running = Some(running);
            }
            return;
        }
        self.note(|| "not healthy within the deadline".into());
        let decision = running.slots.fail(judge);
        let done = self.carry_out(&decision.ops, Kind::Good).is_ok();
        if done && decision.next == Next::Run {
            self.running = Some(running);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Commits, and what is in the other slot at the end; none when the installation never got through.
fn live(seed: u64, life: u64, is_traced: bool) -> Option<(u32, Option<Other>)> {
    let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(life));
    let mut machine = Machine::new(&mut random, is_traced);
    // An installation that is interrupted is begun again by whoever began it.
    for _ in 0..8 {
        let kind = if machine.random.chance(8) { Kind::Sick } else { Kind::Good };
        machine.install(kind);
        if !machine.installing {
            break;
        }
    }
    if machine.installing {
        return None;
    }
    for _ in 0..EVENTS {
        machine.event();
    }
    // Left alone, it comes to rest: the next boots start the last good slot, and it stays up.
    machine.running = None;
    for _ in 0..3 {
        machine.power_on();
    }
    let number = machine.default().and_then(|slot| machine.system(slot)).map(|system| system.number);
    machine.check(number == Some(machine.last_good), "the default is not the last good slot");
    Some((machine.commits, machine.record.map(|slots| slots.other())))
}

#[test]
fn no_life_of_a_machine_loses_its_last_good_slot() {
    let lives = number("ICHOR_BOOT_HISTORIES").unwrap_or(LIVES);
    let seed = number("ICHOR_BOOT_SEED").unwrap_or(15);
    let (mut commits, mut failed, mut interrupted) = (0_u64, 0_u64, 0_u64);
    for life in 0..lives {
        let ended = std::panic::catch_unwind(|| live(seed, life, false)).unwrap_or_else(|_| {
            println!("seed {seed}, life {life}; once more, told in full");
            live(seed, life, true)
        });
        let Some((count, other)) = ended else { continue };
        commits += u64::from(count);
        match other {
            Some(Other::Failed { .. }) => failed += 1,
            Some(Other::Trial(Trial::Prepared { .. }) | Other::Untested | Other::Empty) => interrupted += 1,
            Some(Other::Unjudged | Other::Good | Other::Trial(_)) | None => {}
        }
    }
    println!(
        "{lives} lives, {commits} commits, {failed} ended with a failed slot, {interrupted} interrupted"
    );
    assert!(commits > lives / 4 && failed > lives / 100 && interrupted > lives / 100, "too little happened");
}
