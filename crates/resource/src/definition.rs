//! What the system says about a resource type: names, aliases, columns, sensitivity.

/// The definition of one resource type; `get rd` lists these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The full type name, such as `HostnameStatuses.net.talos.dev`.
    pub type_name: &'static str,
    /// The namespace commands use when none is given.
    pub default_namespace: &'static str,
    /// Aliases given by hand; the automatic ones are computed.
    pub aliases: &'static [&'static str],
    /// Extra table columns: heading and JSONPath over the YAML spec.
    pub columns: &'static [(&'static str, &'static str)],
    /// Sensitive types are for administrators only.
    pub sensitive: bool,
    /// Set where the automatic aliases would mislead.
    pub skip_automatic_aliases: bool,
    /// Full name of the protobuf message of the spec, empty when there is none.
    pub proto: &'static str,
}

impl Definition {
    /// A definition that says nothing; a base for the few written by hand.
    pub const EMPTY: Self = Self {
        type_name: "",
        default_namespace: "",
        aliases: &[],
        columns: &[],
        sensitive: false,
        skip_automatic_aliases: false,
        proto: "",
    };

    /// The id of the definition resource: the type in lower case.
    pub fn id(&self) -> String {
        self.type_name.to_lowercase()
    }

    /// The type for people: the singular of its first part.
    pub fn display_type(&self) -> String {
        singular(self.plural()).to_owned() + if self.plural().ends_with("ies") { "y" } else { "" }
    }

    /// Aliases given by hand, then the automatic ones.
    pub fn aliases(&self) -> Vec<String> {
        let mut aliases: Vec<String> = self.aliases.iter().map(|alias| (*alias).to_owned()).collect();
        if self.skip_automatic_aliases {
            return aliases;
        }
        aliases.push(self.display_type().to_lowercase());
        let capitals: String = self.plural().chars().filter(char::is_ascii_uppercase).collect();
        if capitals.len() > 1 {
            let short = capitals.to_lowercase();
            aliases.push(short.clone());
            if !capitals.ends_with('S') {
                aliases.push(short + "s");
            }
        }
        aliases
    }

    /// Every name a client may use: the plural with ever longer pieces of the suffix, then the aliases.
    pub fn all_aliases(&self) -> Vec<String> {
        if self.skip_automatic_aliases {
            return self.aliases();
        }
        let id = self.id();
        let ends = id.match_indices('.').map(|(at, _)| at);
        ends.map(|end| id[..end].to_owned()).chain(self.aliases()).collect()
    }

    fn plural(&self) -> &'static str {
        self.type_name.split('.').next().unwrap_or_default()
    }
}

/// The plural without its ending, by the few rules the names in use need.
///
/// Words in `-ches` lose the whole ending, as clients of the original are used to.
fn singular(plural: &str) -> &str {
    for (ending, cut) in [("ies", 3), ("sses", 2), ("uses", 2), ("shes", 2), ("ches", 2), ("s", 1)] {
        if plural.ends_with(ending) {
            return &plural[..plural.len() - cut];
        }
    }
    plural
}
