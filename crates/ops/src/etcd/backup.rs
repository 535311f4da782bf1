//! Backups: copies of the database with a name that tells cluster and time, compressed and sealed as asked.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_client::Client;
use jiff::Timestamp;

use super::Storage;
use super::snapshot::{SNAPSHOT_MAX, draft, failed, save};
use crate::error::{Doing as _, Error, Result};
use crate::event::Sink;

/// The endings of backups: plain, compressed, sealed.
const ENDING: &str = ".snap";
const COMPRESSED: &str = ".zst";
/// The ending of sealed backups.
pub(super) const SEALED: &str = ".age";
/// What compressed files begin with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A level that costs little: most of a database is text.
const ZSTD_LEVEL: i32 = 3;
/// Before a copy that failed is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// Seals a copy: reads it from the file and writes it, readable for its recipients alone.
pub type Seal = dyn Fn(&mut File, &mut dyn Write) -> Result<()> + Send + Sync;

/// How copies are made.
pub struct BackupOptions {
    /// The cluster they are of.
    pub cluster: String,
    /// How many of them stay; 0 keeps all.
    pub keep: usize,
    /// Compress them.
    pub compress: bool,
    /// Seal them.
    pub seal: Option<Box<Seal>>,
    /// Make another one after this time; zero makes one.
    pub every: Duration,
}

/// Where copies go.
pub enum Place<S> {
    /// A directory.
    Directory(PathBuf),
    /// Below a prefix of a bucket.
    Bucket {
        /// The bucket.
        storage: S,
        /// The prefix, without slashes around it.
        prefix: String,
    },
}

/// A step of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A copy is in its place.
    Saved {
        /// Where.
        place: String,
        /// How large it is.
        bytes: u64,
    },
    /// A copy failed; it is tried again.
    Failed {
        /// Why.
        error: String,
    },
    /// An object is read.
    Reading {
        /// Where it is.
        place: String,
    },
}

/// Makes copies of the database, one or one after the other, and removes those that are too many. `connect` gives a
/// client of a member, and the machine's name, for each copy.
pub async fn backup<S: Storage>(
    place: &mut Place<S>,
    options: &BackupOptions,
    connect: impl AsyncFn() -> std::result::Result<(Client, String), S::Error>,
    events: &dyn Sink<Event>,
) -> std::result::Result<(), S::Error> {
    loop {
        let copied = match connect().await {
            Ok((client, label)) => once(place, options, &client, &label, events).await,
            Err(error) => Err(error),
        };
        let pause = match copied {
            Ok(()) if options.every.is_zero() => return Ok(()),
            Ok(()) => options.every,
            Err(error) if options.every.is_zero() => return Err(error),
            Err(error) => {
                events.emit(Event::Failed { error: error.to_string() });
                options.every.min(AGAIN)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn once<S: Storage>(
    place: &mut Place<S>,
    options: &BackupOptions,
    client: &Client,
    label: &str,
    events: &dyn Sink<Event>,
) -> std::result::Result<(), S::Error> {
    let stem = stem(&options.cluster, Timestamp::now());
    match place {
        Place::Directory(directory) => {
            let (name, bytes) = make(options, client, label, directory, &stem).await?;
            let path = directory.join(&name);
            events.emit(Event::Saved { place: path.display().to_string(), bytes });
            for old in outdated(names(directory)?, &options.cluster, options.keep) {
                let path = directory.join(old);
                std::fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        Place::Bucket { storage, prefix } => {
            // It is made here first: an object is there whole or not at all.
            let work = Work::make()?;
            let (name, bytes) = make(options, client, label, &work.0, &stem).await?;
            let key = format!("{prefix}/{name}");
            storage.put(&key, &work.0.join(&name)).await?;
            events.emit(Event::Saved { place: storage.name(&key), bytes });
            if options.keep > 0 {
                let keys = storage.list(&format!("{prefix}/{}-", options.cluster)).await?;
                for old in outdated_keys(keys, prefix, &options.cluster, options.keep) {
                    storage.delete(&old).await?;
                }
            }
        }
    }
    Ok(())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let found = std::fs::read_dir(directory).map_err(failed("read", directory))?;
    Ok(found.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// A directory for the time of one copy, for its owner alone.
struct Work(PathBuf);

impl Work {
    fn make() -> Result<Self> {
        let unique = ichor_pki::random::token(8, 8).doing("name a directory")?;
        let path = std::env::temp_dir().join(format!("ichorctl-backup-{unique}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed("make", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes one copy in a directory and gives its name and size; nothing else stays there.
async fn make(
    options: &BackupOptions,
    client: &Client,
    label: &str,
    dir: &Path,
    stem: &str,
) -> Result<(String, u64)> {
    let mut name = stem.to_owned();
    let plain = dir.join(&name);
    save(client, label, &plain).await?;
    let mut last = Intermediate(plain);
    if options.compress {
        name += COMPRESSED;
        last = step(last, dir.join(&name), &|from, to| {
            zstd::stream::copy_encode(BufReader::new(from), to, ZSTD_LEVEL).doing("compress")
        })?;
    }
    if let Some(seal) = &options.seal {
        name += SEALED;
        last = step(last, dir.join(&name), seal)?;
    }
    // What is finished stays.
    last.keep();
    let path = dir.join(&name);
    let size = std::fs::metadata(&path).map_err(failed("read", &path))?.len();
    Ok((name, size))
}

/// A file that is removed unless it is kept.
struct Intermediate(PathBuf);

impl Intermediate {
    fn keep(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Intermediate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes what `work` makes of a file to another one, whole or not at all; the first one goes.
fn step(from: Intermediate, target: PathBuf, work: &Seal) -> Result<Intermediate> {
    let mut out = BufWriter::new(draft(&target)?);
    let mut plain = File::open(&from.0).map_err(failed("read", &from.0))?;
    work(&mut plain, &mut out)?;
    let file = out.into_inner().map_err(|error| error.into_error()).map_err(failed("write", &target))?;
    file.commit().map_err(failed("write", &target))?;
    Ok(Intermediate(target))
}

/// The name of a copy without what was done to it; sorts by time.
fn stem(cluster: &str, now: Timestamp) -> String {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    format!("{cluster}-{now}{ENDING}")
}

/// True for names that [`stem`] makes, with the endings of what is done to copies.
fn is_ours(name: &str, cluster: &str) -> bool {
    let plain = name.strip_suffix(SEALED).unwrap_or(name);
    let plain = plain.strip_suffix(COMPRESSED).unwrap_or(plain);
    let time = plain.strip_prefix(cluster).and_then(|rest| rest.strip_prefix('-'));
    let time = time.and_then(|rest| rest.strip_suffix(ENDING)).and_then(|time| time.parse().ok());
    time.is_some_and(|time: Timestamp| stem(cluster, time) == plain)
}

/// Which copies of a cluster go when the newest `keep` stay.
fn outdated(mut names: Vec<String>, cluster: &str, keep: usize) -> Vec<String> {
    names.retain(|name| is_ours(name, cluster));
    names.sort_unstable();
    match keep {
        0 => Vec::new(),
        keep => names.drain(..names.len().saturating_sub(keep)).collect(),
    }
}

/// The same for the keys of a bucket.
fn outdated_keys(keys: Vec<String>, prefix: &str, cluster: &str, keep: usize) -> Vec<String> {
    let below = format!("{prefix}/");
    let names = keys.iter().filter_map(|key| key.strip_prefix(&below)).map(str::to_owned).collect();
    outdated(names, cluster, keep).into_iter().map(|name| below.clone() + &name).collect()
}

/// Reads a backup from a bucket: the object of this key, or the newest backup below a prefix, which is empty or ends in a
/// slash.
pub async fn read<S: Storage>(
    storage: &mut S,
    key: &str,
    events: &dyn Sink<Event>,
) -> std::result::Result<Vec<u8>, S::Error> {
    let key = match key.is_empty() || key.ends_with('/') {
        false => key.to_owned(),
        true => newest(storage.list(key).await?, key)
            .ok_or_else(|| Error::state(format!("there is no backup in {}", storage.name(key))))?,
    };
    events.emit(Event::Reading { place: storage.name(&key) });
    storage.get(&key, SNAPSHOT_MAX).await
}

/// The newest backup right below a prefix, of whatever cluster.
fn newest(keys: Vec<String>, prefix: &str) -> Option<String> {
    let time = |key: &String| {
        let name = key.strip_prefix(prefix)?;
        // The time has a known length from behind.
        let plain = name.strip_suffix(SEALED).unwrap_or(name);
        let plain = plain.strip_suffix(COMPRESSED).unwrap_or(plain).strip_suffix(ENDING)?;
        let (cluster, time) =
            plain.split_at_checked(plain.len().checked_sub("2026-01-13T06:00:00Z".len())?)?;
        (cluster.ends_with('-') && !name.contains('/')).then(|| time.parse::<Timestamp>().ok())?
    };
    keys.into_iter().filter_map(|key| Some((time(&key)?, key))).max().map(|(_, key)| key)
}

/// The snapshot in a backup that is not sealed: decompressed, if it is compressed.
pub fn decompressed(content: Vec<u8>) -> Result<Vec<u8>> {
    if !content.starts_with(&ZSTD_MAGIC) {
        return Ok(content);
    }
    let decoder = zstd::stream::read::Decoder::new(content.as_slice()).doing("decompress it")?;
    let mut plain = Vec::new();
    decoder.take(SNAPSHOT_MAX + 1).read_to_end(&mut plain).doing("decompress it")?;
    if plain.len() as u64 > SNAPSHOT_MAX {
        return Err(Error::state("it is larger than any database of etcd"));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = [
        "a-2026-01-01T00:00:00Z.snap",
        "a-2026-01-02T00:00:00Z.snap.age",
        "a-2026-01-03T00:00:00Z.snap.zst.age",
        "a-2026-01-04T00:00:00Z.snap.zst",
    ];

    #[test]
    fn only_old_copies_of_the_same_cluster_go() {
        let others = [
            "b-2026-01-01T00:00:00Z.snap",
            "a-notes.snap",
            "a-2026-01-01T00:00:00Z.snap.part",
            "a-2026-01-01.snap",
            "a-2026-01-01T00:00:00.5Z.snap",
            "a-2026-01-01T02:00:00+02:00.snap",
            "a-b-2026-01-01T00:00:00Z.snap",
            "a-2026-01-01T00:00:00Z.snap.age.zst",
        ];
        let all: Vec<String> = others.iter().chain(&NAMES).rev().map(|name| (*name).to_owned()).collect();
        assert_eq!(outdated(all.clone(), "a", 2), NAMES[..2]);
        assert_eq!(outdated(all.clone(), "a", 4), [] as [&str; 0]);
        assert_eq!(outdated(all.clone(), "a", 0), [] as [&str; 0]);
        let keys =
            all.iter().map(|name| format!("p/q/{name}")).chain(all.iter().map(|name| format!("p/{name}")));
        let keys = keys.chain(all.clone()).collect();
        assert_eq!(outdated_keys(keys, "p/q", "a", 3), [format!("p/q/{}", NAMES[0])]);
    }

    #[test]
    fn names_carry_the_time_to_the_second() {
        let name = stem("a", "2026-01-13T06:00:00.5Z".parse().unwrap());
        assert_eq!(name, "a-2026-01-13T06:00:00Z.snap");
    }

    #[test]
    fn the_newest_backup_of_a_place_is_found() {
        let keys = |names: &[&str]| names.iter().map(|name| format!("p/{name}")).collect::<Vec<_>>();
        let mut all = keys(&NAMES);
        all.extend(keys(&[
            "z-notes.snap",
            "deeper/a-2027-01-01T00:00:00Z.snap",
            "2027-01-01T00:00:00Z.snap",
        ]));
        all.push("p/b-2026-01-03T12:00:00Z.snap.age".to_owned());
        assert_eq!(newest(all, "p/").as_deref(), Some("p/a-2026-01-04T00:00:00Z.snap.zst"));
        assert_eq!(newest(keys(&["x"]), "p/"), None);
    }

    #[test]
    fn what_was_compressed_is_whole_again() {
        let packed = zstd::stream::encode_all(&b"content"[..], ZSTD_LEVEL).unwrap();
        assert_eq!(decompressed(packed.clone()).unwrap(), b"content");
        assert_eq!(decompressed(b"plain".to_vec()).unwrap(), b"plain");
        let cut = decompressed(packed[..packed.len() - 1].to_vec()).unwrap_err().to_string();
        assert!(cut.starts_with("decompress it"), "{cut}");
    }
}
