//! Installs routes and removes them.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, strong};
use ichor_net::NetError;
use ichor_net::link::Link;
use ichor_net::route::{Family as NetFamily, Route};
use ichor_net::watch::Topics;
use ichor_resource::network::{Family, RouteSpec};

use super::{Held, hold, release};
use crate::link_name;
use crate::ports::Kernel;
use crate::trouble::Troubles;

/// The kernel's metric for IPv6 routes that name none.
const V6_METRIC: u32 = 1024;

/// Installs routes.
#[derive(Debug)]
pub struct RouteSpecController<K> {
    kernel: K,
    troubles: Troubles,
}

impl<K> RouteSpecController<K> {
    /// Installs routes in this kernel.
    pub fn new(kernel: K) -> Self {
        Self { kernel, troubles: Troubles::default() }
    }
}

/// One step towards what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Take it out.
    Remove(Route),
    /// Put it in.
    Add(Route),
}

/// The route as the kernel takes it; `None` while its link is missing.
pub(crate) fn wanted_route(spec: &RouteSpec, links: &[Link]) -> Option<Route> {
    let link_index = match spec.out_link_name.as_str() {
        "" => 0,
        name => link_name::find(links, name)?.index,
    };
    let family = if spec.family == Family::INET6 { NetFamily::V6 } else { NetFamily::V4 };
    let small = |number: i32| u8::try_from(number).unwrap_or(0);
    let mut route = Route::new(family, spec.dst.get(), spec.gateway.get());
    route.source = spec.src.get();
    route.link_index = link_index;
    route.table = u32::try_from(spec.table.number()).unwrap_or(0);
    route.priority = spec.priority;
    route.scope = small(spec.scope.number());
    route.kind = small(spec.r#type.number());
    route.protocol = small(spec.protocol.number());
    route.flags = spec.flags.0;
    route.mtu = spec.mtu;
    Some(route)
}

/// True when both stand in the same place of a table.
fn same_place(wanted: &Route, held: &Route) -> bool {
    let metric = |route: &Route| match (route.family, route.priority) {
        (NetFamily::V6, 0) => V6_METRIC,
        (_, priority) => priority,
    };
    wanted.family == held.family
        && wanted.table == held.table
        && wanted.destination.map(|d| d.trunc()) == held.destination
        && wanted.gateway == held.gateway
        && metric(wanted) == metric(held)
        && (wanted.link_index == 0 || wanted.link_index == held.link_index)
}

fn same_rest(wanted: &Route, held: &Route) -> bool {
    // IPv6 routes have no scope.
    let scope = wanted.family == NetFamily::V6 || wanted.scope == held.scope;
    scope
        && wanted.kind == held.kind
        && wanted.protocol == held.protocol
        && wanted.source == held.source
        && wanted.mtu == held.mtu
}

/// The steps for a wanted route.
pub(crate) fn plan_wanted(wanted: &Route, have: &[Route]) -> Vec<Step> {
    let place: Vec<_> = have.iter().filter(|held| same_place(wanted, held)).collect();
    if place.iter().any(|held| same_rest(wanted, held)) {
        return Vec::new();
    }
    let remove = place.into_iter().map(|held| Step::Remove(held.clone()));
    remove.chain([Step::Add(wanted.clone())]).collect()
}

/// The steps for a route that is not wanted any more.
pub(crate) fn plan_unwanted(unwanted: &Route, have: &[Route]) -> Vec<Step> {
    let place = have.iter().filter(|held| same_place(unwanted, held));
    place.map(|held| Step::Remove(held.clone())).collect()
}

fn waits(error: &NetError, route: &Route) -> bool {
    error.is_unreachable() || error.is_missing() || (error.is_invalid() && route.source.is_some())
}

impl<K: Kernel> RouteSpecController<K> {
    /// True when the step is done.
    async fn run(&mut self, step: &Step) -> bool {
        let result = match step {
            Step::Remove(route) => match self.kernel.remove_route(route).await {
                Err(error) if error.is_missing() => Ok(()),
                result => result,
            },
            Step::Add(route) => match self.kernel.add_route(route).await {
                // Its address or link is not ready yet, or never will be: their change wakes us.
                Err(error) if waits(&error, route) => {
                    self.troubles.waits(ControllerError::from(error).to_string());
                    return false;
                }
                Ok(()) => {
                    tracing::info!(
                        destination = %route.destination.map_or_else(|| "default".into(), |d| d.to_string()),
                        gateway = %route.gateway.map_or_else(String::new, |g| g.to_string()),
                        "installed route"
                    );
                    Ok(())
                }
                result => result,
            },
        };
        result.map_err(|error| self.troubles.refused(error)).is_ok()
    }
}

impl<K: Kernel> Controller for RouteSpecController<K> {
    const NAME: &'static str = "network.RouteSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![strong::<RouteSpec>()]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS | Topics::ADDRESSES | Topics::ROUTES, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Held { running, ending } = hold::<RouteSpec>(ctx)?;
        let links = self.kernel.links().await?;
        let have = self.kernel.routes().await?;
        for spec in &ending {
            let steps =
                wanted_route(spec, &links).map_or_else(Vec::new, |route| plan_unwanted(&route, &have));
            let mut undone = true;
            for step in &steps {
                undone &= self.run(step).await;
            }
            if undone {
                release(ctx, spec)?;
            }
        }
        let mut wanted = Vec::new();
        for spec in &running {
            match wanted_route(spec, &links) {
                Some(route) => wanted.push(route),
                None => {
                    let (id, link) = (spec.id(), &spec.out_link_name);
                    self.troubles.waits(format!("route {id}: there is no link {link}"));
                }
            }
        }
        // Routes on the link first: gateways of others are reached through them.
        wanted.sort_by_key(|route| route.gateway.is_some());
        for step in wanted.iter().flat_map(|route| plan_wanted(route, &have)) {
            self.run(&step).await;
        }
        self.troubles.show(ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_route(gateway: &str) -> Route {
        let mut route = Route::new(NetFamily::V4, None, Some(gateway.parse().unwrap()));
        route.link_index = 2;
        route.priority = 1024;
        route
    }

    #[test]
    fn a_present_route_is_left_alone_whatever_flags_the_kernel_shows() {
        let wanted = default_route("10.5.0.1");
        let held = Route { flags: 16, ..wanted.clone() };
        assert_eq!(plan_wanted(&wanted, &[held]), []);
        assert_eq!(plan_wanted(&wanted, &[]), [Step::Add(wanted.clone())]);
    }

    #[test]
    fn a_route_with_another_source_is_replaced() {
        let held = default_route("10.5.0.1");
        let wanted = Route { source: Some("10.5.0.2".parse().unwrap()), ..held.clone() };
        assert_eq!(
            plan_wanted(&wanted, std::slice::from_ref(&held)),
            [Step::Remove(held.clone()), Step::Add(wanted.clone())]
        );
    }

    #[test]
    fn other_metrics_gateways_and_tables_are_other_routes() {
        let wanted = default_route("10.5.0.1");
        let others = [
            default_route("10.5.0.9"),
            Route { priority: 5, ..wanted.clone() },
            Route { table: 180, ..wanted.clone() },
            Route { link_index: 3, ..wanted.clone() },
        ];
        assert_eq!(plan_wanted(&wanted, &others), [Step::Add(wanted.clone())]);
        assert_eq!(plan_unwanted(&wanted, &others), []);
    }

    #[test]
    fn an_ipv6_route_without_a_metric_has_the_kernels() {
        let mut wanted = Route::new(NetFamily::V6, Some("fd01::/64".parse().unwrap()), None);
        wanted.link_index = 2;
        let held = Route { priority: 1024, scope: 0, ..wanted.clone() };
        assert_eq!(plan_wanted(&wanted, &[held]), []);
    }

    #[test]
    fn a_route_waits_for_its_link() {
        let spec = RouteSpec { out_link_name: "eth0".into(), ..RouteSpec::default() };
        assert_eq!(wanted_route(&spec, &[]), None);
    }
}
