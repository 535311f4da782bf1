//! How resources are shown: tables, YAML, JSON, and paths through JSON.

pub mod json;
pub mod resource;
