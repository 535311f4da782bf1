//! Wanted links from defaults, command line and configuration.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::network::{ConfigLayer, LinkSpec, LinkStatus, LinkType};

use super::cmdline::{CmdlineSource, Resolved};
use crate::documents;
use crate::ids;
use crate::settings::{LinkKind, LinkSetting, Settings};

/// Publishes wanted links.
#[derive(Debug)]
pub struct LinkConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want. `physical` are the names of the devices there are.
pub(crate) fn decide<'a>(
    cmdline: &Resolved,
    settings: Option<&Settings>,
    physical: impl Iterator<Item = &'a str>,
) -> Vec<LinkSpec> {
    let ignored = cmdline.ignored();
    let mut specs = vec![up("lo", ConfigLayer::Default)];
    specs.extend(cmdline.links().into_iter().filter(|link| !ignored.contains(&link.name)));
    let configured = settings.map_or(&[][..], |s| &s.links);
    specs.extend(configured.iter().filter(|link| !link.ignore).map(link_spec));

    if !settings.is_some_and(|s| s.explicit_links) {
        for name in physical {
            let spoken_of = ignored.iter().any(|ignored| ignored == name)
                || cmdline.link_names().any(|known| known == name)
                || configured.iter().any(|link| link.name == name);
            if !spoken_of {
                specs.push(up(name, ConfigLayer::Default));
            }
        }
    }
    specs
}

fn up(name: &str, layer: ConfigLayer) -> LinkSpec {
    LinkSpec { name: name.to_owned(), up: true, layer, ..LinkSpec::default() }
}

fn link_spec(link: &LinkSetting) -> LinkSpec {
    let mut spec = up(&link.name, ConfigLayer::Configuration);
    spec.up = link.up.unwrap_or(true);
    spec.mtu = link.mtu;
    spec.hardware_addr = link.hardware_addr.clone();
    spec.multicast = link.multicast;
    if let Some((bond, index)) = &link.bond {
        spec.bond_slave.master_name = bond.clone();
        spec.bond_slave.slave_index = *index;
    }
    if let Some(bridge) = &link.bridge {
        spec.bridge_slave.master_name = bridge.clone();
    }
    let kind = match &link.kind {
        LinkKind::Device => return spec,
        LinkKind::Dummy => "dummy",
        LinkKind::Vlan(parent, vlan) => {
            spec.parent_name = parent.clone();
            spec.vlan = vlan.clone();
            "vlan"
        }
        LinkKind::Bridge(bridge) => {
            spec.bridge_master = bridge.clone();
            "bridge"
        }
        LinkKind::Bond(bond) => {
            spec.bond_master = (**bond).clone();
            "bond"
        }
        LinkKind::Wireguard(wireguard) => {
            spec.wireguard = wireguard.clone();
            "wireguard"
        }
    };
    spec.logical = true;
    spec.kind = kind.to_owned();
    spec.r#type = if kind == "wireguard" { LinkType::NONE } else { LinkType::ETHER };
    spec
}

/// A device: ethernet, and not made by anyone.
pub fn is_physical(link: &LinkStatus) -> bool {
    link.r#type == LinkType::ETHER && link.kind.is_empty()
}

impl Controller for LinkConfigController {
    const NAME: &'static str = "network.LinkConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), documents::devices_input(), weak::<LinkStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<LinkSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings_with_devices(ctx)?;
        let links = ctx.list::<LinkStatus>()?;
        let physical = links.iter().filter(|link| is_physical(link)).map(|link| link.id().as_str());
        let specs = decide(&self.cmdline.resolve(ctx)?, settings.as_ref(), physical);
        let id = |spec: &LinkSpec| ids::layered(spec.layer, &spec.name);
        ctx.publish_in(ids::CONFIG_NAMESPACE, specs.into_iter().map(|spec| (id(&spec), spec)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_net::cmdline::NetworkArgs;
    use ichor_types::Cmdline;

    use super::*;

    #[track_caller]
    fn check(cmdline: &str, settings: Option<Settings>, expect: &str) {
        let args = NetworkArgs::parse(&Cmdline::parse(cmdline)).unwrap();
        let specs = decide(&Resolved::new(&args, None), settings.as_ref(), ["eth0", "eth1"].into_iter());
        let text: Vec<_> = specs.iter().map(|s| format!("{}/{}", s.layer, s.name)).collect();
        assert_eq!(text.join(" "), expect);
    }

    #[test]
    fn devices_nobody_speaks_of_are_brought_up() {
        let eth0 = LinkSetting { name: "eth0".into(), ..LinkSetting::default() };
        let with =
            |link, explicit_links| Settings { links: vec![link], explicit_links, ..Settings::default() };
        check("", None, "default/lo default/eth0 default/eth1");
        check("ip=eth0:dhcp", None, "default/lo cmdline/eth0 default/eth1");
        check("talos.network.interface.ignore=eth1", None, "default/lo default/eth0");
        check("", Some(with(eth0.clone(), false)), "default/lo configuration/eth0 default/eth1");
        check("", Some(with(eth0.clone(), true)), "default/lo configuration/eth0");
        let ignored = LinkSetting { ignore: true, ..eth0 };
        check("", Some(with(ignored, false)), "default/lo default/eth1");
    }
}
