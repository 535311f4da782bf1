//! Controllers of the machine configuration: acquisition, machine type, persistence.

pub mod acquire;
pub mod cmdline;
pub mod controllers;
pub mod disk;
pub mod store;

pub use acquire::{Found, Source};
pub use controllers::{AcquireController, AcquirePort, MachineTypeController};
pub use disk::{ConfigDisk, DiskError, StateDir};
pub use store::{Change, ConfigStore, StoreError};
