// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bodies of guarded requests and their responses (HTTP-4, HTTP-5).

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::call::RunningCall;
use crate::header_map::strip_replay_mark;

mod read;

#[cfg(feature = "grpc")]
pub(crate) use read::{BodyBuffer, FrameTimer, TimedOut};
pub(crate) use read::{BodyError, ReadOutcome, RequestBody, read_request, read_response};

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// A whole body in memory, with its trailers. `Debug` shows only the length (ID-4).
#[derive(Clone, Default)]
pub struct ReplayBody {
    data: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl ReplayBody {
    pub(crate) fn new(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { data, trailers: trailers.filter(|map| !map.is_empty()) }
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn trailers_mut(&mut self) -> Option<&mut HeaderMap> {
        self.trailers.as_deref_mut()
    }

    pub(crate) fn into_parts(self) -> (Bytes, Option<Box<HeaderMap>>) {
        (self.data, self.trailers)
    }
}

impl From<Bytes> for ReplayBody {
    fn from(data: Bytes) -> Self {
        Self { data, trailers: None }
    }
}

impl Body for ReplayBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(*trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let len = self.data.len() as u64;
        // With an exact size hint, the server would send `Content-Length` instead of chunks, and an
        // HTTP/1.1 response without chunks cannot have trailers.
        if self.trailers.is_none() {
            return SizeHint::with_exact(len);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(len);
        hint
    }
}

impl fmt::Debug for ReplayBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayBody({} bytes)", self.data.len())
    }
}

pin_project! {
    /// The body of a response that went through the guard: the inner service's body, bytes from the
    /// guard, or both. In the last case, the guard has read the first part of the body, and the
    /// rest follows.
    pub struct GuardedBody<B> {
        first: ReplayBody,
        #[pin]
        rest: BodyTail<B>,
        // This flag says whether `rest` is a handler's body. Like header fields, trailers from a
        // handler must not contain the replay mark (HTTP-8).
        of_handler: bool,
    }
}

pin_project! {
    #[project = BodyTailProjection]
    enum BodyTail<B> {
        Nothing,
        Inner { #[pin] body: B },
        // The guard has already polled this body, so the body must not move. It therefore stays
        // inside the pinned call.
        Read { call: Pin<Box<RunningCall<B>>> },
    }
}

impl<B> GuardedBody<B> {
    /// Wraps the inner service's body unchanged.
    pub fn inner(body: B) -> Self {
        Self { first: ReplayBody::default(), rest: BodyTail::Inner { body }, of_handler: false }
    }

    /// Wraps a guarded handler's unread body. A replay mark in its trailers is removed.
    pub(crate) fn of_handler(body: B) -> Self {
        Self { of_handler: true, ..Self::inner(body) }
    }

    /// A whole body.
    pub(crate) fn replay(body: ReplayBody) -> Self {
        Self { first: body, rest: BodyTail::Nothing, of_handler: false }
    }

    /// Creates a body that yields the bytes in `read`, and then the rest of the body from `call`.
    pub(crate) fn chain(read: Bytes, mut call: Pin<Box<RunningCall<B>>>) -> Self {
        call.as_mut().forget_request();
        Self { first: read.into(), rest: BodyTail::Read { call }, of_handler: true }
    }

    /// Returns the whole body. If part of the body is still to be read, returns `self` as an `Err`.
    pub(crate) fn into_whole(self) -> Result<ReplayBody, Self> {
        match self {
            Self { first, rest: BodyTail::Nothing, .. } => Ok(first),
            more => Err(more),
        }
    }
}

#[cfg(feature = "axum")]
impl GuardedBody<axum_core::body::Body> {
    /// Converts to axum's body. If the inner body is already an axum body, it is not boxed again.
    pub(crate) fn into_axum(self) -> axum_core::body::Body {
        match self {
            Self { first, rest: BodyTail::Inner { body }, of_handler: false }
                if first.is_end_stream() =>
            {
                body
            }
            Self { first, rest: BodyTail::Nothing, .. } => axum_core::body::Body::new(first),
            chained => axum_core::body::Body::new(chained),
        }
    }
}

impl<B: Body<Data = Bytes>> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if !this.first.is_end_stream() {
            return Pin::new(this.first).poll_frame(cx).map_err(|never| match never {});
        }
        let mut frame = ready!(match this.rest.project() {
            BodyTailProjection::Nothing => return Poll::Ready(None),
            BodyTailProjection::Inner { body } if !*this.of_handler => return body.poll_frame(cx),
            BodyTailProjection::Inner { body } => body.poll_frame(cx),
            BodyTailProjection::Read { call } => {
                let body = call.as_mut().response_body_mut();
                body.map_or(Poll::Ready(None), |body| body.poll_frame(cx))
            }
        });
        if *this.of_handler
            && let Some(trailers) =
                frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut())
        {
            strip_replay_mark(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_end_stream() && self.rest.body().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(rest) = self.rest.body() else { return self.first.size_hint() };
        let (first, rest) = (self.first.data.len() as u64, rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(first)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl<B> BodyTail<B> {
    fn body(&self) -> Option<&B> {
        match self {
            Self::Nothing => None,
            Self::Inner { body } => Some(body),
            Self::Read { call } => call.response_body(),
        }
    }
}

impl<B> fmt::Debug for GuardedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedBody")
            .field("first", &self.first)
            .field("rest", &self.rest.body().is_some())
            .finish()
    }
}

/// A request body type that the guard can create from the bytes in its buffer (HTTP-5).
///
/// Implemented for axum's body, for the boxed bodies of `http-body-util`, and for [`GuardedBody`],
/// which wraps any other body:
/// `service.map_request(|r: Request<Incoming>| r.map(GuardedBody::inner))`.
/// # When to use
/// Implement this trait for your own body type if inner services need exactly that type. Otherwise
/// wrap the body in [`GuardedBody`].
///
/// ```
/// use std::pin::Pin;
/// use std::task::{Context, Poll};
/// use bytes::Bytes;
/// use http_body::{Body, Frame};
/// use retryproof_http::{FromReplay, ReplayBody};
///
/// /// Wherever the bytes come from, the inner service sees one type.
/// enum Upload { Replay(ReplayBody) /* , File(..) */ }
///
/// impl Body for Upload {
///     type Data = Bytes;
///     type Error = std::convert::Infallible;
///
///     fn poll_frame(
///         self: Pin<&mut Self>,
///         cx: &mut Context<'_>,
///     ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
///         match self.get_mut() {
///             Self::Replay(body) => Pin::new(body).poll_frame(cx),
///         }
///     }
/// }
///
/// impl FromReplay for Upload {
///     fn from_replay(body: ReplayBody) -> Self {
///         Self::Replay(body)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the guard reads the request body into memory, but cannot create a `{Self}` from the \
               bytes that it has read",
    label = "the guarded service takes a request body of this type",
    note = "use `retryproof::http::GuardedBody`, axum's body or a boxed body of \
            `http-body-util`, or implement `FromReplay`"
)]
pub trait FromReplay: Body<Data = Bytes> + Sized {
    /// Creates a body that yields the buffered bytes.
    fn from_replay(body: ReplayBody) -> Self;
}

impl FromReplay for ReplayBody {
    fn from_replay(body: ReplayBody) -> Self {
        body
    }
}

impl<B: Body<Data = Bytes>> FromReplay for GuardedBody<B> {
    fn from_replay(body: ReplayBody) -> Self {
        Self::replay(body)
    }
}

impl<E: 'static> FromReplay for http_body_util::combinators::BoxBody<Bytes, E> {
    fn from_replay(body: ReplayBody) -> Self {
        http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(
            body,
            |never| match never {},
        ))
    }
}

impl<E: 'static> FromReplay for http_body_util::combinators::UnsyncBoxBody<Bytes, E> {
    fn from_replay(body: ReplayBody) -> Self {
        http_body_util::BodyExt::boxed_unsync(http_body_util::BodyExt::map_err(body, |never| {
            match never {}
        }))
    }
}

#[cfg(feature = "axum")]
impl FromReplay for axum_core::body::Body {
    fn from_replay(body: ReplayBody) -> Self {
        Self::new(body)
    }
}

#[cfg(test)]
mod tests;
