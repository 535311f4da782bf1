//! Resource types as a machine knows them: names, aliases, columns.

use ichor_wire::cosi::resource::meta::ResourceDefinitionSpec;
use prost::Message;

/// The type of resource definitions themselves.
pub const DEFINITION_TYPE: &str = "ResourceDefinitions.meta.cosi.dev";
/// The namespace of resource definitions.
pub const DEFINITION_NAMESPACE: &str = "meta";

/// Everything a machine says about its resource types.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definitions(Vec<ResourceDefinitionSpec>);

/// A name that stands for no resource type, or for several.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownType {
    /// No type answers to the name.
    #[error("resource \"{name}\" is not registered")]
    NotRegistered {
        /// The name as written.
        name: String,
    },
    /// Several types answer to the name.
    #[error("resource type \"{name}\" is ambiguous: [{}]", .matches.join(" "))]
    Ambiguous {
        /// The name as written.
        name: String,
        /// The full types that answer.
        matches: Vec<String>,
    },
}

impl Definitions {
    /// Reads definitions from the protobuf halves of their resources.
    pub fn decode<'a>(specs: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, prost::DecodeError> {
        specs.into_iter().map(ResourceDefinitionSpec::decode).collect::<Result<_, _>>().map(Self)
    }

    /// The definition `name` stands for: a type in any case, or an alias.
    pub fn resolve(&self, name: &str) -> Result<&ResourceDefinitionSpec, UnknownType> {
        let wanted = name.to_lowercase();
        if let Some(exact) = self.0.iter().find(|spec| spec.resource_type.to_lowercase() == wanted) {
            return Ok(exact);
        }
        let mut found = self.0.iter().filter(|spec| spec.all_aliases.contains(&wanted));
        let Some(first) = found.next() else {
            return Err(UnknownType::NotRegistered { name: name.to_owned() });
        };
        let mut matches: Vec<String> = found.map(|spec| spec.resource_type.clone()).collect();
        if matches.is_empty() {
            return Ok(first);
        }
        matches.insert(0, first.resource_type.clone());
        matches.sort();
        Err(UnknownType::Ambiguous { name: name.to_owned(), matches })
    }

    /// All definitions, in the machine's order.
    pub fn iter(&self) -> impl Iterator<Item = &ResourceDefinitionSpec> {
        self.0.iter()
    }

    /// Every name and alias, for completion.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .0
            .iter()
            .flat_map(|spec| spec.aliases.iter().cloned().chain([spec.resource_type.to_lowercase()]))
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(resource_type: &str, aliases: &[&str]) -> Vec<u8> {
        let aliases: Vec<String> = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        ResourceDefinitionSpec {
            resource_type: resource_type.into(),
            all_aliases: aliases.clone(),
            aliases,
            ..ResourceDefinitionSpec::default()
        }
        .encode_to_vec()
    }

    fn sample() -> Definitions {
        let specs = [
            definition("LinkSpecs.net.talos.dev", &["linkspecs", "linkspec", "ls"]),
            definition("LinkStatuses.net.talos.dev", &["linkstatuses", "link", "ls"]),
        ];
        Definitions::decode(specs.iter().map(Vec::as_slice)).unwrap()
    }

    #[test]
    fn types_and_aliases_are_found_in_any_case() {
        for name in ["linkspec", "LinkSpecs", "LINKSPECS.net.talos.dev"] {
            assert_eq!(sample().resolve(name).unwrap().resource_type, "LinkSpecs.net.talos.dev", "{name}");
        }
    }

    #[test]
    fn a_shared_alias_is_refused_with_its_types() {
        assert_eq!(
            sample().resolve("ls").unwrap_err().to_string(),
            "resource type \"ls\" is ambiguous: [LinkSpecs.net.talos.dev LinkStatuses.net.talos.dev]"
        );
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let error = sample().resolve("links").unwrap_err();
        assert_eq!(error.to_string(), "resource \"links\" is not registered");
    }
}
