//! The client configuration: which cluster to talk to, where, and with which certificate.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    diagnostic::{Diagnostic, Diagnostics, Stage},
    documents::{parse, utf8},
    model::{Decoder, Field, List, Map, section},
};

/// Port of the machine API where an endpoint names none.
pub const DEFAULT_PORT: u16 = 50000;

section! {
    /// The client configuration.
    pub struct ClientConfig {
        /// Name of the current context.
        @always
        "context" => context: String,
        /// All contexts by name.
        @always
        "contexts" => contexts: Map<Context>,
    }
}

section! {
    /// How to reach one cluster.
    pub struct Context {
        /// Older name of a single endpoint; moved to `endpoints` when read.
        @deprecated("use `endpoints`")
        "target" => target: String,
        /// Where the machine API listens.
        @always
        "endpoints" => endpoints: List<String>,
        /// Machines that requests are about unless others are named.
        "nodes" => nodes: List<String>,
        /// Certificate authority, base64 of PEM; the system's when left out.
        "ca" => ca: String,
        /// Client certificate, base64 of PEM.
        "crt" => crt: String,
        /// Private key of the client certificate, base64 of PEM.
        "key" => key: String,
        /// Other ways to prove who is asking.
        "auth" => auth: Auth,
        /// Name of the cluster, for a proxy that serves several.
        "cluster" => cluster: String,
    }
}

section! {
    /// Other ways to prove who is asking.
    pub struct Auth {
        /// User name and password.
        "basic" => basic: Option<BasicAuth>,
        /// Signed requests.
        "siderov1" => siderov1: Option<SideroAuth>,
    }
}

section! {
    /// User name and password.
    pub struct BasicAuth {
        /// User name.
        @always
        "username" => username: String,
        /// Password.
        @always
        "password" => password: String,
    }
}

section! {
    /// Signed requests.
    pub struct SideroAuth {
        /// Who is asking.
        @always
        "identity" => identity: String,
    }
}

/// A context that got another name in a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The name it had.
    pub from: String,
    /// The name it has now.
    pub to: String,
}

impl std::fmt::Display for Rename {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "renamed talosconfig context {:?} -> {:?}", self.from, self.to)
    }
}

/// Why a client configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// There is no context at all.
    #[error("talos config file is empty")]
    Empty,
    /// The current context does not exist.
    #[error("default context {0:?} not found in config")]
    NoDefault(String),
    /// The named context does not exist.
    #[error("context {0:?} not found in config")]
    NotFound(String),
    /// The context has no endpoint.
    #[error("failed to determine endpoints")]
    NoEndpoints,
    /// A certificate or key is not base64.
    #[error("error decoding {0}")]
    NotBase64(&'static str),
}

impl ClientConfig {
    /// Reads a client configuration; keys it does not know are ignored.
    pub fn load(bytes: &[u8]) -> Result<Self, Diagnostics> {
        let trees = parse(utf8(bytes)?)?;
        let Some(tree) = trees.first().filter(|tree| !tree.is_null()) else { return Ok(Self::default()) };
        let mut decoder = Decoder::default();
        let mut config = Self::decode(tree, &mut decoder);
        let is_problem = |item: &Diagnostic| item.stage != Stage::UnknownKey;
        let items: Vec<_> = decoder.problems.into_iter().filter(is_problem).collect();
        if !items.is_empty() {
            return Err(Diagnostics { items, ..Default::default() });
        }
        for context in config.contexts.entries_mut().values_mut() {
            if !context.target.is_empty() {
                let target = std::mem::take(&mut context.target);
                context.endpoints.items_mut().push(target);
            }
        }
        Ok(config)
    }

    /// A configuration with one context, which is the current one.
    pub fn single(name: &str, context: Context) -> Self {
        Self { context: name.to_owned(), contexts: [(name.to_owned(), context)].into_iter().collect() }
    }

    /// Writes the configuration.
    pub fn to_yaml(&self) -> String {
        ichor_yaml::emit(&self.encode())
    }

    /// The named context, or the current one.
    pub fn select(&self, name: Option<&str>) -> Result<&Context, ContextError> {
        match name {
            Some(name) => self.contexts.get(name).ok_or_else(|| ContextError::NotFound(name.to_owned())),
            None if self.contexts.is_empty() => Err(ContextError::Empty),
            None => {
                self.contexts.get(&self.context).ok_or_else(|| ContextError::NoDefault(self.context.clone()))
            }
        }
    }

    /// The named context, or the current one, for changes.
    pub fn select_mut(&mut self, name: Option<&str>) -> Result<&mut Context, ContextError> {
        self.select(name)?;
        let key = name.unwrap_or(&self.context).to_owned();
        self.contexts.entries_mut().get_mut(&key).ok_or(ContextError::NotFound(key))
    }

    /// Takes over the contexts of another configuration; names that are taken get a number.
    pub fn merge_from(&mut self, other: &Self) -> Vec<Rename> {
        let mut renames = Vec::new();
        let mut current = other.context.clone();
        for (name, context) in other.contexts.iter() {
            let mut free = name.clone();
            let mut number = 0;
            while self.contexts.get(&free).is_some() {
                number += 1;
                free = format!("{name}-{number}");
            }
            if free != *name {
                renames.push(Rename { from: name.clone(), to: free.clone() });
                if *name == other.context {
                    current.clone_from(&free);
                }
            }
            self.contexts.entries_mut().insert(free, context.clone());
        }
        if !current.is_empty() {
            self.context = current;
        }
        renames
    }
}

impl Context {
    /// A context with a client certificate; certificates and key are PEM text.
    pub fn new(endpoints: &[String], ca: &str, crt: &str, key: &str) -> Self {
        let encode = |pem: &str| if pem.is_empty() { String::new() } else { STANDARD.encode(pem) };
        Self {
            endpoints: endpoints.to_vec().into(),
            ca: encode(ca),
            crt: encode(crt),
            key: encode(key),
            ..Default::default()
        }
    }

    /// Certificate authority as PEM text; nothing means the system's.
    pub fn ca_pem(&self) -> Result<Option<String>, ContextError> {
        pem(&self.ca, "ca")
    }

    /// Client certificate as PEM text.
    pub fn crt_pem(&self) -> Result<Option<String>, ContextError> {
        pem(&self.crt, "crt")
    }

    /// Private key as PEM text.
    pub fn key_pem(&self) -> Result<Option<String>, ContextError> {
        pem(&self.key, "key")
    }

    /// Endpoints as `host:port`.
    pub fn addresses(&self) -> Result<Vec<String>, ContextError> {
        if self.endpoints.is_empty() {
            return Err(ContextError::NoEndpoints);
        }
        Ok(self.endpoints.iter().map(|endpoint| endpoint_address(endpoint)).collect())
    }
}

fn pem(text: &str, what: &'static str) -> Result<Option<String>, ContextError> {
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = STANDARD.decode(text.trim()).map_err(|_| ContextError::NotBase64(what))?;
    String::from_utf8(bytes).map(Some).map_err(|_| ContextError::NotBase64(what))
}

/// `host:port` of an endpoint: URLs lose scheme and path, a missing port is filled in.
pub fn endpoint_address(endpoint: &str) -> String {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let bare_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    if bare_v6 {
        return format!("[{host}]:{DEFAULT_PORT}");
    }
    let has_port = match host.rfind(']') {
        Some(close) => host[close..].contains(':'),
        None => host.contains(':'),
    };
    if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn old_targets_become_endpoints_and_unknown_keys_are_ignored() {
        let text =
            "context: a\nother: 1\ncontexts:\n    a:\n        target: 10.0.0.1\n        endpoints: [x]\n";
        let config = ClientConfig::load(text.as_bytes()).unwrap();
        expect![[r#"
            context: a
            contexts:
                a:
                    endpoints:
                        - x
                        - 10.0.0.1
        "#]]
        .assert_eq(&config.to_yaml());
    }

    #[test]
    fn merging_renames_what_is_taken_and_switches_the_context() {
        let one = |name: &str| ClientConfig::single(name, Context::default());
        let mut config = one("a");
        assert_eq!(config.merge_from(&one("b")), []);
        let renames = config.merge_from(&one("a"));
        assert_eq!(renames[0].to_string(), "renamed talosconfig context \"a\" -> \"a-1\"");
        assert_eq!(config.context, "a-1");
        config.merge_from(&one("a"));
        assert_eq!(config.context, "a-2");
    }

    #[test]
    fn endpoints_get_a_port() {
        for (text, want) in [
            ("10.0.0.1", "10.0.0.1:50000"),
            ("https://host/path", "host:50000"),
            ("host:1234", "host:1234"),
            ("fd00::1", "[fd00::1]:50000"),
            ("[fd00::1]:7", "[fd00::1]:7"),
            ("[fd00::1]", "[fd00::1]:50000"),
        ] {
            assert_eq!(endpoint_address(text), want);
        }
    }

    #[test]
    fn missing_contexts_are_told_apart() {
        let empty = ClientConfig::default();
        assert_eq!(empty.select(None).unwrap_err().to_string(), "talos config file is empty");
        let config = ClientConfig { context: "x".into(), ..ClientConfig::single("a", Context::default()) };
        assert_eq!(config.select(None).unwrap_err().to_string(), "default context \"x\" not found in config");
        assert_eq!(config.select(Some("z")).unwrap_err().to_string(), "context \"z\" not found in config");
    }

    #[test]
    fn every_key_is_written_in_its_place() {
        let text = "contexts:\n    b10: {target: t}\n    b2: {}\n    a: {nodes: [1.2.3.4], cluster: c, key: \"true\", ca: x, \
                    auth: {siderov1: {identity: me}, basic: {username: u, password: \"1\"}}}\ncontext: a\n";
        expect![[r#"
            context: a
            contexts:
                a:
                    endpoints: []
                    nodes:
                        - 1.2.3.4
                    ca: x
                    key: "true"
                    auth:
                        basic:
                            username: u
                            password: "1"
                        siderov1:
                            identity: me
                    cluster: c
                b2:
                    endpoints: []
                b10:
                    endpoints:
                        - t
        "#]]
        .assert_eq(&ClientConfig::load(text.as_bytes()).unwrap().to_yaml());
    }
}
