//! A bounded log: 1 MiB of text as compressed chunks and one live chunk.
//!
//! Bytes have absolute positions that never repeat, so a reader is a position and nothing else; a
//! reader that falls behind goes on at the oldest byte still kept. A log nobody writes to holds no
//! buffer at all.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use tokio::sync::Notify;

/// Text bytes in one chunk.
pub const CHUNK_LEN: usize = 64 * 1024;

/// Compressed chunks kept behind the live one: 15 + 1 chunks make 1 MiB.
pub const CHUNKS_MAX: usize = 15;

/// First allocation of the live chunk.
const LIVE_INITIAL: usize = 16 * 1024;

/// A bounded log with any number of readers.
pub struct LogRing {
    inner: Mutex<Inner>,
    grown: Notify,
}

#[derive(Default)]
struct Inner {
    packed: VecDeque<Packed>,
    live: Vec<u8>,
    live_start: u64,
    closed: bool,
}

struct Packed {
    start: u64,
    len: usize,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Deflate(Bytes),
    /// Kept as it came: compression failed or did not pay.
    Plain(Bytes),
}

impl Body {
    fn pack(text: Vec<u8>) -> Self {
        // The fast level packs log text to a fifth; the others cost time for little.
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let packed = encoder.write_all(&text).and_then(|()| encoder.finish());
        match packed {
            Ok(mut small) if small.len() < text.len() => {
                small.shrink_to_fit();
                Self::Deflate(small.into())
            }
            Ok(_) | Err(_) => Self::Plain(text.into()),
        }
    }

    fn unpack(&self, len: usize) -> Bytes {
        match self {
            Self::Deflate(bytes) => {
                let mut text = Vec::with_capacity(len);
                // We packed it ourselves; should memory be damaged, the reader gets a hole, not a crash.
                match DeflateDecoder::new(&bytes[..]).take(len as u64).read_to_end(&mut text) {
                    Ok(_) => text.into(),
                    Err(_) => Bytes::new(),
                }
            }
            Self::Plain(bytes) => bytes.clone(),
        }
    }
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest byte kept.
    Oldest,
    /// So that the last `n` lines come first.
    TailLines(usize),
    /// After everything written so far.
    End,
}

impl Default for LogRing {
    fn default() -> Self {
        Self::new()
    }
}

impl LogRing {
    /// An empty log; it allocates on the first write.
    pub fn new() -> Self {
        Self { inner: Mutex::new(Inner::default()), grown: Notify::new() }
    }

    /// Appends bytes and wakes followers. Does nothing once the log is closed.
    pub fn write(&self, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        {
            let mut inner = self.lock();
            if inner.closed {
                return;
            }
            while !bytes.is_empty() {
                let room = CHUNK_LEN - inner.live.len();
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                if inner.live.capacity() == 0 {
                    inner.live.reserve_exact(LIVE_INITIAL.max(now.len()));
                }
                inner.live.extend_from_slice(now);
                bytes = later;
                if inner.live.len() == CHUNK_LEN {
                    inner.roll();
                }
            }
        }
        self.grown.notify_waiters();
    }

    /// Appends one line and its newline.
    pub fn write_line(&self, line: &str) {
        let mut text = Vec::with_capacity(line.len() + 1);
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
        self.write(&text);
    }

    /// Ends the log: followers see the end after the last byte.
    pub fn close(&self) {
        self.lock().closed = true;
        self.grown.notify_waiters();
    }

    /// A reader over what is there now, ending where the log ends now.
    pub fn reader(self: &Arc<Self>, start: Start) -> LogReader {
        let mut reader = self.follow(start);
        reader.until = Some(self.lock().end());
        reader
    }

    /// A reader that waits for more at the end.
    pub fn follow(self: &Arc<Self>, start: Start) -> LogReader {
        let position = {
            let inner = self.lock();
            match start {
                Start::Oldest => inner.oldest(),
                Start::TailLines(lines) => inner.tail_position(lines),
                Start::End => inner.end(),
            }
        };
        LogReader { ring: Arc::clone(self), position, until: None, unpacked: None, lost: 0 }
    }

    /// The last `max` bytes as text, for error messages.
    pub fn last_bytes(&self, max: usize) -> String {
        let inner = self.lock();
        let from = inner.live.len().saturating_sub(max);
        String::from_utf8_lossy(&inner.live[from..]).into_owned()
    }

    /// Bytes of memory held, live buffer included.
    pub fn memory(&self) -> usize {
        let inner = self.lock();
        let packed: usize = inner
            .packed
            .iter()
            .map(|chunk| match &chunk.body {
                Body::Deflate(bytes) | Body::Plain(bytes) => bytes.len(),
            })
            .sum();
        packed + inner.live.capacity()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The ring is consistent between any two statements, so a poisoned lock is still good.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn oldest(&self) -> u64 {
        self.packed.front().map_or(self.live_start, |chunk| chunk.start)
    }

    fn end(&self) -> u64 {
        self.live_start + self.live.len() as u64
    }

    fn roll(&mut self) {
        let text = std::mem::take(&mut self.live);
        let (start, len) = (self.live_start, text.len());
        if self.packed.len() == CHUNKS_MAX {
            self.packed.pop_front();
        }
        self.packed.push_back(Packed { start, len, body: Body::pack(text) });
        self.live_start = start + len as u64;
    }

    /// The position from which `lines` lines remain; an unfinished last line counts as one.
    fn tail_position(&self, lines: usize) -> u64 {
        if lines == 0 {
            return self.end();
        }
        let end = self.end();
        let mut seen = 0;
        let mut scan = |start: u64, text: &[u8]| -> Option<u64> {
            for (index, byte) in text.iter().enumerate().rev() {
                let position = start + index as u64;
                if *byte == b'\n' && position + 1 != end {
                    seen += 1;
                    if seen == lines {
                        return Some(position + 1);
                    }
                }
            }
            None
        };
        if let Some(position) = scan(self.live_start, &self.live) {
            return position;
        }
        for chunk in self.packed.iter().rev() {
            if let Some(position) = scan(chunk.start, &chunk.body.unpack(chunk.len)) {
                return position;
            }
        }
        self.oldest()
    }
}

/// What one look at the ring gave.
enum Look {
    Data(Bytes),
    Packed { start: u64, len: usize, body: Body },
    Wait,
    End,
}

/// Reads a [`LogRing`] from a position on.
pub struct LogReader {
    ring: Arc<LogRing>,
    position: u64,
    until: Option<u64>,
    unpacked: Option<(u64, Bytes)>,
    lost: u64,
}

impl LogReader {
    /// The next at most `max` bytes, or nothing when the reader has caught up.
    pub fn read(&mut self, max: usize) -> Option<Bytes> {
        match self.look(max) {
            Look::Data(bytes) => Some(bytes),
            Look::Packed { start, len, body } => {
                self.unpacked = Some((start, body.unpack(len)));
                match self.look(max) {
                    Look::Data(bytes) => Some(bytes),
                    Look::Packed { .. } | Look::Wait | Look::End => None,
                }
            }
            Look::Wait | Look::End => None,
        }
    }

    /// Bytes that were overwritten before this reader came to them, since this was last asked.
    pub fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// The next at most `max` bytes; waits for them when following. `None` is the end.
    pub async fn next(&mut self, max: usize) -> Option<Bytes> {
        let ring = Arc::clone(&self.ring);
        loop {
            let grown = ring.grown.notified();
            tokio::pin!(grown);
            // Registered before looking, so that a write between the two is not missed.
            grown.as_mut().enable();
            if let Some(bytes) = self.read(max) {
                return Some(bytes);
            }
            if matches!(self.look(max), Look::End) {
                return None;
            }
            grown.await;
        }
    }

    fn look(&mut self, max: usize) -> Look {
        let inner = self.ring.lock();
        if self.position < inner.oldest() {
            self.lost += inner.oldest() - self.position;
            self.position = inner.oldest();
        }
        let end = self.until.map_or(inner.end(), |until| until.min(inner.end()));
        if self.position >= end {
            return if self.until.is_some() || inner.closed { Look::End } else { Look::Wait };
        }
        let max = max.max(1).min(usize::try_from(end - self.position).unwrap_or(usize::MAX));
        if self.position >= inner.live_start {
            self.unpacked = None;
            let from = (self.position - inner.live_start) as usize;
            let to = (from + max).min(inner.live.len());
            self.position += (to - from) as u64;
            return Look::Data(Bytes::copy_from_slice(&inner.live[from..to]));
        }
        if let Some((start, text)) = &self.unpacked
            && (*start..*start + text.len() as u64).contains(&self.position)
        {
            let from = (self.position - start) as usize;
            let to = (from + max).min(text.len());
            self.position += (to - from) as u64;
            return Look::Data(text.slice(from..to));
        }
        let position = self.position;
        match inner.packed.iter().find(|chunk| position < chunk.start + chunk.len as u64) {
            Some(chunk) => Look::Packed { start: chunk.start, len: chunk.len, body: chunk.body.clone() },
            None => Look::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn drain(mut reader: LogReader) -> String {
        let mut text = Vec::new();
        while let Some(bytes) = reader.read(1024) {
            text.extend_from_slice(&bytes);
        }
        String::from_utf8(text).unwrap()
    }

    fn ring_with(lines: std::ops::Range<usize>) -> Arc<LogRing> {
        let ring = Arc::new(LogRing::new());
        for n in lines {
            ring.write_line(&format!("line {n:08}"));
        }
        ring
    }

    #[test]
    fn an_untouched_log_holds_no_memory() {
        assert_eq!(LogRing::new().memory(), 0);
    }

    #[test]
    fn everything_written_is_read_back_across_chunks() {
        let ring = ring_with(0..30_000);
        let text = drain(ring.reader(Start::Oldest));
        assert_eq!(text.lines().count(), 30_000);
        assert!(text.starts_with("line 00000000\n") && text.ends_with("line 00029999\n"));
    }

    #[test]
    fn the_oldest_chunk_goes_when_the_log_is_full() {
        let ring = ring_with(0..200_000);
        let text = drain(ring.reader(Start::Oldest));
        let full = CHUNK_LEN * CHUNKS_MAX;
        assert!((full..=full + CHUNK_LEN).contains(&text.len()), "{}", text.len());
        assert!(text.ends_with("line 00199999\n"));
        assert!(ring.memory() < full / 2, "chunks are compressed: {}", ring.memory());
    }

    #[test]
    fn tail_counts_lines_and_an_unfinished_line_is_one() {
        let ring = ring_with(0..20_000);
        assert_eq!(drain(ring.reader(Start::TailLines(2))), "line 00019998\nline 00019999\n");
        assert_eq!(drain(ring.reader(Start::TailLines(0))), "");
        assert_eq!(drain(ring.reader(Start::TailLines(15_000))).lines().count(), 15_000);
        assert_eq!(drain(ring.reader(Start::TailLines(usize::MAX))).lines().count(), 20_000);
        ring.write(b"half");
        assert_eq!(drain(ring.reader(Start::TailLines(2))), "line 00019999\nhalf");
    }

    #[test]
    fn a_bounded_reader_ends_where_the_log_ended() {
        let ring = ring_with(0..2);
        let reader = ring.reader(Start::Oldest);
        ring.write_line("later");
        assert_eq!(drain(reader), "line 00000000\nline 00000001\n");
    }

    #[test]
    fn a_reader_that_fell_behind_goes_on_at_the_oldest_byte() {
        let ring = ring_with(0..1);
        let mut reader = ring.follow(Start::Oldest);
        for n in 0..200_000 {
            ring.write_line(&format!("line {n:08}"));
        }
        assert!(reader.read(64).is_some());
        assert!(drain(reader).ends_with("line 00199999\n"));
    }

    #[tokio::test]
    async fn a_follower_gets_what_comes_later_and_then_the_end() {
        let ring = ring_with(0..1);
        let mut reader = ring.follow(Start::End);
        let writer = Arc::clone(&ring);
        let task = tokio::spawn(async move {
            tokio::task::yield_now().await;
            writer.write_line("news");
            tokio::task::yield_now().await;
            writer.close();
        });
        let bound = Duration::from_secs(10);
        let news = tokio::time::timeout(bound, reader.next(1024)).await.unwrap();
        assert_eq!(news.as_deref(), Some(&b"news\n"[..]));
        assert_eq!(tokio::time::timeout(bound, reader.next(1024)).await.unwrap(), None);
        task.await.unwrap();
    }
}
