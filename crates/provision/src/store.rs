//! Where clusters are kept: one directory each, below the user's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Cluster, ProvisionError};

/// The longest name, as of a host name.
const NAME_MAX: usize = 63;

/// The directories of all clusters.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// A store below `root`, usually `~/.talos/clusters`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The usual place, for a home directory.
    pub fn in_home(home: &Path) -> Self {
        Self::new(home.join(".talos/clusters"))
    }

    /// The top directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a cluster. Good names only, so it cannot lead elsewhere.
    pub fn dir(&self, cluster: &str) -> Result<PathBuf, ProvisionError> {
        check_name(cluster)?;
        Ok(self.root.join(cluster))
    }

    /// Makes the directory of a new cluster; it is the lock against a second one with the same name.
    pub fn reserve(&self, cluster: &str) -> Result<PathBuf, ProvisionError> {
        let dir = self.dir(cluster)?;
        let file = |source| ProvisionError::File { what: "make", path: dir.clone(), source };
        fs::create_dir_all(&self.root).map_err(file)?;
        match fs::create_dir(&dir) {
            Ok(()) => Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ProvisionError::Exists { name: cluster.to_owned() })
            }
            Err(error) => Err(file(error)),
        }
    }

    /// Lets nobody else change the machines of a cluster until the answer is dropped.
    ///
    /// # Errors
    /// When somebody does so now.
    pub fn lock(&self, cluster: &str) -> Result<fs::File, ProvisionError> {
        let path = self.dir(cluster)?.join("lock");
        let file = |source| ProvisionError::File { what: "lock", path: path.clone(), source };
        let lock = fs::File::create(&path).map_err(file)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(fs::TryLockError::WouldBlock) => Err(ProvisionError::Busy { name: cluster.to_owned() }),
            Err(fs::TryLockError::Error(source)) => Err(file(source)),
        }
    }

    /// Writes the state file, whole or not at all.
    pub fn save(&self, cluster: &Cluster) -> Result<(), ProvisionError> {
        let path = self.dir(&cluster.name)?.join(STATE_FILE);
        let text = serde_json::to_vec_pretty(cluster)
            .map_err(|source| ProvisionError::DamagedState { path: path.clone(), source })?;
        ichor_sys::file::replace(&path, &text, 0o644).map_err(|source| ProvisionError::File {
            what: "write",
            path,
            source,
        })
    }

    /// Reads a cluster.
    pub fn load(&self, cluster: &str) -> Result<Cluster, ProvisionError> {
        let dir = self.dir(cluster)?;
        if !dir.is_dir() {
            return Err(ProvisionError::NoSuchCluster { name: cluster.to_owned() });
        }
        let path = dir.join(STATE_FILE);
        let text = fs::read(&path).map_err(|source| ProvisionError::File {
            what: "read",
            path: path.clone(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| ProvisionError::DamagedState { path, source })
    }

    /// Names of all directories that could be clusters, damaged ones included.
    pub fn names(&self) -> Result<Vec<String>, ProvisionError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => {
                return Err(ProvisionError::File { what: "list", path: self.root.clone(), source });
            }
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// All clusters whose state can be read.
    pub fn list(&self) -> Result<Vec<Cluster>, ProvisionError> {
        Ok(self.names()?.iter().filter_map(|name| self.load(name).ok()).collect())
    }
}

const STATE_FILE: &str = "state.json";

/// A name that is a good host name label and file name.
pub fn check_name(name: &str) -> Result<(), ProvisionError> {
    let clean = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edges = !name.starts_with('-') && !name.ends_with('-');
    let good = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(clean) && edges;
    if good { Ok(()) } else { Err(ProvisionError::BadName { name: name.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;

    fn cluster(name: &str) -> Cluster {
        Cluster {
            provisioner: "sandbox".to_owned(),
            name: name.to_owned(),
            network: Network {
                name: name.to_owned(),
                cidrs: vec!["10.5.0.0/24".parse().unwrap()],
                gateways: vec!["10.5.0.1".parse().unwrap()],
                mtu: 1500,
            },
            image: "/image".into(),
            images: None,
            settings: Default::default(),
            endpoint: None,
            machines: Vec::new(),
        }
    }

    #[test]
    fn a_saved_cluster_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_home(dir.path());
        assert!(store.list().unwrap().is_empty());
        store.reserve("one").unwrap();
        store.save(&cluster("one")).unwrap();
        assert_eq!(store.load("one").unwrap(), cluster("one"));
        assert_eq!(store.list().unwrap(), [cluster("one")]);
    }

    #[test]
    fn a_second_cluster_of_the_same_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        store.reserve("one").unwrap();
        assert!(matches!(store.reserve("one"), Err(ProvisionError::Exists { .. })));
    }

    #[test]
    fn a_damaged_cluster_is_named_but_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let place = store.reserve("broken").unwrap();
        fs::write(place.join(STATE_FILE), "{").unwrap();
        assert_eq!(store.names().unwrap(), ["broken"]);
        assert!(store.list().unwrap().is_empty());
        assert!(matches!(store.load("broken"), Err(ProvisionError::DamagedState { .. })));
        assert!(matches!(store.load("none"), Err(ProvisionError::NoSuchCluster { .. })));
    }

    #[test]
    fn names_cannot_lead_out_of_the_store() {
        for bad in ["", "..", "a/b", "UPPER", "-a", "a-", "a b"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("ichor-live-4711").is_ok());
    }
}
