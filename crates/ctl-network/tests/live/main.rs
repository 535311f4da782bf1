//! The whole family against the real kernel, each test in network and UTS namespaces of its own. Needs root;
//! says so when not.

mod configuration;
mod dns;
mod firewall;
mod leases;
mod node;
mod static_network;
mod troubles;
