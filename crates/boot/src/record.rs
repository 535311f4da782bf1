//! The record of the slots, as META keeps it: a few lines of text under a key that the original does not use.
//!
//! ```text
//! slots 1
//! A default good A - Talos v1.12.1
//! B trial-started:0123456789abcdef0123456789abcdef B - Talos v1.13.0
//! ```
//!
//! A line ends with the name of the entry that it is about, a title of GRUB or the file name of an image. A record
//! whose names are not those on the disk was overtaken by somebody else's installation and counts as none.

use std::fmt::Write as _;

use crate::slots::{BootId, Failure, Other, Slot, Slots, Standing, Trial};

/// The META key of the slots.
pub const SLOTS_KEY: u8 = 0xe0;
/// The META key of the present boot: see [`crate::last_boot`].
pub const BOOT_KEY: u8 = 0xe1;
/// The META key by which the original finds its way back.
pub const UPGRADE_KEY: u8 = 0x06;

const HEADER: &str = "slots 1";

/// The slots with the names of their entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The slots.
    pub slots: Slots,
    /// The entries of A and B; one that is empty has none.
    pub names: [Option<String>; 2],
}

/// What is wrong with a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Of another program, or of a later version of this one.
    #[error("META 0xe0 does not begin with `slots 1`")]
    Header,
    /// A line that says nothing known.
    #[error("META 0xe0, line {line}: cannot read {text:?}")]
    Line {
        /// From one.
        line: usize,
        /// The line.
        text: String,
    },
    /// There have to be two lines, one for each slot, one of them the default's.
    #[error("META 0xe0: not one line for each of the two slots, one of them the default")]
    Lines,
}

impl Record {
    /// The entry of a slot.
    pub fn name(&self, slot: Slot) -> Option<&str> {
        self.names[index(slot)].as_deref()
    }

    /// Replaces the entry of a slot.
    pub fn set_name(&mut self, slot: Slot, name: Option<String>) {
        self.names[index(slot)] = name;
    }

    /// Whether the disk still has the default entry that this record knows. The other one may be missing: it is where
    /// things are written.
    pub fn fits(&self, has: impl Fn(&str) -> bool) -> bool {
        self.name(self.slots.default()).is_some_and(has)
    }

    /// The slot of an entry; compared as FAT does, because the boot loader knows entries in lower case.
    pub fn slot_of(&self, name: &str) -> Option<Slot> {
        [Slot::A, Slot::B]
            .into_iter()
            .find(|slot| self.name(*slot).is_some_and(|other| other.eq_ignore_ascii_case(name)))
    }

    /// The text for META.
    pub fn encode(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for slot in [Slot::A, Slot::B] {
            let state = match slot == self.slots.default() {
                true => format!("default {}", standing(self.slots.standing())),
                false => other(self.slots.other()),
            };
            let name = self.name(slot).map(|name| name.replace(['\n', '\r'], " "));
            let _ = writeln!(text, "{slot} {state} {}", name.as_deref().unwrap_or("-"));
        }
        text
    }

    /// Reads the text of META.
    ///
    /// # Errors
    /// When it is no record; the machine goes on without, as on a disk that never had one.
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(RecordError::Header);
        }
        let (mut default, mut rest, mut names) = (None, None, [None, None]);
        for (at, line) in lines.enumerate() {
            let bad = || RecordError::Line { line: at + 2, text: line.to_owned() };
            let (slot, state) = line.split_once(' ').ok_or_else(bad)?;
            let slot = match slot {
                "A" => Slot::A,
                "B" => Slot::B,
                _ => return Err(bad()),
            };
            let name = match state.strip_prefix("default ") {
                Some(state) => {
                    let (word, name) = state.split_once(' ').ok_or_else(bad)?;
                    if default.replace((slot, parse_standing(word).ok_or_else(bad)?)).is_some() {
                        return Err(RecordError::Lines);
                    }
                    name
                }
                None => {
                    let (word, name) = state.split_once(' ').ok_or_else(bad)?;
                    if rest.replace((slot, parse_other(word).ok_or_else(bad)?)).is_some() {
                        return Err(RecordError::Lines);
                    }
                    name
                }
            };
            names[index(slot)] = (name != "-").then(|| name.to_owned());
        }
        match (default, rest) {
            (Some((default, standing)), Some((slot, other))) if slot != default => {
                Ok(Self { slots: Slots::new(default, standing, other), names })
            }
            _ => Err(RecordError::Lines),
        }
    }
}

fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Unproven => "unproven",
        Standing::Good => "good",
    }
}

fn parse_standing(word: &str) -> Option<Standing> {
    [Standing::Unproven, Standing::Good].into_iter().find(|value| standing(*value) == word)
}

const FAILURES: [(Failure, &str); 5] = [
    (Failure::NeverCameUp, "never-came-up"),
    (Failure::EndedEarly, "ended-early"),
    (Failure::Unhealthy, "unhealthy"),
    (Failure::StartedTwice, "started-twice"),
    (Failure::RolledBack, "rolled-back"),
];

fn other(other: Other) -> String {
    let with = |word: &str, BootId(id): BootId| format!("{word}:{id:032x}");
    match other {
        Other::Empty => "empty".into(),
        Other::Untested => "untested".into(),
        Other::Unjudged => "unjudged".into(),
        Other::Good => "good".into(),
        Other::Trial(Trial::Prepared { by }) => with("trial-prepared", by),
        Other::Trial(Trial::Armed { by }) => with("trial-armed", by),
        Other::Trial(Trial::Started { boot }) => with("trial-started", boot),
        Other::Failed { failure, by } => {
            let word = FAILURES.iter().find(|(value, _)| *value == failure).map_or("", |(_, word)| word);
            with(&format!("failed-{word}"), by)
        }
    }
}

fn parse_other(text: &str) -> Option<Other> {
    let Some((word, id)) = text.split_once(':') else {
        return match text {
            "empty" => Some(Other::Empty),
            "untested" => Some(Other::Untested),
            "unjudged" => Some(Other::Unjudged),
            "good" => Some(Other::Good),
            _ => None,
        };
    };
    let is_hex = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let id = BootId(u128::from_str_radix(id, 16).ok().filter(|_| is_hex)?);
    match word {
        "trial-prepared" => Some(Other::Trial(Trial::Prepared { by: id })),
        "trial-armed" => Some(Other::Trial(Trial::Armed { by: id })),
        "trial-started" => Some(Other::Trial(Trial::Started { boot: id })),
        _ => {
            let word = word.strip_prefix("failed-")?;
            let (failure, _) = FAILURES.iter().find(|(_, other)| *other == word)?;
            Some(Other::Failed { failure: *failure, by: id })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_comes_back() {
        let id = BootId(0x0123_4567_89ab_cdef);
        let mut others = vec![Other::Empty, Other::Untested, Other::Unjudged, Other::Good];
        others.extend([
            Other::Trial(Trial::Prepared { by: id }),
            Other::Trial(Trial::Armed { by: id }),
            Other::Trial(Trial::Started { boot: id }),
        ]);
        others.extend(FAILURES.map(|(failure, _)| Other::Failed { failure, by: id }));
        for default in [Slot::A, Slot::B] {
            for standing in [Standing::Unproven, Standing::Good] {
                for other in &others {
                    let names =
                        [Some("A - Talos v1".to_owned()), (*other != Other::Empty).then(|| "x.efi".into())];
                    let record = Record { slots: Slots::new(default, standing, *other), names };
                    assert_eq!(Record::parse(&record.encode()), Ok(record));
                }
            }
        }
    }

    #[test]
    fn a_record_is_readable() {
        let slots = Slots::new(Slot::B, Standing::Good, Other::Trial(Trial::Armed { by: BootId(255) }));
        let record = Record { slots, names: [Some("A - Talos v2".into()), Some("B - Talos v1".into())] };
        assert_eq!(
            record.encode(),
            "slots 1\nA trial-armed:000000000000000000000000000000ff A - Talos v2\nB default good B - Talos v1\n"
        );
        assert_eq!(record.slot_of("a - talos V2"), Some(Slot::A));
        assert!(record.fits(|name| name == "B - Talos v1") && !record.fits(|name| name == "A - Talos v2"));
    }

    #[test]
    fn what_is_no_record_is_none() {
        for text in [
            "",
            "slots 2\n",
            "slots 1\n",
            "slots 1\nA default good x\n",
            "slots 1\nA default good x\nB default good y\n",
            "slots 1\nA default good x\nA good y\n",
            "slots 1\nA default good x\nB trial-armed:zz y\n",
            "slots 1\nA default good x\nB trial-armed:+0000000000000000000000000000001 y\n",
            "slots 1\nA default bad x\nB good y\n",
        ] {
            assert!(Record::parse(text).is_err(), "{text:?}");
        }
    }
}
