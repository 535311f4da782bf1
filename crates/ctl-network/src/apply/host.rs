//! Host name, resolvers and time servers: merged specs take effect and show as statuses.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, strong};
use ichor_resource::network::{
    HostnameSpec, HostnameStatus, ResolverSpec, ResolverStatus, TimeServerSpec, TimeServerStatus,
};

use super::{Held, hold, release};
use crate::ids;
use crate::ports::Host;

/// Sets the kernel's host name.
#[derive(Debug)]
pub struct HostnameSpecController<H> {
    /// The machine.
    pub host: H,
}

impl<H: Host> Controller for HostnameSpecController<H> {
    const NAME: &'static str = "network.HostnameSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<HostnameSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<HostnameStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<HostnameSpec>(ctx)?;
        let mut statuses = Vec::new();
        for spec in &running {
            self.host.set_hostname(&spec.hostname, &spec.domainname)?;
            let (hostname, domainname) = (spec.hostname.clone(), spec.domainname.clone());
            statuses.push((spec.id().clone(), HostnameStatus { hostname, domainname }));
        }
        ctx.publish(statuses)?;
        ending.iter().try_for_each(|spec| release(ctx, spec))?;
        Ok(())
    }
}

/// Shows the resolvers in effect.
#[derive(Debug, Default)]
pub struct ResolverSpecController;

impl Controller for ResolverSpecController {
    const NAME: &'static str = "network.ResolverSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<ResolverSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<ResolverStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<ResolverSpec>(ctx)?;
        let status = |spec: &ResolverSpec| ResolverStatus {
            dns_servers: spec.dns_servers.clone(),
            search_domains: spec.search_domains.clone(),
        };
        ctx.publish(running.iter().map(|spec| (ids::RESOLVERS, status(spec))))?;
        ending.iter().try_for_each(|spec| release(ctx, spec))?;
        Ok(())
    }
}

/// Shows the time servers in effect.
#[derive(Debug, Default)]
pub struct TimeServerSpecController;

impl Controller for TimeServerSpecController {
    const NAME: &'static str = "network.TimeServerSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<TimeServerSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<TimeServerStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<TimeServerSpec>(ctx)?;
        let status = |spec: &TimeServerSpec| TimeServerStatus { time_servers: spec.time_servers.clone() };
        ctx.publish(running.iter().map(|spec| (ids::TIME_SERVERS, status(spec))))?;
        ending.iter().try_for_each(|spec| release(ctx, spec))?;
        Ok(())
    }
}
