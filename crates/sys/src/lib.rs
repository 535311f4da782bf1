//! Mounts, processes, cgroups, namespaces, kernel log: one safe wrapper each.
