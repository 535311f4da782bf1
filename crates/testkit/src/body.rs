//! HTTP bodies whose frames a test lays out beforehand.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// A body of given frames, after which it ends or stalls for ever.
#[derive(Debug)]
pub struct ScriptedBody {
    steps: VecDeque<Step>,
    stalls: bool,
    sent: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Step {
    Data(Bytes),
    /// So many zeros. One step, however many: tests measure the memory that stalled bodies cost.
    Zeros(usize),
    Trailers(HeaderMap),
}

impl ScriptedBody {
    fn new(pieces: impl IntoIterator<Item = Bytes>, stalls: bool) -> Self {
        Self { steps: pieces.into_iter().map(Step::Data).collect(), stalls, sent: Arc::default() }
    }

    /// Sends `pieces` and ends.
    pub fn ending(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        Self::new(pieces, false)
    }

    /// Sends `pieces` and then neither sends more nor ends.
    pub fn stalling(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        Self::new(pieces, true)
    }

    /// Announces a gRPC message of `announced` bytes, sends `sent` bytes of it and stalls.
    ///
    /// # Panics
    /// When `announced` does not fit into the header of a message.
    pub fn unfinished_message(announced: usize, sent: usize) -> Self {
        let mut header = vec![0];
        header.extend_from_slice(&u32::try_from(announced).expect("a length of 32 bits").to_be_bytes());
        let mut body = Self::stalling([Bytes::from(header)]);
        if sent > 0 {
            body.steps.push_back(Step::Zeros(sent));
        }
        body
    }

    /// Sends `trailers` after all pieces.
    #[must_use]
    pub fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.steps.push_back(Step::Trailers(trailers));
        self
    }

    /// Adds the bytes it sends to `sent`.
    #[must_use]
    pub fn counted(mut self, sent: &Arc<AtomicUsize>) -> Self {
        self.sent = Arc::clone(sent);
        self
    }
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.steps.pop_front() {
            Some(Step::Data(data)) => Frame::data(data),
            Some(Step::Zeros(left)) => {
                let next = left.min(ZEROS.len());
                if next < left {
                    self.steps.push_front(Step::Zeros(left - next));
                }
                Frame::data(Bytes::from_static(&ZEROS[..next]))
            }
            Some(Step::Trailers(trailers)) => Frame::trailers(trailers),
            None if self.stalls => return Poll::Pending,
            None => return Poll::Ready(None),
        };
        self.sent.fetch_add(frame.data_ref().map_or(0, Bytes::len), Relaxed);
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// The lengths of its data frames, and whether it ended.
    fn drain(mut body: ScriptedBody) -> (Vec<usize>, bool) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut lengths = Vec::new();
        loop {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Ready(Some(Ok(frame))) => lengths.extend(frame.data_ref().map(Bytes::len)),
                Poll::Ready(None) => return (lengths, true),
                Poll::Pending => return (lengths, false),
            }
        }
    }

    #[test]
    fn an_unfinished_message_stalls_after_what_it_sends() {
        let sent = Arc::<AtomicUsize>::default();
        let body = ScriptedBody::unfinished_message(100_000, 70_000).counted(&sent);
        assert_eq!(drain(body), (vec![5, 65_536, 4_464], false));
        assert_eq!(sent.load(Relaxed), 70_005);
        assert_eq!(drain(ScriptedBody::unfinished_message(10, 0)), (vec![5], false));
    }

    #[test]
    fn pieces_come_in_order_before_the_trailers() {
        let pieces = || [Bytes::from_static(b"a"), Bytes::from_static(b"bcd")];
        assert_eq!(drain(ScriptedBody::ending(pieces()).with_trailers(HeaderMap::new())), (vec![1, 3], true));
        assert_eq!(drain(ScriptedBody::stalling(pieces())), (vec![1, 3], false));
    }
}
