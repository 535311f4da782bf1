//! The role a configuration gives the machine.

use ichor_config::v1alpha1::Config;
use ichor_types::MachineType;

/// The role; what cannot be read was refused before it got here.
pub fn of(config: &Config) -> MachineType {
    let text = config.machine.as_ref().map_or("", |machine| machine.machine_type.as_str());
    text.parse().unwrap_or_default()
}
