//! Wanted virtual addresses, which control plane machines share.

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::network::{
    ConfigLayer, LinkStatus, Operator, OperatorSpec, VIPEquinixMetalSpec, VIPHCloudSpec, VIPOperatorSpec,
};

use super::cmdline::CmdlineSource;
use crate::documents;
use crate::ids;
use crate::settings::{Settings, VipKind, VipSetting};

/// Publishes wanted virtual addresses.
#[derive(Debug)]
pub struct OperatorVIPConfigController {
    /// The kernel command line, which may have links be left alone.
    pub cmdline: CmdlineSource,
}

/// What the configuration wants.
pub(crate) fn decide(settings: &Settings, ignored: &[String]) -> Vec<OperatorSpec> {
    settings.vips.iter().filter(|vip| !ignored.contains(&vip.link)).map(spec_of).collect()
}

fn spec_of(vip: &VipSetting) -> OperatorSpec {
    let mut spec = VIPOperatorSpec { ip: vip.address.into(), ..VIPOperatorSpec::default() };
    match &vip.kind {
        VipKind::Announced => spec.gratuitous_arp = true,
        VipKind::EquinixMetal(api_token) => {
            spec.equinix_metal = VIPEquinixMetalSpec { api_token: api_token.clone(), ..Default::default() };
        }
        VipKind::HCloud(api_token) => {
            spec.hcloud = VIPHCloudSpec { api_token: api_token.clone(), ..Default::default() };
        }
    }
    OperatorSpec {
        operator: Operator::Vip,
        link_name: vip.link.clone(),
        require_up: true,
        vip: spec,
        layer: ConfigLayer::Configuration,
        ..OperatorSpec::default()
    }
}

impl Controller for OperatorVIPConfigController {
    const NAME: &'static str = "network.OperatorVIPConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), documents::devices_input(), weak::<LinkStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<OperatorSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings_with_devices(ctx)?.unwrap_or_default();
        let specs = decide(&settings, self.cmdline.unresolved().ignored());
        let named =
            specs.into_iter().map(|spec| (ids::layered(spec.layer, &ids::operator_spec(&spec)), spec));
        ctx.publish_in(ids::CONFIG_NAMESPACE, named)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_address_is_announced_unless_a_cloud_moves_it() {
        let vip = |kind| VipSetting { link: "eth0".into(), address: "10.5.0.9".parse().unwrap(), kind };
        let settings = Settings {
            vips: vec![vip(VipKind::Announced), vip(VipKind::HCloud("token".into()))],
            ..Settings::default()
        };
        let specs = decide(&settings, &[]);
        assert_eq!(ids::operator_spec(&specs[0]), "vip/eth0/10.5.0.9");
        assert!(specs[0].vip.gratuitous_arp && !specs[1].vip.gratuitous_arp);
        assert_eq!(specs[1].vip.hcloud.api_token, "token");
        assert!(decide(&settings, &["eth0".to_owned()]).is_empty());
    }
}
