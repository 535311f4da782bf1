//! The mTLS gateway of a node: routes and fans out raw frames.
