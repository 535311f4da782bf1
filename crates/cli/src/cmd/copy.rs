//! `copy`: files and directories out of a machine.

use std::io::{self, Read, Write as _, stdout};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ichor_client::sort;
use ichor_wire::common::Data;
use ichor_wire::machine::CopyRequest;
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::explain;
use crate::failure::{Context, Failure};
use crate::parse::Call;
use crate::session::{Session, block_on};
use crate::table::{Args, Command, Complete, Group};

/// Chunks on their way to the unpacking thread; a chunk has 1 KiB as a rule, so this is small.
const CHUNKS: usize = 256;

/// The command.
pub static COPY: Command = Command {
    name: "copy",
    aliases: &["cp"],
    group: Group::Machines,
    about: "Copy a file or directory out of a machine",
    long: "Copies a path of the machine as an archive. `-` writes the gzip-compressed tar archive to standard\n\
           output; a directory gets its contents, without owners.",
    examples: &["copy /etc ./etc", "copy /system/state - > state.tar.gz"],
    args: Args::between("<src-path> -|<local-path>", 2, 2).complete(&[Complete::Nothing, Complete::File]),
    run: Some(run),
    ..Command::EMPTY
};

fn run(call: &Call) -> Result<(), Failure> {
    let request = CopyRequest { root_path: call.arg(0).to_owned() };
    let (connection, target) = (call.connection(), call.arg(1));
    block_on(async {
        let session = Session::open(&connection).await?;
        let client = session.only()?;
        let stream = client.machine().copy(request).await;
        let stream = stream.map_err(|status| explain::status("error copying", &status))?.into_inner();
        match target {
            "-" => to_stdout(stream, &session.label).await,
            directory => to_directory(stream, &session.label, Path::new(directory)).await,
        }
    })
}

async fn chunk(stream: &mut Streaming<Data>, label: &str) -> Result<Option<Bytes>, Failure> {
    let doing = "error copying";
    let Some(message) = stream.message().await.map_err(|status| explain::status(doing, &status))? else {
        return Ok(None);
    };
    let (_, data) =
        sort(message, label).map_err(|error| explain::nodes(doing, std::slice::from_ref(&error)))?;
    Ok(Some(data.bytes))
}

async fn to_stdout(mut stream: Streaming<Data>, label: &str) -> Result<(), Failure> {
    let mut out = stdout();
    while let Some(bytes) = chunk(&mut stream, label).await? {
        out.write_all(&bytes)?;
    }
    out.flush()?;
    Ok(())
}

async fn to_directory(mut stream: Streaming<Data>, label: &str, directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).context(format!("create {}", directory.display()))?;
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let target = directory.to_owned();
    let unpacking =
        tokio::task::spawn_blocking(move || unpack(Chunks { receiver, rest: Bytes::new() }, &target));
    let mut received = Ok(());
    loop {
        match chunk(&mut stream, label).await {
            Ok(Some(bytes)) => {
                // The other side gives up only with an error of its own, told below.
                if sender.send(bytes).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(failure) => {
                received = Err(failure);
                break;
            }
        }
    }
    drop(sender);
    let unpacked = unpacking.await.map_err(|_| Failure::new("unpack the archive: the thread ended early"))?;
    received?;
    unpacked.context(format!("unpack into {}", directory.display()))
}

fn unpack(chunks: impl Read, directory: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(chunks));
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    archive.set_unpack_xattrs(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path: PathBuf = entry.path()?.into_owned();
        let unpacked = entry
            .unpack_in(directory)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        if !unpacked {
            // The archive names a place outside of the directory.
            return Err(io::Error::other(format!("{} is outside of the directory", path.display())));
        }
    }
    Ok(())
}

/// Chunks as a reader.
struct Chunks {
    receiver: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let count = out.len().min(self.rest.len());
        out[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(names: &[&str]) -> Vec<u8> {
        let mut builder =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(5);
            header.set_mode(0o644);
            let bytes = name.as_bytes();
            header.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
            header.set_cksum();
            builder.append(&header, &b"hello"[..]).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn files_arrive_below_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        unpack(archive(&["a/b", "c"]).as_slice(), directory.path()).unwrap();
        assert_eq!(std::fs::read(directory.path().join("a/b")).unwrap(), b"hello");
    }

    #[test]
    fn an_archive_cannot_write_outside() {
        let directory = tempfile::tempdir().unwrap();
        let error = unpack(archive(&["../escaped"]).as_slice(), directory.path()).unwrap_err();
        assert_eq!(error.to_string(), "../escaped is outside of the directory");
        assert!(!directory.path().parent().unwrap().join("escaped").exists());
    }
}
