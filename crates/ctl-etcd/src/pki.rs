//! The certificates of etcd as files, for etcd alone to read.

use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

use ichor_cosi::{Context, Controller, ControllerError, Input, Output, exclusive, weak};
use ichor_resource::etcd::PKIStatus;
use ichor_resource::secrets::{EtcdRootSecret, EtcdSecret};
use ichor_resource::value::PemCertificateAndKey;

use crate::ETCD;

/// Writes the files, then `PKIStatuses/etcd`.
#[derive(Debug)]
pub struct PkiController {
    dir: PathBuf,
    owner: Option<u32>,
}

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write {}: {source}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl PkiController {
    /// Keeps the files in `dir`; `owner` is their user and group, by default the own.
    pub fn new(dir: impl Into<PathBuf>, owner: Option<u32>) -> Self {
        Self { dir: dir.into(), owner }
    }

    /// Writes all files; what etcd may be reading is replaced whole.
    fn write(&self, pairs: &[(&str, &PemCertificateAndKey)]) -> Result<(), WriteError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| WriteError { path, source }
        };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.and_then(|()| self.own(&self.dir)).map_err(failed(&self.dir))?;
        for (name, pair) in pairs {
            for (ending, text) in [("crt", &pair.crt), ("key", &pair.key)] {
                let path = self.dir.join(format!("{name}.{ending}"));
                self.put(&path, text.as_ref()).map_err(failed(&path))?;
            }
        }
        Ok(())
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        ichor_sys::file::replace_if_changed(path, bytes, 0o400, self.owner).map(drop)
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some(id) => chown(path, Some(id), Some(id)),
            None => Ok(()),
        }
    }
}

impl Controller for PkiController {
    const NAME: &'static str = "etcd.PKIController";

    fn inputs(&self) -> Vec<Input> {
        vec![weak::<EtcdRootSecret>().id(ETCD), weak::<EtcdSecret>().id(ETCD)]
    }

    fn outputs(&self) -> Vec<Output> {
        vec![exclusive::<PKIStatus>()]
    }

    async fn reconcile(&mut self, ctx: &Context) -> Result<(), ControllerError> {
        let (root, secrets) = (ctx.get::<EtcdRootSecret>(ETCD)?, ctx.get::<EtcdSecret>(ETCD)?);
        let (Some(root), Some(secrets)) = (root, secrets) else {
            return Ok(ctx.publish([] as [(&str, PKIStatus); 0])?);
        };
        let (Some(ca), Some(server), Some(peer), Some(admin)) =
            (&root.etcd_ca, &secrets.etcd, &secrets.etcd_peer, &secrets.etcd_admin)
        else {
            return Ok(());
        };
        self.write(&[("ca", ca), ("server", server), ("peer", peer), ("admin", admin)])?;
        let version = secrets.meta().version().to_string();
        ctx.publish([(ETCD, PKIStatus { ready: true, version })])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_for_their_owner_alone_and_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let pki = PkiController::new(dir.path().join("etcd"), None);
        let pair =
            |text: &str| PemCertificateAndKey { crt: text.to_owned().into(), key: "key".to_owned().into() };
        pki.write(&[("server", &pair("one"))]).unwrap();
        pki.write(&[("server", &pair("two"))]).unwrap();
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(dir.path().join("etcd")), 0o700);
        assert_eq!(mode(dir.path().join("etcd/server.key")), 0o400);
        assert_eq!(std::fs::read_to_string(dir.path().join("etcd/server.crt")).unwrap(), "two");
        assert_eq!(std::fs::read_dir(dir.path().join("etcd")).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn the_status_names_the_version_of_the_secrets_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (state, _) = ichor_testkit::state();
        let mut harness =
            ichor_testkit::Harness::new(&state, PkiController::new(dir.path().join("etcd"), None)).unwrap();
        harness.reconcile().await.unwrap();
        assert!(state.get::<PKIStatus>("etcd", ETCD).is_err());
        let pair = |text: &str| {
            Some(PemCertificateAndKey { crt: text.to_owned().into(), key: "key".to_owned().into() })
        };
        let root = EtcdRootSecret { etcd_ca: pair("ca") };
        state.create("secrets", ETCD, root, "").unwrap();
        let secrets = EtcdSecret {
            etcd: pair("server"),
            etcd_peer: pair("peer"),
            etcd_admin: pair("admin"),
            ..EtcdSecret::default()
        };
        let secrets = state.create("secrets", ETCD, secrets, "").unwrap();
        harness.reconcile().await.unwrap();
        let status = state.get::<PKIStatus>("etcd", ETCD).unwrap();
        assert!(status.ready && status.version == secrets.meta().version().to_string());
        assert_eq!(std::fs::read_to_string(dir.path().join("etcd/peer.crt")).unwrap(), "peer");
    }
}
