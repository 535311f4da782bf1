//! YAML as a node tree with positions: parse, merge, emit.
