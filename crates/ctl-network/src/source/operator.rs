//! Wanted operators (DHCP clients) from defaults, command line and configuration.

use std::collections::BTreeSet;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::network::{
    ClientIdentifier, ClientIdentifierSpec, ConfigLayer, DHCP4OperatorSpec, DHCP6OperatorSpec, LinkSpec,
    LinkStatus, Operator, OperatorSpec,
};

use super::cmdline::{CmdlineSource, Resolved};
use super::link::is_physical;
use crate::documents;
use crate::ids::{self, DEFAULT_METRIC};
use crate::settings::{DhcpSetting, Settings};

/// Publishes wanted operators.
#[derive(Debug)]
pub struct OperatorConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want. `physical` are the names of the devices there are, `configured` those that some
/// layer above the defaults configures.
pub(crate) fn decide<'a>(
    cmdline: &Resolved,
    settings: Option<&Settings>,
    physical: impl Iterator<Item = &'a str>,
    configured: &BTreeSet<String>,
) -> Vec<OperatorSpec> {
    let ignored = cmdline.ignored();
    let mut specs = cmdline.operators();
    specs.retain(|spec| !ignored.contains(&spec.link_name));
    let links = settings.map_or(&[][..], |s| &s.links);
    for link in links.iter().filter(|link| !link.ignore) {
        specs.extend(link.dhcp4.as_ref().map(|dhcp| dhcp4(&link.name, dhcp)));
        specs.extend(link.dhcp6.as_ref().map(|dhcp| dhcp6(&link.name, dhcp)));
    }
    if !settings.is_some_and(|s| s.explicit_links) {
        for name in physical {
            let spoken_of = ignored.iter().any(|ignored| ignored == name)
                || configured.contains(name)
                || links.iter().any(|link| link.name == name);
            if !spoken_of {
                specs.push(OperatorSpec { layer: ConfigLayer::Default, ..dhcp4(name, &by_mac()) });
            }
        }
    }
    specs
}

fn by_mac() -> DhcpSetting {
    DhcpSetting {
        client_identifier: ClientIdentifierSpec {
            client_identifier: ClientIdentifier::Mac,
            ..ClientIdentifierSpec::default()
        },
        ..DhcpSetting::default()
    }
}

fn dhcp4(link: &str, dhcp: &DhcpSetting) -> OperatorSpec {
    OperatorSpec {
        operator: Operator::Dhcp4,
        link_name: link.to_owned(),
        require_up: true,
        dhcp4: DHCP4OperatorSpec {
            route_metric: metric(dhcp),
            skip_hostname_request: dhcp.ignore_hostname,
            client_identifier: dhcp.client_identifier.clone(),
        },
        layer: ConfigLayer::Configuration,
        ..OperatorSpec::default()
    }
}

fn dhcp6(link: &str, dhcp: &DhcpSetting) -> OperatorSpec {
    OperatorSpec {
        operator: Operator::Dhcp6,
        dhcp4: DHCP4OperatorSpec::default(),
        dhcp6: DHCP6OperatorSpec {
            route_metric: metric(dhcp),
            skip_hostname_request: dhcp.ignore_hostname,
            client_identifier: dhcp.client_identifier.clone(),
        },
        ..dhcp4(link, dhcp)
    }
}

fn metric(dhcp: &DhcpSetting) -> u32 {
    if dhcp.route_metric == 0 { DEFAULT_METRIC } else { dhcp.route_metric }
}

/// Links that a layer which knows what it does speaks of.
pub(crate) fn configured<'a>(links: impl Iterator<Item = &'a LinkSpec>) -> BTreeSet<String> {
    let known = links.filter(|link| match link.layer {
        ConfigLayer::Cmdline | ConfigLayer::Platform | ConfigLayer::Configuration => true,
        ConfigLayer::Default | ConfigLayer::Operator => false,
    });
    known.map(|link| link.name.clone()).collect()
}

impl Controller for OperatorConfigController {
    const NAME: &'static str = "network.OperatorConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![
            documents::input(),
            documents::devices_input(),
            weak::<LinkStatus>(),
            weak::<LinkSpec>().in_ns(ids::CONFIG_NAMESPACE),
        ]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<OperatorSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings_with_devices(ctx)?;
        let links = ctx.list::<LinkStatus>()?;
        let physical = links.iter().filter(|link| is_physical(link)).map(|link| link.id().as_str());
        let wanted = ctx.list_in::<LinkSpec>(ids::CONFIG_NAMESPACE)?;
        let configured = configured(wanted.iter().map(|link| link.spec()));
        let specs = decide(&self.cmdline.resolve(ctx)?, settings.as_ref(), physical, &configured);
        let id = |s: &OperatorSpec| ids::layered(s.layer, &ids::operator(s.operator, &s.link_name));
        ctx.publish_in(ids::CONFIG_NAMESPACE, specs.into_iter().map(|spec| (id(&spec), spec)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_net::cmdline::NetworkArgs;
    use ichor_types::Cmdline;

    use super::*;
    use crate::settings::LinkSetting;

    #[track_caller]
    fn check(cmdline: &str, settings: Option<Settings>, configured: &[&str], expect: &str) {
        let args = NetworkArgs::parse(&Cmdline::parse(cmdline)).unwrap();
        let configured = configured.iter().map(|s| (*s).to_owned()).collect();
        let physical = ["eth0", "eth1"].into_iter();
        let specs = decide(&Resolved::new(&args, None), settings.as_ref(), physical, &configured);
        let text = specs.iter().map(|s| format!("{}/{}/{}", s.layer, s.operator, s.link_name));
        assert_eq!(text.collect::<Vec<_>>().join(" "), expect);
    }

    #[test]
    fn dhcp_runs_on_devices_that_nobody_configures() {
        let eth0 = LinkSetting { name: "eth0".into(), ..LinkSetting::default() };
        let with =
            |link, explicit_links| Settings { links: vec![link], explicit_links, ..Settings::default() };
        let dhcp = LinkSetting { dhcp4: Some(DhcpSetting::default()), ..eth0.clone() };
        check("", None, &[], "default/dhcp4/eth0 default/dhcp4/eth1");
        check("", None, &["eth0"], "default/dhcp4/eth1");
        check("ip=eth0:dhcp", None, &["eth0"], "cmdline/dhcp4/eth0 default/dhcp4/eth1");
        check("", Some(with(eth0.clone(), false)), &[], "default/dhcp4/eth1");
        check("", Some(with(dhcp, false)), &[], "configuration/dhcp4/eth0 default/dhcp4/eth1");
        check("", Some(with(eth0, true)), &[], "");
    }
}
