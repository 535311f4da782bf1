//! Where this node looks for its configuration besides its own disk.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

use ichor_config::{Documents, Mode};
use ichor_cosi::State;
use ichor_ctl_config::acquire::{Found, Source};
use ichor_ctl_config::controllers::{AcquirePort, BoxFuture};
use ichor_ctl_config::{cmdline, disk};
use ichor_resource::hardware::SystemInformation;
use ichor_resource::network::{HardwareAddress, HostnameStatus, NetworkStatus};
use ichor_resource::runtime::MetaKey;
use ichor_types::Cmdline;
use ichor_wire::machine;
use ichor_wire::machine::task_event::Action;

use crate::api::configuration::{validate, validation_mode};
use crate::download::{self, Facts};
use crate::events::Events;
use crate::node::Host;
use crate::platform::{Mode as PlatformMode, Platform};

/// A configuration that is part of the image.
const EMBEDDED: &str = "/usr/local/etc/talos/config.yaml";

/// The task clients know maintenance mode by.
const MAINTENANCE_TASK: &str = "runningMaintenance";

/// A server that holds the configuration is waited for this long; then the machine can be reached by its API.
const DOWNLOAD_MAX: Duration = Duration::from_secs(10 * 60);

/// The pause after the first failed download; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(30);

/// The sources of a real node.
pub struct NodeSources {
    platform: Platform,
    cmdline: Cmdline,
    events: Events,
    state: State,
}

impl NodeSources {
    /// The sources of this node.
    pub fn new(host: &Host, events: &Events, state: &State) -> Self {
        Self {
            platform: host.platform.clone(),
            cmdline: host.cmdline.clone(),
            events: events.clone(),
            state: state.clone(),
        }
    }

    fn cmdline_config(&self, parameter: &'static str) -> Result<Option<Vec<u8>>, String> {
        if self.platform.mode == PlatformMode::Container {
            return Ok(None);
        }
        cmdline::decode(parameter, self.cmdline.all(parameter)).map_err(|error| error.to_string())
    }

    async fn platform_config(&self) -> Result<Option<Vec<u8>>, String> {
        if self.platform.mode == PlatformMode::Container {
            return user_data(std::env::var("USERDATA").ok().as_deref());
        }
        match self.cmdline.first("talos.config") {
            None | Some("" | "none") => Ok(None),
            Some(url) => match url.strip_prefix("file://") {
                Some(path) => read(Path::new(path)),
                None => Ok(self.download(url).await),
            },
        }
    }

    /// Not an error if it fails: a machine that waits in maintenance mode can still be reached.
    async fn download(&self, url: &str) -> Option<Vec<u8>> {
        match tokio::time::timeout(DOWNLOAD_MAX, self.fetch(url)).await {
            Ok(Ok(config)) => return Some(config),
            Ok(Err(error)) => warn!(error, "no configuration from there; waiting for one over the API"),
            Err(_) => warn!(url, "no configuration from there in time; waiting for one over the API"),
        }
        None
    }

    /// Tries until the server answers; who bounds the time is the caller.
    async fn fetch(&self, url: &str) -> Result<Vec<u8>, String> {
        let ready = self.state.wait_for::<NetworkStatus>("network", "status", |status| status.address_ready);
        ready.await.map_err(|error| error.to_string())?;
        info!(url, "fetching the configuration");
        let (mut pause, mut told) = (PAUSE_FIRST, false);
        loop {
            // Facts may come while the server does not answer.
            match download::fetch(&download::fill(url, &self.facts()), &[]).await {
                Ok(bytes) => return unpack(bytes),
                Err(error) if !error.is_retryable() => return Err(error.to_string()),
                Err(error) if !told => {
                    warn!(%error, "the configuration is not there yet; trying again");
                    told = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    fn facts(&self) -> Facts {
        let system = self.state.find::<SystemInformation>("hardware", "systeminformation");
        let card = self.state.find::<HardwareAddress>("network", "first");
        let name = self.state.find::<HostnameStatus>("network", "hostname");
        let code = self.state.find::<MetaKey>("runtime", "0x0b");
        Facts {
            uuid: system.as_ref().map(|system| system.uuid.clone()).unwrap_or_default(),
            serial: system.map(|system| system.serialnumber.clone()).unwrap_or_default(),
            mac: card.map(|card| card.hardware_addr.to_string()).unwrap_or_default(),
            hostname: name.map(|name| name.hostname.clone()).unwrap_or_default(),
            code: code.map(|code| code.value.clone()).unwrap_or_default(),
        }
    }

    fn task(&self, action: Action) {
        self.events.publish(machine::TaskEvent { task: MAINTENANCE_TASK.to_owned(), action: action.into() });
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match std::fs::metadata(path) {
        Ok(found) if found.len() > disk::LEN_MAX => Err(format!("{}: larger than 32 MiB", path.display())),
        Ok(_) => std::fs::read(path).map(Some).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// A compressed configuration is unpacked.
fn unpack(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    let decoder = flate2::read::GzDecoder::new(&bytes[..]);
    let read = decoder.take(disk::LEN_MAX + 1).read_to_end(&mut plain);
    match read {
        Ok(_) if plain.len() as u64 > disk::LEN_MAX => {
            Err("the configuration is larger than 32 MiB".to_owned())
        }
        Ok(_) => Ok(plain),
        Err(error) => Err(format!("unpack the configuration: {error}")),
    }
}

fn user_data(text: Option<&str>) -> Result<Option<Vec<u8>>, String> {
    match text {
        None | Some("") => Ok(None),
        Some(text) => {
            ichor_ctl_config::cmdline::decode_plain(text).map(Some).map_err(|error| error.to_string())
        }
    }
}

impl AcquirePort for NodeSources {
    fn load(&self, source: Source) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        let loaded = match source {
            Source::Embedded => read(Path::new(EMBEDDED)),
            Source::CmdlineEarly => self.cmdline_config("talos.config.early"),
            Source::Platform => return Box::pin(self.platform_config()),
            Source::CmdlineLate => self.cmdline_config("talos.config.inline"),
            Source::State | Source::Maintenance => Ok(None),
        };
        Box::pin(std::future::ready(loaded))
    }

    fn check(&self, source: Source, yaml: &[u8]) -> Result<Found, String> {
        let documents = Documents::load(yaml).map_err(|error| error.answer())?;
        let checked = match source.is_checked_for_platform() {
            true => validate(&documents, validation_mode(&self.platform)),
            false => documents.validate(Mode::CLOUD),
        };
        checked.map_err(|error| error.answer())?;
        Ok(if documents.is_complete() { Found::Complete } else { Found::Partial })
    }

    fn platform(&self) -> &str {
        &self.platform.name
    }

    fn maintenance_began(&self) {
        self.task(Action::Start);
    }

    fn maintenance_ended(&self) {
        self.task(Action::Stop);
    }

    fn failed(&self, error: &str) {
        self.events.publish(machine::ConfigLoadErrorEvent { error: error.to_owned() });
    }
}
