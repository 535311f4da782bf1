//! From the mount of a volume to each who needs it.

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, Typed, destroy_ready, exclusive, strong,
};
use ichor_resource::block::{MountStatus, VolumeMountRequest, VolumeMountStatus};

/// Writes `VolumeMountStatuses`.
#[derive(Debug, Default)]
pub struct VolumeMountStatusController;

impl VolumeMountStatusController {
    /// Tells one that its volume is mounted.
    fn tell(
        ctx: &Context,
        request: &Typed<VolumeMountRequest>,
        mount: &Typed<MountStatus>,
    ) -> Result<(), ControllerError> {
        ctx.add_finalizer::<VolumeMountRequest>(request.id())?;
        ctx.add_finalizer::<MountStatus>(mount.id())?;
        let told = VolumeMountStatus {
            volume_id: request.volume_id.clone(),
            requester: request.requester.clone(),
            target: mount.target.clone(),
            read_only: mount.read_only,
            detached: mount.detached,
        };
        ctx.modify::<VolumeMountStatus>(request.id(), |stored| stored.clone_from(&told))?;
        Ok(())
    }
}

impl Controller for VolumeMountStatusController {
    const NAME: &'static str = "block.MountStatusController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<VolumeMountRequest>(), strong::<MountStatus>(), destroy_ready::<VolumeMountStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<VolumeMountStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let requests = ctx.list::<VolumeMountRequest>()?;
        let mounts = ctx.list::<MountStatus>()?;
        for request in &requests {
            let mount = mounts.iter().find(|mount| {
                let is_for = mount.spec.requester_ids.iter().any(|id| request.id() == id.as_str());
                mount.spec.volume_id == request.volume_id && is_for && mount.meta().is_running()
            });
            let told = ctx.get::<VolumeMountStatus>(request.id())?;
            match mount.filter(|_| request.meta().is_running()) {
                Some(mount) if told.as_ref().is_none_or(|told| told.meta().is_running()) => {
                    Self::tell(ctx, request, mount)?;
                }
                Some(_) | None => {
                    if ctx.remove_in::<VolumeMountStatus>("runtime", request.id())? {
                        ctx.remove_finalizer::<VolumeMountRequest>(request.id())?;
                    }
                }
            }
        }
        // Those whose request is gone altogether.
        ctx.keep_only::<VolumeMountStatus>("runtime", |id| {
            requests.iter().any(|request| request.id() == id.as_str())
        })?;
        let told = ctx.list::<VolumeMountStatus>()?;
        for mount in &mounts {
            if !told.iter().any(|status| status.volume_id == mount.spec.volume_id) {
                ctx.remove_finalizer::<MountStatus>(mount.id())?;
            }
        }
        Ok(())
    }
}
