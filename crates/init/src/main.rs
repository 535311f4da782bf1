//! The node program: init, machined, apid and trustd in one file.

fn main() {}
