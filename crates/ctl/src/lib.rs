//! What controller families share: the parsed machine configuration and small helpers.

pub mod subnets;
pub mod volumes;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ichor_config::Documents;
use ichor_config::diagnostic::Diagnostics;
use ichor_cosi::{Context, ControllerError, Input, weak};
use ichor_resource::config::MachineConfig;

/// A machine configuration, parsed once and shared by everyone who holds the same resource.
#[derive(Clone)]
pub struct Configuration(Arc<Documents>);

/// What the resource keeps: the documents, or why there are none.
type Parsed = Result<Arc<Documents>, BadConfiguration>;

/// The active configuration does not parse. It was checked before it was stored, so this is a bug.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the stored machine configuration does not parse: {reason}")]
pub struct BadConfiguration {
    reason: String,
}

impl From<Diagnostics> for BadConfiguration {
    fn from(diagnostics: Diagnostics) -> Self {
        Self { reason: diagnostics.to_string() }
    }
}

impl Configuration {
    /// The documents of a configuration resource.
    pub fn of(config: &MachineConfig) -> Result<Self, BadConfiguration> {
        let parsed: Arc<Parsed> =
            config.parsed(|bytes| Documents::load(bytes).map(Arc::new).map_err(BadConfiguration::from));
        match &*parsed {
            Ok(documents) => Ok(Self(Arc::clone(documents))),
            Err(error) => Err(error.clone()),
        }
    }

    /// The active configuration, seen from a controller that has [`active_input`] among its inputs.
    pub fn active(ctx: &Context) -> Result<Option<Self>, ControllerError> {
        match ctx.get::<MachineConfig>(MachineConfig::ACTIVE)? {
            Some(config) => Ok(Some(Self::of(&config)?)),
            None => Ok(None),
        }
    }
}

/// The input that [`Configuration::active`] reads.
pub fn active_input() -> Input {
    weak::<MachineConfig>().id(MachineConfig::ACTIVE)
}

impl Deref for Configuration {
    type Target = Documents;

    fn deref(&self) -> &Documents {
        &self.0
    }
}

impl fmt::Debug for Configuration {
    /// The documents hold secrets, so they do not show.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Configuration")
    }
}
