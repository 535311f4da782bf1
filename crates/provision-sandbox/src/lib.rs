//! Machines made of namespaces: no container engine, no virtual machine.
