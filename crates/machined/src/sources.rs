//! Where this node looks for its configuration besides its own disk.

use std::path::Path;

use tracing::warn;

use ichor_config::{Documents, Mode};
use ichor_ctl_config::acquire::{Found, Source};
use ichor_ctl_config::controllers::{AcquirePort, BoxFuture};
use ichor_ctl_config::{cmdline, disk};
use ichor_types::Cmdline;
use ichor_wire::machine;
use ichor_wire::machine::task_event::Action;

use crate::api::configuration::{validate, validation_mode};
use crate::events::Events;
use crate::platform::{Mode as PlatformMode, Platform};

/// A configuration that is part of the image.
const EMBEDDED: &str = "/usr/local/etc/talos/config.yaml";

/// The task clients know maintenance mode by.
const MAINTENANCE_TASK: &str = "runningMaintenance";

/// The sources of a real node.
pub struct NodeSources {
    platform: Platform,
    cmdline: Cmdline,
    events: Events,
}

impl NodeSources {
    /// Sources for a platform and its kernel command line.
    pub fn new(platform: Platform, cmdline: Cmdline, events: Events) -> Self {
        Self { platform, cmdline, events }
    }

    fn cmdline_config(&self, parameter: &'static str) -> Result<Option<Vec<u8>>, String> {
        if self.platform.mode == PlatformMode::Container {
            return Ok(None);
        }
        cmdline::decode(parameter, self.cmdline.all(parameter)).map_err(|error| error.to_string())
    }

    fn platform_config(&self) -> Result<Option<Vec<u8>>, String> {
        if self.platform.mode == PlatformMode::Container {
            return user_data(std::env::var("USERDATA").ok().as_deref());
        }
        match self.cmdline.first("talos.config") {
            None | Some("" | "none") => Ok(None),
            Some(url) => match url.strip_prefix("file://") {
                Some(path) => read(Path::new(path)),
                None => {
                    // Not an error: a machine that waits in maintenance mode can still be reached.
                    warn!(
                        url,
                        "this build cannot fetch a configuration from there; waiting for one over the API"
                    );
                    Ok(None)
                }
            },
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
            Source::Platform => self.platform_config(),
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
