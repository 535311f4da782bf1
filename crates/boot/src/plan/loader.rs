//! What the two boot loaders go by, and the steps that change it.

use crate::grub::config::{Entry, GrubConfig, title};
use crate::grub::{self, EnvBlock};
use crate::sdboot::variable::{Variable, encode_text};
use crate::sdboot::{self, UkiName};
use crate::slots::Slot;

use super::disk::{NewSystem, PlanError};
use super::{Asset, Content, Step, Volume};

/// What is read of a disk with GRUB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrubFiles {
    /// `grub.cfg`; none on a disk that is being installed.
    pub config: Option<GrubConfig>,
    /// The environment block; none when there is no file.
    pub env: Option<EnvBlock>,
}

/// What is read of a disk with systemd-boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SdBootFiles {
    /// The images.
    pub images: Vec<UkiName>,
    /// `LoaderEntryDefault`.
    pub default: Option<String>,
    /// `LoaderEntryOneShot`.
    pub one_shot: Option<String>,
    /// `loader.conf`.
    pub conf: Option<String>,
}

impl GrubFiles {
    pub(super) fn write(
        &mut self,
        slot: Slot,
        new: &NewSystem,
        steps: &mut Vec<Step>,
    ) -> Result<String, PlanError> {
        let volume = Volume::Boot;
        let entry = Entry {
            title: title(slot, &new.name, &new.tag),
            kernel: format!("/{}", grub::kernel_path(slot)),
            initrd: format!("/{}", grub::initramfs_path(slot)),
            cmdline: new.cmdline.clone(),
        };
        // Nothing refers to the slot while it is written: neither a fallback nor a person in the menu gets half of it.
        if let Some(config) = self.config.as_ref().filter(|config| config.entry(slot).is_some()) {
            let mut without = config.clone();
            without.set_entry(slot, None);
            without.fallback = None;
            self.put(without, steps)?;
        }
        let parts =
            [(grub::kernel_path(slot), Asset::Kernel), (grub::initramfs_path(slot), Asset::Initramfs)];
        steps.extend(parts.iter().map(|(path, _)| Step::Delete { volume, path: path.clone() }));
        steps.push(Step::Flush { volume });
        for (path, asset) in &parts {
            steps.push(Step::Write { volume, path: path.clone(), content: Content::Asset(*asset) });
        }
        steps.push(Step::Flush { volume });
        steps.extend(parts.into_iter().map(|(path, asset)| Step::Verify { volume, path, asset }));
        let name = entry.title.clone();
        let config = match &self.config {
            Some(config) => {
                let mut config = config.clone();
                config.set_entry(slot, Some(entry));
                GrubConfig { one_shot: true, ..config }
            }
            None => {
                let mut config = GrubConfig {
                    default: slot,
                    fallback: None,
                    entries: [None, None],
                    reset: true,
                    one_shot: true,
                };
                config.set_entry(slot, Some(entry));
                config
            }
        };
        self.put(config, steps)?;
        Ok(name)
    }

    pub(super) fn set_default(
        &mut self,
        slot: Slot,
        fallback: Option<Slot>,
        steps: &mut Vec<Step>,
    ) -> Result<(), PlanError> {
        let config = self.config.as_ref().ok_or(PlanError::NoDefault)?;
        let fallback = fallback.filter(|other| config.entry(*other).is_some());
        // The original's configuration follows no one-shot entry.
        let wanted = GrubConfig { default: slot, fallback, one_shot: true, ..config.clone() };
        if wanted != *config {
            self.put(wanted, steps)?;
        }
        Ok(())
    }

    pub(super) fn set_next(&mut self, name: Option<&str>, steps: &mut Vec<Step>) -> Result<(), PlanError> {
        if self.env.is_none() && name.is_some() {
            let env = EnvBlock::default();
            let (volume, content) = (Volume::Boot, Content::Bytes(env.encode()?));
            steps.push(Step::Write { volume, path: grub::ENV_PATH.into(), content });
            steps.push(Step::Flush { volume });
            self.env = Some(env);
        }
        // Without a file GRUB follows nothing, and there is nothing to take back.
        let Some(env) = &mut self.env else { return Ok(()) };
        if env.get(grub::NEXT_ENTRY) == name {
            return Ok(());
        }
        match name {
            Some(name) => env.set(grub::NEXT_ENTRY, name),
            None => env.remove(grub::NEXT_ENTRY),
        }
        let (volume, bytes) = (Volume::Boot, env.encode()?);
        steps.push(Step::Overwrite { volume, path: grub::ENV_PATH.into(), bytes });
        steps.push(Step::Flush { volume });
        Ok(())
    }

    /// Exchanges the configuration for a new one, or writes the first.
    fn put(&mut self, config: GrubConfig, steps: &mut Vec<Step>) -> Result<(), PlanError> {
        let (volume, content) = (Volume::Boot, Content::Bytes(config.render()?.into_bytes()));
        if self.config.is_none() {
            steps.push(Step::Write { volume, path: grub::CONFIG_PATH.into(), content });
        } else {
            steps.push(Step::Write { volume, path: grub::SPARE_PATH.into(), content });
            steps.push(Step::Flush { volume });
            let (path, with) = (grub::CONFIG_PATH.into(), grub::SPARE_PATH.into());
            steps.push(Step::Exchange { volume, path, with });
        }
        steps.push(Step::Flush { volume });
        self.config = Some(config);
        Ok(())
    }
}

impl SdBootFiles {
    /// What is started by default, as far as anything says so.
    pub fn default_image(&self) -> Option<UkiName> {
        let there = |name: UkiName| self.images.contains(&name).then_some(name);
        let variable = self.default.as_deref().and_then(UkiName::parse).and_then(there);
        variable
            .or_else(|| self.conf.as_deref().and_then(sdboot::default_of).and_then(there))
            .or_else(|| self.images.first().filter(|_| self.images.len() == 1).cloned())
    }

    pub(super) fn write(
        &mut self,
        keep: Option<&str>,
        new: &NewSystem,
        steps: &mut Vec<Step>,
    ) -> Result<String, PlanError> {
        let volume = Volume::Efi;
        let name = UkiName::next(&new.tag, &self.images)?;
        let keep = keep.and_then(UkiName::parse);
        let (kept, gone) = self.images.drain(..).partition(|image| Some(image) == keep.as_ref());
        self.images = kept;
        let gone: Vec<UkiName> = gone;
        for image in gone {
            steps.push(Step::Delete { volume, path: sdboot::uki_path(&image) });
            steps.push(Step::Flush { volume });
        }
        let path = sdboot::uki_path(&name);
        steps.push(Step::Write { volume, path: path.clone(), content: Content::Asset(Asset::Uki) });
        steps.push(Step::Flush { volume });
        steps.push(Step::Verify { volume, path, asset: Asset::Uki });
        let text = name.to_string();
        self.images.push(name);
        Ok(text)
    }

    pub(super) fn set_default(&mut self, name: &str, steps: &mut Vec<Step>) {
        let volume = Volume::Efi;
        if !self.default.as_deref().is_some_and(|other| other.eq_ignore_ascii_case(name)) {
            let bytes = encode_text(name);
            steps.push(Step::SetVariable { variable: Variable::EntryDefault, bytes });
            self.default = Some(name.to_owned());
        }
        let Some(image) = UkiName::parse(name) else { return };
        if self.conf.as_deref().and_then(sdboot::default_of).as_ref() != Some(&image) {
            let text = sdboot::with_default(self.conf.as_deref(), &image);
            let (path, bytes) = (sdboot::CONF_PATH.to_owned(), text.clone().into_bytes());
            steps.push(match self.conf {
                Some(_) => Step::Overwrite { volume, path, bytes },
                None => Step::Write { volume, path, content: Content::Bytes(bytes) },
            });
            steps.push(Step::Flush { volume });
            self.conf = Some(text);
        }
    }

    pub(super) fn set_one_shot(&mut self, name: Option<&str>, steps: &mut Vec<Step>) {
        let variable = Variable::EntryOneShot;
        match name {
            Some(name) => steps.push(Step::SetVariable { variable, bytes: encode_text(name) }),
            None if self.one_shot.is_some() => steps.push(Step::DeleteVariable { variable }),
            None => {}
        }
        self.one_shot = name.map(str::to_owned);
    }
}
