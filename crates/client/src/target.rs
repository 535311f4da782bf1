//! Which machines a call is for, as the request metadata that the endpoint routes by.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// The machines a call is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Target {
    /// The endpoint itself.
    #[default]
    Endpoint,
    /// One machine, frames passed through untouched. Resource calls need this form.
    Node(String),
    /// Several machines: the endpoint asks all of them and marks every reply with its node.
    Nodes(Vec<String>),
}

impl Target {
    /// Writes the metadata of this target.
    pub fn write(&self, headers: &mut HeaderMap) {
        match self {
            Target::Endpoint => {}
            Target::Node(node) => append(headers, "node", node),
            Target::Nodes(nodes) => nodes.iter().for_each(|node| append(headers, "nodes", node)),
        }
    }
}

/// Appends a value; one that no header can hold is left out and the endpoint will say what it misses.
pub(crate) fn append(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.append(HeaderName::from_static(name), value);
    }
}
