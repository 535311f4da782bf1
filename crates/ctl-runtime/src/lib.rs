//! Controllers of machine status, identity, events and platform.
