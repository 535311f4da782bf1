//! Resource state, watches and the controller runtime; the State service over gRPC.
