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
