//! The two slots of a system disk: which one is started, written, tried, kept.
//!
//! One slot is the default: the boot loader starts it unless it was told otherwise for one boot. The other one is
//! everything else: empty, a way back, on trial, failed. Only the other slot can be written, because [`Slots`] has no
//! way to say anything else. A new system is started once, by a one-shot entry of the boot loader, and becomes the
//! default when it was found healthy; whatever else happens, the next boot starts the default.
//!
//! Each change is a list of [`Op`]s, to be made durable one after the other. The power may be cut between any two and in
//! the middle of each; [`Slots::boot`] continues from whatever is found.

mod kinds;
#[cfg(test)]
mod tests;

pub use kinds::{BootId, BootPath, Failure, Other, Slot, Standing, Trial};

/// The two slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    default: Slot,
    standing: Standing,
    other: Other,
}

/// One durable change. It is on disk, flushed, before the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Takes the one-shot entry back, if there is one.
    Disarm,
    /// Writes a system into a slot, reads it back and compares.
    Write(Slot),
    /// Makes the boot loader start this slot once.
    Arm(Slot),
    /// Makes the boot loader start this slot from now on; nothing to do if it does already.
    SetDefault(Slot),
    /// Keeps the record.
    Save(Slots),
}

/// How a new system is started for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Once, by the boot loader, with the old system as the default.
    OneShot,
    /// As the default at once. Only for an installer that another system runs, one that would ignore a one-shot entry:
    /// the original starts the default entry by kexec. The new system turns this around when it comes up.
    Default,
}

/// What was found when machined started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// The slot that runs; none when it came from other media or the network.
    pub slot: Option<Slot>,
    /// How it was started.
    pub path: BootPath,
    /// Which boot this is.
    pub id: BootId,
    /// What the boot loader starts by default; none when it does not say.
    pub default: Option<Slot>,
}

/// The right to judge a slot. Only [`Slots::boot`] gives it, and only for a slot that firmware and boot loader started.
#[derive(Debug, PartialEq, Eq)]
pub struct Judge {
    slot: Slot,
    boot: BootId,
}

impl Judge {
    /// The slot to be judged.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

/// What to do after the operations of a boot were carried out.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: run.
    Run,
    /// See whether the machine gets healthy, then [`Slots::commit`] or [`Slots::fail`].
    Judge(Judge),
    /// Reboot through firmware and boot loader.
    Restart,
}

/// Operations, and what comes after them.
#[derive(Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be made durable in order.
    pub ops: Vec<Op>,
    /// Then.
    pub next: Next,
}

/// Why there is no way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWayBack {
    /// Nothing is there.
    #[error("slot {0} is empty: there is no earlier system to roll back to")]
    Empty(Slot),
    /// It was never started.
    #[error(
        "slot {0} holds an upgrade that was never started, not an earlier system; run the upgrade again to start it"
    )]
    Untested(Slot),
    /// It is known to be bad.
    #[error("slot {0} failed its trial ({1}); the machine runs its last good system already")]
    Failed(Slot, Failure),
}

impl Slots {
    /// A record read back.
    pub fn new(default: Slot, standing: Standing, other: Other) -> Self {
        Self { default, standing, other }
    }

    /// A disk without a record: what is started today counts as good.
    pub fn found(default: Slot, other_is_there: bool) -> Self {
        let other = if other_is_there { Other::Unjudged } else { Other::Empty };
        Self { default, standing: Standing::Good, other }
    }

    /// A first installation, on a disk that was cleared.
    pub fn install() -> (Self, Vec<Op>) {
        let slots = Self { default: Slot::A, standing: Standing::Unproven, other: Other::Empty };
        (slots, vec![Op::Disarm, Op::Write(Slot::A), Op::Save(slots), Op::SetDefault(Slot::A)])
    }

    /// The slot that is started unless the boot loader was told otherwise.
    pub fn default(&self) -> Slot {
        self.default
    }

    /// What is known of the default.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// What is in the other slot.
    pub fn other(&self) -> Other {
        self.other
    }

    /// The slot that a new system is written to.
    pub fn target(&self) -> Slot {
        self.default.other()
    }

    /// Whether a slot was healthy once.
    pub fn is_good(&self, slot: Slot) -> bool {
        match slot == self.default {
            true => self.standing == Standing::Good,
            false => self.other == Other::Good,
        }
    }

    /// Whether the machine may reboot by kexec: not while anything waits to be started or judged.
    pub fn may_kexec(&self) -> bool {
        self.standing == Standing::Good && !matches!(self.other, Other::Trial(_))
    }

    /// Puts a new system into the other slot, whatever is there, and has it started by the next reboot. A trial that was
    /// not judged yet is given up.
    pub fn upgrade(&mut self, start: Start, by: BootId) -> Vec<Op> {
        let target = self.target();
        // The default is named everywhere it can be, before there is anything else a boot loader could take.
        let mut ops =
            vec![Op::Disarm, self.save(Other::Empty), Op::SetDefault(self.default), Op::Write(target)];
        match start {
            Start::OneShot => self.arm(by, &mut ops),
            Start::Default => {
                self.swap(Standing::Unproven);
                ops.extend([Op::Save(*self), Op::SetDefault(target)]);
            }
        }
        ops
    }

    /// Continues after a start of the machine, or of machined alone.
    pub fn boot(&mut self, boot: &Boot) -> Decision {
        let mut ops = Vec::new();
        self.follow(boot.default, &mut ops);
        let next = match boot.slot {
            None => Next::Run,
            Some(slot) if slot == self.default => self.boot_default(boot, &mut ops),
            Some(_) => self.boot_other(boot, &mut ops),
        };
        Decision { ops, next }
    }

    /// The slot is healthy: it is the default from now on.
    pub fn commit(&mut self, judge: &Judge) -> Vec<Op> {
        if judge.slot == self.default {
            self.standing = Standing::Good;
            return vec![Op::Save(*self)];
        }
        self.swap(Standing::Good);
        // The boot loader first: until then the record says `started`, from which both slots are found again.
        vec![Op::SetDefault(self.default), Op::Save(*self)]
    }

    /// The slot is not healthy: back to the default, if that is another one.
    pub fn fail(&mut self, judge: &Judge) -> Decision {
        if judge.slot == self.default {
            return Decision { ops: Vec::new(), next: Next::Run };
        }
        let ops = vec![Op::Disarm, self.save(Other::Failed { failure: Failure::Unhealthy, by: judge.boot })];
        Decision { ops, next: Next::Restart }
    }

    /// A person wants the earlier system back; a reboot through the boot loader has to follow.
    ///
    /// # Errors
    /// When there is none.
    pub fn rollback(&mut self, by: BootId) -> Result<Vec<Op>, NoWayBack> {
        let slot = self.target();
        match self.other {
            Other::Empty => Err(NoWayBack::Empty(slot)),
            Other::Untested => Err(NoWayBack::Untested(slot)),
            Other::Failed { failure, .. } => Err(NoWayBack::Failed(slot, failure)),
            Other::Trial(Trial::Prepared { .. } | Trial::Armed { .. }) => {
                Ok(vec![Op::Disarm, self.save(Other::Untested)])
            }
            Other::Trial(Trial::Started { .. }) => {
                Ok(vec![Op::Disarm, self.save(Other::Failed { failure: Failure::RolledBack, by })])
            }
            Other::Good => {
                self.swap(Standing::Good);
                Ok(vec![Op::Disarm, Op::SetDefault(slot), Op::Save(*self)])
            }
            // Nobody knows whether it starts: it has to show it first, as a new one.
            Other::Unjudged => {
                let mut ops = vec![Op::Disarm, Op::SetDefault(self.default)];
                self.arm(by, &mut ops);
                Ok(ops)
            }
        }
    }

    /// Nothing is to be tried any more: before a reset.
    pub fn abandon(&mut self) -> Vec<Op> {
        match self.other {
            Other::Trial(_) => vec![Op::Disarm, self.save(Other::Untested)],
            Other::Empty | Other::Untested | Other::Unjudged | Other::Good | Other::Failed { .. } => {
                vec![Op::Disarm]
            }
        }
    }

    /// Brings record and boot loader together.
    fn follow(&mut self, default: Option<Slot>, ops: &mut Vec<Op>) {
        if default == Some(self.target()) {
            match self.other {
                // The only changes of the default that a power cut can interrupt; the boot loader is ahead.
                Other::Good | Other::Trial(Trial::Started { .. }) => {
                    self.swap(Standing::Good);
                    ops.push(Op::Save(*self));
                }
                // Changed by a person in the menu, or by the tools of another system.
                Other::Unjudged => {
                    self.swap(Standing::Unproven);
                    ops.push(Op::Save(*self));
                }
                // Nobody of ours made that the default, and it is not known to start.
                Other::Empty
                | Other::Untested
                | Other::Trial(Trial::Prepared { .. } | Trial::Armed { .. })
                | Other::Failed { .. } => {}
            }
        }
        ops.push(Op::SetDefault(self.default));
    }

    fn boot_default(&mut self, boot: &Boot, ops: &mut Vec<Op>) -> Next {
        match (self.standing, self.other, boot.path) {
            // Machined alone was restarted, and the reboot of the upgrade is still to come.
            (_, Other::Trial(Trial::Armed { by }), _) if by == boot.id => Next::Run,
            // The loader was not asked yet: the trial is still to come.
            (_, Other::Trial(Trial::Armed { .. }), BootPath::Kexec) => Next::Restart,
            (_, Other::Trial(trial), _) => {
                ops.push(Op::Disarm);
                let failed = |failure| Other::Failed { failure, by: boot.id };
                ops.push(self.save(match trial {
                    Trial::Prepared { .. } => Other::Untested,
                    Trial::Armed { .. } => failed(Failure::NeverCameUp),
                    Trial::Started { .. } => failed(Failure::EndedEarly),
                }));
                self.judge_default(boot)
            }
            (Standing::Unproven, Other::Good, BootPath::Firmware) => {
                // This boot is its trial: the old system is the default again while it runs.
                self.swap(Standing::Good);
                ops.push(Op::SetDefault(self.default));
                ops.push(self.save(Other::Trial(Trial::Started { boot: boot.id })));
                Next::Judge(Judge { slot: self.target(), boot: boot.id })
            }
            (Standing::Unproven, Other::Good, BootPath::Kexec) => {
                self.swap(Standing::Good);
                ops.push(Op::SetDefault(self.default));
                self.arm(boot.id, ops);
                Next::Restart
            }
            _ => self.judge_default(boot),
        }
    }

    /// A default that was never healthy is watched, with nowhere to go back to.
    fn judge_default(&self, boot: &Boot) -> Next {
        match (self.standing, boot.path) {
            (Standing::Unproven, BootPath::Firmware) => {
                Next::Judge(Judge { slot: self.default, boot: boot.id })
            }
            (Standing::Unproven, BootPath::Kexec) | (Standing::Good, _) => Next::Run,
        }
    }

    fn boot_other(&mut self, boot: &Boot, ops: &mut Vec<Op>) -> Next {
        let judge = || Next::Judge(Judge { slot: self.default.other(), boot: boot.id });
        let trial = match self.other {
            Other::Trial(trial) => trial,
            // Machined alone was restarted, after it gave the slot up and before the machine went down.
            Other::Failed { by, .. } if by == boot.id => return Next::Restart,
            // A person chose it in the menu.
            Other::Empty | Other::Untested | Other::Unjudged | Other::Good | Other::Failed { .. } => {
                return Next::Run;
            }
        };
        match (trial, boot.path) {
            (Trial::Started { boot: id }, _) if id == boot.id => judge(),
            (Trial::Prepared { .. } | Trial::Armed { .. }, BootPath::Firmware) => {
                // The loader has taken the entry back by itself; one that has not must not do it again.
                ops.push(Op::Disarm);
                let next = judge();
                ops.push(self.save(Other::Trial(Trial::Started { boot: boot.id })));
                next
            }
            (Trial::Prepared { .. } | Trial::Armed { .. }, BootPath::Kexec) => {
                self.arm(boot.id, ops);
                Next::Restart
            }
            (Trial::Started { .. }, _) => {
                ops.push(Op::Disarm);
                ops.push(self.save(Other::Failed { failure: Failure::StartedTwice, by: boot.id }));
                Next::Restart
            }
        }
    }

    fn arm(&mut self, by: BootId, ops: &mut Vec<Op>) {
        let target = self.target();
        ops.push(self.save(Other::Trial(Trial::Prepared { by })));
        ops.push(Op::Arm(target));
        ops.push(self.save(Other::Trial(Trial::Armed { by })));
    }

    fn save(&mut self, other: Other) -> Op {
        self.other = other;
        Op::Save(*self)
    }

    /// The other slot becomes the default, and the default the way back.
    fn swap(&mut self, standing: Standing) {
        self.other = match self.standing {
            Standing::Good => Other::Good,
            Standing::Unproven => Other::Unjudged,
        };
        self.default = self.default.other();
        self.standing = standing;
    }
}
