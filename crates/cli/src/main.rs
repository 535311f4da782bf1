//! ichorctl.

fn main() {}
