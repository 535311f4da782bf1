//! The slots of an installed disk: upgrade, rollback, what a start of the machine means, and what is decided after it.
//!
//! What is done is decided by `ichor-boot`; this module brings it together with the files, variables and META of a disk. The
//! functions here work on places, so that tests have their own.

use std::path::PathBuf;

use ichor_boot::plan::disk::{BootDisk, Loader, NewSystem};
use ichor_boot::plan::{Step, execute};
use ichor_boot::record::UPGRADE_KEY;
use ichor_boot::sdboot::variable::Variable;
use ichor_boot::slots::{BootId, BootPath, Judge, Next, Other, Start};
use ichor_sys::boot_port::{BootPaths, BootPort};
use ichor_types::Cmdline;

use crate::error::InstallError;
use crate::meta::{DiskMeta, DiskOutside};

/// How the running system was started.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its command line, on which GRUB names the kernel.
    pub cmdline: Cmdline,
    /// By firmware, or by another kernel.
    pub path: BootPath,
    /// Which boot this is.
    pub id: BootId,
    /// The GUID of the EFI partition of the disk: a boot loader that came from elsewhere says nothing about its slots.
    pub efi_guid: Option<String>,
}

impl Running {
    /// This machine.
    pub fn this(efi_guid: Option<String>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kind = read("/proc/sys/kernel/bootloader_type").trim().parse().ok();
        let id = read("/proc/sys/kernel/random/boot_id").trim().replace('-', "");
        Self {
            cmdline: Cmdline::parse(&read("/proc/cmdline")),
            path: BootPath::from_bootloader_type(kind),
            id: BootId(u128::from_str_radix(&id, 16).unwrap_or_default()),
            efi_guid,
        }
    }

    /// What the boot loader of this disk says it started; none when the system came from elsewhere.
    fn entry(&self, disk: &BootDisk, paths: &BootPaths) -> Option<String> {
        match &disk.loader {
            Loader::Grub(files) => {
                let image = self.cmdline.first("BOOT_IMAGE")?;
                files.config.as_ref()?.title_of_kernel(image).map(str::to_owned)
            }
            Loader::SdBoot(_) => {
                let from = paths.variable_text(Variable::DevicePartUuid);
                let is_ours = match (&from, &self.efi_guid) {
                    (Some(from), Some(own)) => from.eq_ignore_ascii_case(own),
                    _ => true,
                };
                is_ours.then(|| paths.variable_text(Variable::EntrySelected)).flatten()
            }
        }
    }
}

/// What comes after a start of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing.
    Run,
    /// The running system is on trial.
    Judge,
    /// Reboot through firmware and boot loader.
    Restart,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Run => "run",
            Self::Judge => "judge",
            Self::Restart => "restart",
        })
    }
}

/// An installed disk: places of its boot loaders, and META.
#[derive(Debug)]
pub struct Installed<'a> {
    /// Where things are.
    pub paths: BootPaths,
    /// META.
    pub meta: &'a mut DiskMeta,
}

impl Installed<'_> {
    /// What its boot loader and META say.
    ///
    /// # Errors
    /// When there is no boot loader, or none of its systems is the default.
    pub fn read(&self) -> Result<BootDisk, InstallError> {
        let loader = self.paths.probe()?.ok_or_else(|| InstallError::NotInstalled {
            path: PathBuf::from("the disk"),
            reason: "neither GRUB nor systemd-boot is on it".to_owned(),
        })?;
        Ok(BootDisk::read(loader, self.meta.record(), self.meta.previous().as_deref())?)
    }

    fn execute(&mut self, steps: &[Step]) -> Result<(), InstallError> {
        let outside = DiskOutside { meta: self.meta, disk: None };
        Ok(execute(steps, &mut BootPort::new(self.paths.clone(), outside))?)
    }

    /// What a start of the machine means, and the steps that follow from it; nothing is changed.
    ///
    /// # Errors
    /// When the boot loader cannot be read.
    pub fn decide(&self, running: &Running) -> Result<(Vec<Step>, Outcome), InstallError> {
        let mut disk = self.read()?;
        let (steps, next) = self.continued(&mut disk, running)?;
        let outcome = match next {
            Next::Run => Outcome::Run,
            Next::Judge(_) => Outcome::Judge,
            Next::Restart => Outcome::Restart,
        };
        Ok((steps, outcome))
    }

    /// Continues after a start of the machine.
    ///
    /// # Errors
    /// When the boot loader cannot be brought into line.
    pub fn boot(&mut self, running: &Running) -> Result<Outcome, InstallError> {
        let (steps, outcome) = self.decide(running)?;
        self.execute(&steps)?;
        Ok(outcome)
    }

    fn continued(&self, disk: &mut BootDisk, running: &Running) -> Result<(Vec<Step>, Next), InstallError> {
        let entry = running.entry(disk, &self.paths);
        Ok(disk.boot(entry.as_deref(), running.path, running.id)?)
    }

    /// The right to judge the running system; none when it is not on trial.
    fn judge(&mut self, running: &Running) -> Result<(BootDisk, Option<Judge>), InstallError> {
        let mut disk = self.read()?;
        let (steps, next) = self.continued(&mut disk, running)?;
        self.execute(&steps)?;
        let judge = if let Next::Judge(judge) = next { Some(judge) } else { None };
        Ok((disk, judge))
    }

    /// Keeps the running system, if it is on trial. True when it was.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn commit(&mut self, running: &Running) -> Result<bool, InstallError> {
        let (mut disk, judge) = self.judge(running)?;
        let Some(judge) = judge else { return Ok(false) };
        let mut steps = disk.commit(&judge)?;
        // Only now there is nothing to go back to any more, also for the original.
        steps.push(Step::DeleteMeta { key: UPGRADE_KEY });
        self.execute(&steps)?;
        Ok(true)
    }

    /// Gives the running system up, if it is on trial.
    ///
    /// # Errors
    /// When that cannot be written; a restart starts the default nevertheless.
    pub fn fail(&mut self, running: &Running) -> Result<Outcome, InstallError> {
        let (mut disk, judge) = self.judge(running)?;
        let Some(judge) = judge else { return Ok(Outcome::Run) };
        let (mut steps, next) = disk.fail(&judge)?;
        if next == Next::Restart {
            steps.push(Step::DeleteMeta { key: UPGRADE_KEY });
        }
        self.execute(&steps)?;
        Ok(if next == Next::Restart { Outcome::Restart } else { Outcome::Run })
    }

    /// Goes back to the earlier system with the next reboot. What will be started.
    ///
    /// # Errors
    /// When there is none.
    pub fn rollback(&mut self, running: &Running) -> Result<String, InstallError> {
        let mut disk = self.read()?;
        let steps = disk.rollback(running.id)?;
        self.execute(&steps)?;
        let slots = &disk.record.slots;
        let (slot, how) = match slots.other() {
            Other::Trial(_) => (slots.target(), ", on trial"),
            Other::Empty | Other::Untested | Other::Unjudged | Other::Good | Other::Failed { .. } => {
                (slots.default(), "")
            }
        };
        Ok(format!("{}{how}", disk.record.name(slot).unwrap_or("-")))
    }

    /// Writes a new system into the slot that is not in use. What it is called.
    ///
    /// # Errors
    /// When it cannot be written; the default stays what it is.
    pub fn upgrade(
        &mut self,
        new: &NewSystem,
        start: Start,
        running: &Running,
    ) -> Result<String, InstallError> {
        let mut disk = self.read()?;
        let steps = disk.upgrade(new, start, running.id)?;
        self.execute(&steps)?;
        let slots = &disk.record.slots;
        let slot = if start == Start::Default { slots.default() } else { slots.target() };
        Ok(disk.record.name(slot).unwrap_or("-").to_owned())
    }
}
