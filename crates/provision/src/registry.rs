//! The providers of a program, by name.

use std::process::ExitCode;
use std::sync::Arc;

use crate::{Provider, ProvisionError, Store};

/// One provider, as a program offers it.
pub struct Registration {
    /// Its name.
    pub name: &'static str,
    /// Opens it over the directories of all clusters.
    pub open: fn(Store) -> Arc<dyn Provider>,
    /// Runs one of the provider's own processes when the arguments ask for it: a provider may start the program anew
    /// to have a process that outlives it.
    pub helper: Option<Helper>,
}

/// A provider's own processes: the exit code of the one that the arguments ask for, if they do.
pub type Helper = fn(&[String]) -> Option<ExitCode>;

/// All providers of a program; the first one is the default.
pub struct Registry {
    entries: &'static [Registration],
}

impl Registry {
    /// Of these providers.
    pub const fn new(entries: &'static [Registration]) -> Self {
        Self { entries }
    }

    /// Their names, the default first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name)
    }

    /// The provider of this name.
    pub fn open(&self, name: &str, store: Store) -> Result<Arc<dyn Provider>, ProvisionError> {
        match self.entries.iter().find(|entry| entry.name == name) {
            Some(entry) => Ok((entry.open)(store)),
            None => Err(ProvisionError::UnknownProvider { name: name.to_owned() }),
        }
    }

    /// The provider that made a cluster; `otherwise` when its state does not say.
    pub fn of_cluster(
        &self,
        cluster: &str,
        store: Store,
        otherwise: &str,
    ) -> Result<Arc<dyn Provider>, ProvisionError> {
        let made_by = store.load(cluster).map(|state| state.provisioner);
        self.open(made_by.as_deref().unwrap_or(otherwise), store)
    }

    /// Runs a process of one of the providers. Called first in `main`, before any thread is started.
    pub fn helper_main(&self, args: &[String]) -> Option<ExitCode> {
        self.entries.iter().filter_map(|entry| entry.helper).find_map(|helper| helper(args))
    }
}
