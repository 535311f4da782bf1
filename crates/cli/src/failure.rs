//! The error of a command: one sentence for the person at the terminal, and the way out.

use std::fmt;
use std::io;

/// Why a command did not end with exit status 0.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong; empty when it has been printed already.
    text: String,
    /// What to do about it, one line each.
    hints: Vec<String>,
    /// The sentence already says what to do.
    whole: bool,
}

impl Failure {
    /// A failure with its sentence.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), hints: Vec::new(), whole: false }
    }

    /// A failure whose story has been told: exit status 1 and nothing more on the terminal.
    pub fn told() -> Self {
        Self::new("")
    }

    /// The same with a line that says what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same, complete as it is: no usage follows.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// The same with `context: ` in front.
    pub fn within(mut self, context: impl fmt::Display) -> Self {
        if !self.text.is_empty() {
            self.text = format!("{context}: {}", self.text);
        }
        self
    }

    /// True when there is nothing left to print.
    pub fn is_told(&self) -> bool {
        self.text.is_empty()
    }

    /// True when the usage of the command helps: the sentence is about how it was called.
    pub fn wants_usage(&self) -> bool {
        let about_the_call = ["arg(s)", "flag", "command"].iter().any(|word| self.text.contains(word));
        about_the_call && self.hints.is_empty() && !self.whole
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for hint in &self.hints {
            write!(f, "\n  {hint}")?;
        }
        Ok(())
    }
}

impl From<io::Error> for Failure {
    /// Only for writes to the terminal: a reader that went away is no news.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::told();
        }
        Self::new(format!("write output: {error}"))
    }
}

/// `error` with all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Turns an error into a [`Failure`] that says what was being done.
pub trait Context<T> {
    /// Prefixes `what: ` and adds the causes.
    fn context(self, what: impl fmt::Display) -> Result<T, Failure>;
    /// Adds the causes and no prefix.
    fn plain(self) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{what}: {}", chain(&error))))
    }

    fn plain(self) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(chain(&error)))
    }
}
