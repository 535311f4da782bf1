//! The client of the node API: contexts, endpoints, nodes, watches.
