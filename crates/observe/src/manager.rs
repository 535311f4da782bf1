//! The logs of a node by id.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::ring::LogRing;

/// Logs a node can have; services, extensions and the built-in ones stay far below.
pub const LOGS_MAX: usize = 512;

/// Why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogManagerError {
    /// Nothing was ever written under this id.
    #[error("log \"{id}\" was not registered")]
    NotRegistered {
        /// The id asked for.
        id: String,
    },
}

/// All log rings of a node. Cheap to clone.
#[derive(Clone, Default)]
pub struct LogManager {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    rings: Mutex<Rings>,
    grown: Notify,
}

#[derive(Default)]
struct Rings {
    by_id: BTreeMap<String, Arc<LogRing>>,
    /// In the order they were made.
    ids: Vec<String>,
}

impl LogManager {
    /// A node without logs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The log of this id, made when it is not there yet.
    ///
    /// Beyond [`LOGS_MAX`] a new id gets a ring that is not listed: its writer works, memory stays
    /// bounded by the writers alive.
    pub fn ring(&self, id: &str) -> Arc<LogRing> {
        let mut rings = self.lock();
        if let Some(ring) = rings.by_id.get(id) {
            return Arc::clone(ring);
        }
        let ring = Arc::new(LogRing::new());
        if rings.ids.len() < LOGS_MAX {
            rings.by_id.insert(id.to_owned(), Arc::clone(&ring));
            rings.ids.push(id.to_owned());
            drop(rings);
            self.shared.grown.notify_waiters();
        }
        ring
    }

    /// The log of this id, if there is one.
    pub fn get(&self, id: &str) -> Result<Arc<LogRing>, LogManagerError> {
        self.lock().by_id.get(id).cloned().ok_or_else(|| LogManagerError::NotRegistered { id: id.to_owned() })
    }

    /// Ids of all logs, in order.
    pub fn ids(&self) -> Vec<String> {
        self.lock().by_id.keys().cloned().collect()
    }

    /// Ids of all logs in the order they were made, once there are more than `known`. Logs never go away.
    pub async fn grown(&self, known: usize) -> Vec<String> {
        loop {
            let grown = self.shared.grown.notified();
            tokio::pin!(grown);
            // Registered before looking, so that one made between the two is not missed.
            grown.as_mut().enable();
            let ids = self.lock().ids.clone();
            if ids.len() > known {
                return ids;
            }
            grown.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rings> {
        self.shared.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_listed_once_it_exists() {
        let logs = LogManager::new();
        assert_eq!(logs.get("apid").err().unwrap().to_string(), "log \"apid\" was not registered");
        logs.ring("trustd");
        logs.ring("apid");
        assert!(Arc::ptr_eq(&logs.ring("apid"), &logs.get("apid").ok().unwrap()));
        assert_eq!(logs.ids(), ["apid", "trustd"]);
    }

    #[test]
    fn ids_are_bounded() {
        let logs = LogManager::new();
        for n in 0..LOGS_MAX + 10 {
            logs.ring(&n.to_string()).write_line("x");
        }
        assert_eq!(logs.ids().len(), LOGS_MAX);
    }
}
