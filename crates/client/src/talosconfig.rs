//! The client configuration file: contexts with endpoints, nodes and certificates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ichor_yaml::{Node, Value};
use indexmap::IndexMap;

/// A client configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// The current context.
    pub context: String,
    /// All contexts by name, in the order of the file.
    pub contexts: IndexMap<String, Context>,
}

/// One cluster and who we are there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// Where to connect.
    pub endpoints: Vec<String>,
    /// The machines commands are for.
    pub nodes: Vec<String>,
    /// PEM of the authority of servers; the system's when absent.
    pub ca: Option<Vec<u8>>,
    /// PEM of the client's certificate.
    pub crt: Option<Vec<u8>>,
    /// PEM of the client's key.
    pub key: Option<Vec<u8>>,
    /// User name and password.
    pub basic: Option<(String, String)>,
    /// Identity of SideroV1 request signing.
    pub sidero_identity: Option<String>,
    /// The cluster's name towards a multi-cluster proxy.
    pub cluster: Option<String>,
}

impl std::fmt::Debug for Context {
    /// Keys and passwords do not show.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("endpoints", &self.endpoints)
            .field("nodes", &self.nodes)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// A client configuration that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadClientConfig {
    /// Not YAML.
    #[error("client configuration")]
    Yaml(#[source] ichor_yaml::Error),
    /// Something is not what it should be.
    #[error("client configuration: line {line}: {path} must be {expected}")]
    Shape {
        /// Where it stands.
        line: u32,
        /// What it is.
        path: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl ClientConfig {
    /// Reads a file's content; an empty one is a configuration without contexts. Unknown keys are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadClientConfig> {
        let text = String::from_utf8_lossy(bytes);
        let documents = ichor_yaml::parse(&text).map_err(BadClientConfig::Yaml)?;
        let mut config = Self::default();
        let Some(root) = documents.into_iter().next().map(|document| document.root) else {
            return Ok(config);
        };
        if root.is_null() {
            return Ok(config);
        }
        if root.as_map().is_none() {
            return Err(shape(&root, "the file", "a mapping"));
        }
        config.context = text_at(&root, "context", "context")?.unwrap_or_default();
        if let Some(contexts) = root.get("contexts").filter(|node| !node.is_null()) {
            let entries = contexts.as_map().ok_or_else(|| shape(contexts, "contexts", "a mapping"))?;
            for (name, value) in entries {
                let name = name.as_str().unwrap_or_default().to_owned();
                let context = Context::read(&name, value)?;
                config.contexts.insert(name, context);
            }
        }
        Ok(config)
    }

    /// The file's content.
    pub fn encode(&self) -> String {
        let contexts =
            self.contexts.iter().map(|(name, context)| (Node::string(name), context.node())).collect();
        ichor_yaml::emit(&Node::map(vec![
            (Node::string("context"), Node::string(&self.context)),
            (Node::string("contexts"), Node::map(contexts)),
        ]))
    }

    /// Takes over the contexts of `other`. A name that is taken gets a number; the current context becomes
    /// the other's. Returns the new names as (old, new).
    pub fn merge(&mut self, other: ClientConfig) -> Vec<(String, String)> {
        let mut renamed = Vec::new();
        for (name, context) in other.contexts {
            let free = std::iter::once(name.clone())
                .chain((1u32..).map(|number| format!("{name}-{number}")))
                .find(|candidate| !self.contexts.contains_key(candidate))
                .unwrap_or_else(|| name.clone());
            if name == other.context {
                self.context.clone_from(&free);
            }
            self.contexts.insert(free.clone(), context);
            if free != name {
                renamed.push((name, free));
            }
        }
        renamed
    }
}

impl Context {
    fn read(name: &str, node: &Node) -> Result<Self, BadClientConfig> {
        let path = |key: &str| format!("contexts.{name}.{key}");
        if node.is_null() {
            return Ok(Self::default());
        }
        if node.as_map().is_none() {
            return Err(shape(node, &format!("contexts.{name}"), "a mapping"));
        }
        let pem = |key: &str| -> Result<Option<Vec<u8>>, BadClientConfig> {
            let Some(text) = text_at(node, key, &path(key))?.filter(|text| !text.is_empty()) else {
                return Ok(None);
            };
            let packed: String = text.split_whitespace().collect();
            let bad = || shape(node.get(key).unwrap_or(node), &path(key), "base64 text");
            STANDARD.decode(packed).map(Some).map_err(|_| bad())
        };
        let mut endpoints = list_at(node, "endpoints", &path("endpoints"))?;
        // Files of long ago name one target.
        endpoints.extend(text_at(node, "target", &path("target"))?.filter(|target| !target.is_empty()));
        let auth = node.get("auth");
        let basic = auth.and_then(|auth| auth.get("basic"));
        let part = |key: &str| {
            basic.and_then(|basic| basic.get(key)).and_then(Node::as_str).unwrap_or_default().to_owned()
        };
        let sidero = auth.and_then(|auth| auth.get("siderov1")?.get("identity")?.as_str());
        Ok(Self {
            endpoints,
            nodes: list_at(node, "nodes", &path("nodes"))?,
            ca: pem("ca")?,
            crt: pem("crt")?,
            key: pem("key")?,
            basic: basic.map(|_| (part("username"), part("password"))),
            sidero_identity: sidero.map(str::to_owned),
            cluster: text_at(node, "cluster", &path("cluster"))?.filter(|cluster| !cluster.is_empty()),
        })
    }

    fn node(&self) -> Node {
        let list = |items: &[String]| Node::seq(items.iter().map(Node::string).collect());
        let mut entries = vec![(Node::string("endpoints"), list(&self.endpoints))];
        if !self.nodes.is_empty() {
            entries.push((Node::string("nodes"), list(&self.nodes)));
        }
        for (key, pem) in [("ca", &self.ca), ("crt", &self.crt), ("key", &self.key)] {
            if let Some(pem) = pem {
                entries.push((Node::string(key), Node::string(STANDARD.encode(pem))));
            }
        }
        let mut auth = Vec::new();
        if let Some((username, password)) = &self.basic {
            let basic = vec![
                (Node::string("username"), Node::string(username)),
                (Node::string("password"), Node::string(password)),
            ];
            auth.push((Node::string("basic"), Node::map(basic)));
        }
        if let Some(identity) = &self.sidero_identity {
            let sidero = vec![(Node::string("identity"), Node::string(identity))];
            auth.push((Node::string("siderov1"), Node::map(sidero)));
        }
        if !auth.is_empty() {
            entries.push((Node::string("auth"), Node::map(auth)));
        }
        if let Some(cluster) = &self.cluster {
            entries.push((Node::string("cluster"), Node::string(cluster)));
        }
        Node::map(entries)
    }
}

fn shape(node: &Node, path: &str, expected: &'static str) -> BadClientConfig {
    BadClientConfig::Shape { line: node.span.line, path: path.to_owned(), expected }
}

fn text_at(node: &Node, key: &str, path: &str) -> Result<Option<String>, BadClientConfig> {
    match node.get(key) {
        None => Ok(None),
        Some(value) if value.is_null() => Ok(None),
        Some(value) => match &value.value {
            Value::Scalar(scalar) => Ok(Some(scalar.text.clone())),
            Value::Seq(_) | Value::Map(_) => Err(shape(value, path, "a text")),
        },
    }
}

fn list_at(node: &Node, key: &str, path: &str) -> Result<Vec<String>, BadClientConfig> {
    let Some(value) = node.get(key).filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let items = value.as_seq().ok_or_else(|| shape(value, path, "a list"))?;
    items
        .iter()
        .map(|item| match &item.value {
            Value::Scalar(scalar) => Ok(scalar.text.clone()),
            Value::Seq(_) | Value::Map(_) => Err(shape(item, path, "a list of texts")),
        })
        .collect()
}
