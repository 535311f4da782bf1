//! API access from Kubernetes.

use ichor_resource_derive::ResourceSpec;

/// Whether pods may reach the node API and with which roles and namespaces.
///
/// Id: `config`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KubernetesAccessConfigs.cluster.talos.dev", namespace = "config")]
#[resource(proto = "talos.resource.definitions.kubeaccess.ConfigSpec")]
pub struct KubernetesAccessConfig {
    #[spec(1, "enabled")]
    pub enabled: bool,
    #[spec(2, "allowedAPIRoles")]
    pub allowed_api_roles: Vec<String>,
    #[spec(3, "allowedKubernetesNamespaces")]
    pub allowed_kubernetes_namespaces: Vec<String>,
}
