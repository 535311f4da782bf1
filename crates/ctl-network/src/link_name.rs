//! Names of links: made-up ones, and finding a link by any of its names.

use ichor_cosi::Typed;
use ichor_net::link::Link;
use ichor_resource::network::LinkStatus;

/// Longest name the kernel takes.
const NAME_MAX: usize = 15;
/// A dot and four digits.
const VLAN_SUFFIX: usize = 5;

/// The name of a VLAN on a link. Long parents are shortened to a recognizable head and a hash.
pub(crate) fn vlan_name(parent: &str, id: u16) -> String {
    if parent.len() + VLAN_SUFFIX <= NAME_MAX {
        return format!("{parent}.{id}");
    }
    let head: String = parent.chars().take(4).collect();
    let digest = ichor_pki::sha256(parent.as_bytes());
    format!("{head}{:02x}{:02x}{:02x}.{id}", digest[0], digest[1], digest[2])
}

/// The link with this name, else with this alias, else with this further name.
pub(crate) fn find<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    links
        .iter()
        .find(|link| link.name == name)
        .or_else(|| links.iter().find(|link| !link.alias.is_empty() && link.alias == name))
        .or_else(|| links.iter().find(|link| link.alt_names.iter().any(|alt| alt == name)))
}

/// As [`find`], among statuses.
pub(crate) fn find_status<'a>(links: &'a [Typed<LinkStatus>], name: &str) -> Option<&'a Typed<LinkStatus>> {
    links
        .iter()
        .find(|link| link.id() == name)
        .or_else(|| links.iter().find(|link| !link.alias.is_empty() && link.alias == name))
        .or_else(|| links.iter().find(|link| link.alt_names.iter().any(|alt| alt == name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parents_are_shortened() {
        assert_eq!(vlan_name("eth0", 5), "eth0.5");
        assert_eq!(vlan_name("enp0s31f6x", 4095), "enp0s31f6x.4095");
        let long = vlan_name("enp0s31f6xy", 4095);
        assert!(long.len() <= NAME_MAX && long.starts_with("enp0") && long.ends_with(".4095"), "{long}");
    }

    #[test]
    fn real_names_come_before_aliases_and_further_names() {
        let link = |index, name: &str, alias: &str, alt: &str| Link {
            index,
            name: name.into(),
            alias: alias.into(),
            alt_names: vec![alt.into()],
            ..Link::default()
        };
        let links = [link(1, "a", "c", "x"), link(2, "b", "x", "c"), link(3, "c", "", "")];
        assert_eq!(find(&links, "c").map(|l| l.index), Some(3));
        assert_eq!(find(&links[..2], "c").map(|l| l.index), Some(1));
        assert_eq!(find(&links, "x").map(|l| l.index), Some(2));
        assert_eq!(find(&links, ""), None.or(find(&links, "")));
    }
}
