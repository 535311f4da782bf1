//! The logs of a node by id.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    rings: Arc<Mutex<BTreeMap<String, Arc<LogRing>>>>,
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
        if let Some(ring) = rings.get(id) {
            return Arc::clone(ring);
        }
        let ring = Arc::new(LogRing::new());
        if rings.len() < LOGS_MAX {
            rings.insert(id.to_owned(), Arc::clone(&ring));
        }
        ring
    }

    /// The log of this id, if there is one.
    pub fn get(&self, id: &str) -> Result<Arc<LogRing>, LogManagerError> {
        self.lock().get(id).cloned().ok_or_else(|| LogManagerError::NotRegistered { id: id.to_owned() })
    }

    /// Ids of all logs, in order.
    pub fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<LogRing>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
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
