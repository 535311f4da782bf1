//! Copies of the database: `etcd snapshot`, and what every copy must be.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ichor_client::Client;
use ichor_wire::machine as wire;

use crate::bolt;
use crate::explain;
use crate::failure::{Context, Failure};
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete};

/// The largest database there is; etcd itself advises against more.
pub(super) const SNAPSHOT_MAX: u64 = 8 << 30;

/// `etcd snapshot`.
pub(super) static SNAPSHOT: Command = Command {
    name: "snapshot",
    about: "Save the database to a file",
    args: Args::between("<path>", 1, 1).complete(&[Complete::File]),
    run: Some(snapshot),
    ..Command::EMPTY
};

/// The file under its temporary name, removed unless it was finished.
pub(super) struct Part(pub(super) PathBuf);

impl Part {
    /// Lets the file stay.
    pub(super) fn keep(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn snapshot(call: &Call) -> Result<(), Failure> {
    block_on(async {
        let session = Session::open(&call.connection()).await?;
        let path = Path::new(call.arg(0));
        let size = save(&session.only()?, &session.label, path).await?;
        let content = crate::files::read_large(path, SNAPSHOT_MAX)?;
        print(&format!(
            "etcd snapshot saved to {:?} ({size} bytes)\nsnapshot info: {}\n",
            call.arg(0),
            describe(&content)?
        ))
    })
}

/// Saves a snapshot of the machine's member; nothing is left behind when it fails.
pub(super) async fn save(client: &Client, label: &str, target: &Path) -> Result<u64, Failure> {
    let part = Part(PathBuf::from(format!("{}.part", target.display())));
    let doing = "error reading";
    let stream = client.machine().etcd_snapshot(wire::EtcdSnapshotRequest {}).await;
    let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
    let mut file = create_private(&part.0)?;
    let mut size = 0_u64;
    while let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? {
        let (_, data) = ichor_client::sort(message, label)
            .map_err(|error| explain::nodes(doing, std::slice::from_ref(&error)))?;
        size += data.bytes.len() as u64;
        file.write_all(&data.bytes).context(format!("write {}", part.0.display()))?;
    }
    file.sync_all().context(format!("write {}", part.0.display()))?;
    if size % 512 != 32 {
        return Err(Failure::new(format!("sha256 checksum not found (size {size})"))
            .hint("the snapshot arrived incomplete: try again"));
    }
    std::fs::rename(&part.0, target).context(format!("rename {}", part.0.display()))?;
    Ok(size)
}

pub(super) fn create_private(path: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .context(format!("create {}", path.display()))
}

/// What is in a snapshot, in a few words.
pub(super) fn describe(content: &[u8]) -> Result<String, Failure> {
    let info = bolt::info(content).map_err(|error| Failure::new(error.to_string()))?;
    let bolt::Info { hash, revision, keys, size } = info;
    Ok(format!("hash {hash:08x}, revision {revision}, total keys {keys}, total size {size}"))
}

/// Checks a snapshot: its last 32 bytes are the checksum of the rest, unless it is a bare copy.
pub(super) fn check(name: &str, content: Vec<u8>, skip_hash_check: bool) -> Result<Vec<u8>, Failure> {
    if skip_hash_check {
        return Ok(content);
    }
    let bad = |what: &str| {
        Failure::new(format!("{name} is not a snapshot: {what}"))
            .hint("a copy of the data directory needs --recover-skip-hash-check")
    };
    if content.len() % 512 != 32 {
        return Err(bad("it has no checksum"));
    }
    let (body, sum) = content.split_at(content.len() - 32);
    if ichor_pki::sha256(body) != sum {
        return Err(bad("its checksum does not fit"));
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
        assert!(
            check("db", content[..1055].to_vec(), false).unwrap_err().to_string().contains("no checksum")
        );
        content[3] ^= 1;
        assert!(check("db", content.clone(), false).unwrap_err().to_string().contains("does not fit"));
        assert!(check("db", content, true).is_ok());
    }
}
