//! Log rings, the kernel log layer and tracing set-up.
