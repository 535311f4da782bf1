//! A system disk as its boot loader and META show it, and the plans that change it.

use crate::grub::{EnvError, GrubError};
use crate::record::{Record, SLOTS_KEY, UPGRADE_KEY};
use crate::sdboot::variable::{Variable, encode, encode_text};
use crate::sdboot::{self, LoadOption, UkiName, UkiNameError};
use crate::slots::{Boot, BootId, BootPath, Judge, Next, NoWayBack, Op, Other, Slot, Slots, Standing, Start};

use super::{Asset, Content, Step, Volume};

pub use super::loader::{GrubFiles, SdBootFiles};

#[cfg(test)]
mod tests;

/// A boot loader and what it goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loader {
    /// GRUB.
    Grub(GrubFiles),
    /// systemd-boot.
    SdBoot(SdBootFiles),
}

/// A system that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSystem {
    /// The name in titles of GRUB.
    pub name: String,
    /// The version tag.
    pub tag: String,
    /// The command line, for GRUB; an image has its own.
    pub cmdline: String,
}

/// The firmware's entry of a first installation: its number, others to delete, what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirmwareEntry {
    /// Under which number.
    pub number: u16,
    /// Which others go.
    pub delete: Vec<u16>,
    /// What it starts.
    pub option: LoadOption,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The configuration of GRUB cannot be written.
    #[error(transparent)]
    Grub(#[from] GrubError),
    /// The environment of GRUB cannot be written.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The version cannot be part of a name.
    #[error(transparent)]
    Name(#[from] UkiNameError),
    /// Nothing to roll back to.
    #[error(transparent)]
    NoWayBack(#[from] NoWayBack),
    /// The boot loader has nothing to start.
    #[error("the boot loader of the system disk has no default entry; install instead of upgrading")]
    NoDefault,
    /// A slot without an entry.
    #[error("slot {0} has no entry in the boot loader; run the upgrade again")]
    NoEntry(Slot),
}

/// A system disk. Each plan also changes this value to what the disk will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootDisk {
    /// The boot loader.
    pub loader: Loader,
    /// What is known of the slots.
    pub record: Record,
}

impl BootDisk {
    /// A first installation, on a cleared disk, and its plan.
    ///
    /// # Errors
    /// When the new system cannot be written.
    pub fn install(
        loader: Loader,
        new: &NewSystem,
        architecture: &str,
        firmware: Option<&FirmwareEntry>,
    ) -> Result<(Self, Vec<Step>), PlanError> {
        let (slots, ops) = Slots::install();
        let mut disk = Self { loader, record: Record { slots, names: [None, None] } };
        let mut steps = Vec::new();
        if let (Loader::SdBoot(_), Some(path)) = (&disk.loader, sdboot::loader_path(architecture)) {
            let (volume, content) = (Volume::Efi, Content::Asset(Asset::Loader));
            steps.push(Step::Write { volume, path: path.into(), content });
            steps.push(Step::Flush { volume });
            steps.push(Step::Verify { volume, path: path.into(), asset: Asset::Loader });
        }
        disk.lower(&ops, Some(new), &mut steps)?;
        if let Loader::SdBoot(_) = &disk.loader {
            let bytes = encode_text(sdboot::TIMEOUT);
            steps.push(Step::SetVariable { variable: Variable::ConfigTimeout, bytes });
        }
        if let Some(entry) = firmware {
            let variable = Variable::Boot(entry.number);
            steps.push(Step::SetVariable { variable, bytes: encode(&entry.option.encode()) });
            let others = entry.delete.iter().map(|number| Variable::Boot(*number));
            steps.extend(others.map(|variable| Step::DeleteVariable { variable }));
        }
        Ok((disk, steps))
    }

    /// An installed disk. A record that does not fit what is there, or none at all, means that somebody else installed
    /// it: what its boot loader starts is good, or on trial if `previous` (META 0x06) says that it is new.
    ///
    /// # Errors
    /// When the boot loader has nothing to start.
    pub fn read(loader: Loader, record: Option<Record>, previous: Option<&str>) -> Result<Self, PlanError> {
        let (default, entries) = match &loader {
            Loader::Grub(files) => {
                let config = files.config.as_ref().ok_or(PlanError::NoDefault)?;
                let name = |slot| config.entry(slot).map(|entry| entry.title.clone());
                (name(config.default), [name(Slot::A), name(Slot::B)])
            }
            Loader::SdBoot(files) => {
                let default = files.default_image();
                let other = files.images.iter().find(|image| Some(*image) != default.as_ref());
                let text = |name: &UkiName| name.to_string();
                (default.as_ref().map(text), [default.as_ref().map(text), other.map(text)])
            }
        };
        let is_foreign = |record: &Record| {
            let slot = default.as_deref().and_then(|name| record.slot_of(name));
            let moved = slot != Some(record.slots.default());
            slot.is_none() || (moved && previous.is_some_and(|label| !label.is_empty()))
        };
        if let Some(record) = record.filter(|record| default.is_none() || !is_foreign(record)) {
            return Ok(Self { loader, record });
        }
        let default = match &loader {
            Loader::Grub(files) => files.config.as_ref().map(|config| config.default),
            Loader::SdBoot(_) => default.map(|_| Slot::A),
        }
        .ok_or(PlanError::NoDefault)?;
        let other = if default == Slot::A { &entries[1] } else { &entries[0] };
        let slots = match previous.is_some_and(|label| !label.is_empty()) && other.is_some() {
            true => Slots::new(default, Standing::Unproven, Other::Good),
            false => Slots::found(default, other.is_some()),
        };
        Ok(Self { loader, record: Record { slots, names: entries } })
    }

    /// Writes a new system and has it started.
    ///
    /// # Errors
    /// When it cannot be written; nothing was changed.
    pub fn upgrade(&mut self, new: &NewSystem, start: Start, by: BootId) -> Result<Vec<Step>, PlanError> {
        let mut after = self.clone();
        let previous = after.label(after.record.slots.default());
        let ops = after.record.slots.upgrade(start, by);
        let mut steps = Vec::new();
        after.lower(&ops, Some(new), &mut steps)?;
        if let (Start::Default, Some(previous)) = (start, previous) {
            // Before the default changes: the system that runs this reads it to find its way back.
            let at =
                steps.iter().rposition(|step| matches!(step, Step::SetMeta { .. })).unwrap_or(steps.len());
            steps.insert(at, Step::SetMeta { key: UPGRADE_KEY, value: previous.into_bytes() });
        }
        *self = after;
        Ok(steps)
    }

    /// Continues after a start of machined. `entry` is what the boot loader says it started.
    ///
    /// # Errors
    /// When the boot loader cannot be brought into line.
    pub fn boot(
        &mut self,
        entry: Option<&str>,
        path: BootPath,
        id: BootId,
    ) -> Result<(Vec<Step>, Next), PlanError> {
        let default = self.default_entry().and_then(|name| self.record.slot_of(&name));
        let slot = match path {
            BootPath::Firmware => entry.and_then(|entry| self.record.slot_of(entry)),
            // A kernel loads the default; what the boot loader said is from an earlier boot.
            BootPath::Kexec => default,
        };
        let mut after = self.clone();
        let decision = after.record.slots.boot(&Boot { slot, path, id, default });
        let mut steps = Vec::new();
        after.lower(&decision.ops, None, &mut steps)?;
        *self = after;
        Ok((steps, decision.next))
    }

    /// Keeps a healthy slot.
    ///
    /// # Errors
    /// When the boot loader's files cannot be written.
    pub fn commit(&mut self, judge: &Judge) -> Result<Vec<Step>, PlanError> {
        let mut after = self.clone();
        let ops = after.record.slots.commit(judge);
        self.take(after, &ops)
    }

    /// Gives an unhealthy slot up.
    ///
    /// # Errors
    /// When the boot loader's files cannot be written.
    pub fn fail(&mut self, judge: &Judge) -> Result<(Vec<Step>, Next), PlanError> {
        let mut after = self.clone();
        let decision = after.record.slots.fail(judge);
        Ok((self.take(after, &decision.ops)?, decision.next))
    }

    /// Goes back to the earlier system.
    ///
    /// # Errors
    /// [`PlanError::NoWayBack`].
    pub fn rollback(&mut self, by: BootId) -> Result<Vec<Step>, PlanError> {
        let mut after = self.clone();
        let ops = after.record.slots.rollback(by)?;
        self.take(after, &ops)
    }

    /// Clears partitions, those that a boot loader needs last: a reset that is interrupted leaves a machine that
    /// starts, in maintenance mode.
    ///
    /// # Errors
    /// When the boot loader's files cannot be written.
    pub fn reset(&mut self, labels: &[String]) -> Result<Vec<Step>, PlanError> {
        const LAST: &[&str] = &["META", "BOOT", "BIOS", "EFI"];
        let mut after = self.clone();
        let ops = after.record.slots.abandon();
        let mut steps = self.take(after, &ops)?;
        let has = |label: &str| labels.iter().any(|other| other == label);
        if has("STATE") && !has("META") {
            steps.push(Step::DeleteMeta { key: 0x09 });
        }
        let rank = |label: &String| LAST.iter().position(|other| other == label).map_or(0, |at| at + 1);
        let mut ordered = labels.to_vec();
        ordered.sort_by_key(rank);
        if has("EFI") {
            let variables = [Variable::EntryOneShot, Variable::EntryDefault];
            steps.extend(variables.map(|variable| Step::DeleteVariable { variable }));
        }
        steps.extend(ordered.into_iter().map(|label| Step::Wipe { label }));
        Ok(steps)
    }

    /// The entry that the boot loader starts unless told otherwise; none when it does not say.
    pub fn default_entry(&self) -> Option<String> {
        match &self.loader {
            Loader::Grub(files) => {
                let config = files.config.as_ref()?;
                Some(config.entry(config.default)?.title.clone())
            }
            Loader::SdBoot(files) => files.default_image().map(|name| name.to_string()),
        }
    }

    /// The label of a slot, as the original calls it.
    fn label(&self, slot: Slot) -> Option<String> {
        match &self.loader {
            Loader::Grub(_) => Some(slot.to_string()),
            Loader::SdBoot(_) => self.record.name(slot).map(str::to_owned),
        }
    }

    fn take(&mut self, mut after: Self, ops: &[Op]) -> Result<Vec<Step>, PlanError> {
        let mut steps = Vec::new();
        after.lower(ops, None, &mut steps)?;
        *self = after;
        Ok(steps)
    }

    /// Turns operations into steps, and this value into what is there after them.
    fn lower(&mut self, ops: &[Op], new: Option<&NewSystem>, steps: &mut Vec<Step>) -> Result<(), PlanError> {
        for op in ops {
            match *op {
                Op::Save(slots) => {
                    self.record.slots = slots;
                    if slots.other() == Other::Empty {
                        self.record.set_name(slots.target(), None);
                    }
                    steps.push(Step::SetMeta { key: SLOTS_KEY, value: self.record.encode().into_bytes() });
                }
                Op::Write(slot) => {
                    let new = new.ok_or(PlanError::NoEntry(slot))?;
                    let name = match &mut self.loader {
                        Loader::Grub(files) => files.write(slot, new, steps)?,
                        Loader::SdBoot(files) => {
                            files.write(self.record.names[index(slot.other())].as_deref(), new, steps)?
                        }
                    };
                    self.record.set_name(slot, Some(name));
                }
                Op::Disarm => match &mut self.loader {
                    Loader::Grub(files) => files.set_next(None, steps)?,
                    Loader::SdBoot(files) => files.set_one_shot(None, steps),
                },
                Op::Arm(slot) => {
                    let name = self.record.name(slot).ok_or(PlanError::NoEntry(slot))?;
                    match &mut self.loader {
                        Loader::Grub(files) => files.set_next(Some(name), steps)?,
                        Loader::SdBoot(files) => files.set_one_shot(Some(name), steps),
                    }
                }
                Op::SetDefault(slot) => {
                    let name = self.record.name(slot).ok_or(PlanError::NoEntry(slot))?;
                    let fallback = self.record.slots.is_good(slot.other()).then_some(slot.other());
                    match &mut self.loader {
                        Loader::Grub(files) => files.set_default(slot, fallback, steps)?,
                        Loader::SdBoot(files) => files.set_default(name, steps),
                    }
                }
            }
        }
        Ok(())
    }
}

fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}
