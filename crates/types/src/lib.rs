//! Small values with exact text forms: durations, sizes, machine types, version contracts, addresses.

pub mod base62;
pub mod cmdline;
pub mod contract;
pub mod deadlines;
pub mod duration;
pub mod hardware_addr;
pub mod machine_type;
pub mod natural;
pub mod size;
pub mod subnet;

pub use cmdline::Cmdline;
pub use contract::VersionContract;
pub use duration::GoDuration;
pub use hardware_addr::HardwareAddr;
pub use machine_type::MachineType;
