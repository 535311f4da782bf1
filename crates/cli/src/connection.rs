//! The connection flags of a command, resolved once.

use crate::parse::Call;

/// Whom a command talks to, as its flags say.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// `--nodes`.
    pub nodes: Vec<String>,
    /// `--endpoints`.
    pub endpoints: Vec<String>,
    /// `--talosconfig`.
    pub talosconfig: Option<String>,
    /// `--context`.
    pub context: Option<String>,
    /// `--cluster`.
    pub cluster: Option<String>,
    /// The command's name below `ichorctl`, for errors.
    pub command: String,
}

impl Connection {
    /// Reads the flags of a call; those that the command does not have are empty.
    pub fn of(call: &Call) -> Self {
        let some = |name: &str| call.some_text(name).map(str::to_owned);
        let names = call.path.iter().skip(1).map(|command| command.name);
        Self {
            nodes: call.list("nodes"),
            endpoints: call.list("endpoints"),
            talosconfig: some("talosconfig"),
            context: some("context"),
            cluster: some("cluster"),
            command: names.collect::<Vec<_>>().join(" "),
        }
    }
}
