//! The kubectl dialect of JSONPath.
