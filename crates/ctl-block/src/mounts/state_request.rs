//! STATE is mounted for as long as there are volumes: the configuration and the identity of the machine are on it.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, strong, weak};
use ichor_ctl::volumes::STATE;
use ichor_resource::block::{VolumeLifecycle, VolumeMountRequest, VolumeStatus, VolumeType};

use crate::volumes::LIFECYCLE;

/// Requests the mount of STATE where it is a partition.
#[derive(Debug, Default)]
pub struct StateMountController;

impl Controller for StateMountController {
    const NAME: &'static str = "block.StateMountController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            weak::<VolumeStatus>().id(STATE),
            weak::<VolumeMountRequest>().id(STATE),
            strong::<VolumeLifecycle>().id(LIFECYCLE),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<VolumeMountRequest>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let lifecycle = ctx.get::<VolumeLifecycle>(LIFECYCLE)?;
        let volume = ctx.get::<VolumeStatus>(STATE)?;
        let is_wanted = lifecycle.is_some_and(|lifecycle| lifecycle.meta().is_running())
            && volume.is_some_and(|volume| volume.r#type == VolumeType::Partition);
        let request = ctx.get::<VolumeMountRequest>(STATE)?;
        if is_wanted && request.is_none_or(|request| request.meta().is_running()) {
            ctx.modify::<VolumeMountRequest>(STATE, |request| {
                STATE.clone_into(&mut request.volume_id);
                Self::NAME.clone_into(&mut request.requester);
            })?;
            return Ok(());
        }
        Ok(ctx.keep_only::<VolumeMountRequest>("runtime", |_| false)?)
    }
}
