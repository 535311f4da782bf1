//! Roles of the node API: what a client certificate's organizations say its bearer may do.

use std::fmt;

/// A role the node API knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reads and day-to-day operations.
    Operator,
    /// Reads without secrets.
    Reader,
    /// Reads of etcd state and snapshots.
    EtcdBackup,
    /// May speak in the name of other roles; opens nothing by itself.
    Impersonator,
}

impl Role {
    /// All known roles, sorted by their text.
    pub const ALL: [Role; 5] =
        [Role::Admin, Role::EtcdBackup, Role::Impersonator, Role::Operator, Role::Reader];

    /// The role as certificates and metadata carry it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "os:admin",
            Role::Operator => "os:operator",
            Role::Reader => "os:reader",
            Role::EtcdBackup => "os:etcd:backup",
            Role::Impersonator => "os:impersonator",
        }
    }

    /// The role with this text, if it is a known one.
    pub fn parse(text: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == text)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of roles. Unknown ones are kept, so that they travel on, but match nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RoleSet {
    known: u8,
    unknown: Vec<String>,
}

impl RoleSet {
    /// The set without roles.
    pub const EMPTY: RoleSet = RoleSet { known: 0, unknown: Vec::new() };

    /// A set of known roles.
    pub const fn of(roles: &[Role]) -> RoleSet {
        let mut known = 0;
        let mut index = 0;
        while index < roles.len() {
            known |= roles[index].bit();
            index += 1;
        }
        RoleSet { known, unknown: Vec::new() }
    }

    /// Reads role texts; empty ones are ignored.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> RoleSet {
        let mut set = RoleSet::default();
        for text in texts {
            let text = text.as_ref();
            match Role::parse(text) {
                Some(role) => set.known |= role.bit(),
                None if text.is_empty() => {}
                None => set.unknown.push(text.to_owned()),
            }
        }
        set.unknown.sort();
        set.unknown.dedup();
        set
    }

    /// Whether the set holds `role`.
    pub const fn contains(&self, role: Role) -> bool {
        self.known & role.bit() != 0
    }

    /// Whether the two sets share a known role.
    pub const fn intersects(&self, other: &RoleSet) -> bool {
        self.known & other.known != 0
    }

    /// Whether there is no role at all.
    pub fn is_empty(&self) -> bool {
        self.known == 0 && self.unknown.is_empty()
    }

    /// The texts of all roles, sorted: known ones first, then the others.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        Role::ALL
            .into_iter()
            .filter(|role| self.contains(*role))
            .map(|role| -> &str { role.as_str() })
            .chain(self.unknown.iter().map(String::as_str))
    }

    /// The texts that are no role the node knows.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

impl FromIterator<Role> for RoleSet {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        let known = roles.into_iter().fold(0, |bits, role| bits | role.bit());
        RoleSet { known, unknown: Vec::new() }
    }
}

impl fmt::Debug for RoleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_roles_are_kept_and_match_nothing() {
        let set = RoleSet::parse(["os:reader", "", "made:up"]);
        assert_eq!(set.iter().collect::<Vec<_>>(), ["os:reader", "made:up"]);
        assert!(set.intersects(&RoleSet::of(&[Role::Reader, Role::Admin])));
        assert!(!RoleSet::parse(["made:up"]).intersects(&RoleSet::parse(["made:up"])));
        assert!(RoleSet::parse(["", ""]).is_empty());
    }

    #[test]
    fn every_known_role_is_read_back() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Some(role));
        }
    }
}
