//! Publishes volumes for workloads, and requests their mounts.

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, Typed, exclusive, shared, strong, weak,
};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::block::{
    Disk, UserDiskConfigStatus, VolumeConfig, VolumeLifecycle, VolumeMountRequest, VolumeMountStatus,
};

use super::{WantedVolume, legacy, user};
use crate::volumes::LIFECYCLE;

/// The one id of the status of user disks.
const USER_DISKS: &str = "user-disks";

/// Writes the `VolumeConfigs` and `VolumeMountRequests` of user, raw, existing and swap volumes.
#[derive(Debug, Default)]
pub struct UserVolumeConfigController;

/// The same for the old section `machine.disks`, whose state is told in `UserDiskConfigStatuses`.
#[derive(Debug, Default)]
pub struct UserDiskConfigController;

/// Whether volumes are to be mounted: not while they are all about to be closed.
fn are_mounted(ctx: &Context) -> Result<bool, ControllerError> {
    let lifecycle = ctx.get::<VolumeLifecycle>(LIFECYCLE)?;
    Ok(lifecycle.is_some_and(|lifecycle| lifecycle.meta().is_running()))
}

/// Makes the volumes of this controller exactly these.
fn publish(ctx: &Context, wanted: &[WantedVolume]) -> Result<(), ControllerError> {
    let is_mounted = are_mounted(ctx)?;
    let configs = ctx.list::<VolumeConfig>()?;
    let requests = ctx.list::<VolumeMountRequest>()?;
    for WantedVolume { id, label, config, mount } in wanted {
        // One that is on its way out is made anew when it is gone.
        if is_going(&configs, id) {
            continue;
        }
        ctx.modify_with::<VolumeConfig>("runtime", id, |stored, metadata| {
            stored.clone_from(config);
            metadata.set_label(*label, "");
        })?;
        let Some(read_only) = mount.filter(|_| is_mounted) else { continue };
        if !is_going(&requests, id) {
            ctx.modify::<VolumeMountRequest>(id, |stored| {
                stored.volume_id.clone_from(id);
                stored.read_only = read_only;
                ctx.name().clone_into(&mut stored.requester);
            })?;
        }
    }
    let find = |id: &str| wanted.iter().find(|volume| volume.id == *id);
    ctx.keep_only::<VolumeMountRequest>("runtime", |id| {
        is_mounted && find(id).is_some_and(|volume| volume.mount.is_some())
    })?;
    Ok(ctx.keep_only::<VolumeConfig>("runtime", |id| find(id).is_some())?)
}

fn is_going<T: ichor_resource::TypedSpec>(resources: &[Typed<T>], id: &str) -> bool {
    resources.iter().any(|resource| resource.id() == id && !resource.meta().is_running())
}

fn inputs() -> Vec<Input> {
    vec![
        active_input(),
        strong::<VolumeLifecycle>().id(LIFECYCLE),
        weak::<VolumeConfig>(),
        weak::<VolumeMountRequest>(),
    ]
}

impl Controller for UserVolumeConfigController {
    const NAME: &'static str = "block.UserVolumeConfigController";

    fn inputs(&self) -> Vec<Input> {
        inputs()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<VolumeConfig>(), shared::<VolumeMountRequest>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let configuration = Configuration::active(ctx)?;
        let documents = configuration.iter().flat_map(|documents| documents.iter());
        publish(ctx, &user::volumes(documents))
    }
}

impl Controller for UserDiskConfigController {
    const NAME: &'static str = "block.UserDiskConfigController";

    fn inputs(&self) -> Vec<Input> {
        let mut all = inputs();
        all.extend([weak::<Disk>(), weak::<VolumeMountStatus>()]);
        all
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<VolumeConfig>(), shared::<VolumeMountRequest>(), exclusive::<UserDiskConfigStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(configuration) = Configuration::active(ctx)? else { return Ok(()) };
        let disks = ctx.list::<Disk>()?;
        let disks: Vec<(String, Disk)> =
            disks.iter().map(|disk| (disk.id().to_string(), disk.spec().clone())).collect();
        let wanted = legacy::volumes(&configuration, &disks);
        publish(ctx, &wanted)?;
        let mounted = ctx.list::<VolumeMountStatus>()?;
        let is_mounted = |id: &str| mounted.iter().any(|status| status.id() == id);
        let ready = wanted.iter().all(|volume| is_mounted(&volume.id));
        let torn_down = !are_mounted(ctx)? && !wanted.iter().any(|volume| is_mounted(&volume.id));
        ctx.modify::<UserDiskConfigStatus>(USER_DISKS, |status| {
            (status.ready, status.torn_down) = (ready, torn_down);
        })?;
        Ok(())
    }
}
