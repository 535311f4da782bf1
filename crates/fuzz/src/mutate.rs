//! Changes of inputs: of bytes, of lengths and chunks, of lines and words.

use std::ops::Range;

use super::Random;

/// What inputs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// Lines and words.
    Text,
    /// Packets.
    Binary,
}

/// Numbers at which readers go wrong.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    511,
    512,
    1023,
    1024,
    4095,
    4096,
    32_767,
    32_768,
    65_535,
    65_536,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX,
    u64::MAX / 2,
];

/// Words at which readers of text go wrong.
const WORDS: &[&str] = &[
    "",
    "0",
    "-1",
    "true",
    "null",
    "~",
    "\"\"",
    "''",
    "\0",
    "\t",
    "\r\n",
    "\n\n",
    " ",
    "\u{feff}",
    "\u{2028}",
    "é",
    "𝄞",
    "%",
    "\\",
    "/",
    "..",
    "*",
    "[]",
    "{}",
    "0x",
    "1e999",
    "NaN",
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "0.0.0.0/0",
    "::/0",
    "::",
    "1h",
    "999999999h",
];

/// Signs that mean something in most texts.
const SIGNS: &[u8] = b" \t\n!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Changes inputs.
pub(super) struct Mutator {
    flavour: Flavour,
    words: Vec<Vec<u8>>,
    len_max: usize,
}

impl Mutator {
    pub(super) fn new(flavour: Flavour, mut words: Vec<Vec<u8>>, len_max: usize) -> Self {
        if flavour == Flavour::Text {
            words.extend(WORDS.iter().map(|word| word.as_bytes().to_vec()));
        }
        Self { flavour, words, len_max }
    }

    /// Makes one to four changes; parts may come from another input.
    pub(super) fn mutate(&mut self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let most = 1 << random.below(3);
        for _ in 0..1 + random.below(most) {
            match self.flavour {
                Flavour::Text if !random.chance(5) => self.text(input, other, random),
                _ => self.bytes(input, other, random),
            }
        }
        input.truncate(self.len_max);
    }

    fn bytes(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let at = random.below(input.len());
        let piece = range(input.len(), random);
        match random.below(12) {
            _ if input.is_empty() => *input = random.bytes(8),
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.number() as u8,
            2 => input.insert(random.below(input.len() + 1), random.number() as u8),
            3 => drop(input.drain(piece)),
            4 => input.truncate(at),
            5 => input[at] = input[at].wrapping_add(*random.pick(&[1, 255, 16, 240])),
            6 | 7 => self.number(input, at, random),
            8 => {
                let copy = input[piece].to_vec();
                drop(input.splice(at..at, copy));
            }
            9 => {
                let value = *random.pick(&[0, 0xff, 0x80, 0x7f, b' ']);
                input[piece].fill(value);
            }
            10 if !other.is_empty() => {
                let from = range(other.len(), random);
                drop(input.splice(piece, other[from].iter().copied()));
            }
            _ => self.word(input, at..at, random),
        }
    }

    /// Writes a number over what stands there, in any width and order: lengths and counts are such.
    fn number(&self, input: &mut [u8], at: usize, random: &mut Random) {
        let near = (input.len() as u64).wrapping_add(random.below(5) as u64).wrapping_sub(2);
        let number = if random.chance(4) { near } else { *random.pick(NUMBERS) };
        let width = *random.pick(&[1, 2, 2, 4, 4, 8]);
        let mut bytes = number.to_le_bytes()[..width].to_vec();
        if random.chance(2) {
            bytes.reverse();
        }
        for (place, byte) in input[at..].iter_mut().zip(bytes) {
            *place = byte;
        }
    }

    fn word(&self, input: &mut Vec<u8>, place: Range<usize>, random: &mut Random) {
        if !self.words.is_empty() {
            let word = random.pick(&self.words).clone();
            drop(input.splice(place, word));
        }
    }

    fn text(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        let line = line(input, random);
        let place = random.below(input.len() + 1);
        match random.below(12) {
            0 => drop(input.drain(line)),
            1 => {
                let copy = input[line.clone()].to_vec();
                drop(input.splice(line.start..line.start, copy));
            }
            // A block of lines somewhere else.
            2 => {
                let end = line_end(input, line.end + random.below(400));
                let block: Vec<u8> = input.drain(line.start..end).collect();
                let at = self::line(input, random).start;
                drop(input.splice(at..at, block));
            }
            3 => {
                let spaces = *random.pick(&[1, 2, 2, 4, 4, 8]);
                drop(input.splice(line.start..line.start, std::iter::repeat_n(b' ', spaces)));
            }
            4 => {
                let blanks = input[line.clone()].iter().take_while(|byte| **byte == b' ').count();
                drop(input.drain(line.start..line.start + blanks.min(1 + random.below(4))));
            }
            5 | 6 => {
                let token = token(input, place);
                self.word(input, token, random);
            }
            7 if random.chance(2) => self.word(input, place..place, random),
            7 => input.insert(place, *random.pick(SIGNS)),
            // A token in the place of another.
            8 => {
                let from = token(input, random.below(input.len() + 1));
                let copy = input[from].to_vec();
                drop(input.splice(token(input, place), copy));
            }
            9 => {
                let token = token(input, place);
                let number = random.pick(NUMBERS).to_string();
                drop(input.splice(token, number.into_bytes()));
            }
            10 if !other.is_empty() => {
                let from = self::line(other, random);
                let end = line_end(other, from.end + random.below(400));
                drop(input.splice(line.start..line.start, other[from.start..end].iter().copied()));
            }
            _ => {
                let token = token(input, place);
                let most = 1 << random.below(10);
                let times = 1 + random.below(most);
                let copy = input[token.clone()].repeat(times.min(self.len_max / token.len().max(1)));
                drop(input.splice(token, copy));
            }
        }
    }
}

/// A piece of an input, short more often than long.
fn range(len: usize, random: &mut Random) -> Range<usize> {
    let start = random.below(len);
    let most = (len - start).min(1 << random.below(12));
    start..(start + random.below(most + 1))
}

/// A line with its end.
fn line(input: &[u8], random: &mut Random) -> Range<usize> {
    let at = random.below(input.len());
    let start = input[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    start..line_end(input, start)
}

/// Behind the end of the line that a place is in.
fn line_end(input: &[u8], from: usize) -> usize {
    let from = from.min(input.len());
    input[from..].iter().position(|byte| *byte == b'\n').map_or(input.len(), |at| from + at + 1)
}

/// The word around a place.
fn token(input: &[u8], place: usize) -> Range<usize> {
    let inner =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || *byte >= 0x80;
    let place = place.min(input.len());
    let start = input[..place].iter().rposition(|byte| !inner(byte)).map_or(0, |at| at + 1);
    let end = input[place..].iter().position(|byte| !inner(byte)).map_or(input.len(), |at| place + at);
    start..end
}
