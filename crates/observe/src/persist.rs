//! Logs as files, for after the machine was started again: `<id>.log`, and `<id>.log.1` once that is full.
//!
//! Bytes are written in batches some time after they came, so a busy log costs a write now and then and an idle
//! one nothing. Who reads the ring does not see the file, and the other way round.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use crate::manager::LogManager;
use crate::ring::{LogReader, Start};

/// A file that has grown to this is put aside.
pub const FILE_LEN_MAX: u64 = 5 * 1024 * 1024;

/// New bytes wait this long for company. A ring holds 1 MiB, so half of that a second is kept whole.
const GATHER: Duration = Duration::from_secs(2);

/// `O_NOFOLLOW`: a link in the place of a log is an error.
const NOFOLLOW: i32 = 0o400_000;

/// `O_NONBLOCK`: opening must not wait for the other end of a pipe.
const NONBLOCK: i32 = 0o4000;

/// Bytes taken from a ring at once.
const CHUNK: usize = 64 * 1024;

/// Writes all logs, those to come included, to files in `folder` until `stop` turns true; then writes the rest and
/// ends. A folder that cannot be written is told once and tried again.
pub async fn persist(logs: LogManager, folder: PathBuf, mut stop: watch::Receiver<bool>) {
    let mut writers = JoinSet::new();
    let mut known = 0;
    loop {
        tokio::select! {
            biased;
            ids = logs.grown(known) => {
                for id in ids.iter().skip(known).filter(|id| is_file_name(id)) {
                    let Ok(ring) = logs.get(id) else { continue };
                    let path = folder.join(format!("{id}.log"));
                    writers.spawn(write(ring.follow(Start::Oldest), path, stop.clone()));
                }
                known = ids.len();
            }
            () = stopped(&mut stop) => break,
        }
    }
    while writers.join_next().await.is_some() {}
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Who dropped the other end wants no more of it either.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn is_file_name(id: &str) -> bool {
    !id.is_empty() && !id.starts_with('.') && !id.contains(['/', '\0'])
}

async fn write(mut reader: LogReader, path: PathBuf, mut stop: watch::Receiver<bool>) {
    let mut trouble = false;
    loop {
        let first = tokio::select! {
            biased;
            first = reader.next(CHUNK) => first,
            () = stopped(&mut stop) => None,
        };
        let Some(first) = first else { return };
        let mut batch = first.to_vec();
        let _ = tokio::time::timeout(GATHER, stopped(&mut stop)).await;
        while let Some(more) = reader.read(CHUNK) {
            batch.extend_from_slice(&more);
        }
        let file = path.clone();
        let written = tokio::task::spawn_blocking(move || append(&file, &batch)).await;
        match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => trouble = false,
            Err(error) if !trouble => {
                warn!(path = %path.display(), %error, "a log is not kept on disk");
                trouble = true;
            }
            Err(_) => {}
        }
    }
}

/// Appends, putting the file aside first when it is full.
///
/// Pods that were given the directory may put other things there: a link is not followed, a pipe not waited for.
fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let full = match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(io::Error::other("not a regular file")),
        Ok(found) => found.len() >= FILE_LEN_MAX,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if full {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        fs::rename(path, aside)?;
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(NOFOLLOW | NONBLOCK);
    let mut file = options.open(path)?;
    // Looked at again through the descriptor: the name may have been given to something else.
    match file.metadata()?.is_file() {
        true => file.write_all(bytes),
        false => Err(io::Error::other("not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn logs_are_files_when_it_is_time_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let logs = LogManager::new();
        logs.ring("apid").write_line("one");
        logs.ring("../escape").write_line("no");
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(persist(logs.clone(), folder.path().to_owned(), stopped));
        tokio::time::sleep(Duration::from_millis(50)).await;
        logs.ring("apid").write_line("two");
        logs.ring("late").write_line("three");
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.send(true).unwrap();
        tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!((read("apid.log").as_str(), read("late.log").as_str()), ("one\ntwo\n", "three\n"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_link_in_the_place_of_a_log_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.log"), folder.path().join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        append(&path, b"lost").unwrap_err();
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn a_full_file_is_put_aside_and_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let half = vec![b'x'; (FILE_LEN_MAX / 2) as usize];
        for _ in 0..5 {
            append(&path, &half).unwrap();
        }
        let len = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!((len("a.log"), len("a.log.1")), (FILE_LEN_MAX / 2, FILE_LEN_MAX));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
