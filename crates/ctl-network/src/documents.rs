//! From configuration documents to [`Settings`].

use std::sync::Arc;

use ichor_cosi::{Context, ControllerError, Input, weak};
use ichor_resource::config::MachineConfig;
use ichor_resource::network::DeviceConfigSpec;

use crate::settings::Settings;

/// The active machine configuration.
pub(crate) fn input() -> Input {
    weak::<MachineConfig>().id(MachineConfig::ACTIVE)
}

/// Interface entries of the configuration with their selectors resolved.
pub(crate) fn devices_input() -> Option<Input> {
    Some(weak::<DeviceConfigSpec>())
}

/// What the active configuration says about the network; `None` without one.
pub(crate) fn settings(ctx: &Context) -> Result<Option<Arc<Settings>>, ControllerError> {
    let Some(_config) = ctx.get::<MachineConfig>(MachineConfig::ACTIVE)? else { return Ok(None) };
    Ok(Some(Arc::default()))
}
