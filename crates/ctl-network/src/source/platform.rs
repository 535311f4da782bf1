//! What the platform (a cloud, a firmware table) knows about this machine's network, in its own layer.

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, StateError, Typed, exclusive, shared, weak,
};
use ichor_resource::network::{
    AddressSpec, AddressStatus, ConfigLayer, HostnameSpec, LinkSpec, LinkStatus, OperatorSpec,
    PlatformConfig, ProbeSpec, ResolverSpec, RouteSpec, TimeServerSpec,
};
use ichor_resource::runtime::{MetaKey, PlatformMetadata};
use ichor_resource::{Spec, TypedSpec};
use ipnet::IpNet;

use super::link::is_physical;
use crate::ids;
use crate::nocloud::{self, KnownLink, ReadSeed, Seed};
use crate::platform_yaml;
use crate::ports::Host;
use crate::status::node_address::EXTERNAL_LINK;

/// Where META keeps the network configuration of a machine of metal.
const META_KEY: &str = "0x0a";
/// The platform whose configuration META keeps.
const METAL: &str = "metal";
/// The file that keeps it from one boot to the next, in the state directory.
const FILE: &str = "platform-network.yaml";
const FILE_MODE: u32 = 0o400;
const ACTIVE: &str = "active";
const CACHED: &str = "cached";

/// Publishes what the platform says. Platforms that know nothing of the network still have a name.
pub struct PlatformConfigController {
    platform: String,
    read: Option<ReadSeed>,
    /// What was read, once it was: it does not change while the machine runs.
    seed: Option<Seed>,
}

impl PlatformConfigController {
    /// One for the platform of this name, whose files `read` reads where it has some.
    pub fn new(platform: &str, read: Option<ReadSeed>) -> Self {
        let read = read.filter(|_| platform == nocloud::NAME);
        Self { platform: platform.to_owned(), read, seed: None }
    }

    async fn nocloud(&mut self, ctx: &Context, read: ReadSeed) -> Result<PlatformConfig, ControllerError> {
        let seed = match self.seed.take() {
            Some(seed) => seed,
            // Tried again, after longer and longer waits.
            None => read().await.map_err(|error| {
                ctx.trouble(error.clone());
                ControllerError::new(error)
            })?,
        };
        let seed = self.seed.insert(seed);
        let known = |link: &Typed<LinkStatus>| KnownLink {
            name: link.id().to_string(),
            permanent: link.permanent_addr.clone(),
            current: link.hardware_addr.clone(),
        };
        let links = ctx.list::<LinkStatus>()?;
        let links: Vec<KnownLink> = links.iter().filter(|link| is_physical(link)).map(known).collect();
        let config = nocloud::config(seed, &links);
        Ok(config.inspect_err(|error| ctx.trouble(error.to_string()))?)
    }
}

impl Controller for PlatformConfigController {
    const NAME: &'static str = "network.PlatformConfigController";

    fn inputs(&self) -> Vec<Input> {
        match self.platform.as_str() {
            METAL => vec![weak::<MetaKey>().id(META_KEY)],
            nocloud::NAME => vec![weak::<LinkStatus>()],
            _ => Vec::new(),
        }
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<PlatformConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let mut config = PlatformConfig::default();
        if self.platform == METAL
            && let Some(key) = ctx.get::<MetaKey>(META_KEY)?
        {
            match platform_yaml::parse(&key.value) {
                Ok(read) => config = read,
                Err(error) => ctx.trouble(format!("META key {META_KEY}: {error}")),
            }
        }
        if let Some(read) = self.read.clone() {
            config = self.nocloud(ctx, read).await?;
        }
        config.metadata.get_or_insert_default().platform.clone_from(&self.platform);
        ctx.publish([(ACTIVE, config)])?;
        Ok(())
    }
}

/// Shows what the platform said before the last boot, until it says something now.
#[derive(Debug)]
pub struct PlatformConfigLoadController<H> {
    /// The machine.
    pub host: H,
}

impl<H: Host> Controller for PlatformConfigLoadController<H> {
    const NAME: &'static str = "network.PlatformConfigLoadController";

    fn inputs(&self) -> Vec<Input> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<PlatformConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let cached = match self.host.read_state(FILE)? {
            Some(text) => match platform_yaml::parse(&text) {
                Ok(config) => Some(config),
                Err(error) => {
                    ctx.trouble(format!("{FILE}: {error}"));
                    None
                }
            },
            None => None,
        };
        ctx.publish(cached.map(|config| (CACHED, config)))?;
        Ok(())
    }
}

/// Keeps what the platform says for the next boot.
#[derive(Debug)]
pub struct PlatformConfigStoreController<H> {
    /// The machine.
    pub host: H,
}

impl<H: Host> Controller for PlatformConfigStoreController<H> {
    const NAME: &'static str = "network.PlatformConfigStoreController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<PlatformConfig>().id(ACTIVE)]
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(config) = ctx.get::<PlatformConfig>(ACTIVE)? else { return Ok(()) };
        // A platform that knows only its own name has nothing worth keeping.
        let bare = PlatformConfig { metadata: None, ..config.spec().clone() } == PlatformConfig::default();
        if bare && self.host.read_state(FILE)?.is_none() {
            return Ok(());
        }
        let mut text = String::new();
        config.spec().encode_yaml(&mut text);
        self.host.write_state(FILE, text.as_bytes(), FILE_MODE)?;
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
        let active = ctx.get::<PlatformConfig>(ACTIVE)?;
        let config = match active {
            Some(active) => Some(active),
            None => ctx.get::<PlatformConfig>(CACHED)?,
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
