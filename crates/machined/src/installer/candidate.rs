//! Asks a system that is to be installed what it would run with this machine's configuration, before anything is written.
//!
//! The candidate is a program of somebody else's making until it is installed: it gets the configuration to read and a pipe
//! to print to, no network, no devices, no capabilities, and a bounded time. What it prints is compared with what this
//! system renders.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::unix::pipe;

use ichor_containerd::{Client, SYSTEM};
use ichor_installer::options::RENDERS;
use ichor_render::difference::{Difference, cut, differences};
use ichor_render::stream::Printed;
use ichor_render::{Facts, Rendering};
use ichor_sys::cgroup::Limits;

use super::{Installer, KILLED_MAX, SIGKILL, Source, UPGRADE};
use crate::daemons::{CANDIDATE_UID, own_group};
use crate::services::{ContainerMount, ExitKind, ProcessPort, ProcessSpec, Root};

const MIB: usize = 1 << 20;
/// Rendering takes milliseconds; a machine under load is still given its time.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// A rendering has a bound of half of it.
const OUTPUT_MAX: usize = 2 * ichor_render::stream::TOTAL_MAX + MIB;
/// Characters of a reason.
const REASON_MAX: usize = 1000;
/// Notes that are passed on.
const NOTES_MAX: usize = 20;
const GROUP: &str = "system/candidate";
/// A configuration of the largest size takes a fraction of it.
const MEMORY_MAX: u64 = 512 << 20;
/// Threads.
const TASKS_MAX: u64 = 64;
/// What the help of a program contains that can check a configuration.
const CHECKS: &str = "installer check ";

/// What is known of a candidate that may be installed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Assessment {
    /// What it says, and what could not be found out.
    pub(crate) notes: Vec<String>,
    /// What it would run other than this system; none when that is not known.
    pub(crate) differences: Option<Vec<Difference>>,
}

/// The configuration of this machine and what it knows of itself, where a candidate reads them; gone when this is.
pub(crate) struct Questions {
    folder: PathBuf,
    platform: String,
}

impl Questions {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn arguments(&self, renders: bool) -> Vec<String> {
        let mut arguments = vec![
            "check".to_owned(),
            format!("--platform={}", self.platform),
            format!("--machine-config={}", self.path(CONFIG).display()),
        ];
        if renders {
            arguments.extend(["--render".to_owned(), format!("--facts={}", self.path(FACTS).display())]);
        }
        arguments
    }
}

const CONFIG: &str = "config.yaml";
const FACTS: &str = "facts.json";

impl Drop for Questions {
    fn drop(&mut self) {
        for name in [CONFIG, FACTS] {
            let _ = std::fs::remove_file(self.path(name));
        }
    }
}

/// A program that is asked, however it is started.
pub(crate) struct Candidate<'a> {
    port: &'a dyn ProcessPort,
    program: Box<dyn Fn(Vec<String>) -> ProcessSpec + Send + Sync>,
    most: Duration,
}

impl Installer {
    /// Puts the configuration and the facts where only a candidate reads them.
    pub(crate) fn questions(&self, config: &[u8], facts: &Facts) -> Result<Questions, String> {
        let folder = self.candidate_folder();
        let questions = Questions { folder: folder.clone(), platform: facts.platform.clone() };
        let write = |name: &str, bytes: &[u8]| {
            let path = questions.path(name);
            ichor_sys::file::replace_if_changed(&path, bytes, 0o400, Some(CANDIDATE_UID))
                .map_err(|error| format!("write {}: {error}", path.display()))
        };
        let make = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            // Whatever the mask of this process says: what is in it is the candidate's to read.
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))
        };
        make().map_err(|error| format!("make {}: {error}", folder.display()))?;
        write(CONFIG, config)?;
        write(FACTS, facts.to_json().as_bytes())?;
        Ok(questions)
    }

    fn candidate_folder(&self) -> PathBuf {
        self.folder.join("candidate")
    }

    /// The candidate that a source means; of an image the root has to be there.
    pub(crate) async fn candidate(&self, source: &Source) -> Result<Candidate<'_>, String> {
        let limits = Limits {
            memory_max: Some(MEMORY_MAX),
            swap_max: Some(0),
            pids_max: Some(TASKS_MAX),
            ..Limits::default()
        };
        own_group(GROUP, limits)().await?;
        let folder = self.candidate_folder();
        let program: Box<dyn Fn(Vec<String>) -> ProcessSpec + Send + Sync> = match source {
            Source::Media => {
                let program = self.program.clone();
                Box::new(move |args| own(&program, &folder, args))
            }
            Source::Image(image) => {
                let root = Client::new(&self.containerd).root(SYSTEM, image, UPGRADE).await;
                let root = root.map_err(|status| {
                    format!("error pulling installer image {image:?}: {}", status.message())
                })?;
                Box::new(move |args| contained(&root.base, &root.options, &folder, args))
            }
        };
        Ok(Candidate { port: &*self.port, program, most: ANSWER_MAX })
    }
}

/// A process that can read, compute and print.
fn sealed(path: &str, args: Vec<String>) -> ProcessSpec {
    ProcessSpec {
        path: path.to_owned(),
        args,
        uid: CANDIDATE_UID,
        sealed: true,
        cgroup: Some(GROUP.to_owned()),
        oom_score_adj: 1000,
        ..ProcessSpec::default()
    }
}

/// This program, in a root of its own.
fn own(program: &str, folder: &Path, args: Vec<String>) -> ProcessSpec {
    let args = ["ichor", "installer"].map(str::to_owned).into_iter().chain(args).collect();
    ProcessSpec { view: vec![format!("r{}", folder.display())], ..sealed(program, args) }
}

/// The program of an image, in the root of the image: of the machine it sees nothing but the questions.
fn contained(base: &str, options: &str, folder: &Path, args: Vec<String>) -> ProcessSpec {
    let args = std::iter::once("installer".to_owned()).chain(args).collect();
    let folder = folder.to_string_lossy().into_owned();
    let questions = ContainerMount {
        source: folder.clone(),
        target: folder,
        read_only: true,
        ..ContainerMount::default()
    };
    let root = Root { base: base.to_owned(), options: format!("ro:{options}"), mounts: vec![questions] };
    ProcessSpec { root: Some(root), ..sealed("/bin/installer", args) }
}

impl Candidate<'_> {
    /// What the program says of itself.
    pub(crate) async fn help(&self) -> Result<String, String> {
        self.ask(vec!["--help".to_owned()]).await
    }

    /// Has the configuration checked and, by a program that can, rendered. `help` is what it says of itself; `own` renders
    /// with this system.
    ///
    /// # Errors
    /// Why the program cannot run with the configuration, or gives no answer that could be used.
    pub(crate) async fn assess(
        &self,
        help: &str,
        questions: &Questions,
        own: impl FnOnce() -> Rendering + Send + 'static,
    ) -> Result<Assessment, String> {
        if !help.contains(CHECKS) {
            let note = "it checks no configuration; whether it can run with this one is not known".to_owned();
            return Ok(Assessment { notes: vec![note], differences: None });
        }
        let renders = help.contains(RENDERS);
        let text = self.ask(questions.arguments(renders)).await?;
        let mut found = Assessment { notes: notes(&text), differences: None };
        if !renders {
            found.notes.push("it renders no configuration; what would differ is not known".to_owned());
            return Ok(found);
        }
        match Rendering::find(&text).map_err(|error| cut(&error.to_string(), REASON_MAX))? {
            Printed::Nothing => {
                found.notes.push("it did not say what it would run; what would differ is not known".to_owned());
            }
            Printed::OtherForm(form) => found.notes.push(format!(
                "it renders in the form {:?}, which this version does not read; what would differ is not known",
                cut(&form, NOTES_MAX)
            )),
            Printed::Rendering(candidate) => match tokio::task::spawn_blocking(own).await {
                // The own one on the way that the other came: what is the same is then written the same.
                Ok(own) => match Rendering::find(&own.print()) {
                    Ok(Printed::Rendering(own)) => found.differences = Some(differences(&own, &candidate)),
                    Ok(Printed::Nothing | Printed::OtherForm(_)) | Err(_) => found.notes.push(OWN.to_owned()),
                },
                Err(_) => found.notes.push(OWN.to_owned()),
            },
        }
        Ok(found)
    }

    /// Runs the program to its end. All that it printed.
    async fn ask(&self, args: Vec<String>) -> Result<String, String> {
        let spec = (self.program)(args);
        let started = self.port.spawn("candidate", &spec).await;
        let mut child = started.map_err(|error| format!("start {}: {error}", spec.path))?;
        let output = child.output.take().ok_or("it has no output")?;
        let whole = async {
            let read = read_all(output).await;
            // One that prints too much would wait for its reader for ever.
            match read {
                Read::All(_) => (read, (&mut child.exit).await.ok()),
                Read::TooMuch(_) => (read, None),
            }
        };
        let done = tokio::time::timeout(self.most, whole).await;
        if !matches!(done, Ok((Read::All(_), Some(_)))) {
            self.port.signal(child.handle, SIGKILL);
            let _ = tokio::time::timeout(KILLED_MAX, &mut child.exit).await;
        }
        self.port.release(child.handle);
        match done {
            Ok((Read::All(text), Some(ExitKind::Code(0)))) => Ok(text),
            Ok((Read::All(text), Some(ExitKind::Code(_)))) => Err(reason(&text)),
            Ok((Read::All(text), Some(exit))) => Err(format!("it ended by {exit}: {}", reason(&text))),
            Ok((Read::All(_), None)) => Err("it was lost: init does not know how it ended".to_owned()),
            Ok((Read::TooMuch(text), _)) => Err(format!(
                "it prints more than {} bytes, beginning with {:?}",
                OUTPUT_MAX,
                first_line(&text)
            )),
            Err(_) => Err(format!("it did not answer within {} s", self.most.as_secs())),
        }
    }
}

/// Said when this system itself cannot render.
const OWN: &str = "this system cannot render its own configuration; what would differ is not known";

enum Read {
    All(String),
    TooMuch(String),
}

/// Reads to the end, or until it is too much.
async fn read_all(output: OwnedFd) -> Read {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let Ok(pipe) = pipe::Receiver::from_owned_fd(output) else { return Read::All(String::new()) };
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(len) if bytes.len() + len > OUTPUT_MAX => return Read::TooMuch(text(bytes)),
            Ok(len) => bytes.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    Read::All(text(bytes))
}

fn first_line(text: &str) -> String {
    cut(text.lines().next().unwrap_or_default(), 80)
}

/// What a program says that failed: its last error, the place and message of a panic, or its last line.
fn reason(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let told = || {
        let at = lines.iter().rposition(|line| line.starts_with("error: "))?;
        // Older versions print errors of several lines.
        let words = lines[at..].iter().flat_map(|line| line.split_whitespace()).skip(1);
        Some(words.collect::<Vec<_>>().join(" "))
    };
    let panicked = || {
        let at = lines.iter().position(|line| line.contains(" panicked at "))?;
        Some(lines[at..].iter().take(2).copied().collect::<Vec<_>>().join(" "))
    };
    let last = || lines.last().map(|line| (*line).to_owned());
    cut(&told().or_else(panicked).or_else(last).unwrap_or_else(|| "it said nothing".to_owned()), REASON_MAX)
}

/// The notes of a program, apart from its rendering.
fn notes(text: &str) -> Vec<String> {
    let before = text.lines().take_while(|line| !line.starts_with(ichor_render::stream::BEGIN));
    let notes = before.filter_map(|line| line.strip_prefix("note: "));
    notes.take(NOTES_MAX).map(|note| cut(note, REASON_MAX)).collect()
}

#[cfg(test)]
mod tests;
