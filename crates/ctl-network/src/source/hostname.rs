//! The wanted host name from defaults, command line and configuration.

use std::net::IpAddr;

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, shared, weak};
use ichor_resource::cluster::Identity;
use ichor_resource::network::{ConfigLayer, HostnameSpec, NodeAddress};

use super::cmdline::{CmdlineSource, Resolved};
use crate::documents;
use crate::ids;
use crate::settings::{AutoHostname, Settings};

/// Longest first label (RFC 1035).
const LABEL_MAX: usize = 63;
/// Longest name with its domain.
const NAME_MAX: usize = 253;

/// Publishes the wanted host name.
#[derive(Debug)]
pub struct HostnameConfigController {
    /// The kernel command line.
    pub cmdline: CmdlineSource,
}

/// A name that cannot be a host's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad host name {name:?}: the first label takes 1 to 63 characters, the whole at most 253")]
pub struct BadHostname {
    name: String,
}

/// Splits a name at its first dot.
pub(crate) fn spec_of(name: &str, layer: ConfigLayer) -> Result<HostnameSpec, BadHostname> {
    let (hostname, domain) = name.split_once('.').unwrap_or((name, ""));
    if !(1..=LABEL_MAX).contains(&hostname.len()) || name.len() > NAME_MAX {
        return Err(BadHostname { name: name.to_owned() });
    }
    Ok(HostnameSpec { hostname: hostname.to_owned(), domainname: domain.to_owned(), layer })
}

/// The name made from the node's identity.
pub fn stable_hostname(node_id: &str) -> String {
    let digest = ichor_pki::sha256(node_id.as_bytes());
    let mut number = 0_u64;
    for byte in &digest[..8] {
        number = number << 8 | u64::from(*byte);
    }
    // Leading zero bytes show as zeros, as in other base-N encodings of byte strings.
    let zeros = digest[..8].iter().take_while(|byte| **byte == 0).count();
    let mut digits = Vec::new();
    while number > 0 {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
    }
    digits.extend(std::iter::repeat_n(b'0', zeros));
    digits.reverse();
    let text: String = digits.into_iter().map(char::from).collect();
    let part = |range| text.get(range).unwrap_or("000");
    format!("talos-{}-{}", part(1..4), part(4..7))
}

/// The name made from an address.
pub fn address_hostname(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("talos-{}", v4.to_string().replace('.', "-")),
        IpAddr::V6(v6) => format!("talos-{}", v6.to_string().replace(':', "")),
    }
}

/// What all sources want; names that cannot be are left out and told.
pub(crate) fn decide(
    cmdline: &Resolved,
    settings: Option<&Settings>,
    node_id: Option<&str>,
    default_address: Option<IpAddr>,
) -> (Vec<HostnameSpec>, Vec<BadHostname>) {
    let mut wanted = Vec::new();
    wanted.extend(cmdline.hostname().map(|name| (name.to_owned(), ConfigLayer::Cmdline)));
    if let Some(settings) = settings {
        match settings.auto_hostname {
            AutoHostname::FromAddress => {
                wanted.extend(default_address.map(|a| (address_hostname(a), ConfigLayer::Default)));
            }
            AutoHostname::Stable => {
                wanted.extend(node_id.map(|id| (stable_hostname(id), ConfigLayer::Default)));
            }
            AutoHostname::Off => {}
        }
        wanted.extend(settings.hostname.clone().map(|name| (name, ConfigLayer::Configuration)));
    }
    let (mut specs, mut bad) = (Vec::new(), Vec::new());
    for (name, layer) in wanted {
        match spec_of(&name, layer) {
            Ok(spec) => specs.push(spec),
            Err(error) => bad.push(error),
        }
    }
    (specs, bad)
}

impl Controller for HostnameConfigController {
    const NAME: &'static str = "network.HostnameConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![documents::input(), weak::<NodeAddress>().id("default"), weak::<Identity>().id("local")]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<HostnameSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let settings = documents::settings(ctx)?;
        let identity = ctx.get::<Identity>("local")?;
        let default = ctx.get::<NodeAddress>("default")?;
        let address = default.and_then(|d| d.addresses.first()?.get()).map(|prefix| prefix.addr());
        let cmdline = self.cmdline.unresolved();
        let node_id = identity.as_ref().map(|identity| identity.node_id.as_str());
        let (specs, bad) = decide(&cmdline, settings.as_ref(), node_id, address);
        for error in bad {
            tracing::warn!(%error, "host name not taken");
        }
        let named = specs.into_iter().map(|spec| (ids::layered(spec.layer, ids::HOSTNAME), spec));
        ctx.publish_in(ids::CONFIG_NAMESPACE, named)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stable_name_is_the_known_one() {
        assert_eq!(stable_hostname("fGdOI05hVrx3YMagLo0Bwxa2Nm9BAswWm8XLeEj0aS4"), "talos-hwz-sw5");
    }

    #[test]
    fn addresses_make_names_without_dots_and_colons() {
        assert_eq!(address_hostname("10.5.0.2".parse().unwrap()), "talos-10-5-0-2");
        assert_eq!(address_hostname("fd00::2".parse().unwrap()), "talos-fd002");
    }

    #[test]
    fn a_full_name_is_split_and_bad_ones_are_refused() {
        let spec = spec_of("node-1.example.org", ConfigLayer::Cmdline).unwrap();
        assert_eq!((spec.hostname.as_str(), spec.domainname.as_str()), ("node-1", "example.org"));
        assert!(spec_of("", ConfigLayer::Cmdline).is_err());
        assert!(spec_of(".example.org", ConfigLayer::Cmdline).is_err());
        assert!(spec_of(&"a".repeat(64), ConfigLayer::Cmdline).is_err());
        assert!(spec_of(&format!("a.{}", "b".repeat(252)), ConfigLayer::Cmdline).is_err());
    }

    #[test]
    fn without_a_configuration_no_name_is_made_up() {
        let address = Some("10.5.0.2".parse().unwrap());
        assert_eq!(decide(&Resolved::default(), None, Some("id"), address), (vec![], vec![]));
        let (specs, _) = decide(&Resolved::default(), Some(&Settings::default()), Some("id"), address);
        assert_eq!(specs[0].hostname, "talos-10-5-0-2");
        assert_eq!(specs[0].layer, ConfigLayer::Default);
        let stable = Settings { auto_hostname: AutoHostname::Stable, ..Settings::default() };
        let (specs, _) = decide(&Resolved::default(), Some(&stable), None, address);
        assert!(specs.is_empty(), "waits for the identity");
    }
}
