//! Programs that run to their end: tools for filesystems. They are started by init, like everything else.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ichor_ctl_block::volumes::ProgramPort;
use tokio::net::unix::pipe;

use crate::services::{ExitKind, ProcessPort, ProcessSpec};

/// Ends a program that does not end by itself.
const SIGKILL: i32 = 9;
/// Where programs are looked for.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Bytes of a program's last words.
const WORDS_MAX: usize = 1024;
/// What is read from it at once.
const READ_LEN: usize = 4096;
/// A program that was killed is gone after this.
const KILLED_MAX: Duration = Duration::from_secs(10);

/// Starts programs through init.
#[derive(Clone)]
pub(crate) struct Programs(pub(crate) Arc<dyn ProcessPort>);

impl ProgramPort for Programs {
    async fn run(&self, program: &str, args: Vec<String>, most: Duration) -> Result<(), String> {
        let path = find(program, &FOLDERS).ok_or_else(|| format!("{program} is not part of this image"))?;
        let args = std::iter::once(program.to_owned()).chain(args).collect();
        let spec = ProcessSpec { path, args, privileged: true, ..ProcessSpec::default() };
        let mut child =
            self.0.spawn(program, &spec).await.map_err(|error| format!("start {program}: {error}"))?;
        // A program whose output nobody reads would wait for ever.
        let words = child.output.take().map(|output| tokio::spawn(last_words(output)));
        let exit = match tokio::time::timeout(most, &mut child.exit).await {
            Ok(exit) => exit.ok(),
            Err(_) => {
                self.0.signal(child.handle, SIGKILL);
                let _ = tokio::time::timeout(KILLED_MAX, &mut child.exit).await;
                None
            }
        };
        self.0.release(child.handle);
        let words = match words {
            Some(reader) => {
                tokio::time::timeout(KILLED_MAX, reader).await.ok().and_then(Result::ok).unwrap_or_default()
            }
            None => String::new(),
        };
        verdict(program, exit, words.trim(), most)
    }
}

/// The first folder that has the program.
fn find(program: &str, folders: &[&str]) -> Option<String> {
    folders.iter().map(|folder| format!("{folder}/{program}")).find(|path| Path::new(path).exists())
}

fn verdict(program: &str, exit: Option<ExitKind>, words: &str, most: Duration) -> Result<(), String> {
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    match exit {
        Some(ExitKind::Code(0)) => Ok(()),
        Some(exit) => Err(format!("{program}: {exit}{words}")),
        None => Err(format!("{program} did not end within {} s{words}", most.as_secs())),
    }
}

/// Reads to the end and keeps the last of it.
async fn last_words(output: OwnedFd) -> String {
    let Ok(pipe) = pipe::Receiver::from_owned_fd(output) else { return String::new() };
    let (mut kept, mut buffer) = (Vec::new(), vec![0; READ_LEN]);
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                kept.extend_from_slice(&buffer[..len]);
                kept.drain(..kept.len().saturating_sub(WORDS_MAX));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_quoted() {
        let minute = Duration::from_secs(60);
        assert_eq!(verdict("mkfs.xfs", Some(ExitKind::Code(0)), "done", minute), Ok(()));
        let failed = verdict("mkfs.xfs", Some(ExitKind::Code(1)), "no space", minute).unwrap_err();
        assert_eq!(failed, "mkfs.xfs: exit status 1: no space");
        assert_eq!(verdict("mkfs.xfs", None, "", minute).unwrap_err(), "mkfs.xfs did not end within 60 s");
        assert_eq!(find("no-such-program", &FOLDERS), None);
    }

    #[tokio::test]
    async fn only_the_end_of_a_long_output_is_kept() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reading = tokio::spawn(last_words(reader.into()));
        tokio::task::spawn_blocking(move || {
            use std::io::Write;
            writer.write_all(&[b'x'; 50_000]).and_then(|()| writer.write_all(b"the end")).unwrap();
        })
        .await
        .unwrap();
        let words = reading.await.unwrap();
        assert!(words.len() == WORDS_MAX && words.ends_with("xthe end"));
    }
}
