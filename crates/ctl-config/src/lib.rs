//! Controllers of the machine configuration: acquisition, machine type, persistence.
