// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polls a future to its end, or to its panic.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// A panic on its way.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

pin_project! {
    /// Its output is that of the future; a panic of it is an `Err`. What the future borrowed is not
    /// looked at again after a panic. A type of its own, because an `async fn` would hold the
    /// future twice.
    #[project = CatchProjection]
    pub(crate) enum Catch<F> {
        Running { #[pin] future: F },
        Panicked { panic: Option<PanicPayload> },
    }
}

/// Awaits `future`, and catches.
pub(crate) fn catch<F: Future>(future: F) -> Catch<F> {
    Catch::Running { future }
}

/// Makes a future and awaits it; both may panic.
pub(crate) fn catch_from<F: Future>(make: impl FnOnce() -> F) -> Catch<F> {
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(future) => Catch::Running { future },
        Err(panic) => Catch::Panicked { panic: Some(panic) },
    }
}

impl<F: Future> Future for Catch<F> {
    type Output = Result<F::Output, PanicPayload>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            CatchProjection::Panicked { panic } => {
                panic.take().map_or(Poll::Pending, |panic| Poll::Ready(Err(panic)))
            }
            CatchProjection::Running { future } => {
                match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
                    Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
                    Ok(Poll::Pending) => Poll::Pending,
                    Err(panic) => Poll::Ready(Err(panic)),
                }
            }
        }
    }
}
