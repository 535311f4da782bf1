//! Names of kinds and objects, and the paths they have.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::Error;

/// A kind of object as the server names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    /// Such as `v1`.
    pub version: Cow<'static, str>,
    /// Such as `nodes`.
    pub plural: Cow<'static, str>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// Nodes.
    pub const NODES: Self = Self::known("", "v1", "nodes", false);
    /// Pods.
    pub const PODS: Self = Self::known("", "v1", "pods", true);
    /// Secrets.
    pub const SECRETS: Self = Self::known("", "v1", "secrets", true);
    /// Maps of settings.
    pub const CONFIG_MAPS: Self = Self::known("", "v1", "configmaps", true);
    /// Services.
    pub const SERVICES: Self = Self::known("", "v1", "services", true);
    /// Namespaces.
    pub const NAMESPACES: Self = Self::known("", "v1", "namespaces", false);
    /// The old form of the addresses of a service.
    pub const ENDPOINTS: Self = Self::known("", "v1", "endpoints", true);
    /// Events.
    pub const EVENTS: Self = Self::known("", "v1", "events", true);
    /// The addresses of services.
    pub const ENDPOINT_SLICES: Self = Self::known("discovery.k8s.io", "v1", "endpointslices", true);

    /// A kind that needs no asking.
    pub const fn known(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        namespaced: bool,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            plural: Cow::Borrowed(plural),
            namespaced,
        }
    }

    /// The path of all objects, or of those of a namespace (empty: all).
    pub fn path(&self, namespace: &str) -> String {
        let mut path = match &*self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            escape(namespace, &mut path);
        }
        path.push('/');
        path.push_str(&self.plural);
        path
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// What it is.
    pub kind: Kind,
    /// Where it lives; empty without namespaces.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Target {
    /// An object.
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The object that a manifest describes; `default` stands in for a namespace it does not name.
    ///
    /// # Errors
    /// When it has no name.
    pub fn of(kind: Kind, object: &Value) -> Result<Self, Error> {
        let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty());
        let name = name.ok_or(Error::Nameless("metadata.name"))?.to_owned();
        let namespace = match kind.namespaced {
            true => match object["metadata"]["namespace"].as_str() {
                Some(namespace) if !namespace.is_empty() => namespace.to_owned(),
                _ => "default".to_owned(),
            },
            false => String::new(),
        };
        Ok(Self { kind, namespace, name })
    }

    /// Its path.
    pub fn path(&self) -> String {
        let mut path = self.kind.path(&self.namespace);
        path.push('/');
        escape(&self.name, &mut path);
        path
    }
}

/// Appends text with everything escaped that a path or query gives a meaning to.
pub(crate) fn escape(text: &str, out: &mut String) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
}

/// A path with `key=value` pairs behind it; empty values are left out.
pub(crate) fn with_query(mut path: String, pairs: &[(&str, &str)]) -> String {
    let mut mark = '?';
    for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        path.push(mark);
        path.push_str(key);
        path.push('=');
        escape(value, &mut path);
        mark = '&';
    }
    path
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_have_paths() {
        let node = Target::new(Kind::NODES, "", "a");
        assert_eq!(node.path(), "/api/v1/nodes/a");
        let slice = Target::new(Kind::ENDPOINT_SLICES, "default", "kubernetes");
        assert_eq!(slice.path(), "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes");
        let role = Kind::known("rbac.authorization.k8s.io", "v1", "clusterroles", false);
        assert_eq!(
            Target::new(role, "", "system:a b").path(),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aa%20b"
        );
        assert_eq!(Kind::PODS.path(""), "/api/v1/pods");
    }

    #[test]
    fn a_namespaced_object_without_namespace_goes_to_default() {
        let object = json!({"metadata": {"name": "a"}});
        assert_eq!(Target::of(Kind::PODS, &object).unwrap().namespace, "default");
        let object = json!({"metadata": {"name": "a", "namespace": "ignored"}});
        assert_eq!(Target::of(Kind::NODES, &object).unwrap().namespace, "");
        assert!(Target::of(Kind::NODES, &json!({"metadata": {}})).is_err());
    }

    #[test]
    fn empty_values_are_left_out_of_queries() {
        let path = with_query("/x".into(), &[("a", ""), ("b", "c=d"), ("e", "1")]);
        assert_eq!(path, "/x?b=c%3Dd&e=1");
    }
}
