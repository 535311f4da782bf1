//! Mounts that failed, on their way from who mounts to who tells of the volume.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ichor_cosi::Wake;

/// Why volumes could not be mounted, until the volume manager takes it into their status. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct MountFailures(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    /// At most one for each volume.
    reasons: BTreeMap<String, String>,
    manager: Option<Wake>,
}

impl MountFailures {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is woken by reports.
    pub(crate) fn wake(&self, manager: Wake) {
        self.lock().manager = Some(manager);
    }

    /// A volume could not be mounted.
    pub fn report(&self, volume: &str, reason: String) {
        let mut shared = self.lock();
        shared.reasons.insert(volume.to_owned(), reason);
        if let Some(manager) = &shared.manager {
            manager.wake();
        }
    }

    /// What was reported of a volume since the last call.
    pub fn take(&self, volume: &str) -> Option<String> {
        self.lock().reasons.remove(volume)
    }
}
