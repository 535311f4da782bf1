//! What the platform (a cloud, a firmware table) knows about this machine's network, in its own layer.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, StateError, exclusive, shared, weak};
use ichor_resource::TypedSpec;
use ichor_resource::network::{
    AddressSpec, AddressStatus, ConfigLayer, HostnameSpec, LinkSpec, OperatorSpec, PlatformConfig, ProbeSpec,
    ResolverSpec, RouteSpec, TimeServerSpec,
};
use ichor_resource::runtime::PlatformMetadata;
use ipnet::IpNet;

use crate::ids;
use crate::status::node_address::EXTERNAL_LINK;

/// Publishes what the platform says. Platforms that know nothing of the network still have a name.
#[derive(Debug)]
pub struct PlatformConfigController {
    /// The platform's name.
    pub platform: String,
}

impl Controller for PlatformConfigController {
    const NAME: &'static str = "network.PlatformConfigController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<PlatformConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let metadata = PlatformMetadata { platform: self.platform.clone(), ..PlatformMetadata::default() };
        ctx.publish([("active", PlatformConfig { metadata: Some(metadata), ..PlatformConfig::default() })])?;
        Ok(())
    }
}

/// Spreads a platform's configuration over the specs of its layer.
#[derive(Debug, Default)]
pub struct PlatformConfigApplyController;

fn publish<T: TypedSpec>(
    ctx: &Context,
    specs: &[T],
    with_layer: impl Fn(&mut T),
    id: impl Fn(&T) -> String,
) -> Result<(), StateError> {
    let named = specs.iter().map(|spec| {
        let mut spec = spec.clone();
        with_layer(&mut spec);
        (ids::layered(ConfigLayer::Platform, &id(&spec)), spec)
    });
    ctx.publish_in(ids::CONFIG_NAMESPACE, named)
}

impl Controller for PlatformConfigApplyController {
    const NAME: &'static str = "network.PlatformConfigApplyController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<PlatformConfig>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![
            shared::<AddressSpec>(),
            shared::<LinkSpec>(),
            shared::<RouteSpec>(),
            shared::<HostnameSpec>(),
            shared::<ResolverSpec>(),
            shared::<TimeServerSpec>(),
            shared::<AddressStatus>(),
            shared::<OperatorSpec>(),
            shared::<ProbeSpec>(),
            exclusive::<PlatformMetadata>(),
        ]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        // What the platform says now, else what it said last time.
        let active = ctx.get::<PlatformConfig>("active")?;
        let config = match active {
            Some(active) => Some(active),
            None => ctx.get::<PlatformConfig>("cached")?,
        };
        let config = config.map(|config| config.spec().clone()).unwrap_or_default();
        let layer = ConfigLayer::Platform;

        publish(
            ctx,
            &config.addresses,
            |s| s.layer = layer,
            |s: &AddressSpec| ids::address(&s.link_name, s.address),
        )?;
        publish(ctx, &config.links, |s| s.layer = layer, |s: &LinkSpec| s.name.clone())?;
        publish(
            ctx,
            &config.routes,
            |s| {
                ids::normalize(s);
                s.layer = layer;
            },
            ids::route_spec,
        )?;
        publish(ctx, &config.hostnames, |s| s.layer = layer, |_: &HostnameSpec| ids::HOSTNAME.to_owned())?;
        publish(ctx, &config.resolvers, |s| s.layer = layer, |_: &ResolverSpec| ids::RESOLVERS.to_owned())?;
        publish(
            ctx,
            &config.time_servers,
            |s| s.layer = layer,
            |_: &TimeServerSpec| ids::TIME_SERVERS.to_owned(),
        )?;
        publish(ctx, &config.operators, |s| s.layer = layer, ids::operator_spec)?;

        let external = config.external_ips.iter().filter_map(|ip| {
            let prefix = IpNet::from(ip.get()?);
            let status = AddressStatus {
                address: prefix.into(),
                link_name: EXTERNAL_LINK.to_owned(),
                family: ids::family_of(prefix.addr()),
                ..AddressStatus::default()
            };
            Some((ids::address(EXTERNAL_LINK, status.address), status))
        });
        ctx.publish(external)?;
        let probes = config.probes.iter().map(|probe| {
            let probe = ProbeSpec { layer, ..probe.clone() };
            (format!("tcp:{}", probe.tcp.endpoint), probe)
        });
        ctx.publish(probes)?;
        ctx.publish(config.metadata.map(|metadata| ("platformmetadata", metadata)))?;
        Ok(())
    }
}
