//! The installer as a child of init: what it is started with, what it says, how it ended.
//!
//! It comes from installation media, where it is this very program, or from a container image. Whatever touches the system
//! disk, also the slots of the boot loader, is done by it: it mounts what it needs where nobody else sees it.

pub(crate) mod candidate;
pub(crate) mod facts;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tracing::info;

use ichor_containerd::{Client, SYSTEM, reference};
use ichor_image::build::INSTALLER_LABEL;
use ichor_installer::artifacts::Place;

use crate::images::complete;
use crate::services::{ContainerMount, ContainerSpec, ExitKind, ProcessPort, ProcessSpec};

/// The installer that `gen config` and `upgrade` name unless told otherwise.
const DEFAULT_REPOSITORY: &str = "ghcr.io/siderolabs/installer";
/// Under which a root of an installer is kept, as with the original.
pub(crate) const UPGRADE: &str = "upgrade";
/// Ends a program that does not end by itself.
const SIGKILL: i32 = 9;
/// A program that was killed is gone after this.
const KILLED_MAX: Duration = Duration::from_secs(10);
/// Lines that are kept.
const LINES_MAX: usize = 64;
/// Bytes of a line.
const LINE_MAX: usize = 4096;

/// Where an installer comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The media that this machine was started from.
    Media,
    /// A container image, by its full name.
    Image(String),
}

/// Which installer an image name means. The default one means that of the media, where there are any: it must not replace
/// this system by another.
pub(crate) fn source(name: &str, has_media: bool) -> Result<Source, String> {
    let named = match name {
        "" => DEFAULT_REPOSITORY,
        name => name,
    };
    let image = reference::normalize(named)
        .ok_or_else(|| format!("error validating installer image {name:?}: invalid reference format"))?;
    Ok(match has_media && is_default(&image) {
        true => Source::Media,
        false => Source::Image(image),
    })
}

pub(crate) fn is_default(image: &str) -> bool {
    image.strip_prefix(DEFAULT_REPOSITORY).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@']))
}

/// Whether installation media of ours are attached. Looks at all disks.
pub(crate) async fn has_media() -> bool {
    let find = || match ichor_image::Arch::parse(crate::version::ARCHITECTURE) {
        Some(arch) => matches!(Place::find(Path::new("/"), None, arch), Ok(Place::Media(_))),
        None => false,
    };
    tokio::task::spawn_blocking(find).await.unwrap_or(false)
}

/// Starts installers.
#[derive(Clone)]
pub(crate) struct Installer {
    port: Arc<dyn ProcessPort>,
    program: String,
    folder: PathBuf,
    containerd: PathBuf,
}

impl Installer {
    /// Installers that init starts. `run` is a directory of the machine's own memory, for the configuration.
    pub(crate) fn new(port: Arc<dyn ProcessPort>, run: &Path, containerd: &Path) -> Self {
        let program = std::env::current_exe()
            .map_or_else(|_| "/usr/bin/ichor".to_owned(), |path| path.to_string_lossy().into_owned());
        Self { port, program, folder: run.join("installer"), containerd: containerd.to_owned() }
    }

    /// This program as the installer.
    pub(crate) fn own(&self, args: Vec<String>) -> ProcessSpec {
        let args = ["ichor", "installer"].map(str::to_owned).into_iter().chain(args).collect();
        ProcessSpec { path: self.program.clone(), args, privileged: true, ..ProcessSpec::default() }
    }

    /// Pulls an image and checks that it is an installer of ours, unless that is not asked for.
    pub(crate) async fn pull(&self, image: &str, force: bool) -> Result<(), String> {
        let client = Client::new(&self.containerd);
        let root = client.root(SYSTEM, image, UPGRADE).await;
        let root =
            root.map_err(|status| format!("error pulling installer image {image:?}: {}", status.message()))?;
        match root.labels.contains_key(INSTALLER_LABEL) || force {
            true => Ok(()),
            false => Err(format!(
                "{image} is not an installer of this system: it has no label {INSTALLER_LABEL} and would replace it by another \
                 one; name another image, or use --force to do so"
            )),
        }
    }

    /// The installer of an image in its root, with what of the machine it has to see.
    pub(crate) async fn contained(&self, image: &str, args: Vec<String>) -> Result<ProcessSpec, String> {
        let client = Client::new(&self.containerd);
        let root = client.root(SYSTEM, image, UPGRADE).await;
        let root =
            root.map_err(|status| format!("error pulling installer image {image:?}: {}", status.message()))?;
        let mount = |source: &str, read_only, shared| ContainerMount {
            source: source.to_owned(),
            target: source.to_owned(),
            read_only,
            shared,
            separate: false,
        };
        let folder = self.folder.to_string_lossy().into_owned();
        let args = std::iter::once("installer".to_owned()).chain(args).collect();
        let process = ProcessSpec {
            path: "/bin/installer".to_owned(),
            args,
            privileged: true,
            ..ProcessSpec::default()
        };
        let mounts = vec![mount("/dev", false, true), mount(&folder, true, false)];
        complete(ContainerSpec { image: image.to_owned(), process, mounts }, root)
    }

    /// Puts the configuration where an installer reads it; gone when the guard is.
    pub(crate) fn configuration(&self, bytes: &[u8]) -> Result<ConfigurationFile, String> {
        let path = self.folder.join("config.yaml");
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            ichor_sys::file::replace(&path, bytes, 0o600)
        };
        write().map_err(|error| format!("write {}: {error}", path.display()))?;
        Ok(ConfigurationFile(path))
    }

    /// Runs an installer to its end. Its lines go to the log; the last ones come back.
    pub(crate) async fn run(&self, spec: &ProcessSpec, most: Duration) -> Result<Vec<String>, String> {
        let started = self.port.spawn("installer", spec).await;
        let mut child = started.map_err(|error| format!("start the installer: {error}"))?;
        let reading = child.output.take().map(|output| tokio::spawn(lines(output)));
        let exit = match tokio::time::timeout(most, &mut child.exit).await {
            Ok(exit) => exit.ok(),
            Err(_) => {
                self.port.signal(child.handle, SIGKILL);
                let _ = tokio::time::timeout(KILLED_MAX, &mut child.exit).await;
                None
            }
        };
        self.port.release(child.handle);
        let said = match reading {
            Some(reading) => {
                tokio::time::timeout(KILLED_MAX, reading).await.ok().and_then(Result::ok).unwrap_or_default()
            }
            None => Vec::new(),
        };
        verdict(exit, said, most)
    }
}

/// A configuration on its way to an installer.
pub(crate) struct ConfigurationFile(PathBuf);

impl ConfigurationFile {
    /// The flag that names it.
    pub(crate) fn flag(&self) -> String {
        format!("--machine-config={}", self.0.display())
    }
}

impl Drop for ConfigurationFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What the last line of an operation says.
pub(crate) fn result(lines: &[String]) -> Option<&str> {
    lines.iter().rev().find_map(|line| line.strip_prefix(ichor_installer::RESULT))
}

fn verdict(exit: Option<ExitKind>, lines: Vec<String>, most: Duration) -> Result<Vec<String>, String> {
    let words = || {
        let told = lines.iter().rev().find_map(|line| line.strip_prefix("error: "));
        told.or(lines.last().map(String::as_str)).unwrap_or("it said nothing").to_owned()
    };
    match exit {
        Some(ExitKind::Code(0)) => Ok(lines),
        Some(ExitKind::Code(_)) => Err(words()),
        Some(exit) => Err(format!("the installer ended by {exit}: {}", words())),
        None => Err(format!("the installer did not end within {} s: {}", most.as_secs(), words())),
    }
}

/// Logs every line and keeps the last ones.
async fn lines(output: OwnedFd) -> Vec<String> {
    let Ok(pipe) = pipe::Receiver::from_owned_fd(output) else { return Vec::new() };
    let (mut kept, mut rest, mut buffer) = (VecDeque::new(), Vec::new(), vec![0; LINE_MAX]);
    let mut take = |line: &[u8]| {
        let line = String::from_utf8_lossy(line).trim_end().to_owned();
        if !line.starts_with(ichor_installer::RESULT) {
            info!("installer: {line}");
        }
        if kept.len() == LINES_MAX {
            kept.pop_front();
        }
        kept.push_back(line);
    };
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => rest.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => break,
        }
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            take(&rest[..end]);
            rest.drain(..=end);
        }
        // A line without an end is cut, not gathered for ever.
        if rest.len() > LINE_MAX {
            take(&rest);
            rest.clear();
        }
    }
    if !rest.is_empty() {
        take(&rest);
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_means_the_media_and_another_one_does_not() {
        let image = |name: &str| Source::Image(name.to_owned());
        for (name, has_media, expected) in [
            ("", true, Source::Media),
            ("ghcr.io/siderolabs/installer:v1.12.1", true, Source::Media),
            ("ghcr.io/siderolabs/installer:v1.12.1", false, image("ghcr.io/siderolabs/installer:v1.12.1")),
            (
                "ghcr.io/siderolabs/installer-secureboot:v1",
                true,
                image("ghcr.io/siderolabs/installer-secureboot:v1"),
            ),
            ("registry.local/ichor/installer:v2", true, image("registry.local/ichor/installer:v2")),
        ] {
            assert_eq!(source(name, has_media), Ok(expected), "{name}");
        }
        assert!(source("not an image!", true).unwrap_err().contains("invalid reference format"));
    }

    #[test]
    fn a_failure_is_told_in_the_words_of_the_installer() {
        let minute = Duration::from_secs(60);
        let lines = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let failed = verdict(Some(ExitKind::Code(1)), lines(&["a", "error: no room"]), minute);
        assert_eq!(failed, Err("no room".to_owned()));
        let killed = verdict(None, lines(&["writing"]), minute).unwrap_err();
        assert_eq!(killed, "the installer did not end within 60 s: writing");
        let done = verdict(Some(ExitKind::Code(0)), lines(&["x", "result: judge"]), minute).unwrap();
        assert_eq!(result(&done), Some("judge"));
        assert_eq!(result(&[]), None);
    }

    #[tokio::test]
    async fn lines_are_bounded_in_number_and_length() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reading = tokio::spawn(lines(reader.into()));
        tokio::task::spawn_blocking(move || {
            use std::io::Write;
            for number in 0..200 {
                writeln!(writer, "line {number}").unwrap();
            }
            writer.write_all(&[b'x'; 3 * LINE_MAX]).unwrap();
        })
        .await
        .unwrap();
        let kept = reading.await.unwrap();
        assert!(kept.len() <= LINES_MAX && kept.iter().all(|line| line.len() <= 2 * LINE_MAX));
        assert!(kept.iter().any(|line| line == "line 199"));
    }
}
