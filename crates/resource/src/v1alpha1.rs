//! What the boot sequence and its services say to controllers.

use ichor_resource_derive::ResourceSpec;

/// Created by the boot sequence to ask for a machine configuration.
///
/// Id: `machine-config`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AcquireConfigSpecs.v1alpha1.talos.dev", namespace = "runtime")]
pub struct AcquireConfigSpec {}

/// Created once a complete configuration is there.
///
/// Id: `machine-config`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "AcquireConfigStatuses.v1alpha1.talos.dev", namespace = "runtime")]
pub struct AcquireConfigStatus {}

/// State of a service; the object exists only while the service runs.
///
/// Id: service id, e.g. `etcd`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "Services.v1alpha1.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.v1alpha1.ServiceSpec")]
#[resource(aliases("svc"))]
#[resource(columns(("Running", "{.running}"), ("Healthy", "{.healthy}"), ("Health Unknown", "{.unknown}")))]
pub struct Service {
    #[spec(1, "running")]
    pub running: bool,
    #[spec(2, "healthy")]
    pub healthy: bool,
    #[spec(3, "unknown")]
    pub unknown: bool,
}
