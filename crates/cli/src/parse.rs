//! Reads the command line by the table: which command, which flags, which arguments.
//!
//! The rules are those people know from the original: flags and arguments in any order,
//! `--flag=value` or `--flag value`, letters joined (`-lH`), `--flag=false` for switches, `--` ends
//! flags, connection flags also before the command's name.

use std::time::Duration;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::table::{Command, Flag, Kind, flags_of};
use crate::text;

/// A command line that was understood.
#[derive(Default)]
pub struct Call {
    /// The command and its parents, root first.
    pub path: Vec<&'static Command>,
    /// What is not a flag.
    pub args: Vec<String>,
    values: Vec<(&'static Flag, String)>,
}

/// What the command line asks for.
pub enum Parsed {
    /// Run this.
    Run(Call),
    /// Show help of this path.
    Help(Vec<&'static Command>),
}

/// A command line that could not be understood, with the command whose usage helps.
pub struct Misuse {
    /// The command as far as it was recognized.
    pub path: Vec<&'static Command>,
    /// What is wrong.
    pub failure: Failure,
}

/// Reads `words` (without the program's name) by the table below `root`.
pub fn parse(root: &'static Command, words: &[String]) -> Result<Parsed, Misuse> {
    let mut reader = Reader { call: Call { path: vec![root], ..Call::default() }, words, at: 0, help: false };
    match reader.read() {
        Ok(()) if reader.help => Ok(Parsed::Help(reader.call.path)),
        Ok(()) => Ok(Parsed::Run(reader.call)),
        Err(failure) => Err(Misuse { path: reader.call.path, failure }),
    }
}

struct Reader<'a> {
    call: Call,
    words: &'a [String],
    at: usize,
    help: bool,
}

impl Reader<'_> {
    fn read(&mut self) -> Result<(), Failure> {
        let mut flags_ended = false;
        while let Some(word) = self.words.get(self.at) {
            self.at += 1;
            if flags_ended || word == "-" || !word.starts_with('-') {
                self.word(word)?;
            } else if word == "--" {
                flags_ended = true;
            } else if let Some(long) = word.strip_prefix("--") {
                self.long(long)?;
            } else {
                self.letters(&word[1..])?;
            }
        }
        if self.help {
            return Ok(());
        }
        self.check_args()
    }

    fn word(&mut self, word: &str) -> Result<(), Failure> {
        let command = self.command();
        if self.call.args.is_empty()
            && let Some(sub) = command.subcommand(word)
        {
            self.call.path.push(sub);
            return Ok(());
        }
        if self.call.args.is_empty() && command.run.is_none() {
            return Err(self.unknown_command(word));
        }
        self.call.args.push(word.to_owned());
        Ok(())
    }

    fn command(&self) -> &'static Command {
        self.call.path[self.call.path.len() - 1]
    }

    /// Before the command's name the connection flags are known too.
    fn find(&self, matches: impl Fn(&Flag) -> bool) -> Option<&'static Flag> {
        let known = flags_of(&self.call.path).find(|flag| matches(flag));
        if known.is_some() || self.call.path.len() > 1 {
            return known;
        }
        crate::table::CONNECTION_FLAGS.iter().find(|flag| matches(flag))
    }

    fn long(&mut self, text: &str) -> Result<(), Failure> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let Some(flag) = self.find(|flag| flag.name == name) else {
            return Err(self.unknown_flag(name));
        };
        match value {
            Some(value) => self.set(flag, value),
            None if flag.kind == Kind::Bool => self.set(flag, "true".to_owned()),
            None => {
                let value = self.next_value(&format!("--{name}"))?;
                self.set(flag, value)
            }
        }
    }

    fn letters(&mut self, letters: &str) -> Result<(), Failure> {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            let Some(flag) = self.find(|flag| flag.short == Some(letter)) else {
                return Err(Failure::new(format!("unknown shorthand flag: '{letter}' in -{letters}")));
            };
            if let Some(value) = rest.strip_prefix('=') {
                return self.set(flag, value.to_owned());
            }
            if flag.kind == Kind::Bool {
                self.set(flag, "true".to_owned())?;
                continue;
            }
            let value =
                if rest.is_empty() { self.next_value(&format!("-{letter}"))? } else { rest.to_owned() };
            return self.set(flag, value);
        }
        Ok(())
    }

    fn next_value(&mut self, flag: &str) -> Result<String, Failure> {
        let value = self.words.get(self.at).cloned();
        self.at += 1;
        value.ok_or_else(|| Failure::new(format!("flag needs an argument: {flag}")))
    }

    fn set(&mut self, flag: &'static Flag, value: String) -> Result<(), Failure> {
        let bad = |reason: &str| {
            Failure::new(format!("invalid argument \"{value}\" for \"--{}\" flag: {reason}", flag.name))
        };
        match flag.kind {
            Kind::Bool if truth(&value).is_none() => return Err(bad("not true or false")),
            Kind::Int if value.parse::<i64>().is_err() => return Err(bad("not a whole number")),
            Kind::Int32 if value.parse::<i32>().is_err() => {
                return Err(bad("not a whole number of 32 bits"));
            }
            Kind::Duration if text::parse_duration(&value).is_none() => {
                return Err(bad("not a duration such as 30s or 1h30m"));
            }
            Kind::Bool
            | Kind::Int
            | Kind::Int32
            | Kind::Duration
            | Kind::Text
            | Kind::List
            | Kind::Repeated => {}
        }
        if flag.name == "help" && truth(&value) == Some(true) {
            self.help = true;
        }
        if flag.kind == Kind::List {
            // An empty text is given all the same: it stands for an empty list and not for the default.
            self.call.values.extend(value.split(',').map(|part| (flag, part.to_owned())));
        } else {
            self.call.values.push((flag, value));
        }
        Ok(())
    }

    fn check_args(&self) -> Result<(), Failure> {
        let args = self.command().args;
        let given = self.call.args.len();
        if self.command().run.is_none() || (args.min..=args.max).contains(&given) {
            return Ok(());
        }
        Err(Failure::new(match (args.min, args.max) {
            (_, 0) => format!(
                "unknown command \"{}\" for \"{}\": it takes no arguments",
                self.call.args[0],
                path_text(&self.call.path)
            ),
            (min, max) if min == max => format!("accepts {min} arg(s), received {given}"),
            (min, usize::MAX) => format!("requires at least {min} arg(s), only received {given}"),
            (min, max) => format!("accepts between {min} and {max} arg(s), received {given}"),
        }))
    }

    fn unknown_command(&self, word: &str) -> Failure {
        let text = format!("unknown command \"{word}\" for \"{}\"", path_text(&self.call.path));
        let names = self.command().subcommands.iter().filter(|command| !command.hidden);
        match text::nearest(word, names.flat_map(|command| [&[command.name], command.aliases].concat())) {
            Some(near) => Failure::new(format!("{text}; did you mean \"{near}\"?")),
            None => Failure::new(text),
        }
    }

    fn unknown_flag(&self, name: &str) -> Failure {
        let known = flags_of(&self.call.path).filter(|flag| !flag.hidden).map(|flag| flag.name);
        match text::nearest(name, known) {
            Some(near) => Failure::new(format!("unknown flag: --{name}; did you mean --{near}?")),
            None => Failure::new(format!("unknown flag: --{name}")),
        }
    }
}

impl Call {
    /// The names of the command and its parents, `ichorctl` first.
    pub fn path_text(&self) -> String {
        path_text(&self.path)
    }

    /// Whom the command talks to.
    pub fn connection(&self) -> Connection {
        Connection::of(self)
    }

    /// The command that was called.
    pub fn command(&self) -> &'static Command {
        self.path[self.path.len() - 1]
    }

    /// True when the command has this flag, written as a literal; the place of an argument is known as well.
    pub fn knows(&self, literal: &str) -> bool {
        let name = literal.trim_matches('"');
        name == literal || flags_of(&self.path).any(|flag| flag.name == name)
    }

    /// True when the flag stands on the command line.
    pub fn given(&self, name: &str) -> bool {
        self.values.iter().any(|(flag, _)| flag.name == name)
    }

    /// The text of a flag: as given, else its default.
    pub fn text(&self, name: &str) -> &str {
        match self.values.iter().rev().find(|(flag, _)| flag.name == name) {
            Some((_, value)) => value,
            None => self.default_of(name),
        }
    }

    /// The text of a flag, unless it is empty.
    pub fn some_text(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// Whether a switch is on.
    pub fn on(&self, name: &str) -> bool {
        truth(self.text(name)) == Some(true)
    }

    /// The number a flag holds.
    pub fn int(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_default()
    }

    /// The length of time a flag holds.
    pub fn duration(&self, name: &str) -> Duration {
        text::parse_duration(self.text(name)).unwrap_or_default()
    }

    /// Everything a list flag was given.
    pub fn list(&self, name: &str) -> Vec<String> {
        if self.given(name) {
            let given = self.values.iter().filter(|(flag, value)| {
                flag.name == name && (flag.kind == Kind::Repeated || !value.is_empty())
            });
            return given.map(|(_, value)| value.clone()).collect();
        }
        self.default_of(name).split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn default_of(&self, name: &str) -> &'static str {
        flags_of(&self.path).find(|flag| flag.name == name).map(|flag| flag.default).unwrap_or_default()
    }

    /// The argument at `index`, empty when there is none.
    pub fn arg(&self, index: usize) -> &str {
        self.args.get(index).map(String::as_str).unwrap_or_default()
    }
}

/// The names along a path, joined by spaces.
pub fn path_text(path: &[&'static Command]) -> String {
    path.iter().map(|command| command.name).collect::<Vec<_>>().join(" ")
}

fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
