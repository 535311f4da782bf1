//! Event ids: twelve bytes, twenty characters, sortable by time.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;

/// A twelve-byte id: seconds, machine, process, counter, all big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid([u8; 12]);

/// Base32 with the extended hex alphabet, lower case: keeps byte order.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 96 bits in groups of five from the top; the last group holds one bit.
        let mut text = [0u8; 20];
        for (index, slot) in text.iter_mut().enumerate() {
            let bit = index * 5;
            let high = u16::from(self.0[bit / 8]) << 8;
            let low = self.0.get(bit / 8 + 1).copied().map_or(0, u16::from);
            let group = ((high | low) >> (11 - bit % 8)) & 31;
            *slot = ALPHABET[usize::from(group)];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// Makes ids that ascend within one process, even within one second.
#[derive(Debug)]
pub struct XidSource {
    machine: [u8; 3],
    process: [u8; 2],
    counter: AtomicU32,
}

impl Default for XidSource {
    fn default() -> Self {
        Self::new()
    }
}

impl XidSource {
    /// A source for this process. The counter starts at zero: restarts of the process are told
    /// apart by the process number, and ids stay in order within it.
    pub fn new() -> Self {
        let process = std::process::id();
        let seed = u64::from(process).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        Self {
            machine: [seed[0], seed[1], seed[2]],
            process: (process as u16).to_be_bytes(),
            counter: AtomicU32::new(0),
        }
    }

    /// The next id at this time.
    pub fn next(&self, at: Timestamp) -> Xid {
        let seconds = u32::try_from(at.as_second()).unwrap_or(0).to_be_bytes();
        let [_, counter @ ..] = self.counter.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut id = [0u8; 12];
        id[..4].copy_from_slice(&seconds);
        id[4..7].copy_from_slice(&self.machine);
        id[7..9].copy_from_slice(&self.process);
        id[9..].copy_from_slice(&counter);
        Xid(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_the_published_one() {
        // The example of the format's own documentation.
        let id = Xid([0x4d, 0x88, 0xe1, 0x5b, 0x60, 0xf4, 0x86, 0xe4, 0x28, 0x41, 0x2d, 0xc9]);
        assert_eq!(id.to_string(), "9m4e2mr0ui3e8a215n4g");
    }

    #[test]
    fn ids_of_one_second_ascend_as_text() {
        let source = XidSource::new();
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let ids: Vec<String> = (0..1000).map(|_| source.next(at).to_string()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.len() == 20));
    }
}
