// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polls a future to its end, or to its panic.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// A panic on its way.
pub(crate) type Panic = Box<dyn Any + Send>;

/// Awaits `future`; a panic of it is an `Err`. What the future borrowed is not looked at again after a panic.
pub(crate) async fn catch<F: Future>(future: F) -> Result<F::Output, Panic> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
