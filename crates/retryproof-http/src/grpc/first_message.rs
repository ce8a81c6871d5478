// SPDX-License-Identifier: MIT OR Apache-2.0
//! Determines from a response's bytes whether the response is one message or a stream. A message
//! consists of a flag byte, a length in four bytes, and the content. The first message is followed
//! by either another message or the trailers.

use std::fmt;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use retryproof_core::internal::{Panic, catch_panic_of};

use super::fate::{FATE_NAME, take_fate};
use crate::body::{BodyBuffer, FrameTimer, ReplayBody, TimedOut};
use crate::fate::AnswerFate;
use crate::header_map::remove_in_order;

/// The body of a guarded call's response.
pub struct GrpcBody<B: Body> {
    first: ReplayBody,
    rest: RemainingBody<B>,
    /// Whether the response is a stream whose body has not been polled yet. If so, the size hint
    /// exceeds any limit, so that the guard does not read the body (HTTP-13).
    endless: bool,
}

enum RemainingBody<B: Body> {
    Nothing,
    /// The body is boxed, because a body that has been polled must not move unless it is `Unpin`.
    Body(Pin<Box<B>>),
    Error(Option<B::Error>),
    /// Reading the body panicked. The panic resumes when the guard reads the body, so that the
    /// guard sees a body that breaks off, not a handler that panicked.
    Panicked(Option<Panic>),
}

impl<B: Body<Data = Bytes>> GrpcBody<B> {
    /// Wraps a body without reading its first message.
    pub(super) fn passed(body: B) -> Self {
        Self {
            first: ReplayBody::default(),
            rest: RemainingBody::Body(Box::pin(body)),
            endless: false,
        }
    }

    /// Wraps the response of a streaming method without reading its first message.
    pub(super) fn stream(body: B) -> Self {
        Self { endless: true, ..Self::passed(body) }
    }

    /// Reads the body until the response proves to be whole, a stream, or longer than `limit`
    /// bytes. A body that takes longer than `timeout` counts as a stream.
    pub(super) async fn read_first(body: B, limit: usize, timeout: Duration) -> Self {
        let mut body = Box::pin(body);
        let mut buffer = BodyBuffer::default();
        let mut message = MessageProgress::default();
        let mut trailers = None::<Box<HeaderMap>>;
        let mut timer = FrameTimer::new(timeout);
        loop {
            let next = pin!(poll_fn(|cx| timer.poll_frame(body.as_mut(), cx)));
            let frame = match catch_panic_of(next).await {
                Ok(Ok(frame)) => Ok(frame),
                Ok(Err(TimedOut)) => {
                    let first = ReplayBody::new(buffer.into_bytes(), None);
                    return Self { first, rest: RemainingBody::Body(body), endless: true };
                }
                Err(panic) => Err(panic),
            };
            let rest = match frame.map(Option::transpose) {
                Err(panic) => RemainingBody::Panicked(Some(panic)),
                Ok(Err(error)) => RemainingBody::Error(Some(error)),
                Ok(Ok(None)) => RemainingBody::Nothing,
                Ok(Ok(Some(frame))) => match frame.into_data() {
                    Ok(data) => {
                        let more = message.goes_on(&data);
                        buffer.push(data, 0);
                        if !more && buffer.len() <= limit {
                            continue;
                        }
                        let first = ReplayBody::new(buffer.into_bytes(), None);
                        return Self { first, rest: RemainingBody::Body(body), endless: more };
                    }
                    Err(frame) => {
                        if let Ok(more) = frame.into_trailers() {
                            trailers.get_or_insert_default().extend(more);
                        }
                        continue;
                    }
                },
            };
            return Self {
                first: ReplayBody::new(buffer.into_bytes(), trailers),
                rest,
                endless: false,
            };
        }
    }

    /// Returns the trailers, if the body was read to its end.
    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        self.first.trailers()
    }

    /// Removes the fate from the trailers and returns it. Returns `None` if the trailers were not
    /// read or have no fate.
    pub(super) fn take_fate(&mut self) -> Option<AnswerFate> {
        take_fate(self.first.trailers_mut()?)
    }
}

/// How much of the first message was read.
#[derive(Debug, Default)]
struct MessageProgress {
    /// How many bytes of the message's head have been read, up to five.
    head: usize,
    /// How many bytes of the message are still to come; known once the head is complete.
    left: usize,
}

impl MessageProgress {
    /// Counts the next bytes of the body, and returns whether they go beyond the first message.
    fn goes_on(&mut self, mut data: &[u8]) -> bool {
        while self.head < 5 {
            let Some((byte, rest)) = data.split_first() else { return false };
            if self.head > 0 {
                self.left = self.left << 8 | usize::from(*byte);
            }
            self.head += 1;
            data = rest;
        }
        let beyond = data.len() > self.left;
        self.left = self.left.saturating_sub(data.len());
        beyond
    }
}

/// `GrpcBody` is `Unpin`, because the inner body is pinned on the heap and no other field needs
/// pinning.
impl<B: Body> Unpin for GrpcBody<B> {}

impl<B: Body<Data = Bytes>> Body for GrpcBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.endless = false;
        if let Some(Ok(frame)) = ready!(Pin::new(&mut self.first).poll_frame(cx)) {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            RemainingBody::Nothing => Poll::Ready(None),
            RemainingBody::Body(body) => {
                let mut frame = ready!(body.as_mut().poll_frame(cx));
                // A fate in trailers that arrive here is too late to have an effect (HTTP-13).
                // Remove the fate, because the client must not see it.
                if let Some(trailers) =
                    frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut())
                {
                    remove_in_order(trailers, &FATE_NAME);
                }
                Poll::Ready(frame)
            }
            RemainingBody::Error(error) => Poll::Ready(error.take().map(Err)),
            RemainingBody::Panicked(panic) => match panic.take() {
                Some(panic) => resume_unwind(panic),
                None => Poll::Ready(None),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_end_stream()
            && match &self.rest {
                RemainingBody::Nothing => true,
                RemainingBody::Body(body) => body.is_end_stream(),
                RemainingBody::Error(error) => error.is_none(),
                RemainingBody::Panicked(panic) => panic.is_none(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        match &self.rest {
            _ if self.endless => hint.set_lower(u64::MAX),
            RemainingBody::Nothing => return self.first.size_hint(),
            RemainingBody::Body(body) => {
                let (first, rest) = (self.first.size_hint().lower(), body.size_hint());
                hint.set_lower(rest.lower().saturating_add(first));
                if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
                    hint.set_upper(upper);
                }
            }
            RemainingBody::Error(_) | RemainingBody::Panicked(_) => {
                hint.set_lower(self.first.size_hint().lower())
            }
        }
        hint
    }
}

impl<B: Body> fmt::Debug for GrpcBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcBody").field("first", &self.first).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a body that arrives in pieces of `size` bytes continues beyond the first message.
    fn cut(bytes: &[u8], size: usize) -> bool {
        let mut message = MessageProgress::default();
        bytes.chunks(size).any(|piece| message.goes_on(piece))
    }

    #[test]
    fn http_13_a_second_message_is_seen_wherever_the_frames_are_cut() {
        let one = [0, 0, 0, 1, 2].iter().copied().chain([7; 258]).collect::<Vec<u8>>();
        let two = [&one[..], &[0]].concat();
        for size in 1..=two.len() {
            assert!(!cut(&one, size), "{size}");
            assert!(cut(&two, size), "{size}");
        }
        assert!(!cut(&[], 1));
        assert!(!cut(&[0, 0, 0, 0, 0], 5), "an empty message");
        assert!(cut(&[0, 0, 0, 0, 0, 0], 6));
        assert!(!cut(&[0, 0xff, 0xff, 0xff, 0xff, 1], 6));
    }
}
