//! The two types that describe all others, and the namespaces.

use ichor_resource_derive::{ResourceSpec, SpecMessage};

use crate::definition::Definition;
use crate::value::enums::spec_enum;

/// The namespaces of a node and what each holds.
pub const NAMESPACES: &[(&str, &str)] = &[
    ("meta", "Definitions of namespaces and resource types."),
    ("runtime", "Machine state: disks, services, time, the boot sequence."),
    ("config", "Machine configuration and what follows from it directly."),
    ("network", "Network: merged specs and every status."),
    ("network-config", "Network specs before merging, one per source and layer."),
    ("k8s", "Kubernetes on all machine types."),
    ("controlplane", "Kubernetes control plane."),
    ("secrets", "Key material."),
    ("cluster", "Cluster membership after merging, and the local affiliate."),
    ("cluster-raw", "Cluster membership as each source reports it."),
    ("kubespan", "KubeSpan peers."),
    ("etcd", "etcd."),
    ("files", "Files under /etc."),
    ("hardware", "Hardware inventory."),
    ("cri", "Container runtime."),
    ("perf", "Performance counters."),
];

/// The owner of all resources in the `meta` namespace.
pub const OWNER: &str = "meta";

/// A namespace.
///
/// Id: the name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Namespaces.meta.cosi.dev", namespace = "meta")]
#[resource(proto = "cosi.resource.meta.NamespaceSpec", aliases("ns"))]
pub struct Namespace {
    #[spec(1, "description")]
    pub description: String,
}

/// What the system says about a resource type.
///
/// Id: the type in lower case.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "ResourceDefinitions.meta.cosi.dev", namespace = "meta")]
#[resource(proto = "cosi.resource.meta.ResourceDefinitionSpec", aliases("api-resources"))]
#[resource(columns(("Aliases", "{.aliases[:]}")))]
pub struct ResourceDefinition {
    #[spec(1, "type")]
    pub r#type: String,
    #[spec(2, "displayType")]
    pub display_type: String,
    #[spec(3, "defaultNamespace")]
    pub default_namespace: String,
    #[spec(4, "aliases")]
    pub aliases: Vec<String>,
    #[spec(5, "allAliases")]
    pub all_aliases: Vec<String>,
    #[spec(0, "skipAutomaticAliases", omit)]
    pub skip_automatic_aliases: bool,
    #[spec(6, "printColumns")]
    pub print_columns: Vec<PrintColumn>,
    #[spec(7, "sensitivity", omit)]
    pub sensitivity: Sensitivity,
}

/// A column of a table.
#[derive(Debug, Clone, Default, PartialEq, SpecMessage)]
#[resource(proto = "cosi.resource.meta.ResourceDefinitionSpec.PrintColumn")]
pub struct PrintColumn {
    #[spec(1, "name")]
    pub name: String,
    #[spec(2, "jsonPath")]
    pub json_path: String,
}

spec_enum! {
    /// Who may read a type.
    pub enum Sensitivity = "cosi.resource.meta.ResourceDefinitionSpec.Sensitivity" {
        #[default]
        NonSensitive = 0 => "",
        Sensitive = 1 => "sensitive",
    }
}

impl From<&Definition> for ResourceDefinition {
    fn from(definition: &Definition) -> Self {
        let column = |(name, path): &(&str, &str)| PrintColumn {
            name: (*name).to_owned(),
            json_path: (*path).to_owned(),
        };
        Self {
            r#type: definition.type_name.to_owned(),
            display_type: definition.display_type(),
            default_namespace: definition.default_namespace.to_owned(),
            aliases: definition.aliases(),
            all_aliases: definition.all_aliases(),
            skip_automatic_aliases: definition.skip_automatic_aliases,
            print_columns: definition.columns.iter().map(column).collect(),
            sensitivity: if definition.sensitive {
                Sensitivity::Sensitive
            } else {
                Sensitivity::NonSensitive
            },
        }
    }
}
