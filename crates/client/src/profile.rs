//! From a client configuration and the command line to a client: which context, endpoints, nodes, TLS.

use std::path::{Path, PathBuf};

use ichor_rpc::ClientTls;
use ichor_rpc::tls::ClientTlsError;

use crate::channel::Channel;
use crate::client::{Client, Identity};
use crate::endpoint::{self, BadEndpoint, Endpoint};
use ichor_config::talosconfig::{ClientConfig, Context, ContextError};

/// Where a pod finds its client configuration; nobody writes there.
pub const SERVICE_ACCOUNT_PATH: &str = "/var/run/secrets/talos.dev/config";
/// Bundles of the system's authorities, the first that exists counts.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// What the command line says about the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Another context than the current one.
    pub context: Option<String>,
    /// Other endpoints than the context's.
    pub endpoints: Vec<String>,
    /// Other nodes than the context's.
    pub nodes: Vec<String>,
    /// Another cluster name than the context's.
    pub cluster: Option<String>,
}

/// Everything that is needed to make a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The context's name.
    pub context: String,
    /// Where to connect.
    pub endpoints: Vec<Endpoint>,
    /// The machines calls are for.
    pub nodes: Vec<String>,
    ca: Option<String>,
    identity: Option<(String, String)>,
    cluster: Option<String>,
    authorization: Option<String>,
}

/// A client configuration that does not lead to a client.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The context is missing or lacks something.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// An endpoint without meaning.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// A way to authenticate that this client does not have.
    #[error("context \"{0}\" signs requests with SideroV1 keys, which this client cannot do yet")]
    SideroV1(String),
    /// The certificates of the context are no good.
    #[error("certificates of context \"{context}\"")]
    Tls {
        /// The context.
        context: String,
        /// What is wrong.
        #[source]
        source: ClientTlsError,
    },
    /// Without a CA in the context the system's are needed.
    #[error("context \"{0}\" has no ca, and the system has no bundle of authorities")]
    NoRoots(String),
}

/// The context to use and its name.
pub fn context<'a>(
    config: &'a ClientConfig,
    wanted: Option<&'a str>,
) -> Result<(&'a str, &'a Context), ContextError> {
    // A name that is there without contexts is a file that was cut, not an empty one.
    if wanted.is_none() && config.contexts.is_empty() && !config.context.is_empty() {
        return Err(ContextError::NoDefault(config.context.clone()));
    }
    Ok((wanted.unwrap_or(&config.context), config.select(wanted)?))
}

impl Profile {
    /// Applies the command line to the configuration.
    pub fn resolve(config: &ClientConfig, overrides: &Overrides) -> Result<Self, ProfileError> {
        let (name, context) = context(config, overrides.context.as_deref())?;
        let pick =
            |given: &[String], own: &[String]| if given.is_empty() { own.to_vec() } else { given.to_vec() };
        let endpoints = pick(&overrides.endpoints, &context.endpoints);
        if endpoints.is_empty() {
            return Err(ContextError::NoEndpoints.into());
        }
        let endpoints = endpoints.iter().map(|text| endpoint::parse(text)).collect::<Result<_, _>>()?;
        if context.auth.siderov1.is_some() {
            return Err(ProfileError::SideroV1(name.to_owned()));
        }
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let basic = context.auth.basic.as_ref();
        Ok(Self {
            context: name.to_owned(),
            endpoints,
            nodes: pick(&overrides.nodes, &context.nodes),
            ca: context.ca_pem()?,
            identity: context.crt_pem()?.zip(context.key_pem()?),
            cluster: overrides.cluster.clone().or_else(|| some(&context.cluster)),
            authorization: basic.map(|basic| basic_authorization(&basic.username, &basic.password)),
        })
    }

    /// A client over these endpoints, tried in random order. Nothing is connected yet.
    pub fn client(&self) -> Result<Client, ProfileError> {
        let bad = |source| ProfileError::Tls { context: self.context.clone(), source };
        let roots;
        let authorities = match &self.ca {
            Some(ca) => ca,
            None => {
                roots = system_roots().ok_or_else(|| ProfileError::NoRoots(self.context.clone()))?;
                &roots
            }
        };
        let identity = self.identity.as_ref().map(|(crt, key)| (crt.as_bytes(), key.as_bytes()));
        let tls = ClientTls::verified(authorities, identity).map_err(bad)?;
        let mut endpoints = self.endpoints.clone();
        shuffle(&mut endpoints);
        let identity = Identity { cluster: self.cluster.clone(), authorization: self.authorization.clone() };
        Ok(Client::new(Channel::new(tls, endpoints), identity))
    }
}

/// A client of machines that have no configuration yet: no certificate is shown, and any server taken, or
/// only those whose key has one of `fingerprints`.
pub fn insecure(nodes: &[String], fingerprints: &[String]) -> Result<Client, ProfileError> {
    let endpoints = nodes.iter().map(|node| endpoint::parse(node)).collect::<Result<Vec<_>, _>>()?;
    let bad = |source| ProfileError::Tls { context: String::new(), source };
    let tls = ClientTls::insecure(fingerprints.iter().cloned()).map_err(bad)?;
    Ok(Client::new(Channel::new(tls, endpoints), Identity::default()))
}

fn basic_authorization(user: &str, password: &str) -> String {
    use base64::Engine as _;
    let packed = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Basic {packed}")
}

fn system_roots() -> Option<String> {
    SYSTEM_ROOTS.iter().find_map(|path| std::fs::read_to_string(path).ok())
}

/// Puts the endpoints in random order, so that many clients do not all meet at the first.
fn shuffle(endpoints: &mut [Endpoint]) {
    for last in (1..endpoints.len()).rev() {
        let Ok(random) = ichor_pki::random::bytes::<8>() else { return };
        let bound = last as u64 + 1;
        let pick = u64::from_le_bytes(random) % bound;
        endpoints.swap(last, usize::try_from(pick).unwrap_or_default());
    }
}

/// A client configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Where it is, or would be.
    pub path: PathBuf,
    /// Whether it may be written.
    pub writable: bool,
}

/// Finds the client configuration: `explicit`, else the first that exists of `$TALOSCONFIG`, the one in
/// the home directory and the one of a pod; when none exists, the first that could be written.
pub fn locate(
    explicit: Option<&str>,
    env: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&Path) -> bool,
) -> Option<Location> {
    if let Some(path) = explicit {
        return Some(Location { path: path.into(), writable: true });
    }
    let given = |name: &str| env(name).filter(|value| !value.is_empty());
    let home = match given("TALOS_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(directory) => Some(directory.join("config")),
        None => given("HOME").map(|home| PathBuf::from(home).join(".talos/config")),
    };
    let candidates: Vec<Location> = given("TALOSCONFIG")
        .map(PathBuf::from)
        .into_iter()
        .chain(home)
        .map(|path| Location { path, writable: true })
        .chain([Location { path: SERVICE_ACCOUNT_PATH.into(), writable: false }])
        .collect();
    let found = candidates.iter().find(|location| exists(&location.path)).cloned();
    found.or_else(|| candidates.into_iter().find(|location| location.writable))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "context: a\ncontexts:\n    a:\n        endpoints: [10.5.0.2, 10.5.0.3]\n        nodes: [10.5.0.4]\n    b:\n        endpoints: []\n        target: old.example.org\n";

    fn config() -> ClientConfig {
        ClientConfig::load(CONFIG.as_bytes()).unwrap()
    }

    #[test]
    fn the_command_line_wins_over_the_context() {
        let overrides =
            Overrides { nodes: vec!["n".into()], endpoints: vec!["e:1".into()], ..Overrides::default() };
        let profile = Profile::resolve(&config(), &overrides).unwrap();
        assert_eq!(profile.nodes, ["n"]);
        assert_eq!(profile.endpoints, [Endpoint::new("e", 1)]);
        let profile = Profile::resolve(&config(), &Overrides::default()).unwrap();
        assert_eq!(profile.nodes, ["10.5.0.4"]);
        assert_eq!(profile.endpoints.len(), 2);
    }

    #[test]
    fn a_target_of_long_ago_is_an_endpoint() {
        let overrides = Overrides { context: Some("b".into()), ..Overrides::default() };
        let profile = Profile::resolve(&config(), &overrides).unwrap();
        assert_eq!(profile.endpoints, [Endpoint::new("old.example.org", 50000)]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |text: &str, context: Option<&str>| {
            let config = ClientConfig::load(text.as_bytes()).unwrap();
            let overrides = Overrides { context: context.map(str::to_owned), ..Overrides::default() };
            Profile::resolve(&config, &overrides).unwrap_err().to_string()
        };
        assert_eq!(missing("", None), "talos config file is empty");
        assert_eq!(missing("context: x\n", None), "default context \"x\" not found in config");
        assert_eq!(missing(CONFIG, Some("x")), "context \"x\" not found in config");
        assert_eq!(missing("context: c\ncontexts: {c: {}}\n", None), "failed to determine endpoints");
    }

    #[test]
    fn the_file_is_looked_for_in_order() {
        let env = |name: &str| match name {
            "HOME" => Some("/home/u".to_owned()),
            "TALOSCONFIG" => Some("/tmp/t".to_owned()),
            _ => None,
        };
        let at = |exists: &'static str| locate(None, env, move |path| path == Path::new(exists)).unwrap();
        assert_eq!(at("/home/u/.talos/config").path, Path::new("/home/u/.talos/config"));
        assert_eq!(at("nothing").path, Path::new("/tmp/t"));
        let pod = at(SERVICE_ACCOUNT_PATH);
        assert!(!pod.writable);
        let home = |name: &str| (name == "TALOS_HOME").then(|| "/srv/talos".to_owned());
        assert_eq!(locate(None, home, |_| false).unwrap().path, Path::new("/srv/talos/config"));
    }
}
