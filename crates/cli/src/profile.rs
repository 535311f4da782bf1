//! The client configuration of the person at the terminal, found by flags and environment.

use std::path::{Path, PathBuf};

use ichor_client::Client;
use ichor_client::profile::{self, Location, Overrides, Profile, ProfileError};
use ichor_config::talosconfig::{ClientConfig, Context, ContextError};

use crate::connection::Connection;
use crate::failure::{Context as _, Failure};
use crate::files;
use crate::text;

/// What a command that talks to machines works with.
pub struct Loaded {
    profile: Profile,
    /// The machines the command is for.
    pub nodes: Vec<String>,
}

impl Loaded {
    /// A client; nothing is connected yet.
    pub fn client(&self) -> Result<Client, Failure> {
        self.profile.client().map_err(|error| explain(&error, None))
    }

    /// The hosts that are connected to.
    pub fn hosts(&self) -> Vec<String> {
        self.profile.endpoints.iter().map(|endpoint| endpoint.host.clone()).collect()
    }
}

/// Resolves connection flags and the client configuration.
pub fn load(connection: &Connection) -> Result<Loaded, Failure> {
    let (config, _) = open(connection)?;
    if let Ok((name, context)) = profile::context(&config, connection.context.as_deref()) {
        crate::credentials::check(name, context)?;
    }
    let overrides = overrides(connection);
    let profile = Profile::resolve(&config, &overrides).map_err(|error| {
        let failure = explain(&error, Some(&config));
        match error {
            ProfileError::Context(ContextError::Empty) if overrides.endpoints.is_empty() => {
                failure.within("failed to determine endpoints")
            }
            _ => failure,
        }
    })?;
    Ok(Loaded { nodes: profile.nodes.clone(), profile })
}

/// A client of machines that have no configuration yet.
pub fn insecure_client(nodes: &[String], fingerprints: &[String]) -> Result<Client, Failure> {
    profile::insecure(nodes, fingerprints).plain()
}

fn overrides(connection: &Connection) -> Overrides {
    Overrides {
        context: connection.context.clone(),
        endpoints: connection.endpoints.clone(),
        nodes: connection.nodes.clone(),
        cluster: connection.cluster.clone(),
    }
}

/// Where the client configuration is.
pub fn locate(connection: &Connection) -> Result<Location, Failure> {
    locate_at(connection.talosconfig.as_deref())
}

/// Where the client configuration is, when `explicit` names no other place.
pub fn locate_at(explicit: Option<&str>) -> Result<Location, Failure> {
    let found = profile::locate(explicit, |name| std::env::var(name).ok(), Path::exists);
    found.ok_or_else(|| {
        Failure::new("there is no place for the client configuration: neither HOME nor TALOSCONFIG is set")
            .hint("name a file with --talosconfig FILE")
    })
}

/// Opens the client configuration; a missing file is created empty.
pub fn open(connection: &Connection) -> Result<(ClientConfig, PathBuf), Failure> {
    open_at(&locate(connection)?)
}

/// Opens the client configuration at a place; a missing file is created empty.
pub fn open_at(location: &Location) -> Result<(ClientConfig, PathBuf), Failure> {
    if location.writable && !location.path.exists() {
        create_empty(&location.path)?;
    }
    Ok((read(&location.path)?, location.path.clone()))
}

fn create_empty(path: &Path) -> Result<(), Failure> {
    make_parent(path)?;
    files::write(path, b"", 0o600)
}

/// Makes the directory of a client configuration, for its owner alone.
fn make_parent(path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .context(format!("create {}", parent.display())),
        None => Ok(()),
    }
}

/// Reads a client configuration.
pub fn read(path: &Path) -> Result<ClientConfig, Failure> {
    parse(&files::read(path)?).map_err(|failure| failure.within(path.display()))
}

/// Reads the content of a client configuration.
pub fn parse(content: &[u8]) -> Result<ClientConfig, Failure> {
    ClientConfig::load(content).plain()
}

/// The content of a client configuration file.
pub fn encode(config: &ClientConfig) -> Vec<u8> {
    config.to_yaml().into_bytes()
}

/// Writes a client configuration.
pub fn save(config: &ClientConfig, path: &Path) -> Result<(), Failure> {
    if path == Path::new(profile::SERVICE_ACCOUNT_PATH) {
        return Err(Failure::new(format!("not allowed to write to config: {}", path.display()))
            .hint("name another file with --talosconfig FILE"));
    }
    make_parent(path)?;
    files::write(path, &encode(config), 0o600)
}

/// Merges contexts into the client configuration at a place; returns a line for every new name.
pub fn merge_at(location: &Location, incoming: &ClientConfig) -> Result<Vec<String>, Failure> {
    let (mut config, path) = open_at(location)?;
    let renamed = config.merge_from(incoming);
    save(&config, &path)?;
    Ok(renamed.iter().map(ToString::to_string).collect())
}

/// The names of all contexts, in order.
pub fn names(config: &ClientConfig) -> Vec<String> {
    config.contexts.iter().map(|(name, _)| name.clone()).collect()
}

/// The context to use and its name.
pub fn context<'a>(
    config: &'a ClientConfig,
    wanted: Option<&'a str>,
) -> Result<(&'a str, &'a Context), Failure> {
    profile::context(config, wanted).map_err(|error| no_context(&error, Some(config)))
}

/// When the certificate of the context ends; nothing is created or complained about.
pub fn own_certificate_end(connection: &Connection) -> Option<jiff::Timestamp> {
    let config = read(&locate(connection).ok()?.path).ok()?;
    let (_, context) = profile::context(&config, connection.context.as_deref()).ok()?;
    let crt = context.crt_pem().ok()??;
    Some(ichor_pki::CertInfo::parse(crt).ok()?.not_after)
}

/// The names of all contexts, for completion.
pub fn context_names(connection: &Connection) -> Vec<String> {
    let Ok(location) = locate(connection) else { return Vec::new() };
    read(&location.path).map(|config| names(&config)).unwrap_or_default()
}

fn explain(error: &ProfileError, config: Option<&ClientConfig>) -> Failure {
    match error {
        ProfileError::Context(error) => no_context(error, config),
        ProfileError::Endpoint(_)
        | ProfileError::SideroV1(_)
        | ProfileError::NoRoots(_)
        | ProfileError::Tls { .. } => Failure::new(crate::failure::chain(error)),
    }
}

/// Says what a context lacks and how to get it.
pub fn no_context(error: &ContextError, config: Option<&ClientConfig>) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        ContextError::Empty => failure.hint(
            "make a local cluster with `ichorctl cluster create`, take over a file with `ichorctl config merge FILE`, or name one with --talosconfig",
        ),
        ContextError::NoDefault(name) | ContextError::NotFound(name) => {
            let known = config.map(names).unwrap_or_default();
            match text::nearest(name, known.iter().map(String::as_str)) {
                Some(near) => failure.hint(format!("did you mean \"{near}\"? `ichorctl config contexts` lists them")),
                None => failure.hint("`ichorctl config contexts` lists them, `ichorctl config context NAME` switches"),
            }
        }
        ContextError::NoEndpoints => {
            failure.hint("give one with `-e ADDRESS`, or keep it with `ichorctl config endpoint ADDRESS...`")
        }
        ContextError::NotBase64(_) => failure.hint("take the file over again with `ichorctl config merge FILE`"),
    }
}
