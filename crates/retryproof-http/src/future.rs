// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ResponseFuture`]: the answer of a guarded service. What passes is not boxed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;

use crate::body::GuardedBody;
use crate::fate::AnswerFate;

type Boxed<R, E> = Pin<Box<dyn Future<Output = Result<Response<GuardedBody<R>>, E>> + Send>>;

pin_project! {
    /// The future of [`IdempotencyService`](crate::IdempotencyService).
    ///
    /// Dropped before the lease was granted, nothing ran. Dropped later, the handler goes on in its
    /// own task and its answer is there for the retry (HTTP-12).
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        kind: Kind<F, R, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, R, E> {
        Pass { #[pin] future: F },
        Inside { #[pin] future: F },
        Answered { answer: Option<Response<GuardedBody<R>>> },
        Guarded { future: Boxed<R, E> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) fn pass(future: F) -> Self {
        Self { kind: Kind::Pass { future } }
    }

    pub(crate) fn inside(future: F) -> Self {
        Self { kind: Kind::Inside { future } }
    }

    pub(crate) fn answered(answer: Response<GuardedBody<R>>) -> Self {
        Self { kind: Kind::Answered { answer: Some(answer) } }
    }

    pub(crate) fn guarded(future: Boxed<R, E>) -> Self {
        Self { kind: Kind::Guarded { future } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<GuardedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Pass { future } => {
                Poll::Ready(ready!(future.poll(cx)).map(|mut response| {
                    AnswerFate::take(response.extensions_mut());
                    response.map(GuardedBody::inner)
                }))
            }
            KindProjection::Inside { future } => Poll::Ready(
                ready!(future.poll(cx)).map(|response| response.map(GuardedBody::inner)),
            ),
            // Polled again after its answer it has none; pending is what a fused future would be
            // too.
            KindProjection::Answered { answer } => {
                answer.take().map_or(Poll::Pending, |answer| Poll::Ready(Ok(answer)))
            }
            KindProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
