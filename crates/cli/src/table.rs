//! The shape of a command: one static table holds every command, and parsing, help, completion and
//! the reference page are all read from it.

use crate::failure::Failure;
use crate::parse::Call;

/// What a command does when it is called.
pub type Run = fn(&Call) -> Result<(), Failure>;

/// One command or parent of commands.
pub struct Command {
    /// The name that help shows.
    pub name: &'static str,
    /// Other names that are accepted.
    pub aliases: &'static [&'static str],
    /// Which part of the root help lists it.
    pub group: Group,
    /// One line for lists of commands.
    pub about: &'static str,
    /// More words for the command's own help; empty when one line says it all.
    pub long: &'static str,
    /// Lines of example calls, without the program's name.
    pub examples: &'static [&'static str],
    /// What it takes besides flags.
    pub args: Args,
    /// Flags of this command alone.
    pub flags: &'static [Flag],
    /// Flags of this command and of everything below it.
    pub shared_flags: &'static [Flag],
    /// Commands below this one.
    pub subcommands: &'static [&'static Command],
    /// What it does; a parent without it prints its help.
    pub run: Option<Run>,
    /// Left out of help and completion.
    pub hidden: bool,
    /// Exit status of a failure; more than 1 where 1 is an answer.
    pub trouble: u8,
}

impl Command {
    /// A command with everything left out, to be completed field by field.
    pub const EMPTY: Self = Self {
        name: "",
        aliases: &[],
        group: Group::Other,
        about: "",
        long: "",
        examples: &[],
        args: Args::NONE,
        flags: &[],
        shared_flags: &[],
        subcommands: &[],
        run: None,
        hidden: false,
        trouble: 1,
    };

    /// True when `word` is this command's name or one of its aliases.
    pub fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }

    /// The command below this one that answers to `word`.
    pub fn subcommand(&self, word: &str) -> Option<&'static Command> {
        self.subcommands.iter().copied().find(|command| command.answers_to(word))
    }
}

/// The part of the root help a command is listed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Talks to machines; carries the connection flags.
    Machines,
    /// Works on configuration files, without a machine.
    Offline,
    /// Makes and removes local clusters.
    Local,
    /// Listed apart.
    Other,
}

impl Group {
    /// The groups in the order of the root help, with their headings.
    pub const ALL: [(Group, &'static str); 4] = [
        (Group::Machines, "Commands for running clusters"),
        (Group::Offline, "Commands for configuration, offline"),
        (Group::Local, "Commands for local clusters"),
        (Group::Other, "Other commands"),
    ];
}

/// What a command takes besides flags.
#[derive(Clone, Copy)]
pub struct Args {
    /// How usage shows them.
    pub usage: &'static str,
    /// The fewest that must be given.
    pub min: usize,
    /// The most that may be given.
    pub max: usize,
    /// What each of them can be completed with; the last entry stands for all later ones.
    pub complete: &'static [Complete],
}

impl Args {
    /// No arguments at all.
    pub const NONE: Self = Self { usage: "", min: 0, max: 0, complete: &[] };

    /// Between `min` and `max` arguments.
    pub const fn between(usage: &'static str, min: usize, max: usize) -> Self {
        Self { usage, min, max, complete: &[] }
    }

    /// The same with completion.
    pub const fn complete(self, complete: &'static [Complete]) -> Self {
        Self { complete, ..self }
    }
}

/// One flag.
pub struct Flag {
    /// The long name, without dashes.
    pub name: &'static str,
    /// The letter, when it has one.
    pub short: Option<char>,
    /// What it holds.
    pub kind: Kind,
    /// The text of its default, in the spelling of the command line.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// Left out of help and completion.
    pub hidden: bool,
    /// What its value can be completed with.
    pub complete: Complete,
}

impl Flag {
    const fn new(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Self {
        Self { name, short: None, kind, default, help, hidden: false, complete: Complete::Nothing }
    }

    /// A flag that is on or off, off unless given.
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Bool, "false", help)
    }

    /// A flag that holds a text.
    pub const fn text(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Text, "", help)
    }

    /// A flag that holds a whole number.
    pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Int, default, help)
    }

    /// A flag that holds a whole number of 32 bits.
    pub const fn int32(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Int32, default, help)
    }

    /// A flag that holds a list, comma separated or repeated.
    pub const fn list(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::List, "", help)
    }

    /// A flag that may be repeated and keeps commas as they are.
    pub const fn repeated(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Repeated, "", help)
    }

    /// A flag that holds a length of time such as `1m0s`.
    pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Duration, default, help)
    }

    /// The same with a letter.
    pub const fn short(self, letter: char) -> Self {
        Self { short: Some(letter), ..self }
    }

    /// The same with a default.
    pub const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// The same, left out of help.
    pub const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }

    /// The same with completion of its value.
    pub const fn complete(self, complete: Complete) -> Self {
        Self { complete, ..self }
    }
}

/// What a flag holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On or off; `--name` alone means on.
    Bool,
    /// A text; the last one given counts.
    Text,
    /// A whole number, signed.
    Int,
    /// A whole number that fits 32 bits, signed.
    Int32,
    /// Texts, comma separated or repeated.
    List,
    /// Texts, repeated; commas belong to the text.
    Repeated,
    /// A length of time.
    Duration,
}

impl Kind {
    /// How help names the value; empty for switches.
    pub const fn placeholder(self) -> &'static str {
        match self {
            Kind::Bool => "",
            Kind::Text => "string",
            Kind::Int => "int",
            Kind::Int32 => "int32",
            Kind::List => "strings",
            Kind::Repeated => "stringArray",
            Kind::Duration => "duration",
        }
    }
}

/// What a word can be completed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Complete {
    /// Nothing sensible to offer.
    Nothing,
    /// A file; the shell knows best.
    File,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A context of the client configuration.
    Context,
    /// A node of the current context.
    Node,
    /// A resource type, asked from the first node.
    ResourceType,
    /// A service id, asked from the first node.
    Service,
    /// A local cluster.
    Cluster,
    /// A provider of machines.
    Provider,
    /// A key of the machine configuration, with the keys above it.
    ConfigKey,
}

/// The flags of every command that talks to machines; they may also stand before its name.
pub static CONNECTION_FLAGS: &[Flag] = &[
    Flag::list("nodes", "machines to run the command against").short('n').complete(Complete::Node),
    Flag::list("endpoints", "connect to these instead of the context's endpoints").short('e'),
    Flag::text("talosconfig", "client configuration file").complete(Complete::File),
    Flag::text("context", "context of the client configuration to use").complete(Complete::Context),
    Flag::text("cluster", "cluster name for a multi-cluster proxy").short('c'),
    Flag::text("siderov1-keys-dir", "directory of SideroV1 keys").complete(Complete::File),
];

/// `--help`, on every command.
pub static HELP_FLAG: Flag = Flag::switch("help", "show this help").short('h');

/// The flags `path` accepts: its own, then shared ones from the nearest parent up, then the
/// connection flags of the first group.
pub fn flags_of(path: &[&'static Command]) -> impl Iterator<Item = &'static Flag> {
    let own = path.last().map(|command| command.flags).unwrap_or_default();
    let shared = path.iter().rev().flat_map(|command| command.shared_flags).collect::<Vec<_>>();
    own.iter().chain(shared).chain(connection_flags_of(path)).chain([&HELP_FLAG])
}

/// The connection flags, when `path` is a command of the first group.
pub fn connection_flags_of(path: &[&'static Command]) -> &'static [Flag] {
    let machines = path.iter().any(|command| command.group == Group::Machines);
    if machines { CONNECTION_FLAGS } else { &[] }
}
