//! Wanted time servers from defaults, command line and configuration.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_resource::network::{ConfigLayer, TimeServerSpec};

use super::cmdline::{CmdlineSource, Resolved};
use crate::documents;
use crate::ids;
use crate::settings::Settings;

/// Asked when nobody names another.
pub const DEFAULT_TIME_SERVER: &str = "time.cloudflare.com";

/// Publishes wanted time servers.
#[derive(Debug)]
pub struct TimeServerConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want.
pub(crate) fn decide(cmdline: &Resolved, settings: Option<&Settings>) -> Vec<TimeServerSpec> {
    let spec = |time_servers, layer| TimeServerSpec { time_servers, layer };
    let mut specs = vec![spec(vec![DEFAULT_TIME_SERVER.to_owned()], ConfigLayer::Default)];
    if !cmdline.ntp().is_empty() {
        specs.push(spec(cmdline.ntp().iter().map(ToString::to_string).collect(), ConfigLayer::Cmdline));
    }
    if let Some(settings) = settings.filter(|s| !s.time_servers.is_empty()) {
        specs.push(spec(settings.time_servers.clone(), ConfigLayer::Configuration));
    }
    specs
}

impl Controller for TimeServerConfigController {
    const NAME: &'static str = "network.TimeServerConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<TimeServerSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings(ctx)?;
        let specs = decide(&self.cmdline.unresolved(), settings.as_ref());
        let named = specs.into_iter().map(|spec| (ids::layered(spec.layer, ids::TIME_SERVERS), spec));
        ctx.publish_in(ids::CONFIG_NAMESPACE, named)?;
        Ok(())
    }
}
