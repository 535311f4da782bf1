//! A request body that asks for room before it hands its bytes on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use super::{BodyLimits, CallBudget, no_room};
use crate::frame::{HEADER, parse_header};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A message that waits for room asks again this often: meanwhile others may have become slow.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// A request body within the budget of its server; one without a budget passes as it is.
#[derive(Debug)]
pub struct BudgetedBody<B = Incoming> {
    body: B,
    metering: Option<Metering>,
}

#[derive(Debug)]
struct Metering {
    call: Arc<CallBudget>,
    meter: Meter,
    /// What has arrived and has no room yet, with the bytes it needs.
    arrived: Option<(Bytes, usize)>,
    received: usize,
    progress: bool,
    /// When the peer has to have sent what is due.
    due: Option<Instant>,
    /// When a message stops waiting for room.
    refused_at: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    is_open: bool,
}

impl<B> BudgetedBody<B> {
    /// The body of a call with `call` for its room. A method that takes a stream of messages holds one at a time, all
    /// others take one message.
    pub(crate) fn new(body: B, call: Option<Arc<CallBudget>>, takes_many: bool) -> Self {
        let metering = call.map(|call| Metering {
            call,
            meter: Meter { takes_many, ..Meter::default() },
            arrived: None,
            received: 0,
            progress: false,
            due: None,
            refused_at: None,
            timer: None,
            is_open: false,
        });
        Self { body, metering }
    }
}

impl<B> Body for BudgetedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(metering) = &mut this.metering else {
            return Pin::new(&mut this.body).poll_frame(cx).map_err(Into::into);
        };
        loop {
            if metering.arrived.is_some() {
                return match metering.poll_room(cx) {
                    Poll::Ready(Ok(data)) => Poll::Ready(data.map(|data| Ok(Frame::data(data)))),
                    Poll::Ready(Err(status)) => Poll::Ready(Some(Err(status.into()))),
                    Poll::Pending => Poll::Pending,
                };
            }
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(status) = metering.take(data) {
                            return Poll::Ready(Some(Err(status.into())));
                        }
                    }
                    Err(trailers) => {
                        metering.close();
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                },
                Poll::Ready(ended) => {
                    metering.close();
                    return Poll::Ready(ended.map(|result| result.map_err(Into::into)));
                }
                Poll::Pending => {
                    return match metering.poll_peer(cx) {
                        Ok(()) => Poll::Pending,
                        Err(status) => Poll::Ready(Some(Err(status.into()))),
                    };
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.metering.as_ref().is_none_or(|metering| metering.arrived.is_none()) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.metering {
            Some(Metering { arrived: Some(_), .. }) => SizeHint::default(),
            _ => self.body.size_hint(),
        }
    }
}

impl Metering {
    /// Looks at what arrived.
    fn take(&mut self, data: Bytes) -> Result<(), Status> {
        let (need, begun) = self.meter.measure(&data, self.call.limits().message)?;
        self.received = if begun { data.len() } else { self.received + data.len() };
        // The time of a message counts from its header, that of what follows from its end. Empty pieces are neither.
        if begun || (!data.is_empty() && self.meter.left == 0) {
            self.due = None;
        }
        self.progress |= !data.is_empty();
        self.arrived = Some((data, need));
        Ok(())
    }

    /// Gets room for what arrived.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        let need = self.arrived.as_ref().map_or(0, |(_, need)| *need);
        loop {
            match self.call.poll_hold(cx, need) {
                Poll::Ready(Ok(())) => {
                    (self.refused_at, self.timer) = (None, None);
                    return Poll::Ready(Ok(self.arrived.take().map(|(data, _)| data)));
                }
                Poll::Ready(Err(status)) => return Poll::Ready(Err(status)),
                Poll::Pending => {}
            }
            let now = Instant::now();
            let refused_at = *self.refused_at.get_or_insert(now + self.call.limits().wait);
            if now >= refused_at {
                return Poll::Ready(Err(no_room(need)));
            }
            if !self.poll_timer(cx, refused_at.min(now + ASK_AGAIN)) {
                return Poll::Pending;
            }
        }
    }

    /// Waits for the peer, as long as it is allowed to take.
    fn poll_peer(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        self.is_open = true;
        self.call.poll_open(cx, self.received, std::mem::take(&mut self.progress))?;
        let limits: &BodyLimits = self.call.limits();
        let time = limits.time_for(self.meter.left as usize);
        let due = *self.due.get_or_insert_with(|| Instant::now() + time);
        // The timer may have been set for something earlier.
        while self.poll_timer(cx, due) {
            if Instant::now() >= due {
                return Err(Status::deadline_exceeded(
                    "the request body did not arrive in time; send it again",
                ));
            }
        }
        Ok(())
    }

    /// Whether the timer has run out; it is set to `at` unless it runs.
    fn poll_timer(&mut self, cx: &mut Context<'_>, at: Instant) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        let done = timer.as_mut().poll(cx).is_ready();
        if done {
            self.timer = None;
        }
        done
    }

    fn close(&mut self) {
        self.timer = None;
        if std::mem::take(&mut self.is_open) {
            self.call.close();
        }
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        if self.is_open || self.arrived.is_some() {
            self.call.close();
        }
    }
}

/// Follows the messages of a body.
#[derive(Debug, Default)]
struct Meter {
    takes_many: bool,
    header: [u8; HEADER],
    filled: u8,
    /// Length of the message that is arriving, or arrived last.
    length: usize,
    /// Of it, still to come.
    left: u32,
    seen: bool,
}

impl Meter {
    /// The bytes that a reader holds once it has this piece: messages before are taken when it asks for more. Tells
    /// whether a message begins.
    fn measure(&mut self, mut piece: &[u8], limit: usize) -> Result<(usize, bool), Status> {
        let (mut need, mut begun) = (if self.left > 0 || !self.takes_many { self.length } else { 0 }, false);
        while !piece.is_empty() {
            if self.left > 0 {
                let pass = (self.left as usize).min(piece.len());
                self.left -= pass as u32;
                piece = &piece[pass..];
                continue;
            }
            if self.seen && !self.takes_many {
                return Err(Status::internal("the method takes one message, and another one followed"));
            }
            let filled = usize::from(self.filled);
            let wanted = (HEADER - filled).min(piece.len());
            self.header[filled..filled + wanted].copy_from_slice(&piece[..wanted]);
            self.filled += wanted as u8;
            piece = &piece[wanted..];
            if usize::from(self.filled) == HEADER {
                let (_, length) = parse_header(self.header, limit)?;
                (self.filled, self.seen, begun) = (0, true, true);
                (self.length, self.left) = (length + HEADER, length as u32);
                need += self.length;
            }
        }
        Ok((need, begun))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use ichor_testkit::ScriptedBody;
    use tokio::time::timeout;
    use tonic::Code;

    use super::super::{BodyBudget, BodyLimits};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget() -> BodyBudget {
        BodyBudget::new(BodyLimits {
            message: 1000,
            connection: 2000,
            total: 2000,
            small: 10,
            reserve: 100,
            waiting: 8,
            wait: 3 * SECOND,
            stall: SECOND,
            rate: 800,
            deadline: 10 * SECOND,
        })
    }

    fn message(length: usize) -> Vec<u8> {
        let mut out = vec![0];
        out.extend_from_slice(&(length as u32).to_be_bytes());
        out.resize(HEADER + length, 7);
        out
    }

    fn body(
        budget: &BodyBudget,
        takes_many: bool,
        pieces: &[&[u8]],
        ends: bool,
    ) -> (BudgetedBody<ScriptedBody>, Arc<CallBudget>) {
        let call = budget.connection(None).call();
        let pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
        let pieces = if ends { ScriptedBody::ending(pieces) } else { ScriptedBody::stalling(pieces) };
        (BudgetedBody::new(pieces, Some(call.clone()), takes_many), call)
    }

    async fn next(body: &mut BudgetedBody<ScriptedBody>) -> Option<Result<usize, Status>> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(match frame {
            Ok(frame) => Ok(frame.into_data().map_or(0, |data| data.len())),
            Err(error) => Err(*error.downcast::<Status>().expect("a status")),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_taken_for_the_announced_length_and_kept_until_the_answer() {
        let budget = budget();
        let (mut body, call) = body(&budget, false, &[&message(500)[..20], &message(500)[20..]], true);
        assert_eq!(next(&mut body).await.unwrap().unwrap(), 20);
        assert_eq!(budget.used(), 505);
        assert_eq!(next(&mut body).await.unwrap().unwrap(), 485);
        assert!(next(&mut body).await.is_none());
        drop(body);
        assert_eq!(budget.used(), 505, "the handler has the message");
        drop(call);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_messages_holds_one_at_a_time() {
        let budget = budget();
        let pieces: Vec<Vec<u8>> = (0..100).map(|_| message(900)).collect();
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let (mut body, _call) = body(&budget, true, &pieces, true);
        while let Some(piece) = next(&mut body).await {
            assert_eq!(piece.unwrap(), 905);
            assert_eq!(budget.used(), 905);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_message_does_not_free_the_room_of_the_first() {
        let budget = budget();
        let (mut body, _call) = body(&budget, false, &[&message(900), &message(0)], false);
        next(&mut body).await.unwrap().unwrap();
        let status = next(&mut body).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(budget.used(), 905);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_ended_by_its_deadline() {
        let budget = budget();
        for pieces in [&[][..], &[&message(500)[..3]], &[&message(500)[..100]], &[&message(500)]] {
            let (mut body, _call) = body(&budget, false, pieces, false);
            for _ in pieces {
                next(&mut body).await.unwrap().unwrap();
            }
            let began = Instant::now();
            let status = next(&mut body).await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            let took = began.elapsed();
            assert!(took >= 10 * SECOND && took < 16 * SECOND, "{took:?}");
        }
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_without_room_takes_that_of_a_stalled_one() {
        let budget = budget();
        let mut stalled = Vec::new();
        for _ in 0..2 {
            let (mut stalls, call) = body(&budget, false, &[&message(900)[..100]], false);
            next(&mut stalls).await.unwrap().unwrap();
            stalled.push(tokio::spawn(async move {
                let _call = call;
                next(&mut stalls).await
            }));
        }
        let (mut waits, _call) = body(&budget, false, &[&message(900)], true);
        let began = Instant::now();
        assert_eq!(next(&mut waits).await.unwrap().unwrap(), 905);
        assert!(began.elapsed() >= SECOND && began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        let first = stalled.remove(0).await.unwrap().unwrap().unwrap_err();
        assert_eq!(first.code(), Code::ResourceExhausted);
        assert!(timeout(SECOND, stalled.remove(0)).await.is_err(), "one was enough");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_refused_when_no_room_comes() {
        let budget = budget();
        let mut held = Vec::new();
        for _ in 0..2 {
            // Complete: their handlers are at work.
            let (mut busy, call) = body(&budget, false, &[&message(900)], true);
            next(&mut busy).await.unwrap().unwrap();
            assert!(next(&mut busy).await.is_none());
            held.push(call);
        }
        let (mut waits, _call) = body(&budget, false, &[&message(900)], true);
        let began = Instant::now();
        let status = next(&mut waits).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(began.elapsed().as_secs(), 3);
        let (mut small, _small) = body(&budget, false, &[&message(5)], true);
        assert_eq!(next(&mut small).await.unwrap().unwrap(), 10, "small ones have room still");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_beyond_the_limit_is_refused_at_its_header() {
        let (mut body, _call) = body(&budget(), false, &[&message(1001)[..HEADER]], false);
        let status = next(&mut body).await.unwrap().unwrap_err();
        assert_eq!(status.message(), "grpc: received message larger than max (1001 vs. 1000)");
    }
}
