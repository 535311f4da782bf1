//! Mounts, processes, cgroups, namespaces, kernel log: one safe wrapper each.
//!
//! Knows the kernel and nothing of resources or configuration. What PID 1 uses does not allocate once it runs.

pub mod acpi;
pub mod audit;
pub mod boot_port;
pub mod bounded;
pub mod cgroup;
mod cgroup_program;
pub mod clock;
pub mod confine;
pub mod counters;
pub mod credentials;
pub mod detached;
pub mod device;
pub mod device_guard;
pub mod fdpass;
pub mod file;
pub mod host;
pub mod kmsg;
pub mod listener;
pub mod log_socket;
pub mod loopdev;
pub mod memory;
pub mod module;
pub mod mount;
pub mod mountinfo;
pub mod namespace;
pub mod neighbours;
pub mod open;
pub mod overlays;
pub mod pci;
mod pci_names;
pub mod poll;
pub mod power;
pub mod process;
pub mod pstore;
pub mod ptp;
pub mod signal;
pub mod smbios;
pub mod staged_mount;
pub mod supervisor;
pub mod swap;
pub mod sysctl_guard;
mod text;
pub mod tree;
pub mod watchdog;
pub mod xattr;
