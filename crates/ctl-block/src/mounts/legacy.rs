//! Mounts as older clients know them.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::block::{EncryptionProviderType, FilesystemType, MountStatus};
use ichor_resource::runtime;

/// Writes the `MountStatuses` of namespace `runtime.talos.dev`: filesystems on disks.
#[derive(Debug, Default)]
pub struct LegacyMountStatusController;

impl Controller for LegacyMountStatusController {
    const NAME: &'static str = "runtime.MountStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<MountStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<runtime::MountStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mounts = ctx.list::<MountStatus>()?;
        let on_disks = mounts
            .iter()
            .filter(|mount| !matches!(mount.filesystem, FilesystemType::None | FilesystemType::Swap));
        let specs = on_disks.map(|mount| {
            let provider = mount.encryption_provider;
            let encrypted = provider != EncryptionProviderType::None;
            let spec = runtime::MountStatus {
                source: mount.source.clone(),
                target: mount.target.clone(),
                filesystem_type: mount.filesystem.to_string(),
                encrypted,
                encryption_providers: if encrypted { vec![provider.to_string()] } else { Vec::new() },
                ..runtime::MountStatus::default()
            };
            (mount.id().to_string(), spec)
        });
        Ok(ctx.publish(specs)?)
    }
}
