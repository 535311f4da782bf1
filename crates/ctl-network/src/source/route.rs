//! Wanted routes from command line and configuration.

use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_resource::network::{ConfigLayer, Family, RouteProtocol, RouteSpec, RouteType, RoutingTable};

use super::cmdline::{CmdlineSource, Resolved};
use crate::documents;
use crate::ids::{self, DEFAULT_METRIC};
use crate::settings::{RouteSetting, Settings};

/// Publishes wanted routes.
#[derive(Debug)]
pub struct RouteConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want.
pub(crate) fn decide(cmdline: &Resolved, settings: Option<&Settings>) -> Vec<RouteSpec> {
    let ignored = cmdline.ignored();
    let mut specs = cmdline.routes();
    specs.retain(|spec| !ignored.contains(&spec.out_link_name));
    for link in settings.into_iter().flat_map(|s| &s.links).filter(|link| !link.ignore) {
        specs.extend(link.routes.iter().map(|route| route_spec(&link.name, route)));
    }
    specs
}

fn route_spec(link: &str, route: &RouteSetting) -> RouteSpec {
    let addresses = [route.gateway, route.destination.map(|d| d.addr()), route.source];
    let v6 = addresses.into_iter().flatten().any(|a: IpAddr| a.is_ipv6());
    let mut spec = RouteSpec {
        family: if v6 { Family::INET6 } else { Family::INET4 },
        dst: route.destination.map(Into::into).unwrap_or_default(),
        src: route.source.map(Into::into).unwrap_or_default(),
        gateway: route.gateway.map(Into::into).unwrap_or_default(),
        out_link_name: link.to_owned(),
        table: match route.table {
            0 => RoutingTable::MAIN,
            number => RoutingTable(i32::from(number)),
        },
        priority: if route.metric == 0 { DEFAULT_METRIC } else { route.metric },
        r#type: RouteType::UNICAST,
        protocol: RouteProtocol::STATIC,
        layer: ConfigLayer::Configuration,
        mtu: route.mtu,
        ..RouteSpec::default()
    };
    ids::normalize(&mut spec);
    spec
}

impl Controller for RouteConfigController {
    const NAME: &'static str = "network.RouteConfigController";

    fn inputs(&self) -> Vec<Input> {
        [documents::input(), documents::devices_input()].into_iter().chain(self.cmdline.inputs()).collect()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<RouteSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings_with_devices(ctx)?;
        let specs = decide(&self.cmdline.resolve(ctx)?, settings.as_ref());
        let id = |spec: &RouteSpec| ids::layered(spec.layer, &ids::route_spec(spec));
        ctx.publish_in(ids::CONFIG_NAMESPACE, specs.into_iter().map(|spec| (id(&spec), spec)))?;
        Ok(())
    }
}
