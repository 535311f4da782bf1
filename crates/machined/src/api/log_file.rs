//! A log in a file, from its tail, followed while it grows and when it is replaced.
//!
//! Pods may have a hand in the directories of their logs: no link is followed, and nothing but a regular file opened.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream;
use tonic::{Response, Status};

use ichor_sys::open;
use ichor_wire::common;

use super::reply::{CHUNK, Replies, data, data_error, io_status, streaming};
use crate::lanes::LOGS;

/// How far back lines are counted.
const TAIL_MAX: u64 = 16 << 20;

/// How often a followed log is looked at, while somebody follows it.
const LOOK: Duration = Duration::from_millis(250);

/// Streams a log file: the last `lines`, or all of it.
pub async fn stream(
    path: PathBuf,
    lines: Option<usize>,
    follow: bool,
) -> Result<Response<Replies<common::Data>>, Status> {
    let log = LOGS.run(move || Log::open(path, lines)).await??;
    Ok(streaming(stream::unfold(Some(log), move |log| async move {
        let mut log = log?;
        loop {
            let (step, back) = match LOGS.run(move || (log.read(), log)).await {
                Ok(done) => done,
                Err(status) => return Some((Err(status), None)),
            };
            log = back;
            match step {
                Ok(bytes) if !bytes.is_empty() => return Some((Ok(data(bytes)), Some(log))),
                Ok(_) if follow => tokio::time::sleep(LOOK).await,
                Ok(_) => return None,
                Err(error) => return Some((Ok(data_error(error.to_string())), None)),
            }
        }
    })))
}

struct Log {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl Log {
    fn open(path: PathBuf, lines: Option<usize>) -> Result<Self, Status> {
        let opened = open::regular(&path).and_then(|mut file| {
            if let Some(lines) = lines {
                seek_lines(&mut file, lines)?;
            }
            let inode = file.metadata()?.ino();
            Ok((file, inode))
        });
        let (file, inode) = opened.map_err(|error| io_status("open", &path, &error))?;
        Ok(Self { path, file, inode })
    }

    /// What is there now; nothing at the end.
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; CHUNK];
        let mut len = self.file.read(&mut bytes)?;
        if len == 0 && self.is_replaced() {
            len = self.file.read(&mut bytes)?;
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Goes on with the new file when the log was rotated, and from its start when it was cut.
    fn is_replaced(&mut self) -> bool {
        // The number and the length of the file that was opened, whatever has the name by now.
        let Ok(named) = open::regular(&self.path) else { return false };
        let Ok(found) = named.metadata() else { return false };
        if found.ino() != self.inode {
            self.file = named;
            self.inode = found.ino();
            return true;
        }
        let at = self.file.stream_position().unwrap_or(0);
        found.len() < at && self.file.seek(SeekFrom::Start(0)).is_ok()
    }
}

/// Puts the position before the last `lines` lines.
fn seek_lines(file: &mut File, lines: usize) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    let end = file.metadata()?.len();
    let mut start = end;
    let mut left = lines;
    let mut block = vec![0; BLOCK];
    while start > 0 && end - start < TAIL_MAX {
        let size = usize::try_from(start).unwrap_or(BLOCK).min(BLOCK);
        let from = start - size as u64;
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut block[..size])?;
        for (index, byte) in block[..size].iter().enumerate().rev() {
            let at = from + index as u64 + 1;
            // The newline at the very end closes the last line; it begins no other.
            if *byte == b'\n' && at != end {
                if left <= 1 {
                    file.seek(SeekFrom::Start(if left == 0 { end } else { at }))?;
                    return Ok(());
                }
                left -= 1;
            }
        }
        start = from;
    }
    file.seek(SeekFrom::Start(if lines == 0 { end } else { start }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    async fn text(path: &std::path::Path, lines: Option<usize>) -> String {
        let parts: Vec<_> =
            stream(path.to_path_buf(), lines, false).await.unwrap().into_inner().collect().await;
        let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.unwrap().bytes.to_vec()).collect();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn the_last_lines_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        for (lines, expected) in [
            (None, "one\ntwo\nthree\n"),
            (Some(0), ""),
            (Some(1), "three\n"),
            (Some(2), "two\nthree\n"),
            (Some(9), "one\ntwo\nthree\n"),
        ] {
            assert_eq!(text(&path, lines).await, expected, "{lines:?}");
        }
        let many: String = (0..30_000).map(|n| format!("line {n}\n")).collect();
        std::fs::write(&path, &many).unwrap();
        assert!(text(&path, Some(20_000)).await.starts_with("line 10000\n"));
        std::fs::write(&path, "no newline").unwrap();
        assert_eq!(text(&path, Some(1)).await, "no newline");
    }

    #[tokio::test]
    async fn a_followed_log_grows_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "old\n").unwrap();
        let mut log = stream(path.clone(), Some(0), true).await.unwrap().into_inner();
        let old = dir.path().join("1.log");
        std::fs::rename(&path, old).unwrap();
        std::fs::write(&path, "new\n").unwrap();
        let part = tokio::time::timeout(Duration::from_secs(10), log.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(&part.bytes[..], b"new\n");
        let missing = stream(dir.path().join("none"), None, false).await.err().unwrap();
        assert_eq!(missing.code(), tonic::Code::NotFound);
    }
    #[tokio::test]
    async fn container_logs_do_not_follow_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (path, secret) = (base.join("0.log"), base.join("secret"));
        std::fs::write(&secret, "private key\n").unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(stream(path.clone(), None, false).await.is_err(), "a link in the place of a log was read");
        // Nor when the link comes while the log is followed.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        let mut log = stream(path.clone(), None, true).await.unwrap().into_inner();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let part = tokio::time::timeout(LOOK * 4, log.next()).await;
        assert!(part.is_err(), "{:?}", part.unwrap().unwrap().unwrap().bytes);
    }
}
