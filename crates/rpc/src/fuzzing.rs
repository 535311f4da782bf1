//! The gateway's readers of bytes on their own, for the tests that hand in anything.

use bytes::Bytes;
use tonic::Status;

use crate::frame::{Gauge, Message, Splitter};
use crate::proxy::merge;

/// What becomes of a body in pieces of `size` bytes: the messages, and how it ended.
///
/// # Panics
/// When the two readers of frames disagree about what is a message.
pub fn frames(body: &[u8], size: usize, limit: usize) -> (Vec<Bytes>, Result<bool, Status>) {
    let (mut splitter, mut gauge) = (Splitter::new(limit), Gauge::default());
    let mut found = Vec::new();
    for piece in body.chunks(size.max(1)) {
        let watched = gauge.check(piece, limit);
        splitter.push(piece);
        let read = loop {
            match splitter.next() {
                Ok(Some(Message { payload, .. })) => found.push(payload),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert_eq!(watched.is_err(), read.is_err(), "one reader refuses what the other takes");
        if let Err(error) = read {
            return (found, Err(error));
        }
    }
    (found, Ok(splitter.is_partial()))
}

/// A reply with the node's name in it, as of a method that replies once, and as a message of a stream.
pub fn name(payload: &Bytes, target: &str) -> (Result<Bytes, Status>, Bytes) {
    (merge::unary(payload, target), merge::streamed(payload, target))
}
