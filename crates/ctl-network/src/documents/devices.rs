//! Interface entries of the configuration, with selectors turned into links.

use ichor_config::model::{Field, List};
use ichor_config::v1alpha1::network::{Device, DeviceSelector};
use ichor_cosi::{Context, Controller, ControllerError, Input, Output, Typed, exclusive, weak};
use ichor_ctl::Configuration;
use ichor_resource::network::{DeviceConfigSpec, LinkStatus};

use crate::source::link::is_physical;

/// Publishes interface entries.
#[derive(Debug, Default)]
pub struct DeviceConfigController;

/// True when a link is one that the selector means: everything it names must match.
pub(crate) fn selects(selector: &DeviceSelector, link: &LinkStatus) -> bool {
    let wanted = [
        (selector.bus_path.as_str(), link.bus_path.as_str()),
        (selector.pci_id.as_str(), link.pci_id.as_str()),
        (selector.driver.as_str(), link.driver.as_str()),
        (selector.hardware_addr.as_str(), &link.hardware_addr.to_string()),
        (selector.permanent_addr.as_str(), &link.permanent_addr.to_string()),
    ]
    .map(|(pattern, text)| (pattern.is_empty(), glob(&pattern.to_lowercase(), &text.to_lowercase())));
    let names_something = wanted.iter().any(|(unset, _)| !unset) || selector.physical.is_some();
    names_something
        && wanted.iter().all(|(unset, matches)| *unset || *matches)
        && selector.physical.is_none_or(|physical| physical == is_physical(link))
}

/// Matches `*` (any text), `?` (any character) and everything else literally.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go back to when a guess about the last star was wrong.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

fn entry(device: &Device, name: &str, links: &[Typed<LinkStatus>]) -> DeviceConfigSpec {
    let mut named = Device { interface: name.to_owned(), device_selector: None, ..device.clone() };
    if let Some(bond) = named.bond.as_mut().filter(|bond| !bond.device_selectors.is_empty()) {
        // The bond takes the hardware address of a member, and must not become its own.
        let others = links.iter().filter(|link| link.id() != name);
        let chosen = others.filter(|link| bond.device_selectors.iter().any(|s| selects(s, link)));
        bond.interfaces = chosen.map(|link| link.id().to_string()).collect();
        bond.device_selectors = List::default();
    }
    DeviceConfigSpec { device: ichor_yaml::emit(&named.encode()).into() }
}

/// The members of the bond in an entry, if it is one.
pub(super) fn members(entry: &[u8]) -> Option<Vec<String>> {
    let documents = ichor_yaml::parse(std::str::from_utf8(entry).ok()?).ok()?;
    let interfaces = documents.first()?.root.get("bond")?.get("interfaces")?.as_seq()?;
    Some(interfaces.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

impl Controller for DeviceConfigController {
    const NAME: &'static str = "network.DeviceConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![super::input(), weak::<LinkStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<DeviceConfigSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let machine = config.as_ref().and_then(|config| config.root()?.machine.as_ref());
        let network = machine.and_then(|machine| machine.network.as_ref());
        let links = ctx.list::<LinkStatus>()?;
        let mut entries = Vec::new();
        for (position, device) in network.into_iter().flat_map(|n| n.interfaces.iter()).enumerate() {
            if let Some(selector) = device.device_selector.as_ref().filter(|_| device.interface.is_empty()) {
                let chosen = links.iter().filter(|link| selects(selector, link));
                for (index, link) in chosen.enumerate() {
                    entries.push((
                        format!("{}/{position:03}/{index:03}", link.id()),
                        entry(device, link.id(), &links),
                    ));
                }
            } else {
                entries.push((
                    format!("{}/{position:03}", device.interface),
                    entry(device, &device.interface, &links),
                ));
            }
        }
        ctx.publish(entries)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ichor_resource::network::LinkType;

    use super::*;

    #[test]
    fn globs() {
        for (pattern, text) in [("a*", "abc"), ("*c", "abc"), ("a?c", "abc"), ("*", ""), ("a*b*c", "a12b34c")]
        {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a*", "bc"), ("a?", "a"), ("", "a"), ("a*b", "ac"), ("abc", "ab")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn everything_named_must_match() {
        let link = LinkStatus {
            driver: "virtio_net".into(),
            hardware_addr: "02:aa:bb:cc:dd:ee".parse().unwrap(),
            r#type: LinkType::ETHER,
            ..LinkStatus::default()
        };
        let by = |driver: &str, mac: &str, physical| DeviceSelector {
            driver: driver.into(),
            hardware_addr: mac.into(),
            physical,
            ..DeviceSelector::default()
        };
        assert!(selects(&by("virtio*", "", None), &link));
        assert!(selects(&by("virtio*", "02:AA:*", Some(true)), &link));
        assert!(!selects(&by("virtio*", "03:*", None), &link));
        assert!(!selects(&by("", "", Some(false)), &link));
        assert!(!selects(&by("", "", None), &link), "a selector that names nothing selects nothing");
    }

    #[tokio::test]
    async fn an_entry_is_shown_for_every_link_that_its_selector_chooses() {
        let (state, _) = ichor_testkit::state();
        for (name, driver) in [("eth0", "virtio_net"), ("eth1", "virtio_net"), ("eth2", "e1000")] {
            let status =
                LinkStatus { driver: driver.to_owned(), r#type: LinkType::ETHER, ..LinkStatus::default() };
            state.create("network", name, status, "").unwrap();
        }
        let text = "machine:\n  type: worker\n  network:\n    interfaces:\n      - interface: lo\n        mtu: 1400\n      \
                    - deviceSelector: {driver: virtio*}\n        dhcp: true\n";
        let config = ichor_resource::config::MachineConfig::new(text);
        state.create("config", ichor_resource::config::MachineConfig::ACTIVE, config, "").unwrap();
        let mut harness = ichor_testkit::Harness::new(&state, DeviceConfigController).unwrap();
        harness.reconcile().await.unwrap();
        let found = state.list::<DeviceConfigSpec>("network");
        let ids: Vec<&str> = found.iter().map(|device| device.id().as_str()).collect();
        assert_eq!(ids, ["eth0/001/000", "eth1/001/001", "lo/000"]);
        let entry = String::from_utf8_lossy(&found[1].device).into_owned();
        assert!(entry.contains("interface: eth1") && entry.contains("dhcp: true"), "{entry}");
    }
}
