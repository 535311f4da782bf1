//! The terminal: colours where they are welcome, warnings, progress of what takes long.

use std::future::Future;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::pin::pin;
use std::time::{Duration, Instant};

/// A step is not worth a word before it took this long.
const PATIENCE: Duration = Duration::from_secs(1);

const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const RESET: &str = "\x1b[0m";

/// True when standard error is a terminal that may be drawn on.
pub fn is_live() -> bool {
    stderr().is_terminal() && std::env::var_os("CI").is_none()
}

fn coloured(colour: &str, text: &str) -> String {
    let welcome = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    if welcome { format!("{colour}{text}{RESET}") } else { text.to_owned() }
}

/// Prints `WARNING: …` on standard error.
pub fn warn(text: &str) {
    eprintln!("{}", coloured(YELLOW, &format!("WARNING: {}", text.trim_end())));
}

/// Prints a block of errors in red on standard error.
pub fn red(text: &str) {
    eprintln!("{}", coloured(RED, text.trim_end()));
}

/// Waits for `work`; on a terminal says what is waited for once it takes longer than a second.
pub async fn patient<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if !is_live() {
        return work.await;
    }
    let started = Instant::now();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PATIENCE, PATIENCE);
    let mut drawn = false;
    loop {
        tokio::select! {
            biased;
            result = &mut work => {
                if drawn {
                    eprint!("\r\x1b[K");
                }
                return result;
            }
            _ = ticks.tick() => {
                eprint!("\r\x1b[K{what} ({}s)", started.elapsed().as_secs());
                let _ = stderr().flush();
                drawn = true;
            }
        }
    }
}

/// Progress of named steps on standard error.
///
/// On a terminal the current step is redrawn in place, with its time once it takes longer than a second;
/// elsewhere each step is one line. Finished steps stay as lines either way.
pub struct Progress {
    live: bool,
    step: String,
    since: Instant,
    drawn: bool,
    detail: String,
    /// Lines below the step.
    below: Vec<String>,
}

impl Progress {
    /// Progress without a step yet.
    pub fn new() -> Self {
        let (step, detail, below) = (String::new(), String::new(), Vec::new());
        Self { live: is_live(), step, since: Instant::now(), drawn: false, detail, below }
    }

    /// Whether the current step is redrawn in place.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Begins a step; the one before is done.
    pub fn step(&mut self, text: impl Into<String>) {
        self.done();
        self.step = text.into();
        self.since = Instant::now();
        if !self.live {
            eprintln!("{}", self.step);
            return;
        }
        eprint!("\r\x1b[J  {}", self.step);
        let _ = stderr().flush();
        self.drawn = true;
    }

    /// Says more about the running step; call it often, it draws when it is time to.
    pub fn tick(&mut self, detail: &str) {
        if !self.live || self.step.is_empty() || self.since.elapsed() < PATIENCE {
            return;
        }
        detail.clone_into(&mut self.detail);
        self.draw();
    }

    /// Shows these lines below the step, until they are replaced or the progress ends.
    pub fn below(&mut self, lines: Vec<String>) {
        self.below = lines;
        if self.live && !self.step.is_empty() && self.since.elapsed() >= PATIENCE {
            self.draw();
        }
    }

    fn draw(&mut self) {
        let columns = rustix::termios::tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
        let gap = if self.detail.is_empty() { "" } else { ": " };
        let head = format!("  {} ({}s){gap}{}", self.step, self.since.elapsed().as_secs(), self.detail);
        eprint!("{}", drawing(&head, &self.below, columns));
        let _ = stderr().flush();
        self.drawn = true;
    }

    /// The running step is done.
    pub fn done(&mut self) {
        if self.step.is_empty() {
            return;
        }
        if self.live {
            let seconds = self.since.elapsed().as_secs_f64();
            let took =
                if self.since.elapsed() < PATIENCE { String::new() } else { format!(" ({seconds:.1}s)") };
            eprintln!("\r\x1b[J{} {}{took}", coloured(GREEN, "✓"), self.step);
        }
        self.step.clear();
        self.detail.clear();
        self.drawn = false;
    }

    /// The running step failed; its line is left as it is.
    pub fn failed(&mut self) {
        if self.live && !self.step.is_empty() {
            eprintln!("\r\x1b[J{} {}", coloured(RED, "✗"), self.step);
            // What the machines waited for last says more than the step.
            self.below.iter().for_each(|line| eprintln!("{line}"));
        }
        self.step.clear();
        self.detail.clear();
        self.drawn = false;
    }
}

/// What draws a line and those below it, and leaves the cursor on the first. Lines are cut at the last column: one that
/// wraps would move all that is drawn after it.
fn drawing(head: &str, below: &[String], columns: usize) -> String {
    let cut = |line: &str| match columns {
        0 => line.to_owned(),
        columns => line.chars().take(columns - 1).collect(),
    };
    let mut text = format!("\r\x1b[J{}", cut(head));
    for line in below {
        text.push('\n');
        text.push_str(&cut(line));
    }
    if !below.is_empty() {
        text.push_str(&format!("\x1b[{}A\r", below.len()));
    }
    text
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            eprintln!("\x1b[J");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_below_a_step_are_cut_to_the_terminal_and_the_cursor_returns() {
        let below = ["a: booting".to_owned(), "b: running".to_owned()];
        assert_eq!(drawing("waits", &below, 8), "\r\x1b[Jwaits\na: boot\nb: runn\x1b[2A\r");
        assert_eq!(drawing("waits", &[], 0), "\r\x1b[Jwaits");
    }
}
