//! The etcd of live machines.
