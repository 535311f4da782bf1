//! Enums of the machine.

use crate::value::enums::spec_enum;

spec_enum! {
    /// Where the machine is in its life.
    pub enum MachineStage = "talos.resource.definitions.enums.RuntimeMachineStage" {
        #[default]
        Unknown = 0 => "unknown",
        Booting = 1 => "booting",
        Installing = 2 => "installing",
        Maintenance = 3 => "maintenance",
        Running = 4 => "running",
        Rebooting = 5 => "rebooting",
        ShuttingDown = 6 => "shutting down",
        Resetting = 7 => "resetting",
        Upgrading = 8 => "upgrading",
    }
}

spec_enum! {
    /// How SELinux runs.
    pub enum SELinuxState = "talos.resource.definitions.enums.RuntimeSELinuxState" {
        #[default]
        Disabled = 0 => "disabled",
        Permissive = 1 => "enabled, permissive",
        Enforcing = 2 => "enabled, enforcing",
    }
}

spec_enum! {
    /// How FIPS mode runs.
    pub enum FIPSState = "talos.resource.definitions.enums.RuntimeFIPSState" {
        #[default]
        Disabled = 0 => "disabled",
        Enabled = 1 => "enabled",
        Strict = 2 => "enabled, strict",
    }
}
