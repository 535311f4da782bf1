//! `grub.cfg`: rendered and parsed in the original's form, so that either system understands what the other wrote.

use std::fmt::Write as _;

use crate::slots::Slot;

#[cfg(test)]
mod tests;

/// What the Reset entry is called.
const RESET_TITLE: &str = "Reset Talos installation and return to maintenance mode";
/// What it adds to the command line of the default entry.
const RESET_ARGUMENT: &str = "talos.experimental.wipe=system:EPHEMERAL,STATE";
/// Characters with a backslash before them on the command line.
const QUOTED: &[char] = &['\\', '{', '}', '&', '$', '|', ';', '<', '>', '"'];

/// Follows `next_entry` if it could be taken out of the environment block, and falls back to the default if what it
/// names cannot be loaded. No line of it looks like one of those the original's parser searches for.
const ONE_SHOT: &str = r#"if [ -s "$prefix/grubenv" ]; then
  load_env next_entry
fi
if [ -n "$next_entry" ]; then
  set "trial_entry=$next_entry"
  set next_entry=
  if save_env next_entry; then
    set "fallback=$default"
    set "default=$trial_entry"
  fi
fi
"#;

/// A system that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The whole title, `A - Talos v1.12.1`.
    pub title: String,
    /// The kernel, as GRUB sees it: `/A/vmlinuz`.
    pub kernel: String,
    /// The initramfs.
    pub initrd: String,
    /// The command line, without quoting.
    pub cmdline: String,
}

/// The content of `grub.cfg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubConfig {
    /// What is started.
    pub default: Slot,
    /// What GRUB tries when it cannot load that.
    pub fallback: Option<Slot>,
    /// The entries of both slots.
    pub entries: [Option<Entry>; 2],
    /// Whether there is an entry that resets the installation.
    pub reset: bool,
    /// Whether `next_entry` of the environment block is followed.
    pub one_shot: bool,
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrubError {
    /// There has to be exactly one default.
    #[error("grub.cfg: {0} lines with `set default=\"…\"`, expected one")]
    Defaults(usize),
    /// There may be one fallback.
    #[error("grub.cfg: {0} lines with `set fallback=\"…\"`, expected one at most")]
    Fallbacks(usize),
    /// A title without a known label.
    #[error("grub.cfg: {0:?} begins with neither A, B nor Reset")]
    Label(String),
    /// Two entries of a slot.
    #[error("grub.cfg: two menu entries for slot {0}")]
    Twice(Slot),
    /// The end of a block is missing.
    #[error("grub.cfg: menu entry {0:?} has no closing brace")]
    Open(String),
    /// An entry without a kernel or initramfs, or with several.
    #[error("grub.cfg: menu entry {title:?} has {count} `{command}` lines, expected one")]
    Command {
        /// The entry.
        title: String,
        /// `linux` or `initrd`.
        command: &'static str,
        /// How many there are.
        count: usize,
    },
    /// The default or the fallback is not there.
    #[error("grub.cfg: slot {0} has no menu entry")]
    Missing(Slot),
    /// The fallback is the default.
    #[error("grub.cfg: slot {0} is both default and fallback")]
    Same(Slot),
    /// Something GRUB would misread.
    #[error("{what} {text:?} holds a character that cannot be written to grub.cfg: {character:?}; remove it")]
    Character {
        /// Title or argument.
        what: &'static str,
        /// The whole.
        text: String,
        /// The character.
        character: char,
    },
}

impl GrubConfig {
    /// The entry of a slot.
    pub fn entry(&self, slot: Slot) -> Option<&Entry> {
        self.entries[index(slot)].as_ref()
    }

    /// The title of the entry with this kernel, as `BOOT_IMAGE` on the running command line names it.
    pub fn title_of_kernel(&self, boot_image: &str) -> Option<&str> {
        // GRUB may put the device before the path: `(hd0,gpt3)/A/vmlinuz`.
        let path = boot_image.rsplit_once(')').map_or(boot_image, |(_, path)| path);
        self.entries.iter().flatten().find(|entry| entry.kernel == path).map(|entry| entry.title.as_str())
    }

    /// Replaces or removes the entry of a slot.
    pub fn set_entry(&mut self, slot: Slot, entry: Option<Entry>) {
        self.entries[index(slot)] = entry;
    }

    /// The default is there, and the fallback is another one that is there.
    ///
    /// # Errors
    /// When not.
    pub fn validate(&self) -> Result<(), GrubError> {
        match self.fallback {
            _ if self.entry(self.default).is_none() => Err(GrubError::Missing(self.default)),
            Some(slot) if slot == self.default => Err(GrubError::Same(slot)),
            Some(slot) if self.entry(slot).is_none() => Err(GrubError::Missing(slot)),
            Some(_) | None => Ok(()),
        }
    }

    /// The file.
    ///
    /// # Errors
    /// When it is not valid, or GRUB could not read what is in it.
    pub fn render(&self) -> Result<String, GrubError> {
        self.validate()?;
        let default = self.entry(self.default).ok_or(GrubError::Missing(self.default))?;
        let mut text = format!("set default=\"{}\"\n", default.title);
        if let Some(fallback) = self.fallback.and_then(|slot| self.entry(slot)) {
            let _ = writeln!(text, "set fallback=\"{}\"", fallback.title);
        }
        text.push_str(
            "\nset timeout=3\n\ninsmod all_video\n\nterminal_input console\nterminal_output console\n\n",
        );
        if self.one_shot {
            text.push_str(ONE_SHOT);
            text.push('\n');
        }
        for entry in self.entries.iter().flatten() {
            render_entry(&mut text, entry)?;
        }
        if self.reset {
            let cmdline = format!("{} {RESET_ARGUMENT}", default.cmdline);
            let title = RESET_TITLE.to_owned();
            render_entry(&mut text, &Entry { title, cmdline, ..default.clone() })?;
        }
        Ok(text)
    }

    /// Reads a file, ours or the original's.
    ///
    /// # Errors
    /// When it is no configuration of this kind.
    pub fn parse(text: &str) -> Result<Self, GrubError> {
        let defaults = settings(text, "default");
        let &[default] = defaults.as_slice() else { return Err(GrubError::Defaults(defaults.len())) };
        let fallbacks = settings(text, "fallback");
        let fallback = match fallbacks.as_slice() {
            [] => None,
            [title] => Some(slot_of(title)?),
            _ => return Err(GrubError::Fallbacks(fallbacks.len())),
        };
        let mut config = Self {
            default: slot_of(default)?,
            fallback,
            entries: [None, None],
            reset: false,
            one_shot: text.contains("load_env next_entry"),
        };
        for (title, block) in blocks(text)? {
            if title.starts_with("Reset") {
                config.reset = true;
                continue;
            }
            let slot = slot_of(title)?;
            if config.entry(slot).is_some() {
                return Err(GrubError::Twice(slot));
            }
            config.set_entry(slot, Some(parse_entry(title, block)?));
        }
        config.validate()?;
        Ok(config)
    }
}

/// The title of a slot's entry.
pub fn title(slot: Slot, name: &str, tag: &str) -> String {
    format!("{slot} - {name} {tag}")
}

fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

fn render_entry(text: &mut String, entry: &Entry) -> Result<(), GrubError> {
    // A `>` in a title would mean a submenu; quotes and dollars would end or change it.
    let bad = |c: char| c.is_control() || QUOTED.contains(&c) || c == '\'';
    refuse("title", &entry.title, entry.title.chars().find(|c| bad(*c)))?;
    let paths = entry.kernel.chars().chain(entry.initrd.chars());
    refuse("path", &entry.kernel, paths.clone().find(|c| bad(*c) || c.is_whitespace()))?;
    for argument in entry.cmdline.split(' ') {
        // What quoting does not cover: an apostrophe opens a string, a hash a comment.
        let comment = argument.starts_with('#').then_some('#');
        let found = argument.chars().find(|c| c.is_control() || *c == '\'').or(comment);
        refuse("kernel argument", argument, found)?;
    }
    let _ = writeln!(
        text,
        "menuentry \"{}\" {{\n  set gfxmode=auto\n  set gfxpayload=text\n  linux {} {}\n  initrd {}\n}}",
        entry.title,
        entry.kernel,
        quote(&entry.cmdline),
        entry.initrd,
    );
    Ok(())
}

fn refuse(what: &'static str, text: &str, character: Option<char>) -> Result<(), GrubError> {
    match character {
        Some(character) => Err(GrubError::Character { what, text: text.to_owned(), character }),
        None => Ok(()),
    }
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if QUOTED.contains(&c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

fn unquote(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match chars.peek() {
            Some(next) if c == '\\' && QUOTED.contains(next) => plain.extend(chars.next()),
            Some(_) | None => plain.push(c),
        }
    }
    plain
}

/// The values of all lines `set <name>="<value>"`.
fn settings<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    text.lines()
        .filter_map(|line| {
            line.trim().strip_prefix("set ")?.trim_start().strip_prefix(name)?.strip_prefix("=\"")
        })
        .filter_map(|rest| rest.strip_suffix('"'))
        .collect()
}

fn slot_of(title: &str) -> Result<Slot, GrubError> {
    match title.as_bytes().first() {
        Some(b'A') => Ok(Slot::A),
        Some(b'B') => Ok(Slot::B),
        Some(_) | None => Err(GrubError::Label(title.to_owned())),
    }
}

/// Title and inside of every menu entry.
fn blocks(text: &str) -> Result<Vec<(&str, &str)>, GrubError> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = find_at_line_start(rest, "menuentry") {
        rest = &rest[start + "menuentry".len()..];
        let Some(title) = rest.trim_start().strip_prefix('"') else { continue };
        let Some((title, inside)) = title.split_once("\" {") else { continue };
        let end = inside
            .bytes()
            .enumerate()
            .find(|(at, byte)| *byte == b'}' && (*at == 0 || inside.as_bytes()[at - 1] != b'\\'))
            .ok_or_else(|| GrubError::Open(title.to_owned()))?;
        found.push((title, &inside[..end.0]));
        rest = &inside[end.0..];
    }
    Ok(found)
}

fn find_at_line_start(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
}

fn parse_entry(title: &str, block: &str) -> Result<Entry, GrubError> {
    let plain = unquote(block);
    let one = |command: &'static str| {
        let lines: Vec<&str> = plain
            .lines()
            .filter_map(|line| line.trim().strip_prefix(command)?.strip_prefix([' ', '\t']))
            .collect();
        match lines.as_slice() {
            [line] => Ok(line.trim().to_owned()),
            _ => Err(GrubError::Command { title: title.to_owned(), command, count: lines.len() }),
        }
    };
    let linux = one("linux")?;
    let (kernel, cmdline) = linux.split_once([' ', '\t']).unwrap_or((&linux, ""));
    Ok(Entry {
        title: title.to_owned(),
        kernel: kernel.to_owned(),
        initrd: one("initrd")?,
        cmdline: cmdline.trim().to_owned(),
    })
}
