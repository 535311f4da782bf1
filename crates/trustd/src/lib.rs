//! Signs certificates for joining workers.
