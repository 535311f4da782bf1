//! Wanted addresses from defaults, command line and configuration.

use std::net::Ipv4Addr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared};
use ichor_resource::network::{AddressSpec, ConfigLayer};
use ipnet::{IpNet, Ipv4Net};

use super::cmdline::{CmdlineSource, Resolved, address_spec};
use crate::documents;
use crate::ids;
use crate::settings::Settings;

/// `127.0.0.1/8`.
const LOOPBACK: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8));

/// Publishes wanted addresses.
#[derive(Debug)]
pub struct AddressConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// What all sources want.
pub(crate) fn decide(cmdline: &Resolved, settings: Option<&Settings>) -> Vec<AddressSpec> {
    let mut specs = vec![address_spec("lo", LOOPBACK, 0, ConfigLayer::Default)];
    let ignored = cmdline.ignored();
    specs.extend(cmdline.addresses().into_iter().filter(|spec| !ignored.contains(&spec.link_name)));
    for link in settings.into_iter().flat_map(|s| &s.links).filter(|link| !link.ignore) {
        for address in &link.addresses {
            let layer = ConfigLayer::Configuration;
            specs.push(address_spec(&link.name, address.prefix, address.priority, layer));
        }
    }
    specs
}

impl Controller for AddressConfigController {
    const NAME: &'static str = "network.AddressConfigController";

    fn inputs(&self) -> Vec<Input> {
        [documents::input(), documents::devices_input()].into_iter().chain(self.cmdline.inputs()).collect()
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<AddressSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings_with_devices(ctx)?;
        let specs = decide(&self.cmdline.resolve(ctx)?, settings.as_ref());
        let id = |spec: &AddressSpec| ids::layered(spec.layer, &ids::address(&spec.link_name, spec.address));
        ctx.publish_in(ids::CONFIG_NAMESPACE, specs.into_iter().map(|spec| (id(&spec), spec)))?;
        Ok(())
    }
}
