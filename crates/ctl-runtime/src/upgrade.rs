//! What is left of an upgrade: the way back, given up once the machine is well; and what was booted.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::runtime::{BootedEntry, MachineStage, MachineStatus, SecurityState};
use tracing::info;

use crate::meta::{self, Meta, MetaError};
use crate::ports::Files;
use crate::security::efi_text;

/// Takes the way back out of META once the machine is running and ready.
pub struct DropUpgradeFallbackController {
    meta: Meta,
}

impl DropUpgradeFallbackController {
    /// A controller of this META.
    pub fn new(meta: Meta) -> Self {
        Self { meta }
    }
}

impl Controller for DropUpgradeFallbackController {
    const NAME: &'static str = "runtime.DropUpgradeFallbackController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MachineStatus>().id("machine")]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let well = ctx
            .get::<MachineStatus>("machine")?
            .is_some_and(|status| status.stage == MachineStage::Running && status.status.ready);
        if !well || self.meta.get(meta::UPGRADE).is_none() {
            return Ok(());
        }
        match self.meta.delete(meta::UPGRADE).await {
            Ok(()) => {
                info!("removing fallback entry");
                Ok(())
            }
            Err(MetaError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes `BootedEntries` where a unified kernel image was booted.
#[derive(Debug)]
pub struct BootedEntryController<F> {
    /// Files of the machine.
    pub files: F,
}

impl<F: Files> Controller for BootedEntryController<F> {
    const NAME: &'static str = "runtime.BootedEntryController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<SecurityState>().id("securitystate")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<BootedEntry>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !ctx.get::<SecurityState>("securitystate")?.is_some_and(|state| state.booted_with_uki) {
            return Ok(());
        }
        let text = |name: &str| efi_text(&self.files, name).filter(|text| !text.is_empty());
        let entry = booted(Loader {
            default: text("LoaderEntryDefault"),
            selected: text("LoaderEntrySelected"),
            reason: text("LoaderEntryRebootReason"),
            one_shot: text("LoaderEntryOneShot"),
        });
        let entry = entry.map(|booted_entry| ("bootedentry", BootedEntry { booted_entry }));
        Ok(ctx.publish(entry)?)
    }
}

/// What the boot loader left behind.
#[derive(Default)]
struct Loader {
    default: Option<String>,
    selected: Option<String>,
    reason: Option<String>,
    one_shot: Option<String>,
}

fn booted(loader: Loader) -> Option<String> {
    // A kernel that another kernel started was the default entry, whatever the loader had selected before.
    let by_kernel =
        loader.reason.as_deref() == Some("reboot") && loader.one_shot.as_deref() == Some("kexec reboot");
    if by_kernel {
        return loader.default;
    }
    loader.selected.or(loader.default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_entry_counts_unless_a_kernel_started_the_kernel() {
        let text = |text: &str| Some(text.to_owned());
        let both = || Loader { default: text("a"), selected: text("b"), ..Loader::default() };
        assert_eq!(booted(both()), text("b"));
        assert_eq!(
            booted(Loader { reason: text("reboot"), one_shot: text("kexec reboot"), ..both() }),
            text("a")
        );
        assert_eq!(booted(Loader { selected: None, ..both() }), text("a"));
        assert_eq!(booted(Loader::default()), None);
    }
}
