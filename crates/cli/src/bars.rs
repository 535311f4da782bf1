//! Bars of progress on standard output, one for each thing that is worked on.

use std::io::{IsTerminal as _, stdout};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::{print, text};

/// Columns of a bar, its ends included.
const WIDTH: usize = 20;

/// All bars. On a terminal they are drawn again and again in place; elsewhere each is one line when it is full.
pub struct Bars {
    live: bool,
    drawn: usize,
    bars: Vec<Bar>,
}

struct Bar {
    source: String,
    started: Instant,
    total: usize,
    done: usize,
    state: String,
}

impl Bars {
    /// No bars yet.
    pub fn new() -> Self {
        let live = stdout().is_terminal() && std::env::var_os("CI").is_none();
        Self { live, drawn: 0, bars: Vec::new() }
    }

    /// Begins a bar of so many steps.
    pub fn begin(&mut self, source: &str, total: usize) {
        let (source, started) = (source.to_owned(), Instant::now());
        self.bars.push(Bar { source, started, total, done: 0, state: "initializing...".to_owned() });
    }

    /// A step of the newest bar is done.
    pub fn step(&mut self, state: String) -> Result<(), Failure> {
        let Some(bar) = self.bars.last_mut() else { return Ok(()) };
        (bar.done, bar.state) = (bar.total.min(bar.done + 1), state);
        if self.live {
            // Lines that are too long end at the edge, so that the count of them stays right.
            let lines: Vec<String> = self.bars.iter().map(|bar| format!("\x1b[2K{}\n", bar.line())).collect();
            let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            self.drawn = lines.len();
            return print(&format!("{up}\x1b[?7l{}\x1b[?7h", lines.concat()));
        }
        if bar.done == bar.total { print(&format!("{}\n", bar.line())) } else { Ok(()) }
    }
}

impl Default for Bars {
    fn default() -> Self {
        Self::new()
    }
}

impl Bar {
    fn line(&self) -> String {
        let took = Duration::from_secs(self.started.elapsed().as_secs());
        line(&text::duration(took), self.done, self.total, &self.source, &self.state)
    }
}

fn line(took: &str, done: usize, total: usize, source: &str, state: &str) -> String {
    let full = (WIDTH * done).checked_div(total).unwrap_or(WIDTH);
    let bar: String = (0..WIDTH)
        .map(|at| match at {
            0 => '[',
            at if at == WIDTH - 1 => ']',
            at if at + 1 == full => '>',
            at if at < full => '=',
            _ => '-',
        })
        .collect();
    let percent = (100 * done).checked_div(total).unwrap_or(100);
    format!("{took:>5} {bar} {percent:3}% {source}: {state}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_how_far_it_came() {
        for (done, expected) in [
            (0, "   3s [------------------]   0% 10.5.0.2: collect io"),
            (1, "   3s [>-----------------]  10% 10.5.0.2: collect io"),
            (5, "   3s [========>---------]  50% 10.5.0.2: collect io"),
            (9, "   3s [================>-]  90% 10.5.0.2: collect io"),
            (10, "   3s [==================] 100% 10.5.0.2: collect io"),
        ] {
            assert_eq!(line("3s", done, 10, "10.5.0.2", "collect io"), expected);
        }
    }
}
