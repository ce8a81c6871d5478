// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`collect`]: a request body, gathered whole (HTTP-4, HTTP-5).

use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::LengthLimitError;
use retryproof_core::Fingerprint;

use super::BoxError;
use crate::protocol::decide::OversizeBody;
use crate::protocol::fingerprint::FingerprintHasher;

/// Bytes gathered from frames: a single frame is kept as it came, more are copied together, so that
/// a body in many tiny frames does not pin a read buffer for each.
#[derive(Default)]
pub(crate) struct Gathered {
    first: Bytes,
    all: Vec<u8>,
}

impl Gathered {
    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// `expected` is how much there will be in all, as far as it is known.
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

/// A request body, whole.
pub(crate) struct Collected {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    /// The fingerprint, when it was hashed as it came.
    pub(crate) digest: Option<Fingerprint>,
}

/// Why a request body could not be had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CollectError {
    TooLarge(OversizeBody),
    Unreadable,
}

/// Whether the length that a body declares is over the limit: then not a byte of it is read
/// (HTTP-4).
pub(crate) fn declares_more(body: &impl Body, limit: usize) -> bool {
    body.size_hint().lower() > limit as u64
}

/// Reads a request body up to `limit` bytes (HTTP-4, HTTP-5). One that comes in one piece, as most
/// do, is not hashed here: it is hashed in one go with the rest of the request. Any other is hashed
/// as it comes.
#[expect(clippy::manual_async_fn, reason = "an `async fn` is larger")]
pub(crate) fn collect<B>(
    body: B,
    limit: usize,
    hasher: impl FnOnce() -> Option<FingerprintHasher>,
) -> impl Future<Output = Result<Collected, CollectError>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    async move {
        let mut body = pin!(body);
        let first = poll_fn(|cx| Collecting::begin(body.as_mut(), cx, limit)).await;
        let mut open = match first {
            Ok(whole) => return whole,
            Err(open) => open,
        };
        open.hasher = hasher();
        if let Some(hasher) = &mut open.hasher {
            hasher.update(open.gathered.so_far());
        }
        poll_fn(|cx| open.poll(body.as_mut(), cx)).await?;
        Ok(open.end())
    }
}

/// A body that is being read.
struct Collecting {
    gathered: Gathered,
    trailers: Option<Box<HeaderMap>>,
    hasher: Option<FingerprintHasher>,
    limit: usize,
    expected: usize,
}

impl Collecting {
    /// The first poll, and each as long as nothing came: some servers poll a service before they
    /// look at the body. An `Err` goes on; it is on the heap, so that the future of a body that
    /// comes in one piece has no room for it.
    fn begin<B>(
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
        limit: usize,
    ) -> Poll<Result<Result<Collected, CollectError>, Box<Self>>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(limit);
        let mut reading =
            Self { gathered: Gathered::default(), trailers: None, hasher: None, limit, expected };
        match reading.poll(body.as_mut(), cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Ok(reading.end()))),
            Poll::Ready(Err(error)) => Poll::Ready(Ok(Err(error))),
            Poll::Pending if reading.gathered.len() == 0 && reading.trailers.is_none() => {
                Poll::Pending
            }
            Poll::Pending => Poll::Ready(Err(Box::new(reading))),
        }
    }

    fn poll<B>(
        &mut self,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), CollectError>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        while let Some(frame) = ready!(body.as_mut().poll_frame(cx)) {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    if data.len() > self.limit - self.gathered.len() {
                        return Poll::Ready(Err(CollectError::TooLarge(OversizeBody::Partly)));
                    }
                    if let Some(hasher) = &mut self.hasher {
                        hasher.update(&data);
                    }
                    self.gathered.push(data, self.expected);
                }
                Ok(Err(frame)) => {
                    if let Ok(more) = frame.into_trailers() {
                        self.trailers.get_or_insert_default().extend(more);
                    }
                }
                Err(error) => {
                    return Poll::Ready(Err(match is_length_limit(&*error.into()) {
                        true => CollectError::TooLarge(OversizeBody::Partly),
                        false => CollectError::Unreadable,
                    }));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end(self) -> Collected {
        Collected {
            data: self.gathered.into_bytes(),
            trailers: self.trailers,
            digest: self.hasher.map(FingerprintHasher::finish),
        }
    }
}

/// Whether a limit of somebody outside was met: its error arrives wrapped, so the whole chain is
/// searched.
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
