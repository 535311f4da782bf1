//! Machine configurations as the command line names them: contracts, mirrors, secrets, patches.

use std::collections::BTreeMap;

use ichor_config::Diagnostics;
use ichor_config::generate::Secrets;
use ichor_config::patch::{self, Patch, PatchError};
use ichor_ops::generate;
use ichor_types::VersionContract;

use crate::failure::{Context as _, Failure};
use crate::files;

/// The image that installs a machine, without its tag.
const INSTALLER: &str = "ghcr.io/siderolabs/installer";

/// Reads a version contract; empty means the newest.
pub fn contract(text: &str) -> Result<VersionContract, Failure> {
    if text.is_empty() {
        return Ok(VersionContract::CURRENT);
    }
    text.parse().context(format!("--talos-version {text}"))
}

/// The installer image of this version; the environment variable `TAG` names another one.
pub fn installer_image() -> String {
    let tag = std::env::var("TAG").ok().filter(|tag| !tag.is_empty());
    format!("{INSTALLER}:{}", tag.as_deref().unwrap_or(crate::identity::TAG))
}

/// Reads and checks a secrets bundle.
pub fn load_secrets(bundle: &[u8]) -> Result<Secrets, Failure> {
    let secrets = Secrets::load(bundle).context("load the secrets bundle")?;
    let checked = secrets.validate();
    checked.map_err(|problems| {
        Failure::new(format!("the secrets bundle is not complete: {}", problems.trim_end()))
    })?;
    Ok(secrets)
}

/// Reads mirrors of registries, each as `host=URL`.
pub fn mirrors(given: &[String]) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let mut mirrors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for mirror in given {
        let Some((host, url)) = mirror.split_once('=') else {
            return Err(Failure::new(format!("invalid registry mirror spec: \"{mirror}\""))
                .hint("write it as host=URL"));
        };
        mirrors.entry(host.to_owned()).or_default().push(url.to_owned());
    }
    Ok(mirrors)
}

/// Applies patches to a configuration, in order; each is text, `@file` or a file's name. Without patches the
/// bytes stay as they are.
pub fn patched(config: Vec<u8>, arguments: &[String]) -> Result<Vec<u8>, Failure> {
    patched_file("configuration", config, arguments)
}

/// The same for the content of a file, which errors name.
pub fn patched_file(file: &str, config: Vec<u8>, arguments: &[String]) -> Result<Vec<u8>, Failure> {
    Ok(generate::patched(file, config, &load_patches(arguments)?)?)
}

/// Reads patches; a mistake in one is shown at its place.
pub fn load_patches(arguments: &[String]) -> Result<Vec<Patch>, Failure> {
    for (i, argument) in arguments.iter().enumerate() {
        let mut source = (format!("patch {}", i + 1), argument.clone().into_bytes());
        let read = |path: &str| {
            let content = std::fs::read(path)?;
            source = (path.to_owned(), content.clone());
            Ok(content)
        };
        let loaded = patch::load_all(std::slice::from_ref(argument), read);
        loaded.map_err(|error| match error {
            PatchError::Load(problems) => pointed(&problems, &source.0, &String::from_utf8_lossy(&source.1)),
            PatchError::Read { path, source } => {
                let failure = Failure::new(format!("open {path}: {}", files::go_error(&source)));
                match source.kind() {
                    std::io::ErrorKind::NotFound => failure.hint("a patch is text, or @FILE"),
                    _ => failure,
                }
            }
            error => Failure::new(format!("load {}: {}", source.0, crate::failure::chain(&error))),
        })?;
    }
    patch::load_all(arguments, |path| std::fs::read(path)).context("load the patch")
}

/// Problems with their places in a text.
pub fn pointed(problems: &Diagnostics, file: &str, text: &str) -> Failure {
    Failure::new(problems.render(file, text).trim_end().to_owned()).whole()
}
