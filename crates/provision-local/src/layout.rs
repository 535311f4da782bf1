//! Where things lie in the directory of a cluster.

use std::path::{Path, PathBuf};

use ichor_provision::{Cluster, ProvisionError, Store};

/// Paths of one cluster that every provider of machines on this host has.
#[derive(Clone, Debug)]
pub struct Layout {
    dir: PathBuf,
}

impl Layout {
    /// Of the cluster with this directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Requests to the supervisor.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// What the supervisor has to say.
    pub fn log(&self) -> PathBuf {
        self.dir.join("supervisor.log")
    }

    /// A memory filesystem that only the supervisor and its machines see.
    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// What outlives a boot of a machine.
    pub fn machine(&self, machine: &str) -> PathBuf {
        self.dir.join("machines").join(machine)
    }

    /// The configuration the machine's platform offers.
    pub fn config(&self, machine: &str) -> PathBuf {
        self.machine(machine).join("config.yaml")
    }

    /// What the machine writes to its console.
    pub fn console(&self, machine: &str) -> PathBuf {
        self.dir.join(format!("{machine}.log"))
    }

    /// The cluster as its state file has it now.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn load(&self) -> Result<Cluster, ProvisionError> {
        let name = self.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Store::new(self.dir.parent().unwrap_or(Path::new("/"))).load(name)
    }
}
