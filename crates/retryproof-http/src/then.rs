// SPDX-License-Identifier: MIT OR Apache-2.0
//! One future, then another made of its output. In an `async` block the first would keep its room while the second runs;
//! here they share it, and the action's task, which is moved into place several times, is half as large.

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

/// Awaits `first`, then what `next` makes of its output.
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
                    // It is there: the first future is replaced as soon as it has ended.
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
