// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts bodies between actix and the guard: a request's payload, its buffered bytes, and a
//! response's body in both directions.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use retryproof_http::GuardedBody;

/// The payload of a request as an `http_body::Body`, which the guard reads.
pub(crate) struct PayloadBody {
    pub(crate) payload: Payload,
    /// The declared length in bytes, or 0 if none is declared.
    pub(crate) declared: u64,
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = PayloadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PayloadError>>> {
        // actix drops a request's trailers, so every frame is data.
        Pin::new(&mut self.get_mut().payload)
            .poll_next(cx)
            .map(|data| data.map(|data| data.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.declared);
        hint
    }
}

/// Holds the body's bytes for a payload that an extractor took before the grant. Until the grant,
/// the cell is empty (ANN-6).
#[derive(Default)]
pub(crate) struct PayloadCell(RefCell<PayloadState>);

#[derive(Default)]
struct PayloadState {
    data: Option<Bytes>,
    /// Wakes a reader that polled before the bytes were available.
    reader: Option<Waker>,
}

impl PayloadCell {
    pub(crate) fn fill(&self, data: Bytes) {
        let mut state = self.0.borrow_mut();
        state.data = Some(data);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

/// The payload that extractors get before the grant. It yields the body's bytes only after the
/// grant.
pub(crate) struct DeferredPayload<D>(pub(crate) Rc<D>);

impl<D: AsRef<PayloadCell> + 'static> DeferredPayload<D> {
    pub(crate) fn into_payload(self) -> Payload {
        Payload::Stream { payload: Box::pin(self) }
    }
}

impl<D: AsRef<PayloadCell>> Stream for DeferredPayload<D> {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = (*self.0).as_ref().0.borrow_mut();
        match &mut state.data {
            Some(data) if data.is_empty() => Poll::Ready(None),
            Some(data) => Poll::Ready(Some(Ok(std::mem::take(data)))),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pin_project! {
    /// The body of a handler's response as an `http_body::Body`, which the guard reads.
    pub(crate) struct HandlerBody<B> {
        #[pin]
        body: B,
        // The bytes that are still to come, if the body declared its size. The size is read only
        // once, because some bodies reduce it as they yield bytes, and others never change it.
        left: Option<u64>,
    }
}

impl<B: MessageBody> HandlerBody<B> {
    pub(crate) fn new(body: B) -> Self {
        let left = match body.size() {
            BodySize::None => Some(0),
            BodySize::Sized(len) => Some(len),
            BodySize::Stream => None,
        };
        Self { body, left }
    }
}

impl<B: MessageBody> Body for HandlerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let data = ready!(this.body.poll_next(cx));
        if let (Some(left), Some(Ok(data))) = (this.left, &data) {
            *left = left.saturating_sub(data.len() as u64);
        }
        Poll::Ready(data.map(|data| data.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

pin_project! {
    /// A response body that is still being streamed, as an actix `MessageBody`.
    pub(crate) struct ActixBody<B> {
        #[pin]
        body: GuardedBody<HandlerBody<B>>,
    }
}

impl<B> ActixBody<B> {
    pub(crate) fn new(body: GuardedBody<HandlerBody<B>>) -> Self {
        Self { body }
    }
}

impl<B: MessageBody> MessageBody for ActixBody<B> {
    type Error = Box<dyn StdError>;

    fn size(&self) -> BodySize {
        self.body.size_hint().exact().map_or(BodySize::Stream, BodySize::Sized)
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let mut body = self.project().body;
        loop {
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Skip trailers, because actix sends no trailers.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The body of a response to HEAD: no bytes, only the length that the body of a GET would have.
pub(crate) struct LengthAlone(pub(crate) u64);

impl MessageBody for LengthAlone {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.0)
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Poll::Ready(None)
    }
}
