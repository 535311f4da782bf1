//! Controllers of the machine configuration: acquisition, machine type, persistence.

pub mod disk;
pub mod store;

pub use disk::{ConfigDisk, DiskError, StateDir};
pub use store::{Change, ConfigStore, StoreError};
