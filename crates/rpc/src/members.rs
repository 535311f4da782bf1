//! The machines that a gateway knows as members of its cluster: whom callers of every role may reach.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Addresses and names of cluster members.
///
/// Membership is a question of the address or name itself. Nothing is looked up to answer it, so a caller who makes
/// up names learns nothing and costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    addresses: HashSet<IpAddr>,
    /// Lower case, without a trailing dot. A name without addresses is resolved when it is dialed.
    names: HashMap<String, Vec<IpAddr>>,
}

impl Members {
    /// Adds one machine: the addresses it has and the names it goes by. Empty names do not count.
    pub fn add<'a>(&mut self, addresses: &[IpAddr], names: impl IntoIterator<Item = &'a str>) {
        let addresses = || addresses.iter().map(IpAddr::to_canonical);
        self.addresses.extend(addresses());
        for name in names {
            let name = normal(name);
            if name.is_empty() {
                continue;
            }
            let known = self.names.entry(name).or_default();
            for address in addresses() {
                if !known.contains(&address) {
                    known.push(address);
                }
            }
        }
    }

    /// Whether `target`, an address or a name, is a member.
    pub fn contains(&self, target: &str) -> bool {
        match target.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address.to_canonical()),
            Err(_) => self.names.contains_key(&normal(target)),
        }
    }

    /// The addresses of the member with this name; none when there is no such member, or none is known.
    pub fn addresses_of(&self, name: &str) -> &[IpAddr] {
        self.names.get(&normal(name)).map_or(&[], Vec::as_slice)
    }
}

/// The one way to write a target among those that mean the same: an address or a name in its shortest form.
pub(crate) fn canonical(target: &Arc<str>) -> Arc<str> {
    let short = match target.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => normal(target),
    };
    if *short == **target { target.clone() } else { short.into() }
}

fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        let mut members = Members::default();
        let two = ["10.5.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        members.add(&two, ["node-2", "Node-2.Example.", ""]);
        members.add(&[], ["balancer.example"]);
        members
    }

    #[test]
    fn every_way_to_write_a_member_is_known() {
        let members = members();
        for known in [
            "10.5.0.2",
            "::ffff:10.5.0.2",
            "fd00::2",
            "FD00:0::2",
            "node-2",
            "NODE-2",
            "node-2.example",
            "node-2.example.",
            "balancer.example",
        ] {
            assert!(members.contains(known), "{known}");
        }
    }

    #[test]
    fn spellings_of_a_target_are_one() {
        for (text, expected) in [
            ("fd00:0::2", "fd00::2"),
            ("::ffff:10.5.0.2", "10.5.0.2"),
            ("10.5.0.2", "10.5.0.2"),
            ("Node-2..", "node-2"),
            ("node-2", "node-2"),
        ] {
            assert_eq!(&*canonical(&text.into()), expected);
        }
    }

    #[test]
    fn nothing_else_is_a_member() {
        let members = members();
        // Among them other ways to write an address that a resolver takes.
        for other in
            ["", ".", "10.5.0.3", "::1", "node-3", "10.1282", "168099842", "0x0a050002", "node-2.other"]
        {
            assert!(!members.contains(other), "{other}");
            assert!(members.addresses_of(other).is_empty(), "{other}");
        }
        assert!(!Members::default().contains(""));
    }

    #[test]
    fn names_lead_to_all_addresses_of_a_member() {
        let mut members = members();
        members.add(&["10.5.0.2".parse().unwrap(), "10.6.0.2".parse().unwrap()], ["node-2"]);
        let found: Vec<String> = members.addresses_of("Node-2.").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.5.0.2", "fd00::2", "10.6.0.2"]);
        assert!(members.addresses_of("balancer.example").is_empty());
    }
}
