//! A reader of META and of the record of slots in it, written from the description of the format and sharing no code with
//! what writes them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::disk::{SECTOR, State};
use crate::sha256;

/// Values by key.
pub type Values = BTreeMap<u8, Vec<u8>>;

/// One of the two copies.
const COPY: usize = 262_144;
const SECTORS: usize = COPY / SECTOR;

/// The sectors of a copy that are not zeros, by their place in it.
type Sectors = Vec<(usize, Arc<[u8]>)>;

thread_local! {
    /// Copies that were read before: thousands of disks have the same.
    static READ: RefCell<HashMap<Sectors, Option<Values>>> = RefCell::default();
}

/// The values of META; none on a disk where it was never written.
///
/// # Errors
/// When there is something, and neither copy is whole.
pub fn read(state: &State) -> Result<Option<Values>, String> {
    let copies = [0, 1].map(|copy| {
        let first = copy * SECTORS;
        let sectors = state.meta.range(first..first + SECTORS);
        let sectors = sectors.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        sectors.map(|(at, bytes)| (at - first, bytes.clone())).collect::<Sectors>()
    });
    let is_first_write = copies[1].is_empty();
    let values = copies.into_iter().find_map(|sectors| {
        READ.with_borrow_mut(|read| read.entry(sectors).or_insert_with_key(copy).clone())
    });
    match values {
        // The second copy follows the first: nothing was ever written to its end.
        None if is_first_write => Ok(None),
        None => Err("both copies of META are bad".to_owned()),
        values => Ok(values),
    }
}

fn copy(sectors: &Sectors) -> Option<Values> {
    let mut bytes = vec![0; COPY];
    for (at, sector) in sectors {
        bytes[at * SECTOR..][..SECTOR].copy_from_slice(sector);
    }
    let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if number(0) != 0x5a4b_3c2d || number(COPY - 4) != 0xa5b4_c3d2 {
        return None;
    }
    let mut values = Values::new();
    let (mut at, end) = (4, COPY - 36);
    while end - at >= 8 && number(at) != 0 {
        let (key, len) = (number(at), number(at + 4) as usize);
        at += 8;
        if len > end - at {
            return None;
        }
        values.insert(key.to_be_bytes()[3], bytes[at..at + len].to_vec());
        at += len;
    }
    let stored = bytes[COPY - 36..COPY - 4].to_vec();
    bytes[COPY - 36..COPY - 4].fill(0);
    (sha256::digest(&bytes)[..] == stored[..]).then_some(values)
}

/// What the record says of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Whether it is the default.
    pub is_default: bool,
    /// What is known of it: `good`, `trial-armed`, `empty`.
    pub word: String,
    /// The entry of the boot loader; none for an empty one.
    pub entry: Option<String>,
}

/// The record of slots in the text of META 0xe0: A, then B.
///
/// # Errors
/// When it is no record.
pub fn record(text: &[u8]) -> Result<[Line; 2], String> {
    let text = str::from_utf8(text).map_err(|_| "the record is no text")?;
    let [header, a, b] = text.lines().collect::<Vec<_>>()[..] else {
        return Err(format!("the record has other lines: {text:?}"));
    };
    let line = |line: &str, slot: &str| {
        let bad = || format!("slot {slot} in the record: {line:?}");
        let rest = line.strip_prefix(slot).and_then(|rest| rest.strip_prefix(' ')).ok_or_else(bad)?;
        let (is_default, rest) = match rest.strip_prefix("default ") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (word, entry) = rest.split_once(' ').ok_or_else(bad)?;
        let word = word.split(':').next().unwrap_or_default().to_owned();
        Ok::<_, String>(Line { is_default, word, entry: (entry != "-").then(|| entry.to_owned()) })
    };
    let lines = [line(a, "A")?, line(b, "B")?];
    match header == "slots 1" && lines[0].is_default != lines[1].is_default {
        true => Ok(lines),
        false => Err(format!("not one default in the record: {text:?}")),
    }
}

/// Whether a record goes with what the boot loader started: `once` when it was told so for this start only, and `has` says
/// which entries it has.
///
/// # Errors
/// What does not go together.
pub fn fits(lines: &[Line; 2], entry: &str, once: bool, has: impl Fn(&str) -> bool) -> Result<(), String> {
    let default = lines.iter().find(|line| line.is_default).and_then(|line| line.entry.as_deref());
    if !default.is_some_and(has) {
        return Err(format!("the default of the record is not there: {lines:?}"));
    }
    let is_it = |line: &&Line| line.entry.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(entry));
    let line = lines.iter().find(is_it).ok_or_else(|| format!("{entry:?} is unknown to {lines:?}"))?;
    let is_expected = match (once, line.is_default) {
        (true, false) => ["trial-prepared", "trial-armed"].contains(&line.word.as_str()),
        (true, true) => false,
        // The boot loader is ahead: its default changes before the record does.
        (false, false) => ["good", "trial-started", "unjudged"].contains(&line.word.as_str()),
        (false, true) => true,
    };
    match is_expected {
        true => Ok(()),
        false => Err(format!("{entry:?} was started, once: {once}, and the record is {lines:?}")),
    }
}
