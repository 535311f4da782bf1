//! Kernel command line, parameters, modules and messages.

use ichor_resource_derive::ResourceSpec;

use crate::value::Url;

/// Kernel command line.
///
/// Id: `cmdline`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KernelCmdlines.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KernelCmdlineSpec")]
#[resource(aliases("cmdline"))]
#[resource(columns(("Cmdline", "{.cmdline}")))]
pub struct KernelCmdline {
    #[spec(1, "cmdline")]
    pub cmdline: String,
}

/// Module to load. The module name is printed under the key `string`.
///
/// Id: module name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KernelModuleSpecs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KernelModuleSpecSpec")]
pub struct KernelModuleSpec {
    #[spec(1, "string")]
    pub name: String,
    #[spec(2, "parameters")]
    pub parameters: Vec<String>,
}

/// Built-in defaults for the same.
///
/// Id: as above.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KernelParamDefaultSpecs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KernelParamSpecSpec")]
pub struct KernelParamDefaultSpec {
    #[spec(1, "value")]
    pub value: String,
    #[spec(2, "ignoreErrors")]
    pub ignore_errors: bool,
}

/// sysctl or sysfs value to set.
///
/// Id: `proc.sys....` or `sys....` dotted path.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KernelParamSpecs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KernelParamSpecSpec")]
pub struct KernelParamSpec {
    #[spec(1, "value")]
    pub value: String,
    #[spec(2, "ignoreErrors")]
    pub ignore_errors: bool,
}

/// Value in effect and the original one.
///
/// Id: as above.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KernelParamStatuses.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KernelParamStatusSpec")]
#[resource(aliases("sysctls", "kernelparameters", "kernelparams"))]
#[resource(columns(("Current", "{.current}"), ("Default", "{.default}"), ("Unsupported", "{.unsupported}")))]
pub struct KernelParamStatus {
    #[spec(1, "current")]
    pub current: String,
    #[spec(2, "default")]
    pub default: String,
    #[spec(3, "unsupported")]
    pub unsupported: bool,
}

/// Where to stream kernel messages to.
///
/// Id: `kmsg-log`.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "KmsgLogConfigs.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.KmsgLogConfigSpec")]
pub struct KmsgLogConfig {
    #[spec(1, "destinations")]
    pub destinations: Vec<Url>,
}

/// Loaded module.
///
/// Id: module name.
#[derive(Debug, Clone, Default, PartialEq, ResourceSpec)]
#[resource(type_name = "LoadedKernelModules.runtime.talos.dev", namespace = "runtime")]
#[resource(proto = "talos.resource.definitions.runtime.LoadedKernelModuleSpec")]
#[resource(aliases("module", "modules"))]
#[resource(columns(("State", "{.state}")))]
pub struct LoadedKernelModule {
    #[spec(1, "size")]
    pub size: i64,
    #[spec(2, "referenceCount")]
    pub reference_count: i64,
    #[spec(3, "dependencies", omit)]
    pub dependencies: Vec<String>,
    #[spec(4, "state")]
    pub state: String,
    #[spec(5, "address")]
    pub address: String,
}
