//! A watch as a stream of messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ichor_wire::cosi::resource as wire;
use tokio_stream::Stream;
use tonic::Status;

use super::codec::Frame;
use super::{query, status};
use crate::encode;
use crate::event::{Bookmark, Event, EventKind};
use crate::handle::KindHandle;
use crate::watch::{Watch, WatchIdOptions, WatchOptions};

/// From this version on clients understand `Bootstrapped` and `Errored`.
const KNOWS_BOOTSTRAPPED: i32 = 1;

/// The replies of one Watch call.
pub(crate) struct WatchStream {
    watch: Watch,
    aggregated: bool,
    api_version: i32,
    /// The empty message that says the watch is set up was sent.
    greeted: bool,
}

impl WatchStream {
    pub(crate) fn open(kind: &KindHandle, request: &wire::WatchRequest) -> Result<Self, Status> {
        let options = request.options.clone().unwrap_or_default();
        let bookmark = options
            .start_from_bookmark
            .as_deref()
            .map(Bookmark::from_bytes)
            .transpose()
            .map_err(|error| status(&error))?;
        let tail_events = usize::try_from(options.tail_events).unwrap_or(0);
        let aggregated = options.aggregated && request.id.is_none();
        let watch = match &request.id {
            Some(id) => {
                if options.bootstrap_contents {
                    return Err(Status::unimplemented(
                        "bootstrap contents is not implemented for resource watch",
                    ));
                }
                if !options.label_query.is_empty() {
                    return Err(Status::unimplemented("label query is not implemented for resource watch"));
                }
                let options = WatchIdOptions { tail_events, bookmark };
                kind.watch_id(id, &options)
            }
            None => kind.watch(WatchOptions {
                bootstrap: options.bootstrap_contents,
                bootstrap_bookmark: options.bootstrap_bookmark,
                tail_events,
                bookmark,
                query: query(&options.label_query, options.id_query.as_ref())?,
            }),
        };
        Ok(Self {
            watch: watch.map_err(|error| status(&error))?.share_encoding(),
            aggregated,
            api_version: request.api_version,
            greeted: false,
        })
    }

    fn understands(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::Bootstrapped | EventKind::Errored => self.api_version >= KNOWS_BOOTSTRAPPED,
            EventKind::Created | EventKind::Updated | EventKind::Destroyed | EventKind::Noop => true,
        }
    }

    fn poll_single(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        loop {
            // The watch takes the whole backlog with it, so a slow client falls behind late.
            let Some(event) = ready!(self.watch.poll_next(cx)) else {
                return Poll::Ready(None);
            };
            if self.understands(&event) {
                return Poll::Ready(Some(Frame::from(encode::event(&event))));
            }
        }
    }

    fn poll_aggregated(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        let Some(batch) = ready!(self.watch.poll_batch(cx)) else {
            return Poll::Ready(None);
        };
        let mut frame = Frame::default();
        for event in batch.iter().filter(|event| self.understands(event)) {
            frame.push(encode::event(event));
        }
        Poll::Ready(Some(frame))
    }
}

impl Stream for WatchStream {
    type Item = Result<Frame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if !this.greeted {
            this.greeted = true;
            return Poll::Ready(Some(Ok(Frame::default())));
        }
        let frame =
            if this.aggregated { ready!(this.poll_aggregated(cx)) } else { ready!(this.poll_single(cx)) };
        match frame {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            // The watch broke. Clients that know `Errored` were told, and hang up themselves, as
            // with the original; an end of the stream would read as a second error.
            None if this.api_version >= KNOWS_BOOTSTRAPPED => Poll::Pending,
            None => Poll::Ready(Some(Err(Status::aborted("buffer overrun")))),
        }
    }
}
