//! Snapshots: saved from a member, checked, described.

use std::io::{self, Write as _};
use std::path::Path;

use ichor_client::Client;
use ichor_sys::file::Draft;
use ichor_wire::machine::EtcdSnapshotRequest;

use super::bolt;
use crate::error::{Error, Problem, Result};

/// The largest database there is; etcd itself advises against more.
pub const SNAPSHOT_MAX: u64 = 8 << 30;

pub(super) fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Problem::File { doing, path: path.clone(), source }.into()
}

/// A new version of a file for its owner alone; several commands may write the same one at the same time.
pub(super) fn draft(path: &Path) -> Result<Draft> {
    Draft::create_as(path, &format!("{}.part", std::process::id()), 0o600).map_err(failed("create", path))
}

/// Writes a file for its owner alone, whole or not at all.
pub fn write_private(target: &Path, content: &[u8]) -> Result<()> {
    let mut file = draft(target)?;
    file.write_all(content).and_then(|()| file.commit()).map_err(failed("write", target))
}

/// Saves a snapshot of a machine's member; nothing is left behind when it fails. `label` names the machine in errors.
pub async fn save(client: &Client, label: &str, target: &Path) -> Result<u64> {
    const DOING: &str = "error reading";
    let stream = client.machine().etcd_snapshot(EtcdSnapshotRequest {}).await;
    let mut stream = stream.map_err(|status| Error::call(DOING, status))?.into_inner();
    let mut file = draft(target)?;
    let mut size = 0_u64;
    while let Some(message) = stream.message().await.map_err(|status| Error::call(DOING, status))? {
        let (_, data) = ichor_client::sort(message, label)
            .map_err(|error| Problem::Node { doing: DOING.to_owned(), error })?;
        size += data.bytes.len() as u64;
        file.write_all(&data.bytes).map_err(failed("write", target))?;
    }
    if size % 512 != 32 {
        return Err(Problem::SnapshotCut { size }.into());
    }
    file.commit().map_err(failed("write", target))?;
    Ok(size)
}

/// What is in a snapshot.
pub fn describe(content: &[u8]) -> Result<bolt::Info> {
    bolt::info(content).map_err(|error| Error::state(error.to_string()))
}

/// Checks a snapshot: its last 32 bytes are the checksum of the rest, unless it is a bare copy.
pub fn check(name: &str, content: Vec<u8>, skip_hash_check: bool) -> Result<Vec<u8>> {
    if skip_hash_check {
        return Ok(content);
    }
    let bad = |reason: &'static str| Problem::NotASnapshot { name: name.to_owned(), reason };
    if content.len() % 512 != 32 {
        return Err(bad("it has no checksum").into());
    }
    let (body, sum) = content.split_at(content.len() - 32);
    if ichor_pki::sha256(body) != sum {
        return Err(bad("checksum mismatch").into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_must_have_its_checksum() {
        let mut content = vec![7_u8; 1024];
        content.extend(ichor_pki::sha256(&content));
        assert_eq!(check("db", content.clone(), false).unwrap().len(), 1056);
        let refused = |content: &[u8]| check("db", content.to_vec(), false).unwrap_err().to_string();
        assert_eq!(refused(&content[..1055]), "db is not a snapshot: it has no checksum");
        content[3] ^= 1;
        assert_eq!(refused(&content), "db is not a snapshot: checksum mismatch");
        assert!(check("db", content, true).is_ok());
    }

    #[test]
    fn a_file_is_written_whole_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        write_private(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
