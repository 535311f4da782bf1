//! What the family asks of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use ichor_block::probe::Contents;
use ichor_block::sysfs::{BlockDevice, DiskProperties};
use ichor_cosi::Wake;

/// The block devices of a machine. Calls may block: controllers make them on threads for that.
pub trait BlockPort: Clone + Send + Sync + 'static {
    /// All devices, by name.
    fn devices(&self) -> io::Result<BTreeMap<String, BlockDevice>>;

    /// What a disk is.
    fn disk(&self, name: &str) -> DiskProperties;

    /// What is on a device.
    fn probe(&self, name: &str, is_disk: bool) -> Result<Probed, ProbeError>;

    /// Links below `/dev/disk`, by the device they point to.
    fn symlinks(&self) -> io::Result<BTreeMap<String, Vec<String>>>;

    /// Notes devices that came, went, changed or were written to, from now on.
    fn watch_devices(&self, changes: DeviceChanges);

    /// Wakes when links come and go, from now on.
    fn watch_symlinks(&self, wake: Wake);
}

/// What is on a device, and its sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probed {
    /// Bytes.
    pub size: u64,
    /// Bytes of a logical sector.
    pub sector_size: u32,
    /// The optimal size of a request.
    pub io_size: u64,
    /// What was found.
    pub contents: Contents,
}

/// Why a device was not probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Somebody works on it; ask again.
    #[error("locked by somebody else")]
    Locked,
    /// It cannot be read.
    #[error("probe")]
    Io(#[from] io::Error),
}

/// Devices that something happened to, until the controller takes them.
#[derive(Debug, Clone)]
pub struct DeviceChanges {
    noted: Arc<Mutex<Noted>>,
    wake: Wake,
}

/// What was noted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Devices by name.
    pub names: BTreeSet<String>,
    /// Whether anything may have happened to any of them.
    pub all: bool,
}

/// More names than this are as good as all.
const NAMES_MAX: usize = 4096;

impl DeviceChanges {
    /// Nothing yet; `wake` is called for every note.
    pub fn new(wake: Wake) -> Self {
        Self { noted: Arc::default(), wake }
    }

    /// Something happened to this device.
    pub fn note(&self, name: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.names.len() < NAMES_MAX {
            noted.names.insert(name.to_owned());
        } else {
            noted.all = true;
        }
        drop(noted);
        self.wake.wake();
    }

    /// Something may have happened to any device.
    pub fn note_all(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).all = true;
        self.wake.wake();
    }

    /// What was noted since the last call.
    pub fn take(&self) -> Noted {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
