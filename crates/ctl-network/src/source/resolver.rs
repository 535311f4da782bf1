//! Wanted name servers and search domains from defaults, command line and configuration.

use std::net::{IpAddr, Ipv4Addr};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::network::{ConfigLayer, HostnameStatus, ResolverSpec};

use super::cmdline::{CmdlineSource, Resolved};
use crate::documents;
use crate::ids;
use crate::settings::Settings;

/// Asked when nobody names others.
pub const DEFAULT_RESOLVERS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8))];

/// Publishes wanted resolvers.
#[derive(Debug)]
pub struct ResolverConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want. `domain` is the machine's own domain, empty when it has none.
pub(crate) fn decide(cmdline: &Resolved, settings: Option<&Settings>, domain: &str) -> Vec<ResolverSpec> {
    let spec = |servers: &[IpAddr], search: Vec<String>, layer| ResolverSpec {
        dns_servers: servers.iter().map(|ip| (*ip).into()).collect(),
        search_domains: search,
        layer,
    };
    let own_domain = settings.is_some_and(|s| !s.disable_default_search) && !domain.is_empty();
    let search = if own_domain { vec![domain.to_owned()] } else { Vec::new() };
    let mut specs = vec![spec(&DEFAULT_RESOLVERS, search, ConfigLayer::Default)];
    if !cmdline.dns().is_empty() {
        specs.push(spec(cmdline.dns(), Vec::new(), ConfigLayer::Cmdline));
    }
    if let Some(settings) = settings
        && (!settings.nameservers.is_empty() || !settings.search_domains.is_empty())
    {
        let layer = ConfigLayer::Configuration;
        specs.push(spec(&settings.nameservers, settings.search_domains.clone(), layer));
    }
    specs
}

impl Controller for ResolverConfigController {
    const NAME: &'static str = "network.ResolverConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), weak::<HostnameStatus>().id(ids::HOSTNAME)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<ResolverSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings(ctx)?;
        let hostname = ctx.get::<HostnameStatus>(ids::HOSTNAME)?;
        let domain = hostname.as_ref().map_or("", |status| &status.domainname);
        let specs = decide(&self.cmdline.unresolved(), settings.as_ref(), domain);
        let named = specs.into_iter().map(|spec| (ids::layered(spec.layer, ids::RESOLVERS), spec));
        ctx.publish_in(ids::CONFIG_NAMESPACE, named)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_domain_is_searched_unless_forbidden_or_unconfigured() {
        let search = |settings: Option<&Settings>| {
            decide(&Resolved::default(), settings, "example.org")[0].search_domains.clone()
        };
        let off = Settings { disable_default_search: true, ..Settings::default() };
        assert_eq!(search(Some(&Settings::default())), ["example.org"]);
        assert!(search(Some(&off)).is_empty());
        assert!(search(None).is_empty());
    }

    #[test]
    fn the_configuration_adds_its_own_layer() {
        let settings = Settings { nameservers: vec!["10.0.0.1".parse().unwrap()], ..Settings::default() };
        let specs = decide(&Resolved::default(), Some(&settings), "");
        let layers: Vec<_> = specs.iter().map(|s| s.layer).collect();
        assert_eq!(layers, [ConfigLayer::Default, ConfigLayer::Configuration]);
    }
}
