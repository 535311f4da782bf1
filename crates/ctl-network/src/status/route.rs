//! Shows the routes the kernel has.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive};
use ichor_net::link::Link;
use ichor_net::route::{Family as NetFamily, Route};
use ichor_net::watch::Topics;
use ichor_resource::network::{
    Family, RouteFlags, RouteProtocol, RouteStatus, RouteType, RoutingTable, Scope,
};

use crate::ids;
use crate::ports::Kernel;

/// Publishes route statuses.
#[derive(Debug)]
pub struct RouteStatusController<K> {
    /// The kernel.
    pub kernel: K,
}

fn status_of(route: &Route, links: &[Link]) -> (String, RouteStatus) {
    let link = links.iter().find(|link| link.index == route.link_index);
    let status = RouteStatus {
        family: match route.family {
            NetFamily::V4 => Family::INET4,
            NetFamily::V6 => Family::INET6,
        },
        dst: route.destination.map(Into::into).unwrap_or_default(),
        src: route.source.map(Into::into).unwrap_or_default(),
        gateway: route.gateway.map(Into::into).unwrap_or_default(),
        out_link_index: route.link_index,
        out_link_name: link.map(|link| link.name.clone()).unwrap_or_default(),
        table: RoutingTable(route.table.cast_signed()),
        priority: route.priority,
        scope: Scope(route.scope.into()),
        r#type: RouteType(route.kind.into()),
        flags: RouteFlags(route.flags),
        protocol: RouteProtocol(route.protocol.into()),
        mtu: route.mtu,
    };
    let id = ids::route(
        status.table,
        status.family,
        status.dst,
        &status.gateway,
        &status.out_link_name,
        status.priority,
    );
    (id, status)
}

impl<K: Kernel> Controller for RouteStatusController<K> {
    const NAME: &'static str = "network.RouteStatusController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<RouteStatus>()]
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::ROUTES, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let links = self.kernel.links().await?;
        let routes = self.kernel.routes().await?;
        ctx.publish(routes.iter().map(|route| status_of(route, &links)))?;
        Ok(())
    }
}
