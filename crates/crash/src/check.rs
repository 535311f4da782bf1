//! What has to be true of a disk after a power cut.

use ichor_boot::plan::Volume;
use ichor_boot::record::SLOTS_KEY;

use crate::disk::State;
use crate::{Kind, Scenario, Started, meta};

impl Scenario {
    /// Starts the machine after a power cut; gives what came up, if anything had to.
    ///
    /// # Errors
    /// What is wrong with the disk.
    pub fn check(&self, raw: &State) -> Result<Option<Started>, String> {
        let mut state = raw.clone();
        let started = match self.kind.start(&mut state) {
            Ok(started) => started,
            Err(_) if self.is_install => return Ok(None),
            Err(error) => return Err(error),
        };
        let allowed = if started.once { &self.trials } else { &self.defaults };
        if !allowed.contains(&started.system) {
            return Err(format!("{started:?}"));
        }
        let again = self.kind.start(&mut state).map_err(|error| format!("the second time: {error}"))?;
        if again.once || !self.defaults.contains(&again.system) {
            return Err(format!("the second time {again:?}"));
        }
        self.check_without_variables(raw)?;
        self.check_meta(raw, &started)?;
        let config = raw.config();
        match self.configs.contains(&config) {
            true => Ok(Some(started)),
            false => {
                Err(format!("neither the old nor the new configuration: {:?}", config.map(|it| it.len())))
            }
        }
    }

    /// Firmware may lose its variables.
    fn check_without_variables(&self, raw: &State) -> Result<(), String> {
        if self.kind == Kind::Grub || self.is_install {
            return Ok(());
        }
        let mut lost = raw.clone();
        lost.variables.clear();
        let started = self.kind.start(&mut lost).map_err(|error| format!("without variables: {error}"))?;
        // A disk of the original has no default but the variable, until the first step of ours.
        let had_default = raw.file(Volume::Efi, "loader/loader.conf").is_some_and(|conf| conf.len() > 11);
        match self.defaults.contains(&started.system) || !had_default {
            true => Ok(()),
            false => Err(format!("without variables: {started:?}")),
        }
    }

    /// The values are those before or after one of the changes, and the record goes with what was started.
    fn check_meta(&self, raw: &State, started: &Started) -> Result<(), String> {
        let values = meta::read(raw)?.unwrap_or_default();
        if !self.metas.contains(&values) {
            return Err(format!("META holds what nobody wrote: keys {:?}", values.keys()));
        }
        // An installation writes META and everything else before the partition table.
        let Some(text) = values.get(&SLOTS_KEY).filter(|_| !self.is_install) else { return Ok(()) };
        let lines = meta::record(text)?;
        meta::fits(&lines, &started.entry, started.once, |entry| self.kind.has(raw, entry))
    }
}
