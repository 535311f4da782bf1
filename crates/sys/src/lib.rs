//! Mounts, processes, cgroups, namespaces, kernel log: one safe wrapper each.
//!
//! Knows the kernel and nothing of resources or configuration. What PID 1 uses does not allocate once it runs.

pub mod cgroup;
pub mod credentials;
pub mod fdpass;
pub mod poll;
pub mod seccomp;
pub mod supervisor;
mod text;
