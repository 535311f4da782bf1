//! Second names of links, chosen by expressions over what the links are.

use std::collections::BTreeMap;
use std::sync::Arc;

use ichor_cel::environments;
use ichor_cel::{Expression, Object, Value};
use ichor_config::Document;
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Wake, exclusive, weak};
use ichor_ctl::Configuration;
use ichor_net::watch::Topics;
use ichor_resource::network::{LinkAliasSpec, LinkStatus};

use crate::documents;
use crate::gate::DevicesGate;
use crate::ports::{Kernel, LinkChange};
use crate::source::link::is_physical;
use crate::trouble::Troubles;

/// Chooses links for aliases.
#[derive(Debug, Default)]
pub struct LinkAliasConfigController;

/// A link as expressions see it.
struct LinkObject(LinkStatus);

impl Object for LinkObject {
    fn field(&self, name: &str) -> Option<Value> {
        let link = &self.0;
        let text = |text: &str| Some(Value::string(text));
        let uint = |number: u32| Some(Value::Uint(number.into()));
        let int = |number: i32| Some(Value::Int(number.into()));
        match name {
            "index" => uint(link.index),
            "type" => int(link.r#type.number()),
            "link_index" => uint(link.link_index),
            "flags" => uint(link.flags.0),
            "hardware_addr" => Some(Value::bytes(&link.hardware_addr.0)),
            "broadcast_addr" => Some(Value::bytes(&link.broadcast_addr.0)),
            "permanent_addr" => Some(Value::bytes(&link.permanent_addr.0)),
            "mtu" => uint(link.mtu),
            "queue_disc" => text(&link.queue_disc),
            "master_index" => uint(link.master_index),
            "operational_state" => int(link.operational_state as i32),
            "kind" => text(&link.kind),
            "slave_kind" => text(&link.slave_kind),
            "bus_path" => text(&link.bus_path),
            "pciid" => text(&link.pci_id),
            "driver" => text(&link.driver),
            "driver_version" => text(&link.driver_version),
            "firmware_version" => text(&link.firmware_version),
            "product_id" => text(&link.product_id),
            "vendor_id" => text(&link.vendor_id),
            "product" => text(&link.product),
            "vendor" => text(&link.vendor),
            "link_state" => Some(Value::Bool(link.link_state)),
            "speed_megabits" => Some(Value::Int(link.speed_mbit)),
            "port" => int(link.port.number()),
            "duplex" => int(link.duplex.number()),
            "alias" => text(&link.alias),
            "alt_names" => Some(Value::list(link.alt_names.iter().map(Value::string))),
            _ => None,
        }
    }
}

/// Which link gets which alias, and what stood in the way. `links` are devices by name.
pub(crate) fn decide(
    wanted: &[(String, String)],
    links: &[(String, LinkStatus)],
) -> (BTreeMap<String, String>, Vec<String>) {
    let mut chosen: BTreeMap<String, String> = BTreeMap::new();
    let mut troubles = Vec::new();
    let environment = environments::link();
    for (alias, text) in wanted {
        let mut matching = Vec::new();
        let found = Expression::parse(text).map_err(|error| error.to_string()).and_then(|expression| {
            for (name, link) in links {
                let object: Arc<dyn Object> = Arc::new(LinkObject(link.clone()));
                let value = expression.eval(&environment, &[("link", Value::Message(object))]);
                if let Value::Bool(true) = value.map_err(|error| error.to_string())? {
                    matching.push(name.as_str());
                }
            }
            Ok(())
        });
        if let Err(error) = found {
            troubles.push(format!("alias {alias}: {error}"));
            continue;
        }
        match matching[..] {
            [] => troubles.push(format!("alias {alias}: no link matches {text}")),
            [link] => match chosen.get(link) {
                Some(other) => troubles.push(format!("alias {alias}: {link} has the alias {other} already")),
                None => drop(chosen.insert(link.to_owned(), alias.clone())),
            },
            _ => troubles.push(format!("alias {alias}: several links match: {}", matching.join(", "))),
        }
    }
    (chosen, troubles)
}

impl Controller for LinkAliasConfigController {
    const NAME: &'static str = "network.LinkAliasConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), weak::<LinkStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<LinkAliasSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let wanted = config.iter().flat_map(|config| config.iter()).filter_map(|document| match document {
            Document::LinkAliasConfig(alias) => {
                Some((alias.name.clone(), alias.selector.expression.0.clone()))
            }
            _ => None,
        });
        let wanted: Vec<_> = wanted.collect();
        let links = if wanted.is_empty() { Vec::new() } else { ctx.list::<LinkStatus>()? };
        let devices = links.iter().filter(|link| is_physical(link));
        let devices: Vec<_> = devices.map(|link| (link.id().to_string(), link.spec().clone())).collect();
        let (chosen, troubles) = decide(&wanted, &devices);
        ctx.publish(chosen.into_iter().map(|(link, alias)| (link, LinkAliasSpec { alias })))?;
        if !troubles.is_empty() {
            ctx.trouble(troubles.join("; "));
        }
        Ok(())
    }
}

/// Gives links their aliases and takes others away.
#[derive(Debug)]
pub struct LinkAliasSpecController<K> {
    kernel: K,
    gate: DevicesGate,
    troubles: Troubles,
}

impl<K> LinkAliasSpecController<K> {
    /// Names the links of this kernel.
    pub fn new(kernel: K, gate: DevicesGate) -> Self {
        Self { kernel, gate, troubles: Troubles::default() }
    }
}

impl<K: Kernel> Controller for LinkAliasSpecController<K> {
    const NAME: &'static str = "network.LinkAliasSpecController";

    fn inputs(&self) -> Vec<Input> {
        self.gate.inputs(vec![weak::<LinkAliasSpec>()])
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    fn start(&mut self, wake: Wake) {
        self.kernel.watch(Topics::LINKS, wake);
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if !self.gate.is_open(ctx)? {
            return Ok(());
        }
        let specs = ctx.list::<LinkAliasSpec>()?;
        for link in self.kernel.links().await?.iter().filter(|link| link.is_physical()) {
            let wanted = specs.iter().find(|spec| spec.id() == link.name.as_str());
            let wanted = wanted.map_or("", |spec| spec.alias.as_str());
            if link.alias == wanted {
                continue;
            }
            let change = LinkChange::Alias(wanted.to_owned());
            match self.kernel.change_link(&link.name, &change).await {
                Err(error) if error.is_missing() => {}
                Err(error) => self.troubles.refused(error),
                Ok(()) => tracing::info!(link = link.name, alias = wanted, "changed alias"),
            }
        }
        self.troubles.show(ctx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_types::HardwareAddr;

    use super::*;

    fn link(name: &str, last: u8, driver: &str) -> (String, LinkStatus) {
        let status = LinkStatus {
            permanent_addr: HardwareAddr(vec![2, 0, 0, 0, 0, last]),
            driver: driver.into(),
            ..LinkStatus::default()
        };
        (name.to_owned(), status)
    }

    #[test]
    fn an_alias_needs_exactly_one_link() {
        let links = [link("eth0", 1, "virtio_net"), link("eth1", 2, "virtio_net")];
        let check = |wanted: &[(&str, &str)]| {
            let wanted: Vec<_> = wanted.iter().map(|(a, e)| ((*a).to_owned(), (*e).to_owned())).collect();
            let (chosen, troubles) = decide(&wanted, &links);
            (
                chosen.into_iter().map(|(l, a)| format!("{l}={a}")).collect::<Vec<_>>().join(" "),
                troubles.join("; "),
            )
        };
        let mac = "mac(link.permanent_addr) == '02:00:00:00:00:02'";
        assert_eq!(check(&[("lan", mac)]), ("eth1=lan".into(), String::new()));
        assert_eq!(
            check(&[("lan", "glob('virtio*', link.driver)")]).1,
            "alias lan: several links match: eth0, eth1"
        );
        assert_eq!(check(&[("lan", mac), ("wan", mac)]).1, "alias wan: eth1 has the alias lan already");
        assert!(check(&[("lan", "link.mtu == 9u")]).1.starts_with("alias lan: no link matches"));
    }
}
