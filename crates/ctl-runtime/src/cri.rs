//! The container runtime's configuration: registries, parts and defaults, as resources and as files under `/etc`.
//!
//! The runtime reads one file, `cri/conf.d/cri.toml`, merged from the parts beside it. It is written only when all
//! parts are, so that a runtime that waits for it starts with everything.

pub mod base_spec;
pub mod hosts;
mod image_cache;
mod image_gc;
mod registries;
pub mod toml;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ichor_cosi::{
    Context, Controller, ControllerError, Input, Output, RegisterError, Runtime, exclusive, shared, weak,
};
use ichor_ctl::volumes::{self, EPHEMERAL, Readiness};
use ichor_ctl::{Configuration, active_input};
use ichor_resource::cri::{ImageCacheConfig, ImageCacheStatus, RegistryConfig, SeccompProfile};
use ichor_resource::files::{EtcFileSpec, EtcFileStatus};
use ichor_sys::file::replace_if_changed;

/// The merged file, below `/etc`.
pub const MERGED: &str = "cri/conf.d/cri.toml";
/// What containers begin with, below `/etc`.
pub const BASE_SPEC: &str = "cri/conf.d/base-spec.json";

const PARTS: &str = "cri/conf.d";
const REGISTRIES_PART: &str = "cri/conf.d/01-registries.part";
const HOST_PART: &str = "cri/conf.d/02-host.part";
const CUSTOM_PART: &str = "cri/conf.d/20-customization.part";
const CUSTOM_PATH: &str = "/etc/cri/conf.d/20-customization.part";
const HOSTS: &str = "cri/conf.d/hosts";
const LABEL: &str = "system_u:object_r:etc_t:s0";
/// Before the path of a part, in the annotations of the merged file.
const SOURCE: &str = "talos.dev/source-file:";
/// The one id of registries.
const REGISTRIES: &str = "registries";
/// The one id of the image cache.
pub const IMAGE_CACHE: &str = "image-cache";

pub use image_cache::Registryd;
pub use image_gc::{CRIImageGCController, ImageStore, StoredImage};

/// What the runtime has to know of the machine.
#[derive(Debug, Clone)]
pub struct CriHost {
    /// `/etc`.
    pub etc: PathBuf,
    /// Where files of `/etc` are really kept.
    pub shadow: PathBuf,
    /// Where the kubelet looks for seccomp profiles.
    pub profiles: PathBuf,
    /// Whether EPHEMERAL may be a disk that has to be mounted before it is used.
    pub disks: bool,
    /// Whether processes cannot be protected from the out-of-memory killer here.
    pub restrict_oom: bool,
    /// Whether there is one cgroup hierarchy, and so a namespace of it for each container.
    pub unified: bool,
}

/// Adds the controllers of the container runtime.
pub fn register(runtime: &Runtime, registryd: Registryd, host: &CriHost) -> Result<(), RegisterError> {
    runtime.register(RegistriesConfigController)?;
    runtime.register(image_cache::ImageCacheConfigController::new(registryd))?;
    runtime.register(SeccompProfileController)?;
    runtime.register(SeccompProfileFileController { directory: host.profiles.clone(), waits: host.disks })?;
    runtime.register(CRIRegistryConfigController { host: host.clone(), shown: false })?;
    runtime.register(CRIBaseRuntimeSpecController { unified: host.unified })?;
    runtime.register(CRIConfigPartsController { host: host.clone() })
}

fn put(ctx: &Context, path: &str, contents: &str) -> Result<(), ControllerError> {
    ctx.modify::<EtcFileSpec>(path, |spec| {
        spec.contents = contents.to_owned().into();
        spec.mode = 0o600;
        LABEL.clone_into(&mut spec.selinux_label);
    })?;
    Ok(())
}

/// Writes `RegistryConfigs`: what all documents say of registries, and the image cache before them.
#[derive(Debug)]
pub struct RegistriesConfigController;

impl Controller for RegistriesConfigController {
    const NAME: &'static str = "cri.RegistriesConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<ImageCacheConfig>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<RegistryConfig>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let cache = ctx.get::<ImageCacheConfig>(IMAGE_CACHE)?;
        let cached = cache.is_some_and(|cache| cache.status == ImageCacheStatus::Ready);
        Ok(ctx.publish(config.map(|config| (REGISTRIES, registries::of(&config, cached))))?)
    }
}

/// Writes `SeccompProfiles`.
#[derive(Debug)]
pub struct SeccompProfileController;

impl Controller for SeccompProfileController {
    const NAME: &'static str = "cri.SeccompProfileController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<SeccompProfile>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let machine = config.as_ref().and_then(|config| config.machine());
        let profiles =
            machine.into_iter().flat_map(|machine| machine.seccomp_profiles.iter()).map(|profile| {
                let value = match profile.value.to_json() {
                    serde_json::Value::Object(map) => map,
                    _ => serde_json::Map::new(),
                };
                let spec = SeccompProfile { name: profile.name.clone(), value: value.into() };
                (profile.name.clone(), spec)
            });
        Ok(ctx.publish(profiles)?)
    }
}

/// Keeps the files of the profiles.
#[derive(Debug)]
pub struct SeccompProfileFileController {
    /// Where they lie.
    pub directory: PathBuf,
    /// Whether that is on EPHEMERAL, which may be a disk that has to be mounted first.
    pub waits: bool,
}

impl Controller for SeccompProfileFileController {
    const NAME: &'static str = "cri.SeccompProfileFileController";

    fn inputs(&self) -> Vec<Input> {
        let mut all = vec![weak::<SeccompProfile>()];
        if self.waits {
            all.extend(volumes::inputs(EPHEMERAL));
        }
        all
    }

    fn outputs(&self) -> Vec<Output> {
        Vec::new()
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        if self.waits && volumes::of(ctx, EPHEMERAL)? != Readiness::Usable {
            return Ok(());
        }
        let profiles = ctx.list::<SeccompProfile>()?;
        if profiles.is_empty() && !self.directory.exists() {
            return Ok(());
        }
        make_dir(&self.directory)?;
        let mut kept = BTreeSet::new();
        for profile in profiles.iter().filter(|profile| plain_name(&profile.name)) {
            let text = serde_json::to_vec(&profile.value.0)?;
            replace_if_changed(&self.directory.join(&profile.name), text.as_ref(), 0o644, None)?;
            kept.insert(profile.name.clone());
        }
        Ok(remove_others(&self.directory, &kept)?)
    }
}

/// Whether a name is a file of its directory and of no other.
fn plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// Writes the part with credentials and the directories of hosts.
#[derive(Debug)]
pub struct CRIRegistryConfigController {
    /// The machine.
    pub host: CriHost,
    /// Whether the directories are where the runtime looks for them.
    pub shown: bool,
}

impl Controller for CRIRegistryConfigController {
    const NAME: &'static str = "files.CRIRegistryConfigController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<RegistryConfig>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(registries) = ctx.get::<RegistryConfig>(REGISTRIES)? else { return Ok(()) };
        let directories = hosts::directories(&registries)?;
        let top = self.host.shadow.join(HOSTS);
        make_dir(&top)?;
        for (name, files) in directories.iter().filter(|(name, _)| plain_name(name)) {
            let dir = top.join(name);
            make_dir(&dir)?;
            for (name, content) in files.iter().filter(|(name, _)| plain_name(name)) {
                replace_if_changed(&dir.join(name), content, 0o600, None)?;
            }
            remove_others(&dir, &files.keys().cloned().collect())?;
        }
        remove_others(&top, &directories.keys().cloned().collect())?;
        if !self.shown {
            show(&top, &self.host.etc.join(HOSTS))?;
            self.shown = true;
        }
        put(ctx, REGISTRIES_PART, &hosts::part(&registries))
    }
}

/// Shows the directory at its place, unless it is there already.
fn show(source: &Path, target: &Path) -> Result<(), ControllerError> {
    if source == target || ichor_sys::mount::is_mounted(target) {
        return Ok(());
    }
    Ok(ichor_sys::mount::bind_read_only(source, target)?)
}

/// Writes what every container begins with.
#[derive(Debug)]
pub struct CRIBaseRuntimeSpecController {
    /// As in [`CriHost`].
    pub unified: bool,
}

impl Controller for CRIBaseRuntimeSpecController {
    const NAME: &'static str = "files.CRIBaseRuntimeSpecController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let config = Configuration::active(ctx)?;
        let Some(machine) = config.as_ref().and_then(|config| config.machine()) else { return Ok(()) };
        let spec = base_spec::with(self.unified, machine.base_runtime_spec_overrides.to_json());
        put(ctx, BASE_SPEC, &spec.to_string())
    }
}

/// Merges the parts.
#[derive(Debug)]
pub struct CRIConfigPartsController {
    /// The machine.
    pub host: CriHost,
}

/// A part that cannot be merged.
#[derive(Debug, thiserror::Error)]
#[error("read {}", path.display())]
struct PartError {
    path: PathBuf,
    #[source]
    source: toml::TomlError,
}

impl Controller for CRIConfigPartsController {
    const NAME: &'static str = "files.CRIConfigPartsController";

    fn inputs(&self) -> Vec<Input> {
        vec![active_input(), weak::<EtcFileSpec>(), weak::<EtcFileStatus>()]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![shared::<EtcFileSpec>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let Some(config) = Configuration::active(ctx)? else { return Ok(()) };
        put(ctx, HOST_PART, host_part(self.host.restrict_oom))?;
        let files = config.machine().into_iter().flat_map(|machine| machine.files.iter());
        let custom: Vec<&str> =
            files.filter(|file| file.path == CUSTOM_PATH).map(|file| file.content.as_str()).collect();
        put(ctx, CUSTOM_PART, &custom.join("\n"))?;
        for path in [REGISTRIES_PART, HOST_PART, CUSTOM_PART] {
            let written = ctx.get::<EtcFileStatus>(path)?.map(|status| status.spec_version.clone());
            let wanted = ctx.get_in::<EtcFileSpec>("files", path)?;
            // Its writing wakes this controller.
            if written.is_none() || written != wanted.map(|spec| spec.meta().version().to_string()) {
                return Ok(());
            }
        }
        let (text, sums) = merged(&self.host.etc)?;
        ctx.modify_with::<EtcFileSpec>("files", MERGED, |spec, meta| {
            spec.contents = text.clone().into();
            spec.mode = 0o600;
            LABEL.clone_into(&mut spec.selinux_label);
            for (path, sum) in &sums {
                meta.set_annotation(format!("{SOURCE}{path}"), sum.clone());
            }
        })?;
        Ok(())
    }
}

/// What the machine itself forbids.
fn host_part(restrict_oom: bool) -> &'static str {
    match restrict_oom {
        true => "[plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true\n",
        false => "",
    }
}

/// The merged text, and the sum of each part by its path.
fn merged(etc: &Path) -> Result<(String, Vec<(String, String)>), ControllerError> {
    let mut paths: Vec<PathBuf> = fs::read_dir(etc.join(PARTS))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "part"))
        .collect();
    paths.sort();
    let (mut all, mut text, mut sums) = (toml::Table::new(), String::new(), Vec::new());
    for path in paths {
        let part = fs::read(&path)?;
        let shown = Path::new("/etc").join(path.strip_prefix(etc).unwrap_or(&path)).display().to_string();
        let sum = ichor_pki::sha256(&part).iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let table =
            toml::parse(&String::from_utf8_lossy(&part)).map_err(|source| PartError { path, source })?;
        toml::merge(&mut all, table);
        let _ = writeln!(text, "## {shown} (sha256:{sum})");
        sums.push((shown, sum));
    }
    text.push('\n');
    text.push_str(&toml::render(all));
    Ok((text, sums))
}

fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes everything of a directory but these names.
fn remove_others(dir: &Path, kept: &BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| kept.contains(name)) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ichor_resource::config::MachineConfig;
    use ichor_testkit::Harness;

    use super::*;

    #[tokio::test]
    async fn seccomp_profiles_become_resources_and_files_and_go_with_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let (state, _) = ichor_testkit::state();
        let text = "machine:\n  type: worker\n  seccompProfiles:\n    - name: audit.json\n      value:\n        defaultAction: SCMP_ACT_LOG\n";
        state.create("config", MachineConfig::ACTIVE, MachineConfig::new(text), "").unwrap();
        let mut profiles = Harness::new(&state, SeccompProfileController).unwrap();
        let directory = folder.path().join("profiles");
        let controller = SeccompProfileFileController { directory: directory.clone(), waits: false };
        let mut files = Harness::new(&state, controller).unwrap();
        profiles.reconcile().await.unwrap();
        files.reconcile().await.unwrap();
        let profile = state.get::<SeccompProfile>("cri", "audit.json").unwrap();
        assert_eq!(profile.value.0["defaultAction"], "SCMP_ACT_LOG");
        let file = directory.join("audit.json");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), r#"{"defaultAction":"SCMP_ACT_LOG"}"#);

        let text = MachineConfig::new("machine:\n  type: worker\n");
        state
            .modify::<MachineConfig>("config", MachineConfig::ACTIVE, "", |spec| *spec = text.clone())
            .unwrap();
        profiles.reconcile().await.unwrap();
        files.reconcile().await.unwrap();
        assert!(state.get::<SeccompProfile>("cri", "audit.json").is_err() && !file.exists());
    }
}
