//! Programs that tests start: the real components, and runs of `ichorctl` that are measured from outside.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::root;

/// Starts a program of `build/components`; what it says goes to `<name>.log` in `dir`.
///
/// The programs of Kubernetes are one file that looks at the name it is called with.
///
/// # Errors
/// When the components are not built, or the program does not start.
pub fn component(name: &str, dir: &Path, args: &[String]) -> Result<Child> {
    let file = if name.starts_with("kube") { "kube" } else { name };
    let path = root().join("build/components").join(file);
    let log = File::create(dir.join(format!("{name}.log")))?;
    Command::new(&path)
        .arg0(name)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {}; `make components` builds it", path.display()))
}

/// What a run took.
#[derive(Debug)]
pub struct Run {
    /// From start to end.
    pub millis: f64,
    /// Highest resident memory that was seen; 0 when the run ended before the first look.
    pub peak_kib: u64,
    /// What it printed, and its status.
    pub output: Output,
}

/// Runs a program to its end. With `watch` its memory is looked at all the time, which costs the time of a core.
pub fn measured(command: &mut Command, watch: bool) -> Result<Run> {
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut peak_kib = 0;
    let path = format!("/proc/{}/status", child.id());
    while watch && child.try_wait()?.is_none() {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0));
    }
    // What is printed is short; a program that fills a pipe would hang here and be seen by the limit of the suite.
    let (stdout, stderr) = (all_of(&mut out), all_of(&mut err));
    let status = child.wait()?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    Ok(Run { millis, peak_kib, output: Output { status, stdout, stderr } })
}

fn all_of(from: &mut Option<impl Read>) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(from) = from {
        let _ = from.read_to_end(&mut text);
    }
    text
}

/// The value in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
