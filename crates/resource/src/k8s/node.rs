//! The Kubernetes node of this machine.

use std::collections::BTreeMap;

use ichor_resource_derive::ResourceSpec;

use crate::value::Ip;

/// Annotation to keep on the Kubernetes node.
///
/// Id: annotation key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeAnnotationSpecs.k8s.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeAnnotationSpecSpec")]
#[resource(sensitive)]
#[resource(columns(("Value", "{.value}")))]
pub struct NodeAnnotationSpec {
    #[spec(1, "key")]
    pub key: String,
    #[spec(2, "value")]
    pub value: String,
}

/// Exists while the node should be cordoned.
///
/// Id: `cordoned`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeCordonedSpecs.k8s.talos.dev", namespace = "k8s")]
#[resource(sensitive)]
pub struct NodeCordonedSpec {}

/// Subnet rules for picking node IPs.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeIPConfigs.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeIPConfigSpec")]
pub struct NodeIPConfig {
    #[spec(1, "validSubnets", omit)]
    pub valid_subnets: Vec<String>,
    #[spec(2, "excludeSubnets")]
    pub exclude_subnets: Vec<String>,
}

/// Addresses handed to kubelet as node IPs.
///
/// Id: `kubelet`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeIPs.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeIPSpec")]
pub struct NodeIP {
    #[spec(1, "addresses")]
    pub addresses: Vec<Ip>,
}

/// Label to keep on the Kubernetes node.
///
/// Id: label key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeLabelSpecs.k8s.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeLabelSpecSpec")]
#[resource(sensitive)]
#[resource(columns(("Value", "{.value}")))]
pub struct NodeLabelSpec {
    #[spec(1, "key")]
    pub key: String,
    #[spec(2, "value")]
    pub value: String,
}

/// State of the Kubernetes node object.
///
/// Id: node name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeStatuses.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeStatusSpec")]
#[resource(columns(("Ready", "{.nodeReady}"), ("Unschedulable", "{.unschedulable}")))]
pub struct NodeStatus {
    #[spec(1, "nodename")]
    pub nodename: String,
    #[spec(2, "nodeReady")]
    pub node_ready: bool,
    #[spec(3, "unschedulable")]
    pub unschedulable: bool,
    #[spec(4, "labels")]
    pub labels: BTreeMap<String, String>,
    #[spec(5, "annotations")]
    pub annotations: BTreeMap<String, String>,
}

/// Taint to keep on the Kubernetes node.
///
/// Id: taint key.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "NodeTaintSpecs.k8s.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodeTaintSpecSpec")]
#[resource(sensitive)]
#[resource(columns(("Effect", "{.effect}"), ("Value", "{.value}")))]
pub struct NodeTaintSpec {
    #[spec(1, "key")]
    pub key: String,
    #[spec(2, "effect")]
    pub effect: String,
    #[spec(3, "value")]
    pub value: String,
}

/// Kubernetes node name and the hostname version it came from.
///
/// Id: `nodename`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Nodenames.kubernetes.talos.dev", namespace = "k8s")]
#[resource(proto = "talos.resource.definitions.k8s.NodenameSpec")]
#[resource(columns(("Nodename", "{.nodename}")))]
pub struct Nodename {
    #[spec(1, "nodename")]
    pub nodename: String,
    #[spec(2, "hostnameVersion")]
    pub hostname_version: String,
    #[spec(3, "skipNodeRegistration")]
    pub skip_node_registration: bool,
}
