// SPDX-License-Identifier: MIT OR Apache-2.0
//! Combines two futures that do not exist at the same time, so that both use the same memory:
//! [`then`] runs one after the other, and [`Either`] holds only one of the two. In an `async`
//! block, the first future would keep its space while the second runs. The handler's task would
//! then be twice as large, and it is moved several times before it starts.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

pin_project! {
    /// See [`then`].
    #[project = ThenProjection]
    pub(crate) enum Then<A, B, F> {
        First { #[pin] future: A, next: Option<F> },
        Second { #[pin] future: B },
    }
}

/// Awaits `first`, then the future that `next` creates from its output.
pub(crate) fn then<A, B, F>(first: A, next: F) -> Then<A, B, F>
where
    A: Future,
    B: Future,
    F: FnOnce(A::Output) -> B,
{
    Then::First { future: first, next: Some(next) }
}

impl<A, B, F> Future for Then<A, B, F>
where
    A: Future,
    B: Future,
    F: FnOnce(A::Output) -> B,
{
    type Output = B::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<B::Output> {
        loop {
            let second = match self.as_mut().project() {
                ThenProjection::Second { future } => return future.poll(cx),
                ThenProjection::First { future, next } => {
                    let output = ready!(future.poll(cx));
                    // `next` is present, because the second future replaces the first as soon as
                    // the first ends.
                    match next.take() {
                        Some(next) => next(output),
                        None => return Poll::Pending,
                    }
                }
            };
            self.set(Self::Second { future: second });
        }
    }
}

pin_project! {
    /// Holds the future of the usual path inline. The future of a rare path is boxed, because one
    /// more allocation does no harm there.
    #[project = EitherProjection]
    pub(crate) enum Either<A, B> {
        Usual { #[pin] future: A },
        Rare { future: Pin<Box<B>> },
    }
}

impl<A, B> Either<A, B> {
    /// Wraps the future of the usual path.
    pub(crate) fn usual(future: A) -> Self {
        Self::Usual { future }
    }

    /// Boxes the future of a rare path.
    pub(crate) fn rare(future: B) -> Self {
        Self::Rare { future: Box::pin(future) }
    }
}

impl<A: Future, B: Future<Output = A::Output>> Future for Either<A, B> {
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        match self.project() {
            EitherProjection::Usual { future } => future.poll(cx),
            EitherProjection::Rare { future } => future.as_mut().poll(cx),
        }
    }
}
