// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads bodies up to a limit: a request body (HTTP-4, HTTP-5), a response body (HTTP-6), or the
//! first message of a gRPC response.

use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::LengthLimitError;
use retryproof_core::Fingerprint;
use tokio::time::{Sleep, sleep};

use super::BoxError;
use crate::header_map::strip_replay_mark;
use crate::protocol::decide::OversizeBody;
use crate::protocol::fingerprint::FingerprintHasher;

/// Bytes read from frames. A single frame is kept without a copy. Several frames are copied
/// together, so that a body of many tiny frames does not keep one read buffer alive per frame.
#[derive(Default)]
pub(crate) struct BodyBuffer {
    first: Bytes,
    all: Vec<u8>,
}

impl BodyBuffer {
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// Appends a frame. `expected` is the known length of the whole body, or 0.
    pub(crate) fn push(&mut self, frame: Bytes, expected: usize) {
        if self.len() == 0 {
            self.first = frame;
            return;
        }
        if self.all.is_empty() {
            self.all.reserve(expected.max(self.first.len() + frame.len()));
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&frame);
    }

    fn so_far(&self) -> &[u8] {
        if self.all.is_empty() { &self.first } else { &self.all }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// A whole request body.
pub(crate) struct RequestBody {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    /// The fingerprint, if the body was hashed while it arrived.
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// Why a request body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooLarge(OversizeBody),
    Unreadable,
}

/// Reads a request body up to `limit` bytes (HTTP-4, HTTP-5). A body that arrives whole, as most
/// do, is hashed later, together with the rest of the request. Any other body is hashed while it
/// arrives, if `hasher` returns a hasher.
#[expect(clippy::manual_async_fn, reason = "the future of an `async fn` would be larger")]
pub(crate) fn read_request<B>(
    body: B,
    limit: usize,
    hasher: impl FnOnce() -> Option<FingerprintHasher>,
) -> impl Future<Output = Result<RequestBody, BodyError>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    async move {
        let mut body = pin!(body);
        let first = poll_fn(|cx| RequestReader::begin(body.as_mut(), cx, limit)).await;
        let mut open = match first {
            Ok(whole) => return whole,
            Err(open) => open,
        };
        open.hasher = hasher();
        if let Some(hasher) = &mut open.hasher {
            hasher.update(open.buffer.so_far());
        }
        poll_fn(|cx| open.poll(body.as_mut(), cx)).await?;
        Ok(open.end())
    }
}

/// A body that is being read.
struct RequestReader {
    buffer: BodyBuffer,
    trailers: Option<Box<HeaderMap>>,
    hasher: Option<FingerprintHasher>,
    limit: usize,
    expected: usize,
}

impl RequestReader {
    /// Waits for the first frame, and then reads every frame that has arrived. The wait is needed
    /// because some servers poll a service before they read the body. If the body is incomplete,
    /// returns a reader for the rest as an `Err`. The reader is boxed to keep it out of the future
    /// of a request whose body arrives whole.
    fn begin<B>(
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
        limit: usize,
    ) -> Poll<Result<Result<RequestBody, BodyError>, Box<Self>>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(limit);
        let mut reading =
            Self { buffer: BodyBuffer::default(), trailers: None, hasher: None, limit, expected };
        match reading.poll(body.as_mut(), cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Ok(reading.end()))),
            Poll::Ready(Err(error)) => Poll::Ready(Ok(Err(error))),
            Poll::Pending if reading.buffer.len() == 0 && reading.trailers.is_none() => {
                Poll::Pending
            }
            Poll::Pending => Poll::Ready(Err(Box::new(reading))),
        }
    }

    fn poll<B>(
        &mut self,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        // Do not poll a body that has reported its end.
        while !body.is_end_stream() {
            let Some(frame) = ready!(body.as_mut().poll_frame(cx)) else { break };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    if data.len() > self.limit - self.buffer.len() {
                        return Poll::Ready(Err(BodyError::TooLarge(OversizeBody::Partly)));
                    }
                    if let Some(hasher) = &mut self.hasher {
                        hasher.update(&data);
                    }
                    self.buffer.push(data, self.expected);
                }
                Ok(Err(frame)) => {
                    if let Ok(more) = frame.into_trailers() {
                        self.trailers.get_or_insert_default().extend(more);
                    }
                }
                Err(error) => {
                    return Poll::Ready(Err(match is_length_limit(&*error.into()) {
                        true => BodyError::TooLarge(OversizeBody::Partly),
                        false => BodyError::Unreadable,
                    }));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end(self) -> RequestBody {
        RequestBody {
            data: self.buffer.into_bytes(),
            trailers: self.trailers,
            fingerprint: self.hasher.map(FingerprintHasher::finish),
        }
    }
}

/// How reading a response body ended.
pub(crate) enum ReadOutcome {
    /// The body ended within the limit.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// The body exceeded the limit. The bytes include the frame that exceeded the limit.
    OverLimit(Bytes),
    /// The time limit ran out. The bytes are those read so far.
    TimedOut(Bytes),
    /// The body failed.
    Broken,
}

/// Reads a response body up to `limit` bytes and for at most `timeout`. The timeout starts when the
/// body first has to wait for a frame. Removes a replay mark from the trailers (HTTP-8).
pub(crate) async fn read_response<R>(
    mut body: Pin<&mut R>,
    limit: usize,
    timeout: Duration,
) -> ReadOutcome
where
    R: Body<Data = Bytes>,
{
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(limit);
    let mut buffer = BodyBuffer::default();
    let mut trailers = None::<Box<HeaderMap>>;
    let mut timer = FrameTimer::new(timeout);
    while !body.is_end_stream() {
        let frame = match poll_fn(|cx| timer.poll_frame(body.as_mut(), cx)).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(TimedOut) => return ReadOutcome::TimedOut(buffer.into_bytes()),
        };
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                buffer.push(data, expected);
                if buffer.len() > limit {
                    return ReadOutcome::OverLimit(buffer.into_bytes());
                }
            }
            Ok(Err(frame)) => {
                if let Ok(more) = frame.into_trailers() {
                    trailers.get_or_insert_default().extend(more);
                }
            }
            Err(_) => return ReadOutcome::Broken,
        }
    }
    if let Some(trailers) = &mut trailers {
        strip_replay_mark(trailers);
    }
    ReadOutcome::Whole(buffer.into_bytes(), trailers)
}

/// The time limit for all frames of a body together. The timer is created at the first wait,
/// because most bodies never wait.
pub(crate) struct FrameTimer {
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

/// The time limit ran out.
pub(crate) struct TimedOut;

impl FrameTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, timer: None }
    }

    /// Polls for the next frame; `None` means the end of the body.
    #[expect(
        clippy::type_complexity,
        reason = "the type is the output of `poll_frame`, plus the timeout"
    )]
    pub(crate) fn poll_frame<B: Body>(
        &mut self,
        body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Result<Frame<B::Data>, B::Error>>, TimedOut>> {
        match body.poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => {
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
                timer.as_mut().poll(cx).map(|()| Err(TimedOut))
            }
        }
    }
}

/// Whether the error means that an outer layer's limit was exceeded. The layer's error arrives
/// wrapped in other errors, so the whole chain of sources is searched.
fn is_length_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
