//! Where this node looks for its configuration besides its own disk.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{info, warn};

use ichor_config::{Documents, Mode};
use ichor_cosi::{State, Typed};
use ichor_ctl_config::acquire::{Found, Source};
use ichor_ctl_config::controllers::{AcquirePort, BoxFuture};
use ichor_ctl_config::{cmdline, disk};
use ichor_ctl_network::nocloud;
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
use crate::{medium, oauth};

/// A configuration that is part of the image.
const EMBEDDED: &str = "/usr/local/etc/talos/config.yaml";

/// The task clients know maintenance mode by.
const MAINTENANCE_TASK: &str = "runningMaintenance";

/// A server that holds the configuration is waited for this long; then the machine can be reached by its API.
const DOWNLOAD_MAX: Duration = Duration::from_secs(10 * 60);

/// The pause after the first failed download; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(30);

/// The value of `talos.config` that means a volume, which has the same label, and the file on it.
const MEDIUM: &str = "metal-iso";
const MEDIUM_FILE: &str = "config.yaml";

/// An attempt that brought nothing.
enum Attempt {
    /// The next one may.
    Again(String),
    /// None will.
    Failed(String),
}

impl Attempt {
    fn of(retryable: bool, error: String) -> Self {
        if retryable { Self::Again(error) } else { Self::Failed(error) }
    }
}

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
            None | Some("") if self.platform.name == nocloud::NAME => {
                let read =
                    || async { crate::nocloud::configuration(&self.state).await.map_err(Attempt::Again) };
                self.wait("the files of the platform", read).await.flatten().map(unpack).transpose()
            }
            None | Some("" | "none") => Ok(None),
            Some(MEDIUM) => {
                let read = || async { self.read_medium().await.map_err(Attempt::Again) };
                self.wait("the volume metal-iso", read).await.map(unpack).transpose()
            }
            Some(url) => match url.strip_prefix("file://") {
                Some(path) => read(Path::new(path)),
                None => {
                    let ready = |status: &Typed<NetworkStatus>| status.address_ready;
                    let ready = self.state.wait_for::<NetworkStatus>("network", "status", ready);
                    if timeout(DOWNLOAD_MAX, ready).await.is_err() {
                        warn!(
                            url,
                            "no address to fetch the configuration from; waiting for one over the API"
                        );
                        return Ok(None);
                    }
                    info!(url, "fetching the configuration");
                    self.wait(url, || self.fetch(url)).await.map(unpack).transpose()
                }
            },
        }
    }

    /// Tries until it succeeds, within bounds. A failure is no error: a machine that waits in maintenance mode can still be
    /// reached.
    async fn wait<T, F: Future<Output = Result<T, Attempt>>>(
        &self,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Option<T> {
        let trying = async {
            let (mut pause, mut told) = (PAUSE_FIRST, false);
            loop {
                match attempt().await {
                    Ok(found) => return Ok(found),
                    Err(Attempt::Failed(error)) => return Err(error),
                    Err(Attempt::Again(error)) if !told => {
                        warn!(error, "the configuration is not there yet; trying again");
                        told = true;
                    }
                    Err(Attempt::Again(_)) => {}
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_LAST);
            }
        };
        match timeout(DOWNLOAD_MAX, trying).await {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(error)) => warn!(error, "no configuration from there; waiting for one over the API"),
            Err(_) => warn!(what, "no configuration from there in time; waiting for one over the API"),
        }
        None
    }

    /// A configuration on a volume. Drives may take a while to show it.
    async fn read_medium(&self) -> Result<Vec<u8>, String> {
        let found = medium::read(&self.state, &[MEDIUM], &[MEDIUM_FILE]).await;
        let mut found = found.map_err(|error| error.to_string())?.ok_or("there is no volume metal-iso")?;
        found.remove(MEDIUM_FILE).ok_or_else(|| format!("the volume {MEDIUM} has no {MEDIUM_FILE}"))
    }

    /// One attempt to download. Facts may come while the server does not answer.
    async fn fetch(&self, url: &str) -> Result<Vec<u8>, Attempt> {
        let facts = self.facts();
        if facts.code.is_empty() && download::wants_code(url) {
            return Err(Attempt::Again("the address wants a code; enter it on the console".to_owned()));
        }
        let url = download::fill(url, &facts);
        let headers = match oauth::Settings::read(&self.cmdline, &url) {
            None => Vec::new(),
            Some(settings) => match settings.authorize(&facts).await {
                Ok(header) => vec![header],
                Err(error) => return Err(Attempt::of(error.is_retryable(), error.to_string())),
            },
        };
        let fetched = download::fetch(&url, &headers).await;
        fetched.map_err(|error| Attempt::of(error.is_retryable(), error.to_string()))
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
