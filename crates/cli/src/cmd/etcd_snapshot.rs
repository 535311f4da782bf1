//! Copies of the database: `etcd snapshot`, `etcd backup`, and files that a cluster is recovered from.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_wire::machine as wire;
use jiff::Timestamp;

use crate::bolt;
use crate::explain;
use crate::failure::{Context, Failure};
use crate::parse::Call;
use crate::print;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Flag};

/// The ending of backups.
const ENDING: &str = "snap";

/// `etcd snapshot`.
pub(super) static SNAPSHOT: Command = Command {
    name: "snapshot",
    about: "Save the database to a file",
    args: Args::between("<path>", 1, 1).complete(&[Complete::File]),
    run: Some(snapshot),
    ..Command::EMPTY
};

/// `etcd backup`.
pub(super) static BACKUP: Command = Command {
    name: "backup",
    about: "Save the database to a directory, again and again if asked, and keep the newest copies",
    long: "Saves the database to DIRECTORY as <context>-<time>.snap. With --every it goes on until it is stopped; a\n\
           copy that fails is told and tried again after a minute. With --keep older copies of the same context are\n\
           removed, and never before a new one is whole. The role os:etcd:backup is enough.",
    examples: &["etcd backup -n 10.5.0.2 /backup", "etcd backup -n 10.5.0.2 --every 6h --keep 28 /backup"],
    args: Args::between("<directory>", 1, 1).complete(&[Complete::File]),
    flags: &[
        Flag::duration("every", "0s", "make another copy after this time"),
        Flag::int("keep", "0", "keep this many copies; 0 keeps all"),
    ],
    run: Some(backup),
    ..Command::EMPTY
};

/// The file under its temporary name, removed unless it was finished.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn snapshot(call: &Call) -> Result<(), Failure> {
    block_on(async {
        let session = Session::open(call).await?;
        let size = save(call, &session, Path::new(call.arg(0))).await?;
        let content = crate::files::read(Path::new(call.arg(0)))?;
        print(&format!(
            "etcd snapshot saved to {:?} ({size} bytes)\nsnapshot info: {}\n",
            call.arg(0),
            describe(&content)?
        ))
    })
}

/// Saves a snapshot of the machine's member; nothing is left behind when it fails.
async fn save(call: &Call, session: &Session, target: &Path) -> Result<u64, Failure> {
    let part = Part(PathBuf::from(format!("{}.part", target.display())));
    let client = session.only(call)?;
    let doing = "error reading";
    let stream = client.machine().etcd_snapshot(wire::EtcdSnapshotRequest {}).await;
    let mut stream = stream.map_err(|status| explain::status(doing, &status))?.into_inner();
    let mut file = create_private(&part.0)?;
    let mut size = 0_u64;
    while let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? {
        let (_, data) = ichor_client::sort(message, &session.label)
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

fn create_private(path: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .context(format!("create {}", path.display()))
}

fn backup(call: &Call) -> Result<(), Failure> {
    /// Before a copy that failed is tried again.
    const AGAIN: Duration = Duration::from_secs(60);
    let every = call.duration("every");
    let keep = usize::try_from(call.int("keep")).unwrap_or(0);
    let directory = PathBuf::from(call.arg(0));
    let context = match call.some_text("context") {
        Some(context) => context.to_owned(),
        None => crate::profile::open(call)?.0.context,
    };
    // A context may be called anything; a file may not.
    let context = context.replace('/', "-");
    std::fs::create_dir_all(&directory).context(format!("make {}", directory.display()))?;
    block_on(async {
        loop {
            let pause = match backup_once(call, &directory, &context, keep).await {
                Ok(()) if every.is_zero() => return Ok(()),
                Ok(()) => every,
                Err(failure) if every.is_zero() => return Err(failure),
                Err(failure) => {
                    eprintln!("{failure}");
                    every.min(AGAIN)
                }
            };
            tokio::time::sleep(pause).await;
        }
    })
}

async fn backup_once(call: &Call, directory: &Path, context: &str, keep: usize) -> Result<(), Failure> {
    let session = Session::open(call).await?;
    let name = file_name(context, Timestamp::now());
    let target = directory.join(&name);
    let size = save(call, &session, &target).await?;
    print(&format!("etcd snapshot saved to {:?} ({size} bytes)\n", target.display().to_string()))?;
    let found = std::fs::read_dir(directory).context(format!("read {}", directory.display()))?;
    let names = found.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    for old in outdated(names, context, keep) {
        let path = directory.join(old);
        std::fs::remove_file(&path).context(format!("remove {}", path.display()))?;
    }
    Ok(())
}

/// Sorts by time, as names do.
fn file_name(context: &str, now: Timestamp) -> String {
    let second = now.as_second();
    let now = Timestamp::from_second(second).unwrap_or(now);
    format!("{context}-{now}.{ENDING}")
}

/// Which copies of a context go when the newest `keep` stay.
fn outdated(mut names: Vec<String>, context: &str, keep: usize) -> Vec<String> {
    let ours = |name: &String| {
        let time = name.strip_prefix(context).and_then(|rest| rest.strip_prefix('-'));
        let time = time.and_then(|rest| rest.strip_suffix(&format!(".{ENDING}")));
        time.is_some_and(|time| time.parse::<Timestamp>().is_ok())
    };
    names.retain(ours);
    names.sort_unstable();
    match keep {
        0 => Vec::new(),
        keep => names.drain(..names.len().saturating_sub(keep)).collect(),
    }
}

/// What is in a snapshot, in a few words.
pub(super) fn describe(content: &[u8]) -> Result<String, Failure> {
    let info = bolt::info(content).map_err(|error| Failure::new(error.to_string()))?;
    let bolt::Info { hash, revision, keys, size } = info;
    Ok(format!("hash {hash:08x}, revision {revision}, total keys {keys}, total size {size}"))
}

/// Reads a snapshot; its last 32 bytes are the checksum of the rest, unless it is a bare copy.
pub(super) fn read_snapshot(path: &Path, skip_hash_check: bool) -> Result<Vec<u8>, Failure> {
    let content = crate::files::read(path)?;
    if skip_hash_check {
        return Ok(content);
    }
    let bad = |what: &str| {
        Failure::new(format!("{} is not a snapshot: {what}", path.display()))
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let mut content = vec![7_u8; 1024];
        content.extend(ichor_pki::sha256(&content));
        std::fs::write(&path, &content).unwrap();
        assert_eq!(read_snapshot(&path, false).unwrap().len(), 1056);
        content[3] ^= 1;
        std::fs::write(&path, &content).unwrap();
        assert!(read_snapshot(&path, false).unwrap_err().to_string().contains("does not fit"));
        assert!(read_snapshot(&path, true).is_ok());
    }

    #[test]
    fn only_old_copies_of_the_same_context_go() {
        let names =
            ["a-2026-01-02T00:00:00Z.snap", "a-2026-01-01T00:00:00Z.snap", "a-2026-01-03T00:00:00Z.snap"];
        let others = ["b-2026-01-01T00:00:00Z.snap", "a-notes.snap", "a-2026-01-01T00:00:00Z.snap.part"];
        let all: Vec<String> = names.iter().chain(&others).map(|name| (*name).to_owned()).collect();
        assert_eq!(outdated(all.clone(), "a", 1), [names[1], names[0]]);
        assert_eq!(outdated(all.clone(), "a", 3), [] as [&str; 0]);
        assert_eq!(outdated(all, "a", 0), [] as [&str; 0]);
        let name = file_name("a", "2026-01-13T06:00:00.5Z".parse().unwrap());
        assert_eq!(name, "a-2026-01-13T06:00:00Z.snap");
    }
}
