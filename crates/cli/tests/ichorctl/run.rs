//! Runs the program and keeps what it said.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No command of these tests takes longer.
const LIMIT: Duration = Duration::from_secs(30);

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Everything in one text, for golden tests.
    pub(crate) fn text(&self) -> String {
        let mut text = self.out.clone();
        if !self.err.is_empty() {
            text.push_str("--- stderr\n");
            text.push_str(&self.err);
        }
        if self.code != 0 {
            text.push_str(&format!("--- exit {}\n", self.code));
        }
        text
    }
}

/// Runs `ichorctl` in `directory`, which is also its home.
pub(crate) fn ichorctl(directory: &Path, words: &[&str]) -> Run {
    ichorctl_with(directory, words, &[])
}

/// The same with more environment.
pub(crate) fn ichorctl_with(directory: &Path, words: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ichorctl"))
        .args(words)
        .current_dir(directory)
        .env_clear()
        .env("HOME", directory)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let out = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("ichorctl {words:?} did not end: {}{}", out.join().unwrap(), err.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Run { code: status.code().unwrap_or(-1), out: out.join().unwrap(), err: err.join().unwrap() }
}
